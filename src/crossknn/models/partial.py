"""The last layer only where it is read: the same scores for a seventh less work (six layers).

A [CLS] head reads one token of the last layer, an [EMB] head two or three. Keys and values of
that layer are needed everywhere, but queries, the attention's output and the feed-forward block
only at the tokens that are read.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.models.backbone import MASKED, states
from crossknn.models.cross_encoder import ClsHead, CrossEncoderModel, EmbHead, states_at


def can_be_partial(model: CrossEncoderModel) -> bool:
    """Whether the head reads few tokens and the encoder is a BERT of two layers or more."""
    reads_few = isinstance(model.head, (ClsHead, EmbHead))
    return reads_few and type(model.encoder).__name__ == "BertModel" and _layers(model) > 1


class PartialCrossEncoder(nn.Module):  # type: ignore[misc]
    """The scores of a BERT cross-encoder: (b, t) three times -> (b,); shares its weights."""

    def __init__(self, model: CrossEncoderModel) -> None:
        super().__init__()
        self.model = model
        self.body = _without_last(model.encoder)
        self.last = model.encoder.encoder.layer[-1]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        model = self.model
        positions = model.positions(token_type_ids)
        hidden = states(self.body, input_ids, attention_mask, token_type_ids, positions)
        read = states_at(hidden, model.head.positions(input_ids))
        attention = self.last.attention.self
        query, key, value = (
            _heads(linear(source), attention.num_attention_heads)
            for linear, source in (
                (attention.query, read),
                (attention.key, hidden),
                (attention.value, hidden),
            )
        )
        bias = (1.0 - attention_mask[:, None, None, :].float()) * MASKED
        weights = torch.softmax(query @ key.transpose(2, 3) * attention.scaling + bias, dim=-1)
        context = (weights @ value).transpose(1, 2).flatten(2)
        found = self.last.feed_forward_chunk(self.last.attention.output(context, read))
        scores: Tensor = model.head.read(found.float())
        return scores


def _heads(states: Tensor, count: int) -> Tensor:
    """(b, p, d) -> (b, heads, p, d / heads)."""
    b, p, d = states.shape
    return states.reshape(b, p, count, d // count).transpose(1, 2)


def _layers(model: CrossEncoderModel) -> int:
    return len(model.encoder.encoder.layer)


def _without_last(encoder: Any) -> Any:
    """The encoder without its last layer; every other module is shared."""
    body, inner = copy.copy(encoder), copy.copy(encoder.encoder)
    body._modules, inner._modules = dict(encoder._modules), dict(encoder.encoder._modules)
    inner.layer = nn.ModuleList(list(encoder.encoder.layer)[:-1])
    body.encoder = inner
    return body
