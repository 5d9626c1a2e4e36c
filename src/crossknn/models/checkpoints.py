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

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from crossknn.errors import InputError, nearest
from crossknn.models.backbone import open_backbone, open_tokenizer, position_limit
from crossknn.models.bert import Weights, bert, load, refuse
from crossknn.models.cross_encoder import SETTINGS as CROSS_ENCODER
from crossknn.models.cross_encoder import ClsHead, CrossEncoderConfig, CrossEncoderModel
from crossknn.models.dual_encoder import SETTINGS as DUAL_ENCODER
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn.models.folder import MANIFEST
from crossknn.models.hub import existing, snapshot
from crossknn.models.late_interaction.base import SETTINGS as LATE_INTERACTION
from crossknn.models.late_interaction.base import LateInteractionConfig, LateInteractionModel
from crossknn.models.pickles import Checkpoint, Inert, read_checkpoint
from crossknn.models.weights import has_head, is_bi_encoder, weight_names

Layout = Literal["zeshel-emb", "zeshel-cls", "zeshel-dual", "cmc", "msmarco-emb"]
Model: TypeAlias = CrossEncoderModel | DualEncoderModel | LateInteractionModel

LAYOUTS: tuple[str, ...] = get_args(Layout)
_FILES = ("*.ckpt", "*.torch", "*.pt", "*.pth", "*.bin")
_OURS = (MANIFEST, CROSS_ENCODER, DUAL_ENCODER, LATE_INTERACTION)
_HALF = 128
"""Tokens of a query and of an item in the published models."""
_WIKIPEDIA_QUERY = 32
"""Tokens of a query to Wikipedia in CMC's code."""
_CMC_TOWERS = ("mention_encoder.", "entity_encoder.")
_CMC_STACK = "extend_multi_transformerencoder.layers."
_CMC_LAYER = {
    "read.": "self_attn.in_proj_",
    "write.": "self_attn.out_proj.",
    "attention_norm.": "norm1.",
    "wide.": "linear1.",
    "narrow.": "linear2.",
    "norm.": "norm2.",
}
"""Parts of a layer of ours and of `torch.nn.TransformerEncoderLayer`."""
_CMC_OPTIONS = {
    "type_model": "extend_multi_dot",
    "num_mention_vecs": 1,
    "batch_first": True,
    "token_type": False,
    "layernorm": False,
    "skip_connection": False,
}
"""Options of CMC's code with which it computes what the paper describes."""


def open_checkpoint(
    source: str | Path, *, layout: Layout | None = None, encoder: str | Path | None = None
) -> Model:
    """Open a published checkpoint; `save_pretrained` then writes a folder that opens by itself.

    Args:
        source: a file, a folder with one, or a hub name. Pickles are read as data
            (`crossknn.models.pickles`). layout: one of `LAYOUTS`; pickles say by their keys which
            one theirs is. encoder: the folder or hub name of the model that a pickled checkpoint
            was trained from (bert-base-uncased): its tokenizer, which a checkpoint does not hold,
            and its `config.json` if it has one, else heads are 64 wide. Not needed if the
            tokenizer's files lie beside the checkpoint.

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
    checkpoint = read_checkpoint(path)
    weights = Weights.of(checkpoint)
    said = _settings(checkpoint)
    layout = layout or _layout(path, weights, said)
    beside = path.parent if any(path.parent.glob("tokenizer*.json")) else None
    if encoder is None and beside is None:
        raise InputError(
            f"{path} holds no tokenizer: give the model that it was trained from as encoder "
            "(bert-base-uncased for the published ones)"
        )
    base = encoder if encoder is not None else beside
    assert base is not None
    weights = weights.named(layout)
    if layout == "zeshel-dual":
        return _dual(weights, base, said)
    if layout == "cmc":
        return _cmc(weights, base, said)
    return _cross(weights, base, said, "emb" if layout == "zeshel-emb" else "cls")


def _cross(
    weights: Weights, base: str | Path, said: Mapping[str, Any], head: Literal["emb", "cls"]
) -> CrossEncoderModel:
    pooling = said.get("pooling_type", "cls_w_lin")
    if head == "cls" and pooling not in ("cls", "cls_w_lin"):
        raise InputError(f"{weights.path} pools by {pooling!r}; only cls and cls_w_lin are known")
    pooler = head == "cls" and pooling == "cls_w_lin"
    linear = ("encoder.additional_linear.weight", "encoder.additional_linear.bias")
    weights.check_prefixes(("encoder.bert_model.",), linear if head == "cls" else ())
    encoder, tokenizer = bert(weights, "encoder.bert_model.", base, pooler=pooler)
    query, item = _halves(said)
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
    if isinstance(model.head, ClsHead):
        load(weights, model.head.out, {"weight": linear[0], "bias": linear[1]})
        if model.head.dense is not None:
            dense = "encoder.bert_model.pooler.dense."
            load(weights, model.head.dense, {key: dense + key for key in ("weight", "bias")})
    return model.eval()


def _dual(weights: Weights, base: str | Path, said: Mapping[str, Any]) -> DualEncoderModel:
    pooling = said.get("pooling_type", "cls")
    if pooling != "cls":
        raise InputError(f"{weights.path} pools by {pooling!r}; only cls is known")
    shared = any(name.startswith("encoder.bert_model.") for name in weights.stored)
    prefixes = ("encoder.bert_model.",) * 2
    if not shared:
        prefixes = ("input_encoder.bert_model.", "label_encoder.bert_model.")
    weights.check_prefixes(prefixes, ())
    encoder, tokenizer = bert(weights, prefixes[0], base)
    other = encoder if shared else bert(weights, prefixes[1], base)[0]
    query, item = _halves(said)
    config = DualEncoderConfig(
        pooling="cls",
        normalize=False,
        shared=shared,
        marked=True,
        query_length=query,
        item_length=item,
    )
    return DualEncoderModel(encoder, other, tokenizer, config).eval()


def _cmc(weights: Weights, base: str | Path, said: Mapping[str, Any]) -> LateInteractionModel:
    """Layers in an `encoder_layer` keep half of their input; others have no skip of their own."""
    query_length, item_length = _cmc_lengths(weights.path, said)
    older = {n.replace("extend_multi.", "extend_multi_", 1): s for n, s in weights.stored.items()}
    weights = replace(weights, stored=older)
    weights.check_prefixes((*_CMC_TOWERS, "extend_multi_"), ())
    stack = weights.under(_CMC_STACK)
    inner = "encoder_layer." if any(".encoder_layer." in name for name in stack) else ""
    count = len({name.split(".")[0] for name in stack})
    if "0.weight" in stack:
        raise InputError(
            f"{weights.path} has learned how much of a layer's input to keep "
            f"({_CMC_STACK}0.weight); only the fixed half (fixed_initial_weight) is known"
        )
    names = {
        f"layers.{n}.{own}{kind}": f"{_CMC_STACK}{n}.{inner}{theirs}{kind}"
        for n in range(count)
        for own, theirs in _CMC_LAYER.items()
        for kind in ("weight", "bias")
    }
    there = {_CMC_STACK + name for name in stack}
    absent, foreign = set(names.values()) - there, there - set(names.values())
    if absent or foreign or not count:
        absent = absent or {f"{_CMC_STACK}*"}
        raise refuse(f"{weights.path} is no cmc checkpoint", absent, foreign)
    encoder, tokenizer = bert(weights, _CMC_TOWERS[0], base)
    config = LateInteractionConfig(
        kind="cmc",
        pooling="cls",
        marked=True,
        query_length=query_length,
        item_length=item_length,
        options={
            "layers": count,
            "heads": said["num_heads"],
            "feed_forward": weights.stored[names["layers.0.wide.weight"]].shape[0],
            "variant": "reference" if inner else "none",
        },
    )
    item = bert(weights, _CMC_TOWERS[1], base)[0]
    model = LateInteractionModel(encoder, item, tokenizer, config)
    load(weights, model.head, names)
    return model.eval()


def _cmc_lengths(path: Path, said: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item; InputError for options that make another model."""
    data, whole = said.get("dataset", "zeshel"), said.get("L")
    if type(said.get("num_heads")) is not int or type(whole) is not int or whole < 64:
        raise InputError(
            f"{path} does not say how its run was set up: it lacks opt with num_heads and L"
        )
    wanted = {**_CMC_OPTIONS, "inputmark": True} if data == "zeshel" else _CMC_OPTIONS
    for name, known in wanted.items():
        if said.get(name, known) != known:
            raise InputError(
                f"{path} was trained with {name} = {said[name]!r}; only {known!r} is known"
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
    _not_ours(folder, source)
    if is_bi_encoder(folder):
        raise InputError(
            f"{source} is a bi-encoder: it encodes texts one by one and scores no pair"
        )
    names = weight_names(folder, str(source))
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
    _not_ours(there, source)
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


def _not_ours(folder: Path, source: str | Path) -> None:
    for name in _OURS:
        if (folder / name).exists():
            raise InputError(f"{source} has {name}: it is a crossknn model already")


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What the configuration object in a checkpoint says, if there is one."""
    found: Any = checkpoint.content
    of_cmc = isinstance(found, Mapping) and "opt" in found
    for key in ("opt",) if of_cmc else ("hyper_parameters", "config"):
        found = found.items if isinstance(found, Inert) else found
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    found = found.items if isinstance(found, Inert) else found
    return found if isinstance(found, Mapping) else {}


def _layout(path: Path, weights: Weights, said: Mapping[str, Any]) -> Layout:
    names = weights.stored
    if any(name.startswith("extend_multi") for name in names):
        return "cmc"
    if any(name.startswith(("input_encoder.", "label_encoder.")) for name in names):
        return "zeshel-dual"
    if any(name.startswith("encoder.additional_linear.") for name in names):
        return "zeshel-cls"
    if any(name.startswith("encoder.bert_model.") for name in names):
        return "zeshel-dual" if said.get("model_type") == "bi_enc" else "zeshel-emb"
    known = "model.encoder.bert_model.*, model.input_encoder.bert_model.*, extend_multi_*"
    raise refuse(f"{path} has the keys of no known layout", {known}, set(names))


def _halves(said: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item, `[CLS]` and `[SEP]` counted in both."""
    found = (said.get("max_input_len", _HALF), said.get("max_label_len", _HALF))
    if not all(isinstance(half, int) and half >= 8 for half in found):
        raise InputError(f"the checkpoint's max_input_len and max_label_len are {found}")
    return found
