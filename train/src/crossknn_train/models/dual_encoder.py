"""Dual encoders encode queries and items separately into vectors, with one or two towers (AXN,
A.1).

Axes: b rows, t tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError
from crossknn.models.folder import MANIFEST, is_bi_encoder, model_folder
from crossknn.scorers.library import open_library
from crossknn_train.models.backbone import masked_mean, open_backbone, position_limit, states
from crossknn_train.models.base import TorchModel


@dataclass(frozen=True, kw_only=True)
class DualEncoderConfig:
    """The settings of a dual encoder.

    Args:
        pooling: "mean" of the token states, "cls" for the first token's state, or "marks" for the
            mean state of the marks, as in an [EMB]-CE.
        normalize: whether vectors have unit length.
        shared: whether queries and items use the same tower.
        marked: whether mentions and titles are marked.
        query_length, item_length: maximum tokens, including special tokens.
    """

    pooling: Literal["mean", "cls", "marks"] = "mean"
    normalize: bool = True
    shared: bool = True
    marked: bool = False
    query_length: int = 128
    item_length: int = 128

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls", "marks"):
            raise InputError(f"pooling is {self.pooling!r}; it must be 'mean', 'cls' or 'marks'")
        if self.pooling == "marks" and not self.marked:
            raise InputError("pooling 'marks' needs marked = true")


class Tower(nn.Module):  # type: ignore[misc]
    """Encodes single texts as vectors: three token arrays (b, t) -> (b, d)."""

    def __init__(
        self, encoder: Any, pooling: str, normalize: bool, marks: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize
        self.marks = tuple(marks)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        last = states(self.encoder, input_ids, attention_mask, token_type_ids)
        if self.pooling == "cls":
            vectors = last[:, 0]
        else:
            mask = attention_mask.float()
            if self.pooling == "marks":
                mask = torch.stack([input_ids == mark for mark in self.marks]).any(0).float()
            vectors = masked_mean(last, mask)
        return functional.normalize(vectors, dim=-1) if self.normalize else vectors


class DualEncoderModel(TorchModel):
    """A dual encoder with two towers, or one shared tower; see the module's docstring."""

    SETTINGS, Config = "dual_encoder.json", DualEncoderConfig

    def __init__(self, encoders: Sequence[Any], tokenizer: FastTokenizer, config: Any) -> None:
        super().__init__(encoders, tokenizer, config)
        self.dimensions = int(encoders[0].config.hidden_size)
        settings = config.pooling, config.normalize, self.tokenizer.marks
        self.query = Tower(encoders[0], *settings)
        self.item = self.query if config.shared else Tower(encoders[1], *settings)

    @classmethod
    def new(cls, source: str | Path, config: DualEncoderConfig) -> Self:
        """Make an untrained dual encoder, both towers from the encoder of a folder or hub name."""
        encoder, tokenizer = open_backbone(source, marked=config.marked)
        other = encoder if config.shared else open_backbone(source, marked=config.marked)[0]
        return cls([encoder, other], tokenizer, config)


def trainable(source: str | Path) -> tuple[Path, DualEncoderModel | None]:
    """Return the local folder of a model, and its dual encoder or None. A dual encoder comes from
    crossknn-train, or is a sentence-transformers model that pools by "mean" or "cls"."""
    folder = None if str(source) == "bundled" else model_folder(source)
    if folder is None or (folder / MANIFEST).is_file():
        raise InputError(
            f"{source} is an ONNX model, whose weights cannot be trained: name a torch model"
        )
    if (folder / DualEncoderModel.SETTINGS).is_file():
        return folder, DualEncoderModel.from_pretrained(folder)
    if not is_bi_encoder(folder):
        return folder, None
    loaded = open_library("SentenceTransformer", str(folder), f"the encoder {source}", device="cpu")
    kinds = [type(module).__name__ for module in loaded]
    pooling = loaded[1].pooling_mode if kinds[1:2] == ["Pooling"] else None
    if kinds[0] != "Transformer" or pooling not in ("mean", "cls") or {*kinds[2:]} - {"Normalize"}:
        raise InputError(
            f"{source} consists of {', '.join(kinds)} ({pooling}): only Transformer, Pooling "
            "by mean or cls, and Normalize can be trained"
        )
    limit = position_limit(loaded[0].auto_model.config)
    length = min(int(loaded.max_seq_length or 512), limit)
    lengths: dict[str, Any] = {"query_length": length, "item_length": length}
    config = DualEncoderConfig(pooling=pooling, normalize="Normalize" in kinds, **lengths)
    return folder, DualEncoderModel.new(folder, config)
