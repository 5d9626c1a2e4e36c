"""Cross-encoders: an encoder that reads the pair, and a head that computes the score.

- [CLS]-CE: a linear layer on the state of the first token (ANNCUR, Yadav et al. 2022, 2.1).
- [EMB]-CE: the inner product of two contextual states of the joint input (ANNCUR, 2.6 and A.2). In
  marked texts one is the mean of `[Ms]` and `[Me]`, the other `[ENT]`; otherwise they are the first
  token and the first separator.
- interaction: token states and word matches together, for unmarked texts (`InteractionHead`). It
  starts from a dual encoder, with its quality (`crossknn_train.models.gated`).

Scores are raw logits. Axes: b pairs, t tokens, d dimensions, v vocabulary.
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
from crossknn.models.tokens import Tokenizer
from crossknn_train.models.backbone import masked_mean, open_backbone, position_limit, states
from crossknn_train.models.base import TorchModel
from crossknn_train.models.gated import FASTER, GatedReading, read_apart

AVERAGE_LENGTH = 80.0
"""Number of item tokens at which the interaction head's length normalisation is neutral."""
WINDOW = 16
"""Number of tokens in a window of the interaction head; windows overlap by half."""
HeadKind = Literal["cls", "emb", "interaction"]


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig:
    """The settings of a cross-encoder.

    Args:
        head: "cls", "emb" or "interaction".
        marked: whether mentions and titles are marked (`crossknn.data.queries`).
        max_length, query_length, item_length: see `Window`.
        item_position: the position number of the item's first token, if fixed (128 in the published
            ZESHEL checkpoints, whose queries were padded to 128).
        scale: factor by which [EMB] multiplies inner products.
        pooler: whether a [CLS] head has a dense tanh layer before its linear layer.
        dropout: dropout before the linear layer.
    """

    head: HeadKind = "emb"
    marked: bool = False
    max_length: int = 256
    query_length: int | None = None
    item_length: int | None = None
    item_position: int | None = None
    scale: float = 1.0
    pooler: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.head not in ("cls", "emb", "interaction"):
            raise InputError(f"head is {self.head!r}; it must be 'cls', 'emb' or 'interaction'")
        query, item = self.query_length or 0, self.item_length or 0
        if not query == item == 0 and not (query and item and query + item <= self.max_length):
            raise InputError(
                f"query_length is {self.query_length} and item_length {self.item_length}: give "
                f"both, with a sum of at most {self.max_length} (max_length), or neither"
            )
        if self.item_position is not None and not 0 < query <= self.item_position:
            raise InputError(f"item_position is {self.item_position}, before the query's end")


class ClsHead(nn.Module):  # type: ignore[misc]
    """A linear layer on the first token's state, by default after a dense tanh layer."""

    def __init__(self, dimensions: int, *, pooler: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.dense = nn.Linear(dimensions, dimensions) if pooler else None
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(dimensions, 1)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, *inputs: Tensor) -> Tensor:
        """Compute scores from token states: (b, t, d) -> (b,)."""
        first = states[:, 0]
        if self.dense is not None:
            first = torch.tanh(self.dense(first))
        scores: Tensor = self.out(self.dropout(first)).squeeze(-1)
        return scores


class EmbHead(nn.Module):  # type: ignore[misc]
    """The inner product of a state for the query and a state for the item (ANNCUR, 2.6).

    `places` are the ids of the tokens whose states are used: the marks, or the first separator.
    """

    def __init__(self, places: Sequence[int], scale: float = 1.0) -> None:
        super().__init__()
        self.places, self.scale = tuple(places), scale

    def forward(self, states: Tensor, input_ids: Tensor, *inputs: Tensor) -> Tensor:
        """Compute scores from token states and ids: (b, t, d), (b, t) -> (b,)."""
        read = [_at(states, input_ids == token) for token in self.places]
        query = (read[0] + read[1]) / 2 if len(read) > 1 else states[:, 0]
        return (query * read[-1]).sum(-1) * self.scale


def _at(states: Tensor, where: Tensor) -> Tensor:
    """Return the state at the first true position of each row: (b, t, d), (b, t) -> (b, d)."""
    place = where.long().argmax(1)[:, None, None]
    return states.gather(1, place.expand(-1, 1, states.shape[2]))[:, 0]


class InteractionHead(nn.Module):  # type: ignore[misc]
    """Adds features of a pair, with learned weights:

    - the mean state of the query's tokens times the mean state of the item's tokens, both of length
      1, summed with learned weights, which start at 12: a dual encoder's cosine;
    - the largest cosine of the query's mean state to that of a window of the item;
    - late: the weighted mean of each query token's largest cosine to a state of the item (ColBERT's
      MaxSim, Khattab and Zaharia 2020), with a learned weight of each token;
    - lexical, as a mean with the same weights and as a sum over query tokens: the token's weight
      times a saturated count of its matches in the item (the term of BM25; used beside states as in
      CEDR, MacAvaney et al. 2019);
    - a linear layer on the first states of both texts, whose weights start at zero.

    `special` are the ids of the tokens that belong to neither text ([CLS], [SEP], [PAD]).
    """

    def __init__(self, dimensions: int, vocabulary: int, special: Sequence[int]) -> None:
        super().__init__()
        self.special = tuple(special)
        self.token_weight = nn.Embedding.from_pretrained(torch.ones(vocabulary, 1), freeze=False)
        self.k1 = nn.Parameter(torch.tensor(1.2))
        self.b = nn.Parameter(torch.tensor(0.0))  # passed through a sigmoid: 0.5 at first
        self.cosine = nn.Parameter(torch.full((dimensions,), 12.0 / FASTER))
        self.mix = nn.Parameter(torch.tensor([8.0, 5.0, 1.0, 0.0]) / FASTER)
        self.bias = nn.Parameter(torch.tensor(-10.0) / FASTER)
        self.first = nn.Linear(2 * dimensions, 1, bias=False)
        nn.init.zeros_(self.first.weight)

    def forward(
        self, states: Tensor, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> Tensor:
        """Compute scores from token states (b, t, d) and three token arrays (b, t) -> (b,)."""
        of_item = token_type_ids.float()
        of_query = attention_mask.float() * (1.0 - of_item)
        means = [functional.normalize(masked_mean(states, m), dim=-1) for m in (of_query, of_item)]
        cosine = (means[0] * means[1] * self.cosine * FASTER).sum(-1)
        states_of_item = states * of_item.unsqueeze(-1)
        windows, of_text = _windows(states_of_item), _windows(of_item.unsqueeze(-1))
        window = (windows @ means[0].unsqueeze(-1) + (of_text - 1.0) * 4.0).amax(1)

        text = attention_mask.bool()
        for token in self.special:
            text = text & (input_ids != token)
        query, item = text.float() * of_query, text.float() * of_item
        weights = functional.relu(self.token_weight(input_ids).squeeze(-1)) * query
        total = weights.sum(1).clamp(min=1e-3)
        same = (input_ids[:, :, None] == input_ids[:, None, :]).float() * item[:, None, :]
        counts = same.sum(-1)
        b = torch.sigmoid(self.b)
        norm = self.k1.abs() * (1 - b + b * item.sum(1, keepdim=True) / AVERAGE_LENGTH)
        matches = (weights * counts / (counts + norm + 1e-6)).sum(1)

        unit = functional.normalize(states, dim=-1)
        similar = unit @ unit.transpose(1, 2) + (item[:, None, :] - 1.0) * 4.0
        best = similar.amax(-1).clamp(min=-1.0)
        late = (weights * best).sum(1) / total
        channels = [window.squeeze(-1), late, matches / total, matches]
        start = token_type_ids.argmax(1)[:, None, None].expand(-1, 1, states.shape[2])
        firsts = torch.cat([states[:, 0], states.gather(1, start)[:, 0]], dim=-1)
        rest: Tensor = self.first(firsts).squeeze(-1)
        return cosine + ((torch.stack(channels, -1) * self.mix).sum(-1) + self.bias) * FASTER + rest


def _windows(states: Tensor) -> Tensor:
    """Return the directions of the mean states of overlapping windows: (b, t, d) -> (b, w, d), 0 if
    all states of a window are 0."""
    ends = functional.pad(states, (0, 0, 0, WINDOW))
    means = functional.avg_pool1d(ends.transpose(1, 2), WINDOW, stride=WINDOW // 2)
    return functional.normalize(means.transpose(1, 2), dim=-1)


class CrossEncoderModel(TorchModel):
    """A cross-encoder made by `new` or `from_pretrained`; see the module's docstring."""

    SETTINGS, Config, n_towers = "cross_encoder.json", CrossEncoderConfig, 1

    def __init__(self, encoders: Sequence[Any], tokenizer: FastTokenizer, config: Any) -> None:
        if config.head == "interaction":
            tokenizer = read_apart(tokenizer)
        super().__init__(encoders, tokenizer, config)
        encoder = encoders[0]
        self.n_positions = position_limit(encoder.config)
        last = (config.item_position or 0) + (config.item_length or 0)
        if last > self.n_positions:
            raise InputError(
                f"items end at position {last}, but the encoder has only "
                f"{self.n_positions} positions"
            )
        self.encoder = encoder
        dimensions = int(encoder.config.hidden_size)
        if config.head == "cls":
            self.head = ClsHead(dimensions, pooler=config.pooler, dropout=config.dropout)
        elif config.head == "interaction":
            vocabulary = encoder.get_input_embeddings().num_embeddings
            self.head = InteractionHead(dimensions, vocabulary, _outside(self.tokenizer))
            self.head.reading = GatedReading(encoder)
        else:
            marks = self.tokenizer.marks if config.marked else ()
            self.head = EmbHead(marks or [_separator(self.tokenizer)], config.scale)

    @classmethod
    def new(cls, source: str | Path, config: CrossEncoderConfig) -> Self:
        """Make an untrained cross-encoder from the encoder of a folder or hub name, and copy its
        head if it has one of the same kind."""
        encoder, tokenizer = open_backbone(source, marked=config.marked)
        model = cls([encoder], tokenizer, config)
        folder = Path(source)
        if (folder / cls.SETTINGS).is_file() and cls.read_config(folder).head == config.head:
            model.load_head(folder)
        return model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Compute raw scores of pairs: three token arrays (b, t) -> (b,)."""
        given = input_ids, attention_mask, token_type_ids
        if self.config.head == "interaction":
            last = self.head.reading(self.encoder, *given)
        else:
            last = states(self.encoder, *given, self.positions(token_type_ids))
        scores: Tensor = self.head(last, *given)
        return scores

    def positions(self, token_type_ids: Tensor) -> Tensor | None:
        """Return positions (b, t) if the item's first token has a fixed position, or None."""
        start = self.config.item_position
        if start is None:
            return None
        place = torch.arange(token_type_ids.shape[1], device=token_type_ids.device)
        # The item begins at the first token of type 1; padding has type 0, but is masked anyway.
        moved = place - token_type_ids.argmax(1, keepdim=True) + start
        return torch.where(token_type_ids == 1, moved, place).clamp(max=self.n_positions - 1)


def _separator(tokenizer: Tokenizer) -> int:
    """Return the id of the special token that follows the first of two texts."""
    pieces = [ids for ids, _ in tokenizer.pair.pieces]
    first = next(place for place, ids in enumerate(pieces) if ids is None)
    after = pieces[first + 1]
    if after is None:
        raise InputError("the tokenizer puts no separator between two texts")
    return int(after[0])


def _outside(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of tokens that belong to neither text of a pair."""
    if [kind for ids, kind in tokenizer.pair.pieces if ids is None] != [0, 1]:
        raise InputError(
            "'interaction' needs a tokenizer with token type 0 for queries, 1 for items"
        )
    special = {int(i) for ids, _ in tokenizer.pair.pieces if ids is not None for i in ids}
    return tuple(sorted({*special, tokenizer.padding, *tokenizer.marks}))
