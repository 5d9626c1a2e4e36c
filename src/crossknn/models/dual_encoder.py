"""Dual encoders: queries and items become vectors apart, by two towers or one (AXN, A.1).

Axes: b rows, t tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError
from crossknn.models.backbone import open_backbone, position_limit, states, tensors
from crossknn.models.saved import read_settings, write_model
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window

SETTINGS = "dual_encoder.json"
ITEM_TOWER = "item"
"""The subfolder of the item tower, where the towers are two."""


@dataclass(frozen=True, kw_only=True)
class DualEncoderConfig:
    """What a dual encoder is, beside its weights.

    pooling: "mean" of the tokens' states, "cls", the first one, or "marks", the mean of the marks'
    states, which are those an [EMB]-CE reads. normalize: whether vectors have
    unit length. shared: one tower for both. marked: whether mentions and titles are marked.
    query_length, item_length: tokens, special ones included.
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

    @property
    def window(self) -> Window:
        return Window.of_each(self.query_length, self.item_length)


class Tower(nn.Module):  # type: ignore[misc]
    """Vectors of single texts: (b, t) three times -> (b, d)."""

    def __init__(
        self, encoder: Any, pooling: str, normalize: bool, marks: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize
        self.marks = tuple(marks)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        found = states(self.encoder, input_ids, attention_mask, token_type_ids)
        if self.pooling == "cls":
            vectors = found[:, 0]
        else:
            mask = attention_mask.float()
            if self.pooling == "marks":
                mask = torch.stack([input_ids == mark for mark in self.marks]).any(0).float()
            vectors = (found * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return functional.normalize(vectors, dim=-1) if self.normalize else vectors


class DualEncoderModel(nn.Module):  # type: ignore[misc]
    """Two towers, or one for both; see the module's docstring."""

    def __init__(
        self,
        query_encoder: Any,
        item_encoder: Any,
        tokenizer: FastTokenizer,
        config: DualEncoderConfig,
    ) -> None:
        super().__init__()
        limit = position_limit(query_encoder.config)
        if config.window.max_length > limit:
            raise InputError(
                f"query_length or item_length is {config.window.max_length}; the encoder has "
                f"{limit} positions"
            )
        self.config = config
        self.fast_tokenizer = tokenizer
        self.tokenizer = Tokenizer(tokenizer)
        self.encoding = Encoding(self.tokenizer, config.window, marked=config.marked)
        towers = [
            Tower(encoder, config.pooling, config.normalize, self.tokenizer.marks)
            for encoder in (query_encoder, item_encoder)
        ]
        self.query, self.item = towers[0], towers[0 if config.shared else 1]

    @classmethod
    def new(cls, source: str | Path, config: DualEncoderConfig) -> Self:
        """An untrained dual encoder, both towers from the encoder of a folder or hub name."""
        encoder, tokenizer = open_backbone(source, marked=config.marked)
        other = encoder if config.shared else open_backbone(source, marked=config.marked)[0]
        return cls(encoder, other, tokenizer, config)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """What `save_pretrained` wrote; InputError for anything else."""
        folder = Path(folder)
        known = {field.name for field in fields(DualEncoderConfig)}
        config = DualEncoderConfig(**read_settings(folder / SETTINGS, "dual encoder", known))
        encoder, tokenizer = open_backbone(folder, marked=config.marked)
        other = encoder if config.shared else open_backbone(folder / ITEM_TOWER)[0]
        return cls(encoder, other, tokenizer, config).eval()

    def save_pretrained(self, folder: str | Path, card: str | None = None) -> Path:
        """Write a Hugging Face folder (the query tower), `item/` if the item tower is another."""
        encoders = {"": (self.query.encoder, self.fast_tokenizer)}
        if not self.config.shared:
            encoders[ITEM_TOWER] = (self.item.encoder, self.fast_tokenizer)
        return write_model(
            Path(folder),
            encoders=encoders,
            head={},
            settings=SETTINGS,
            content={"kind": "dual encoder", **asdict(self.config)},
            card=card,
        )

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return int(self.query.encoder.config.hidden_size)

    def forward(self, rows: Sequence[Row], *, queries: bool) -> Tensor:
        """Rows of single texts (b) -> vectors (b, d)."""
        tower = self.query if queries else self.item
        device = next(self.parameters()).device
        padding, limit = self.tokenizer.padding, self.config.window.max_length
        vectors: Tensor = tower(*tensors(list(rows), padding, limit, device))
        return vectors
