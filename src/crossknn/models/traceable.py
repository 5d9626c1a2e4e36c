"""What can be exported: torch models of several makers, each as a module with the ONNX contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.backbone import position_limit, states
from crossknn.models.cross_encoder import SETTINGS as CROSS_ENCODER
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import SETTINGS as DUAL_ENCODER
from crossknn.models.dual_encoder import DualEncoderModel, Tower
from crossknn.models.folder import ITEM_MODEL
from crossknn.models.partial import partial


@dataclass(frozen=True, kw_only=True)
class Traceable:
    """A model ready to be traced.

    modules: file name -> module from (input_ids, attention_mask, token_type_ids), (b, t) each, to
    scores (b,) or vectors (b, d). tokenizer: the content of a tokenizer.json. settings: what the
    folder's manifest holds beyond the rest.
    """

    kind: Literal["cross-encoder", "dual-encoder"]
    name: str
    modules: dict[str, nn.Module]
    tokenizer: str
    max_length: int
    pad_token_id: int
    settings: Mapping[str, object] = field(default_factory=dict)


def cross_encoder(model: str | Path | Any, max_length: int | None) -> Traceable:
    """A folder or hub name, a `CrossEncoderModel`, or a sentence-transformers `CrossEncoder`.

    Raises InputError if it has not exactly one label or no trained head.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    if isinstance(model, (str, Path)) and (Path(model) / CROSS_ENCODER).is_file():
        return _own_cross_encoder(
            CrossEncoderModel.from_pretrained(model), Path(model).name, max_length
        )
    if isinstance(model, CrossEncoderModel):
        return _own_cross_encoder(model, type(model).__name__, max_length)
    if isinstance(model, (str, Path)):
        source = str(model)
        config = AutoConfig.from_pretrained(source)
        _one_label(config, source)
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            source, output_loading_info=True, attn_implementation="eager"
        )
        missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
        if missing:
            raise InputError(
                f"{source} has no trained classification head ({missing[0]} is missing): "
                "pass a cross-encoder, not an encoder or an [EMB] checkpoint"
            )
        tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True)
    else:
        loaded, tokenizer, source = model.model, model.tokenizer, "cross-encoder"
        _one_label(loaded.config, source)
    return Traceable(
        kind="cross-encoder",
        name=Path(source).name,
        modules={"model.onnx": partial(loaded) or _Logits(loaded)},
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        max_length=min(max_length or 10**9, _limit(loaded.config, tokenizer)),
        pad_token_id=int(tokenizer.pad_token_id or 0),
    )


def dual_encoder(model: str | Path | Any, max_length: int | None) -> Traceable:
    """A folder or hub name, a `DualEncoderModel`, or a `SentenceTransformer` that pools by mean.

    Raises InputError for other layers than Transformer, mean Pooling and Normalize.
    """
    from sentence_transformers import SentenceTransformer

    if isinstance(model, (str, Path)) and (Path(model) / DUAL_ENCODER).is_file():
        return _own_dual_encoder(DualEncoderModel.from_pretrained(model), Path(model).name)
    if isinstance(model, DualEncoderModel):
        return _own_dual_encoder(model, type(model).__name__)
    source = str(model) if isinstance(model, (str, Path)) else "dual-encoder"
    loaded = SentenceTransformer(source, device="cpu") if isinstance(model, (str, Path)) else model
    kinds = [type(module).__name__ for module in loaded]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"}:
        raise InputError(
            f"{source} is made of {', '.join(kinds)}: only Transformer, Pooling and Normalize "
            "can be exported"
        )
    if getattr(loaded[1], "pooling_mode", None) not in (
        "mean",
        ("mean",),
        ["mean"],
    ) and not getattr(loaded[1], "pooling_mode_mean_tokens", False):
        raise InputError(
            f"{source} does not pool by the mean of its tokens: other poolings are not supported"
        )
    encoder, tokenizer = loaded[0].auto_model, loaded.tokenizer
    encoder.set_attn_implementation("eager")
    limit = min(
        max_length or 10**9, int(loaded.max_seq_length or 512), _limit(encoder.config, tokenizer)
    )
    return Traceable(
        kind="dual-encoder",
        name=Path(source).name,
        modules={"model.onnx": Tower(encoder, "mean", True)},
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        max_length=limit,
        pad_token_id=int(tokenizer.pad_token_id or 0),
    )


def _own_cross_encoder(model: CrossEncoderModel, name: str, max_length: int | None) -> Traceable:
    model.encoder.set_attn_implementation("eager")
    window = model.config.window
    settings: dict[str, object] = {}
    if window.query_length is not None and window.item_length is not None:
        settings = {"query_length": window.query_length, "item_length": window.item_length}
    return Traceable(
        kind="cross-encoder",
        name=name,
        modules={"model.onnx": partial(model) or model},
        tokenizer=model.fast_tokenizer.to_str(),
        max_length=min(max_length or window.max_length, window.max_length),
        pad_token_id=model.tokenizer.padding,
        settings=settings | {"marked": model.config.marked},
    )


def _own_dual_encoder(model: DualEncoderModel, name: str) -> Traceable:
    towers: dict[str, nn.Module] = {"model.onnx": model.query}
    if not model.config.shared:
        towers[ITEM_MODEL] = model.item
    for tower in towers.values():
        tower.encoder.set_attn_implementation("eager")
    window = model.config.window
    return Traceable(
        kind="dual-encoder",
        name=name,
        modules=towers,
        tokenizer=model.fast_tokenizer.to_str(),
        max_length=window.max_length,
        pad_token_id=model.tokenizer.padding,
        settings={
            "query_length": window.query_length,
            "item_length": window.item_length,
            "marked": model.config.marked,
        },
    )


class _Logits(nn.Module):  # type: ignore[misc]
    """The one logit of a sequence-classification model."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return states(
            self.inner, input_ids, attention_mask, token_type_ids, read=lambda found: found.logits
        )[:, 0]


def _one_label(config: Any, source: str) -> None:
    made_of = [str(name) for name in getattr(config, "architectures", None) or ()]
    if made_of and not any(name.endswith("ForSequenceClassification") for name in made_of):
        raise InputError(
            f"{source} is a {made_of[0]}, which has no classification head: pass a cross-encoder"
        )
    if int(config.num_labels) != 1:
        raise InputError(
            f"{source} has {config.num_labels} labels: crossknn needs one raw score per pair "
            "(num_labels=1)"
        )


def _limit(config: Any, tokenizer: Any) -> int:
    return min(position_limit(config), int(min(tokenizer.model_max_length, 10**6)))
