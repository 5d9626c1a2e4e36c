"""Published checkpoints of others, opened as models of ours.

- "zeshel-emb", "zeshel-cls", "zeshel-dual": ANNCUR's entity-linking models (Yadav et al. 2022, A.1
  and A.2), BERTs in PyTorch Lightning files. The query's half was padded before the item was put
  behind it, so an item's positions begin where that padding ended, whatever the query's length.
- "cmc": CMC for entity linking (Song et al. 2024), the files that its authors' code saves
  (yc-song/cmc, branch master, `main_reranker.py`): two BERTs, a `torch.nn.TransformerEncoder` and
  the options of the run (`opt`), which say how many heads it has and how long the texts were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from crossknn.data.queries import MARKS
from crossknn.errors import InputError, first_line
from crossknn.models.folder import existing, refusing, snapshot
from crossknn_train.models.backbone import UNUSED, add_marks, open_tokenizer
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel

Model: TypeAlias = CrossEncoderModel | DualEncoderModel | LateInteractionModel

PREFIXES: Mapping[str, Mapping[str, str]] = {
    "cmc": {
        "mention_encoder.": "query",
        "entity_encoder.": "item",
        "extend_multi_transformerencoder.": "head",
    },
    "zeshel-dual": {"input_encoder.bert_model.": "query", "label_encoder.bert_model.": "item"},
    "zeshel-cls": {"encoder.bert_model.": "query", "encoder.additional_linear.": "head"},
    "zeshel-emb": {"encoder.bert_model.": "query"},
}
"""How the names of a layout's weights begin, and which part of the model they are."""

_FILES = ("*.ckpt", "*.torch", "*.pt", "*.pth", "*.bin")
_HALF = 128
"""Tokens of a query and of an item in the published models."""
_WIKIPEDIA_QUERY = 32
"""Tokens of a query to Wikipedia in CMC's code."""
_CMC_OPTIONS = {
    "type_model": "extend_multi_dot",
    "num_mention_vecs": 1,
    "batch_first": True,
    "token_type": False,
    "layernorm": False,
    "skip_connection": False,
}
"""Options of CMC's code with which it computes what the paper describes."""
_CMC_NAMES = {
    "layers.": "layers.",
    "encoder_layer.": "",
    "self_attn.in_proj_": "in_proj.",
    "self_attn.out_proj.": "out_proj.",
}
"""Parts of names in its stack of layers, and ours."""


def open_checkpoint(source: str | Path, *, encoder: str | Path) -> Model:
    """Open a published checkpoint; `save_pretrained` then writes a folder that opens by itself.

    Args:
        source: a file, a folder with one, or a hub name. Pickles are read as data.
        encoder: the folder or hub name of the model that the checkpoint was trained from
            (bert-base-uncased): its tokenizer and configuration, which a checkpoint does not hold.
    """
    path = _file(source)
    weights, options = read_checkpoint(path)
    found = _recognized(path, weights, options, encoder)
    if found.layout == "cmc":
        return _cmc(found, options)
    return _dual(found, options) if found.layout == "zeshel-dual" else _cross(found, options)


class Inert:
    """In the place of a class or function that a pickle names: makes a mapping of any arguments.

    The state of an object becomes the attributes of that mapping.
    """

    def __new__(cls, *_: object) -> Any:
        return OrderedDict()


class Number(Inert):
    """In the place of NumPy's numbers, whose state is no mapping."""

    def __new__(cls, *_: object) -> Any:
        return object.__new__(cls)

    def __setstate__(self, state: object) -> None: ...


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read the tensors of a checkpoint by name, and the options of its run; nothing in it is run.
    Torch reads tensors and plain containers; any class that it would refuse becomes `Inert`."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        harmless = [(Number if name.startswith("numpy.") else Inert, name) for name in names]
        with torch.serialization.safe_globals(harmless):
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a pickle can be wrong in any way
        known = isinstance(error, FileNotFoundError | ValueError)
        why = first_line(error) if known else "it is damaged, or does more than hold data"
        raise InputError(f"{path} is not a readable torch checkpoint: {why}") from error
    content = content if isinstance(content, Mapping) else {}
    states = next((content[key] for key in ("state_dict", "sd") if key in content), content)
    named = states.items() if isinstance(states, Mapping) else ()
    weights = {
        str(name).removeprefix("model."): value
        for name, value in named
        if isinstance(value, Tensor)
    }
    if not weights:
        raise InputError(f"{path} holds no weights: a state_dict is needed")
    options: Any = content
    for key in ("opt",) if "opt" in content else ("hyper_parameters", "config"):
        options = options.get(key, {}) if isinstance(options, Mapping) else {}
        options = {**options, **vars(options)} if isinstance(options, OrderedDict) else options
    return weights, options if isinstance(options, Mapping) else {}


# Models from weights


@dataclass(frozen=True, kw_only=True)
class _Checkpoint:
    """Weights of the model's parts by their names there, and whose tokenizer they need."""

    path: Path
    layout: str
    parts: Mapping[str, Mapping[str, Tensor]]
    base: str | Path

    def load(self, module: Any, weights: Mapping[str, Tensor]) -> None:
        """Fill a module; `InputError` for names or shapes of another one."""
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            why = shorten(str(error).partition(":")[2].replace("\n", " "), 240)
            raise InputError(
                f"{self.path} is no {self.layout} checkpoint trained from {self.base}: {why}"
            ) from None

    def bert(self, part: str) -> tuple[Any, FastTokenizer]:
        """The BERT of a part without its pooler, and its marked tokenizer."""
        from transformers import AutoConfig, AutoModel

        found = {
            name: value
            for name, value in self.parts[part].items()
            if not name.endswith("position_ids") and not name.startswith("pooler.")
        }
        with refusing(f"cannot read the configuration of {self.base}"):
            config = AutoConfig.from_pretrained(str(self.base), trust_remote_code=False)
        if config.model_type != "bert":
            raise InputError(f"{self.base} is a {config.model_type}, and {self.path} holds a BERT")
        encoder = AutoModel.from_config(config, attn_implementation="sdpa")
        encoder.pooler = None
        self.load(encoder, found)
        return encoder, self._tokenizer(encoder)

    def _tokenizer(self, encoder: Any) -> FastTokenizer:
        fast = open_tokenizer(self.base).backend_tokenizer
        size = encoder.get_input_embeddings().num_embeddings
        vocabulary = fast.get_vocab()
        known = any(all(name in vocabulary for name in names) for names in (MARKS, UNUSED))
        marked = add_marks(fast, encoder) if known and len(vocabulary) <= size else fast
        if not known or marked.get_vocab_size() > size:
            raise InputError(
                f"{self.path} was not trained with the tokenizer of {self.base}: it has "
                f"{len(vocabulary)} tokens for {size} vectors, and needs {', '.join(UNUSED)}; give "
                "its own encoder"
            )
        return marked


def _recognized(
    path: Path, weights: Mapping[str, Tensor], options: Mapping[str, Any], base: str | Path
) -> _Checkpoint:
    """The checkpoint of the layout whose names the weights have; `InputError` if of none."""
    for layout, prefixes in PREFIXES.items():
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in weights.items():
            for prefix, part in prefixes.items():
                if name.startswith(prefix):
                    parts.setdefault(part, {})[name.removeprefix(prefix)] = value
        if len(parts) == len(prefixes) and sum(map(len, parts.values())) == len(weights):
            if layout == "zeshel-emb" and options.get("model_type") == "bi_enc":
                layout = "zeshel-dual"  # of one tower
            return _Checkpoint(path=path, layout=layout, parts=parts, base=base)
    raise InputError(
        f"{path} is of no known layout: these have weights under "
        f"{'; '.join(', '.join(prefixes) for prefixes in PREFIXES.values())}, and it has "
        f"{shorten(', '.join(sorted(weights)), 160)}"
    )


def _cross(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> CrossEncoderModel:
    emb = checkpoint.layout == "zeshel-emb"
    pooling = options.get("pooling_type", "cls_w_lin")
    if not emb:
        _known(checkpoint, "pooling_type", pooling, ("cls", "cls_w_lin"))
    encoder, tokenizer = checkpoint.bert("query")
    query, item = _halves(options)
    config = CrossEncoderConfig(
        head="emb" if emb else "cls",
        marked=True,
        query_length=query,
        item_length=item - 1,  # counted with a [CLS], which is taken away
        max_length=query + item - 1,
        item_position=query,
        pooler=emb or pooling == "cls_w_lin",
    )
    model = CrossEncoderModel([encoder], tokenizer, config)
    if not emb:
        pooler = checkpoint.parts["query"] if config.pooler else {}
        dense = {n.removeprefix("pooler."): v for n, v in pooler.items() if "pooler." in n}
        head = {f"out.{name}": value for name, value in checkpoint.parts["head"].items()}
        checkpoint.load(model.head, head | dense)
    return model.eval()


def _dual(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> DualEncoderModel:
    _known(checkpoint, "pooling_type", options.get("pooling_type", "cls"), ("cls",))
    shared = "item" not in checkpoint.parts
    encoder, tokenizer = checkpoint.bert("query")
    other = encoder if shared else checkpoint.bert("item")[0]
    query, item = _halves(options)
    config = DualEncoderConfig(
        pooling="cls",
        normalize=False,
        shared=shared,
        marked=True,
        query_length=query,
        item_length=item,
    )
    return DualEncoderModel([encoder, other], tokenizer, config).eval()


def _cmc(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> LateInteractionModel:
    """Layers in an `encoder_layer` keep half of their input; others have no skip of their own."""
    query_length, item_length = _cmc_lengths(checkpoint, options)
    theirs, stack = checkpoint.parts["head"], {}
    for name, value in theirs.items():
        for part, ours in _CMC_NAMES.items():
            name = name.replace(part, ours)
        stack[name] = value
    forward = stack.get("layers.0.linear1.weight")
    config = LateInteractionConfig(
        head="cmc",
        pooling="cls",
        marked=True,
        query_length=query_length,
        item_length=item_length,
        options={
            "layers": len({name.split(".")[1] for name in theirs}),
            "heads": options["num_heads"],
            "feed_forward": 1 if forward is None else forward.shape[0],
            "variant": "reference" if any("encoder_layer." in name for name in theirs) else "none",
        },
    )
    encoder, tokenizer = checkpoint.bert("query")
    model = LateInteractionModel([encoder, checkpoint.bert("item")[0]], tokenizer, config)
    checkpoint.load(model.head, stack)
    return model.eval()


def _cmc_lengths(checkpoint: _Checkpoint, options: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item; InputError for options that make another model."""
    data, whole = options.get("dataset", "zeshel"), options.get("L")
    if type(options.get("num_heads")) is not int or type(whole) is not int or whole < 64:
        raise InputError(
            f"{checkpoint.path} does not say how its run was set up: it lacks opt with num_heads "
            "and L"
        )
    _known(checkpoint, "dataset", data, ("zeshel", "wikipedia"))
    wanted = _CMC_OPTIONS | ({"inputmark": True} if data == "zeshel" else {})
    for name, known in wanted.items():
        _known(checkpoint, name, options.get(name, known), (known,))
    query = whole // 2 if data == "zeshel" else _WIKIPEDIA_QUERY
    return query, whole // 2 if data == "zeshel" else whole - query


def _known(checkpoint: _Checkpoint, name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise InputError(
            f"{checkpoint.path} was trained with {name} = {value!r}; only "
            f"{' and '.join(map(repr, known))} can be opened"
        )


def _halves(options: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item, `[CLS]` and `[SEP]` counted in both."""
    halves = (options.get("max_input_len", _HALF), options.get("max_label_len", _HALF))
    if not all(isinstance(half, int) and half >= 8 for half in halves):
        raise InputError(f"the checkpoint's max_input_len and max_label_len are {halves}")
    return halves


def _file(source: str | Path) -> Path:
    """The one checkpoint file that `source` is or has."""
    there = existing(source) or snapshot(str(source), None, (*_FILES, "*.json", "*.txt"))
    if there.is_file():
        return there
    files = sorted(path for pattern in _FILES for path in there.glob(pattern))
    if len(files) != 1 or (there / "config.json").is_file():
        found = f"{len(files)} ({files[0].name}, ...)" if files else "none"
        raise InputError(
            f"{source} must hold one checkpoint file ({', '.join(_FILES)}) and no config.json, and "
            f"has {found}"
        )
    return files[0]
