"""Published checkpoints of others, opened as models of ours.

- "zeshel-emb", "zeshel-cls", "zeshel-dual": ANNCUR's entity-linking models (Yadav et al. 2022, A.1
  and A.2), BERTs in PyTorch Lightning files. The query's half was padded before the item was put
  behind it, so an item's positions begin where that padding ended, whatever the query's length.
- "msmarco-emb": an [EMB]-CE for plain texts as a Hugging Face folder without a head; the score is
  the inner product of the states of `[CLS]` and of the first `[SEP]`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from crossknn.models.pickles import Checkpoint, Inert, read_checkpoint
from crossknn.models.weights import has_head, is_bi_encoder, weight_names

Layout = Literal["zeshel-emb", "zeshel-cls", "zeshel-dual", "msmarco-emb"]
Model: TypeAlias = CrossEncoderModel | DualEncoderModel

LAYOUTS: tuple[str, ...] = get_args(Layout)
_FILES = ("*.ckpt", "*.torch", "*.pt", "*.pth", "*.bin")
_OURS = (MANIFEST, CROSS_ENCODER, DUAL_ENCODER)
_HALF = 128
"""Tokens of a query and of an item in the published models."""


def open_checkpoint(
    source: str | Path, *, layout: Layout | None = None, encoder: str | Path | None = None
) -> Model:
    """Open a published checkpoint; `save_pretrained` then writes a folder that opens by itself.

    Args:
        source: a file, a folder with one, or a hub name. Pickles are read as data
            (`crossknn.models.pickles`). layout: one of `LAYOUTS`; ZESHEL files say by their keys
            which one theirs is. encoder: the folder or hub name of the model that a ZESHEL
            checkpoint was trained from (bert-base-uncased): its tokenizer, which a checkpoint does
            not hold, and its `config.json` if it has one, else heads are 64 wide. Not needed if
            the tokenizer's files lie beside the checkpoint.

    Raises:
        InputError: for another architecture (naming keys that are missing or do not belong), for a
            model with a classification head or a bi-encoder given as [EMB], or without tokenizer.
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
    for key in ("hyper_parameters", "config"):
        found = found.items if isinstance(found, Inert) else found
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    found = found.items if isinstance(found, Inert) else found
    return found if isinstance(found, Mapping) else {}


def _layout(path: Path, weights: Weights, said: Mapping[str, Any]) -> Layout:
    names = weights.stored
    if any(name.startswith(("input_encoder.", "label_encoder.")) for name in names):
        return "zeshel-dual"
    if any(name.startswith("encoder.additional_linear.") for name in names):
        return "zeshel-cls"
    if any(name.startswith("encoder.bert_model.") for name in names):
        return "zeshel-dual" if said.get("model_type") == "bi_enc" else "zeshel-emb"
    known = "model.encoder.bert_model.*, model.input_encoder.bert_model.*"
    raise refuse(f"{path} has the keys of no known layout", {known}, set(names))


def _halves(said: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a query and of an item, `[CLS]` and `[SEP]` counted in both."""
    found = (said.get("max_input_len", _HALF), said.get("max_label_len", _HALF))
    if not all(isinstance(half, int) and half >= 8 for half in found):
        raise InputError(f"the checkpoint's max_input_len and max_label_len are {found}")
    return found
