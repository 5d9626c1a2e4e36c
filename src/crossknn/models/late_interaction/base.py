"""Late-interaction models: queries and items are encoded apart, then compared (CMC, 2.2).

Two towers, or one for both, hand over one vector of a text or the states of its tokens; a head
compares a query's with those of any number of candidates. Axes: b queries, c candidates, t tokens,
d dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.backbone import add_marks, open_backbone, position_limit, states, tensors
from crossknn.models.dual_encoder import ITEM_TOWER, DualEncoderConfig, DualEncoderModel, Tower
from crossknn.models.late_interaction.head import Head, Reads
from crossknn.models.late_interaction.kinds import head_of
from crossknn.models.saved import read_head, read_settings, write_model
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window
from crossknn.models.trainable import dual_encoder_in, trainable_folder

__all__ = ["SETTINGS", "Head", "LateInteractionConfig", "LateInteractionModel", "LateTower"]

SETTINGS = "late_interaction.json"
_KIND = "late-interaction model"

Pooling = Literal["cls", "mean", "marks"]
Frozen = Literal["none", "items", "both"]


@dataclass(frozen=True, kw_only=True)
class LateInteractionConfig:
    """What a late-interaction model is, beside its weights.

    kind: "cmc", "poly", "som", "deformer" or "mixencoder". pooling: how a tower makes one vector of
    a text, as in `DualEncoderConfig`; None, for a new model, is the source's own, or "cls". marked:
    whether mentions and titles are marked. query_length, item_length: tokens, special ones
    included. shared: one tower for both. options: of the head; those left out are filled in.
    """

    kind: str
    pooling: Pooling | None = None
    marked: bool = False
    query_length: int = 128
    item_length: int = 128
    shared: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InputError for an unknown kind, option or pooling."""
        options = asdict(head_of(self.kind).Options.of(self.options))
        object.__setattr__(self, "options", options)
        DualEncoderConfig(pooling=self.pooling or "cls", marked=self.marked)

    @property
    def window(self) -> Window:
        return Window.of_each(self.query_length, self.item_length)


class LateTower(nn.Module):  # type: ignore[misc]
    """States of single texts: (b, t) three times -> (b, t, d) and their mask (b, t), or t = 1."""

    def __init__(self, encoder: Any, reads: Reads, pooling: str, marks: Sequence[int] = ()) -> None:
        super().__init__()
        self.tower = Tower(encoder, pooling, normalize=False, marks=marks)
        self.reads = reads

    @property
    def encoder(self) -> Any:
        return self.tower.encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.reads == "tokens":
            found = states(self.encoder, input_ids, attention_mask, token_type_ids)
            return found, attention_mask.bool()
        vectors: Tensor = self.tower(input_ids, attention_mask, token_type_ids)
        return vectors.unsqueeze(1), attention_mask[:, :1].bool()


class LateInteractionModel(nn.Module):  # type: ignore[misc]
    """Towers and a head; see the module's docstring.

    Build one with `new`, or with `from_pretrained` from what `save_pretrained` wrote.
    `head(query, query_mask, items, item_mask)` gives scores; see `Head.forward`.
    """

    def __init__(
        self,
        query_encoder: Any,
        item_encoder: Any,
        tokenizer: FastTokenizer,
        config: LateInteractionConfig,
    ) -> None:
        super().__init__()
        _check(query_encoder.config, item_encoder.config, config)
        self.config = config = replace(config, pooling=config.pooling or "cls")
        self.fast_tokenizer = tokenizer
        self.tokenizer = Tokenizer(tokenizer)
        self.encoding = Encoding(self.tokenizer, config.window, marked=config.marked)
        kind = head_of(config.kind)
        self.head = kind(query_encoder, kind.Options.of(config.options))
        pooling, marks = str(config.pooling), self.tokenizer.marks
        self.query = LateTower(query_encoder, kind.query_reads, pooling, marks)
        self.item = LateTower(item_encoder, kind.item_reads, pooling, marks)
        self._frozen: Frozen = "none"

    @classmethod
    def new(cls, source: str | Path, config: LateInteractionConfig) -> Self:
        """An untrained model from a folder or hub name of torch weights.

        Of a dual encoder trained here or a sentence-transformers model the towers and, unless the
        config names another, the pooling are taken over; of a late-interaction model of the same
        kind and options the head too; a Hugging Face encoder gives the towers. Raises InputError
        for other sources, and for two towers where the config wants one.
        """
        folder = trainable_folder(source)
        if (folder / SETTINGS).is_file():
            return cls._continued(folder, config)
        start = dual_encoder_in(folder, str(source))
        own = start.config.pooling if start is not None else "cls"
        if start is None:
            plain = DualEncoderConfig(
                marked=config.marked,
                query_length=config.query_length,
                item_length=config.item_length,
            )
            start = DualEncoderModel.new(folder, plain)
        query, item, tokenizer = start.query.encoder, start.item.encoder, start.fast_tokenizer
        if config.shared and item is not query:
            raise InputError(f"{source} has two towers: set shared = false")
        if not config.shared and item is query:
            item = copy.deepcopy(query)
        if config.marked:
            same = tokenizer.to_str()
            for encoder in (query, item):
                tokenizer = add_marks(FastTokenizer.from_str(same), encoder)
        model = cls(query, item, tokenizer, replace(config, pooling=config.pooling or own))
        model.head.take_over(query, item)
        return model

    @classmethod
    def _continued(cls, folder: Path, config: LateInteractionConfig) -> Self:
        """A trained model with the lengths of another config."""
        model = cls.from_pretrained(folder)
        wanted = replace(config, pooling=config.pooling or model.config.pooling)
        own = replace(
            model.config, query_length=config.query_length, item_length=config.item_length
        )
        if wanted != own:
            there, asked = asdict(own), asdict(wanted)
            name = next(name for name in there if there[name] != asked[name])
            raise InputError(
                f"{folder} is a late-interaction model with other settings: its {name} is "
                f"{there[name]!r}, not {asked[name]!r}; continue it with its own, or start from a "
                "dual encoder"
            )
        again = cls(model.query.encoder, model.item.encoder, model.fast_tokenizer, wanted)
        again.head = model.head
        return again.train()

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """What `save_pretrained` wrote; InputError for anything else."""
        folder = Path(folder)
        known = {field.name for field in fields(LateInteractionConfig)} - {"kind"} | {"head"}
        content = read_settings(folder / SETTINGS, _KIND, known)
        try:
            config = LateInteractionConfig(kind=str(content.pop("head", "")), **content)
        except InputError as error:
            raise InputError(f"{folder / SETTINGS}: {error}") from None
        query, tokenizer = open_backbone(folder, marked=config.marked)
        item = query if config.shared else open_backbone(folder / ITEM_TOWER)[0]
        model = cls(query, item, tokenizer, config)
        read_head(model.head, folder)
        return model.eval()

    def save_pretrained(self, folder: str | Path, card: str | None = None) -> Path:
        """Write a Hugging Face folder (the query tower), `item/` if the item tower is another."""
        encoders = {"": (self.query.encoder, self.fast_tokenizer)}
        if not self.config.shared:
            encoders[ITEM_TOWER] = (self.item.encoder, self.fast_tokenizer)
        content = asdict(self.config)
        return write_model(
            Path(folder),
            encoders=encoders,
            head=self.head.state_dict(),
            settings=SETTINGS,
            content={"kind": _KIND, "head": content.pop("kind"), **content},
            card=card,
        )

    @property
    def dimensions(self) -> int:
        """d' of what an index stores of an item."""
        return self.head.dimensions

    def tower_states(self, rows: Sequence[Row], *, queries: bool) -> tuple[Tensor, Tensor]:
        """What the head reads of texts: (b, t, d) float32 and the mask (b, t).

        Nothing of the head is in it, so that it stays the same while a frozen tower does.
        """
        tower = self.query if queries else self.item
        device = next(self.parameters()).device
        padding, limit = self.tokenizer.padding, self.config.window.max_length
        found: tuple[Tensor, Tensor] = tower(*tensors(list(rows), padding, limit, device))
        return found

    def states(self, rows: Sequence[Row], *, queries: bool) -> tuple[Tensor, Tensor]:
        """What is compared of queries or stored of items: (b, t, d) and the mask (b, t)."""
        of = self.head.of_queries if queries else self.head.of_items
        return of(*self.tower_states(rows, queries=queries))

    def freeze(self, what: Frozen) -> None:
        """Let only the rest learn: the item tower or both towers keep still, without dropout.

        Raises InputError for the item tower alone where one tower is shared, and if nothing is left
        to learn.
        """
        if what not in ("none", "items", "both"):
            raise InputError(f"what is frozen is {what!r}; it must be 'none', 'items' or 'both'")
        if what == "items" and self.config.shared:
            raise InputError("one tower is shared by queries and items: freeze 'both' or 'none'")
        if what == "both" and not any(True for _ in self.head.parameters()):
            raise InputError(
                f"nothing would learn: the head of this {self.config.kind} has no weights; freeze "
                "'items' or 'none', or set projected = true in its options"
            )
        self._frozen = what
        self.query.requires_grad_(what != "both")
        self.item.requires_grad_(what == "none")
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for tower, frozen in ((self.query, ("both",)), (self.item, ("items", "both"))):
            if self._frozen in frozen:
                tower.eval()
        return self


def _check(query: Any, item: Any, config: LateInteractionConfig) -> None:
    limit = min(position_limit(query), position_limit(item))
    if config.window.max_length > limit:
        raise InputError(
            f"query_length or item_length is {config.window.max_length}; the encoder has {limit} "
            "positions"
        )
    shapes = [(tower.model_type, tower.hidden_size, tower.vocab_size) for tower in (query, item)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the towers are of two encoders, {shapes[0]} and {shapes[1]} (type, width, "
            "vocabulary): they must be of one"
        )
