"""Late-interaction models encode queries and items separately, then compare them (CMC, 2.2).

A tower encodes a text as one vector or as the states of its tokens; a head compares the states of a
query with the states of any number of candidates. Axes: b queries, c candidates, t tokens, d
dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from crossknn.errors import InputError, nearest
from crossknn.models.tokens import Row
from crossknn_train.models.backbone import add_marks, open_backbone, states
from crossknn_train.models.base import TorchModel
from crossknn_train.models.dual_encoder import DualEncoderConfig, Tower, trainable
from crossknn_train.models.heads import CMC, Deformer, Head, MixEncoder, Poly, Reads, SumOfMax

HEADS: dict[str, type[Head]] = {
    "cmc": CMC,
    "poly": Poly,
    "som": SumOfMax,
    "deformer": Deformer,
    "mixencoder": MixEncoder,
}
Frozen = Literal["none", "items", "both"]


@dataclass(frozen=True, kw_only=True)
class LateInteractionConfig:
    """The settings of a late-interaction model.

    Args:
        head: "cmc", "poly", "som", "deformer" or "mixencoder".
        pooling: as in `DualEncoderConfig`; None: the pooling of the start model, or "cls".
        marked, query_length, item_length, shared: as in `DualEncoderConfig`.
        options: options of the head; missing options get their defaults.
    """

    head: str
    pooling: Literal["cls", "mean", "marks"] | None = None
    marked: bool = False
    query_length: int = 128
    item_length: int = 128
    shared: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise InputError(
                f"the late-interaction model {self.head!r} is unknown ({nearest(self.head, HEADS)})"
            )
        object.__setattr__(self, "options", HEADS[self.head].options(self.options))
        DualEncoderConfig(pooling=self.pooling or "cls", marked=self.marked)


class LateTower(Tower):
    """Encodes texts as states: three arrays (b, t) -> (b, t, d), or (b, 1, d), and the mask."""

    def __init__(self, encoder: Any, reads: Reads, pooling: str, marks: Sequence[int]) -> None:
        super().__init__(encoder, pooling, normalize=False, marks=marks)
        self.reads = reads

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.reads == "tokens":
            last = states(self.encoder, input_ids, attention_mask, token_type_ids)
            return last, attention_mask.bool()
        vectors = super().forward(input_ids, attention_mask, token_type_ids)
        return vectors.unsqueeze(1), attention_mask[:, :1].bool()


class LateInteractionModel(TorchModel):
    """A late-interaction model: towers and a head; see the module's docstring."""

    SETTINGS, Config = "late_interaction.json", LateInteractionConfig

    def __init__(self, encoders: Sequence[Any], tokenizer: FastTokenizer, config: Any) -> None:
        config = replace(config, pooling=config.pooling or "cls")
        super().__init__(encoders, tokenizer, config)
        kind = HEADS[config.head]
        self.head = kind(encoders[0], **config.options)
        self.dimensions, self.late_kind = self.head.dimensions, config.head
        self.joint = kind.joint
        settings = str(config.pooling), self.tokenizer.marks
        self.query = LateTower(encoders[0], kind.query_reads, *settings)
        self.item = LateTower(encoders[1], kind.item_reads, *settings)
        self._frozen: Frozen = "none"

    @classmethod
    def new(cls, source: str | Path, config: LateInteractionConfig) -> Self:
        """Make an untrained model from the towers and the pooling of a dual encoder, or from a
        Hugging Face encoder. A late-interaction model with the same settings is copied."""
        folder, start = trainable(source)
        if (folder / cls.SETTINGS).is_file():
            model = cls.from_pretrained(folder)
            if replace(config, pooling=config.pooling or model.config.pooling) != model.config:
                raise InputError(f"{folder} is a trained model with other settings: {model.config}")
            return model.train()
        if start is None:
            query, tokenizer = open_backbone(folder)
            item = query
        else:
            query, item, tokenizer = start.query.encoder, start.item.encoder, start.tokenizer.fast
            config = replace(config, pooling=config.pooling or start.config.pooling)
        if config.shared and item is not query:
            raise InputError(f"{source} has two towers: set shared = false")
        if not config.shared and item is query:
            item = copy.deepcopy(query)
        if config.marked:
            content = tokenizer.to_str()
            for encoder in (query, item):
                tokenizer = add_marks(FastTokenizer.from_str(content), encoder)
        model = cls([query, item], tokenizer, config)
        model.head.take_over(query, item)
        return model

    def outputs(self, rows: Sequence[Row], *, queries: bool) -> tuple[Tensor, Tensor]:
        """Return states (b, t, d) of queries to compare, or of items to store, and their mask."""
        of = self.head.of_queries if queries else self.head.of_items
        result: tuple[Tensor, Tensor] = of(*self.encode(rows, queries=queries))
        return result

    def freeze(self, what: Frozen) -> None:
        """Freeze the item tower or both towers: no learning and no dropout in a frozen tower."""
        if what == "items" and self.config.shared:
            raise InputError("one tower is shared by queries and items: freeze 'both' or 'none'")
        if what == "both" and not any(True for _ in self.head.parameters()):
            raise InputError(
                f"nothing would learn: the head of this {self.config.head} has no weights; "
                "freeze 'items' or 'none', or set projected = true in its options"
            )
        self._frozen = what
        self.query.requires_grad_(what != "both")
        self.item.requires_grad_(what == "none")
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.query.train(mode and self._frozen != "both")
        self.item.train(mode and self._frozen == "none")
        return self
