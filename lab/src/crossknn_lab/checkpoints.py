"""Published checkpoints of others, opened as models of ours.

- "zeshel-emb", "zeshel-cls", "zeshel-dual": ANNCUR's entity-linking models (Yadav et al. 2022, A.1
  and A.2), BERTs in PyTorch Lightning files. The query's half was padded before the item was put
  behind it, so an item's positions begin where that padding ended, whatever the query's length.
- "cmc": CMC for entity linking (Song et al. 2024), the files that its authors' code saves
  (yc-song/cmc, branch master, `main_reranker.py`): two BERTs, a `torch.nn.TransformerEncoder` and
  the options of the run (`opt`), which say how many heads it has and how long the texts were.
- "msmarco-emb": an [EMB]-CE for plain texts as a Hugging Face folder without a head; the score is
  the inner product of the states of `[CLS]` and of the first `[SEP]`. Unverified: no published
  checkpoint was at hand to compare with.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, get_args

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from crossknn.data.queries import MARKS
from crossknn.errors import InputError, nearest
from crossknn.models.backbone import (
    UNUSED,
    add_marks,
    open_backbone,
    open_tokenizer,
    position_limit,
)
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn.models.folder import (
    KINDS,
    MANIFEST,
    existing,
    first_line,
    has_head,
    is_bi_encoder,
    snapshot,
    weight_names,
)
from crossknn.models.late.model import LateInteractionConfig, LateInteractionModel

Layout = Literal["zeshel-emb", "zeshel-cls", "zeshel-dual", "cmc", "msmarco-emb"]
Model: TypeAlias = CrossEncoderModel | DualEncoderModel | LateInteractionModel

LAYOUTS: tuple[str, ...] = get_args(Layout)
_FILES = ("*.ckpt", "*.torch", "*.pt", "*.pth", "*.bin")
_HALF = 128
"""Tokens of a query and of an item in the published models."""
_WIKIPEDIA_QUERY = 32
"""Tokens of a query to Wikipedia in CMC's code."""
_CMC_TOWERS = ("mention_encoder.", "entity_encoder.")
_CMC_STACK = "extend_multi_transformerencoder.layers."
_CMC_OPTIONS = {
    "type_model": "extend_multi_dot",
    "num_mention_vecs": 1,
    "batch_first": True,
    "token_type": False,
    "layernorm": False,
    "skip_connection": False,
}
"""Options of CMC's code with which it computes what the paper describes."""
_HEAD_WIDTH = 64
_SHAPES = {
    "vocab_size": ("embeddings.word_embeddings.weight", 0),
    "hidden_size": ("embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
"""Settings of a BERT: the weight and the axis that say them."""


def open_checkpoint(
    source: str | Path, *, layout: Layout | None = None, encoder: str | Path | None = None
) -> Model:
    """Open a published checkpoint; `save_pretrained` then writes a folder that opens by itself.

    Args:
        source: a file, a folder with one, or a hub name. Pickles are read as data.
        layout: one of `LAYOUTS`; pickles say by their keys which one theirs is.
        encoder: the folder or hub name of the model that a pickled checkpoint was trained from
            (bert-base-uncased): its tokenizer, which a checkpoint does not hold, and its
            `config.json` if it has one, else heads are 64 wide. Not needed if the tokenizer's files
            lie beside the checkpoint.

    Raises:
        InputError: for another architecture (naming keys that are missing or do not belong), for a
            model with a classification head or a bi-encoder given as [EMB], without tokenizer, or
            for a CMC trained with options that make another model of it.
    """
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"unknown layout {layout!r}: {nearest(layout, LAYOUTS)}")
    if layout == "msmarco-emb":
        return _headless(source)
    path = _file(source, layout)
    weights, options = read_checkpoint(path)
    if not weights:
        raise InputError(f"{path} holds no weights: a state_dict is needed")
    layout = layout or _layout(path, weights, options)
    if encoder is None and not any(path.parent.glob("tokenizer*.json")):
        raise InputError(
            f"{path} holds no tokenizer: give the model that it was trained from as encoder "
            "(bert-base-uncased for the published ones)"
        )
    base = encoder if encoder is not None else path.parent
    checkpoint = _Checkpoint(path=path, weights=weights, layout=layout, base=base)
    if layout == "zeshel-dual":
        return _dual(checkpoint, options)
    if layout == "cmc":
        return _cmc(checkpoint, options)
    return _cross(checkpoint, options, "emb" if layout == "zeshel-emb" else "cls")


# Files that torch.save wrote, read as data: nothing that a pickle names is ever run


class Inert:
    """In the place of an object whose class is not let through: its state, and no behaviour."""

    def __new__(cls, *arguments: object, **keywords: object) -> Inert:
        self = super().__new__(cls)
        self.items = {}
        return self

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.items: dict[Any, Any]

    def __call__(self, *arguments: object, **keywords: object) -> Inert:
        return Inert()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.items.update(state)

    def __setitem__(self, key: object, value: object) -> None:
        self.items[key] = value

    def append(self, value: object) -> None:
        """Lists and sets are of no use here."""

    add = extend = append


class RestrictedUnpickler(pickle.Unpickler):
    """Lets tensors and plain containers through; any other name becomes an `Inert` object.

    A pickle is a program: `torch.load` runs it, or with `weights_only` refuses every checkpoint
    that holds a configuration object.
    """

    def find_class(self, module: str, name: str) -> Any:
        # Made anew each time: a pickle can set attributes of what it is given.
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda *given: torch._utils._rebuild_tensor(*given[:4])
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *rest: data
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return tuple
        return type("Inert", (Inert,), {})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The tensors of a checkpoint by name, and the options of its run; nothing in it is run.

    Raises InputError for a file that `torch.save` did not write, and for a damaged one.
    """
    restricted = SimpleNamespace(
        __name__="pickle",
        Unpickler=RestrictedUnpickler,
        load=lambda file, **options: RestrictedUnpickler(file, **options).load(),
    )
    try:
        with path.open("rb") as file:
            start = file.read(2)
        if is_zip := start == b"PK":
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
            if any(entry.compress_type or "constants.pkl" in entry.filename for entry in entries):
                raise ValueError("it is compressed, or a program")
        elif start[:1] != b"\x80":
            raise pickle.UnpicklingError("it does not begin as one")
        content = torch.load(
            path, map_location="cpu", mmap=is_zip, weights_only=False, pickle_module=restricted
        )
    except Exception as error:  # a pickle can be wrong in any way
        reason = str(error) if type(error) in (ValueError, FileNotFoundError) else "it is damaged"
        raise InputError(f"{path} is not a readable torch checkpoint: {reason}") from error
    content = content if isinstance(content, Mapping) else {}
    states = next((content[key] for key in ("state_dict", "sd") if key in content), content)
    named = states.items() if isinstance(states, Mapping) else ()
    weights = {str(name).removeprefix("model."): value for name, value in named}
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    return tensors, _options(content)


def _options(content: Any) -> Mapping[str, Any]:
    """What the configuration object in a checkpoint says, if there is one."""
    for key in ("opt",) if "opt" in content else ("hyper_parameters", "config"):
        content = content.items if isinstance(content, Inert) else content
        content = content.get(key, {}) if isinstance(content, Mapping) else {}
    content = content.items if isinstance(content, Inert) else content
    return content if isinstance(content, Mapping) else {}


# Models from weights


@dataclass(frozen=True, kw_only=True)
class _Checkpoint:
    """Weights by name, without the trainer's `model.` before it, and whose tokenizer they need."""

    path: Path
    weights: Mapping[str, Tensor]
    layout: str
    base: str | Path

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The weights whose name begins with `prefix`, without it."""
        names = (name for name in self.weights if name.startswith(prefix))
        return {name.removeprefix(prefix): self.weights[name] for name in names}

    def check_prefixes(self, prefixes: tuple[str, ...], names: tuple[str, ...] = ()) -> None:
        """Raises InputError unless all lie under the prefixes but `names`, and all are there."""
        rest = {name for name in self.weights if not name.startswith(prefixes)}
        absent = {f"{prefix}*" for prefix in prefixes if not self.under(prefix)}
        absent |= set(names) - rest
        _refuse(f"{self.path} is no {self.layout} checkpoint", absent, rest - set(names))

    def load(self, module: Any, names: Mapping[str, str]) -> None:
        """Fill a module: its names -> the checkpoint's. Raises InputError for another shape."""
        expected = module.state_dict()
        for own, name in names.items():
            shape, wanted = tuple(self.weights[name].shape), tuple(expected[own].shape)
            if shape != wanted:
                raise InputError(f"{self.path}: {name} has the shape {shape}, expected {wanted}")
        module.load_state_dict({own: self.weights[name] for own, name in names.items()})

    def bert(self, prefix: str, *, pooler: bool = False) -> tuple[Any, FastTokenizer]:
        """The BERT under `prefix` without its pooler, and its marked tokenizer.

        `pooler` says whether its weights must be there. Raises InputError for another architecture.
        """
        from transformers import AutoModel

        found = {
            name: value
            for name, value in self.under(prefix).items()
            if not name.endswith("position_ids") and (pooler or not name.startswith("pooler."))
        }
        dense = {"pooler.dense.weight", "pooler.dense.bias"} if pooler else set()
        about = f"{self.path} is no {self.layout} checkpoint of a BERT"
        absent = {prefix + n for n in ({name for name, _ in _SHAPES.values()} | dense) - set(found)}
        foreign = {prefix + n for n in found if not n.startswith("enc")} if absent else set()
        _refuse(about, absent, foreign)
        config = self._config(found)
        encoder = AutoModel.from_config(config, attn_implementation="sdpa")
        encoder.pooler = None
        wanted = set(encoder.state_dict())
        absent = {prefix + name for name in wanted - set(found)}
        _refuse(about, absent, {prefix + name for name in set(found) - wanted - dense})
        self.load(encoder, {name: prefix + name for name in wanted})
        return encoder, self._tokenizer(encoder)

    def _config(self, found: Mapping[str, Tensor]) -> Any:
        """The configuration of `base`, which must agree with the shapes; without one, theirs."""
        from transformers import AutoConfig, BertConfig

        base, path = self.base, self.path
        sizes = {size: found[name].shape[axis] for size, (name, axis) in _SHAPES.items()}
        layers = {m[1] for name in found if (m := re.match(r"encoder\.layer\.(\d+)\.", name))}
        sizes["num_hidden_layers"] = len(layers)
        if Path(base).is_dir() and not (Path(base) / "config.json").is_file():
            heads, rest = divmod(sizes["hidden_size"], _HEAD_WIDTH)
            if rest:
                raise InputError(
                    f"{path} has a width of {sizes['hidden_size']}, which does not say how many "
                    f"attention heads it has: put the config.json of its encoder into {base}"
                )
            return BertConfig(**sizes, num_attention_heads=heads)
        try:
            config = AutoConfig.from_pretrained(str(base), trust_remote_code=False)
        except Exception as error:
            raise InputError(
                f"cannot read the configuration of {base}: {first_line(error)}"
            ) from error
        if config.model_type != "bert":
            raise InputError(f"{base} is a {config.model_type}, and {path} holds a BERT")
        for size, value in sizes.items():
            if getattr(config, size) != value:
                raise InputError(
                    f"{path} was not trained from {base}: {size} is {value} there and "
                    f"{getattr(config, size)} here"
                )
        return config

    def _tokenizer(self, encoder: Any) -> FastTokenizer:
        fast = open_tokenizer(self.base).backend_tokenizer
        size = encoder.get_input_embeddings().num_embeddings
        vocabulary = fast.get_vocab()
        if not any(all(name in vocabulary for name in names) for names in (MARKS, UNUSED)):
            raise InputError(
                f"the tokenizer of {self.base} has no {', '.join(UNUSED)}, with which {self.path} "
                "was trained to mark mentions and titles: give its own encoder"
            )
        marked = add_marks(fast, encoder) if fast.get_vocab_size() <= size else fast
        if marked.get_vocab_size() > size:
            raise InputError(
                f"the tokenizer of {self.base} has {marked.get_vocab_size()} tokens, and "
                f"{self.path} vectors for {size}: give its own encoder"
            )
        return marked


def _refuse(about: str, absent: set[str], foreign: set[str]) -> None:
    """Raises an error that names keys that are missing and keys that do not belong, if any."""
    parts = [f"it lacks {_few(absent)}"] if absent else []
    belong = "does not belong" if len(foreign) == 1 else "do not belong"
    parts += [f"it has {_few(foreign)}, which {belong}"] if foreign else []
    if parts:
        raise InputError(f"{about}: {' and '.join(parts)}")


def _few(names: set[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(sorted(names)[:count]) + more


def _cross(
    checkpoint: _Checkpoint, options: Mapping[str, Any], head: Literal["emb", "cls"]
) -> CrossEncoderModel:
    pooling = options.get("pooling_type", "cls_w_lin")
    if head == "cls" and pooling not in ("cls", "cls_w_lin"):
        raise InputError(
            f"{checkpoint.path} pools by {pooling!r}; only cls and cls_w_lin are known"
        )
    pooler = head == "cls" and pooling == "cls_w_lin"
    linear = {n: f"encoder.additional_linear.{n}" for n in ("weight", "bias") if head == "cls"}
    checkpoint.check_prefixes(("encoder.bert_model.",), tuple(linear.values()))
    encoder, tokenizer = checkpoint.bert("encoder.bert_model.", pooler=pooler)
    query, item = _halves(options)
    config = CrossEncoderConfig(
        head=head,
        marked=True,
        query_length=query,
        item_length=item - 1,  # counted with a [CLS], which is taken away
        max_length=query + item - 1,
        item_position=query,
        pooler=pooler if head == "cls" else True,
    )
    model = CrossEncoderModel(encoder, tokenizer, config)
    if head == "cls":
        checkpoint.load(model.head.out, linear)
    if pooler:
        dense = "encoder.bert_model.pooler.dense."
        checkpoint.load(model.head.dense, {key: dense + key for key in ("weight", "bias")})
    return model.eval()


def _dual(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> DualEncoderModel:
    pooling = options.get("pooling_type", "cls")
    if pooling != "cls":
        raise InputError(f"{checkpoint.path} pools by {pooling!r}; only cls is known")
    shared = any(name.startswith("encoder.bert_model.") for name in checkpoint.weights)
    towers = ("input_encoder.bert_model.", "label_encoder.bert_model.")
    prefixes = ("encoder.bert_model.",) * 2 if shared else towers
    checkpoint.check_prefixes(prefixes)
    encoder, tokenizer = checkpoint.bert(prefixes[0])
    other = encoder if shared else checkpoint.bert(prefixes[1])[0]
    query, item = _halves(options)
    settings: dict[str, Any] = {
        "pooling": "cls",
        "normalize": False,
        "shared": shared,
        "marked": True,
    }
    config = DualEncoderConfig(**settings, query_length=query, item_length=item)
    return DualEncoderModel(encoder, other, tokenizer, config).eval()


def _cmc(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> LateInteractionModel:
    """Layers in an `encoder_layer` keep half of their input; others have no skip of their own."""
    path = checkpoint.path
    query_length, item_length = _cmc_lengths(path, options)
    older = {
        name.replace("extend_multi.", "extend_multi_", 1): value
        for name, value in checkpoint.weights.items()
    }
    checkpoint = _Checkpoint(path=path, weights=older, layout="cmc", base=checkpoint.base)
    checkpoint.check_prefixes((*_CMC_TOWERS, "extend_multi_"))
    stack = checkpoint.under(_CMC_STACK)
    if "0.weight" in stack:
        raise InputError(
            f"{path} has learned how much of a layer's input to keep ({_CMC_STACK}0.weight); only "
            "the fixed half (fixed_initial_weight) is known"
        )
    inner = "encoder_layer." if any(".encoder_layer." in name for name in stack) else ""
    parts = ("in_proj", "out_proj", "norm1", "linear1", "linear2", "norm2")
    theirs = {"in_proj.": "self_attn.in_proj_", "out_proj.": "self_attn.out_proj."}
    count = len({name.split(".")[0] for name in stack})
    names = {
        f"layers.{n}.{part}.{kind}": f"{_CMC_STACK}{n}.{inner}{theirs.get(f'{part}.', f'{part}.')}"
        f"{kind}"
        for n in range(count)
        for part in parts
        for kind in ("weight", "bias")
    }
    there, wanted = {_CMC_STACK + name for name in stack}, set(names.values())
    absent = wanted - there if count else {f"{_CMC_STACK}*"}
    _refuse(f"{path} is no cmc checkpoint", absent, there - wanted)
    encoder, tokenizer = checkpoint.bert(_CMC_TOWERS[0])
    config = LateInteractionConfig(
        head="cmc",
        pooling="cls",
        marked=True,
        query_length=query_length,
        item_length=item_length,
        options={
            "layers": count,
            "heads": options["num_heads"],
            "feed_forward": checkpoint.weights[names["layers.0.linear1.weight"]].shape[0],
            "variant": "reference" if inner else "none",
        },
    )
    item = checkpoint.bert(_CMC_TOWERS[1])[0]
    model = LateInteractionModel(encoder, item, tokenizer, config)
    checkpoint.load(model.head, names)
    return model.eval()


def _cmc_lengths(path: Path, options: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item; InputError for options that make another model."""
    data, whole = options.get("dataset", "zeshel"), options.get("L")
    if type(options.get("num_heads")) is not int or type(whole) is not int or whole < 64:
        raise InputError(
            f"{path} does not say how its run was set up: it lacks opt with num_heads and L"
        )
    wanted = {**_CMC_OPTIONS, "inputmark": True} if data == "zeshel" else _CMC_OPTIONS
    for name, known in wanted.items():
        if options.get(name, known) != known:
            raise InputError(
                f"{path} was trained with {name} = {options[name]!r}; only {known!r} is known"
            )
    if data == "zeshel":
        return whole // 2, whole // 2
    if data == "wikipedia":
        return _WIKIPEDIA_QUERY, whole - _WIKIPEDIA_QUERY
    raise InputError(
        f"{path} was trained on {data!r}, whose texts have marks of their own; only zeshel and "
        "wikipedia are known"
    )


def _headless(source: str | Path) -> CrossEncoderModel:
    folder = existing(source) or snapshot(
        str(source), None, ("*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin")
    )
    if folder.is_file() or not (folder / "config.json").is_file():
        raise InputError(f"{source} is not a Hugging Face folder: it has no config.json")
    _check_foreign(folder, source)
    if is_bi_encoder(folder):
        raise InputError(
            f"{source} is a bi-encoder: it encodes texts one by one and scores no pair"
        )
    names = weight_names(folder)
    if names is not None and has_head(names):
        raise InputError(
            f"{source} has a classification head: it is no [EMB] checkpoint, and opens as it is"
        )
    encoder, tokenizer = open_backbone(folder)
    limit = min(position_limit(encoder.config), open_tokenizer(folder).model_max_length)
    config = CrossEncoderConfig(head="emb", max_length=int(limit))
    return CrossEncoderModel(encoder, tokenizer, config).eval()


def _file(source: str | Path, layout: str | None) -> Path:
    """The one checkpoint file that `source` is or has."""
    there = existing(source) or snapshot(str(source), None, (*_FILES, "*.json", "*.txt"))
    if there.is_file():
        return there
    _check_foreign(there, source)
    if layout is None and (there / "config.json").is_file():
        raise InputError(
            f"{source} is a Hugging Face folder, and nothing in it says how it scores: if it is an "
            "[EMB] checkpoint for plain texts, say so by the layout msmarco-emb"
        )
    files = sorted(path for pattern in _FILES for path in there.glob(pattern))
    if len(files) != 1:
        found = f"{len(files)} ({files[0].name}, ...)" if files else "none"
        raise InputError(
            f"{source} must hold one checkpoint file ({', '.join(_FILES)}), and has {found}"
        )
    return files[0]


def _check_foreign(folder: Path, source: str | Path) -> None:
    for name in (MANIFEST, *KINDS):
        if (folder / name).exists():
            raise InputError(f"{source} has {name}: it is a crossknn model already")


def _layout(path: Path, weights: Mapping[str, Tensor], options: Mapping[str, Any]) -> Layout:
    """Which of the layouts the keys are of; InputError if of none."""

    def has(*prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in weights)

    if has("extend_multi"):
        return "cmc"
    if has("input_encoder.", "label_encoder."):
        return "zeshel-dual"
    if has("encoder.additional_linear."):
        return "zeshel-cls"
    if has("encoder.bert_model."):
        return "zeshel-dual" if options.get("model_type") == "bi_enc" else "zeshel-emb"
    known = "model.encoder.bert_model.*, model.input_encoder.bert_model.*, extend_multi_*"
    _refuse(f"{path} has the keys of no known layout", {known}, set(weights))
    raise AssertionError("refused above")


def _halves(options: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item, `[CLS]` and `[SEP]` counted in both."""
    halves = (options.get("max_input_len", _HALF), options.get("max_label_len", _HALF))
    if not all(isinstance(half, int) and half >= 8 for half in halves):
        raise InputError(f"the checkpoint's max_input_len and max_label_len are {halves}")
    return halves
