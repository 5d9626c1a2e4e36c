"""The last layer only where it is read: the same scores for a seventh less work (six layers).

A [CLS] head reads one token of the last layer, an [EMB] head two or three. Keys and values of
that layer are needed everywhere, but queries, the attention's output and the feed-forward block
only at the tokens that are read. Axes: b rows, t tokens, p tokens that are read, d dimensions.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.models.backbone import MASKED, states
from crossknn.models.cross_encoder import ClsHead, CrossEncoderModel, EmbHead, states_at


def partial(model: Any) -> nn.Module | None:
    """A module of the same scores that shares the model's weights; None if there is none.

    For a `CrossEncoderModel` with a [CLS] or [EMB] head, or a BertForSequenceClassification.
    """
    if isinstance(model, CrossEncoderModel):
        reads_few = isinstance(model.head, (ClsHead, EmbHead))
        return _PartialModel(model) if reads_few and _has_layers(model.encoder) else None
    is_bert = type(model).__name__ == "BertForSequenceClassification"
    return _PartialLogits(model) if is_bert and _has_layers(model.bert) else None


class PartialBert(nn.Module):  # type: ignore[misc]
    """Last states of a BERT at the tokens `at`: (b, t) three times and (b, p) -> (b, p, d)."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.body = _without_last(encoder)
        self.last = encoder.encoder.layer[-1]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        at: Tensor,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        hidden = states(self.body, input_ids, attention_mask, token_type_ids, position_ids)
        read = states_at(hidden, at)
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
        weights = torch.softmax(query @ key.transpose(2, 3) * query.shape[3] ** -0.5 + bias, dim=-1)
        context = (attention.dropout(weights) @ value).transpose(1, 2).flatten(2)
        found: Tensor = self.last.feed_forward_chunk(self.last.attention.output(context, read))
        return found.float()


class _PartialModel(nn.Module):  # type: ignore[misc]
    def __init__(self, model: CrossEncoderModel) -> None:
        super().__init__()
        self.model = model
        self.bert = PartialBert(model.encoder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        model = self.model
        at, positions = model.head.positions(input_ids), model.positions(token_type_ids)
        found = self.bert(input_ids, attention_mask, token_type_ids, at, positions)
        scores: Tensor = model.head.read(found)
        return scores


class _PartialLogits(nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.bert = PartialBert(model.bert)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        first = torch.zeros_like(input_ids[:, :1])
        pooled = self.model.bert.pooler(self.bert(input_ids, attention_mask, token_type_ids, first))
        scores: Tensor = self.model.classifier(self.model.dropout(pooled))[:, 0]
        return scores


def _heads(states: Tensor, count: int) -> Tensor:
    """(b, p, d) -> (b, heads, p, d / heads)."""
    b, p, d = states.shape
    return states.reshape(b, p, count, d // count).transpose(1, 2)


def _has_layers(encoder: Any) -> bool:
    return type(encoder).__name__ == "BertModel" and len(encoder.encoder.layer) > 1


def _without_last(encoder: Any) -> Any:
    """The encoder without its last layer; every other module is shared."""
    body, inner = copy.copy(encoder), copy.copy(encoder.encoder)
    body._modules, inner._modules = dict(encoder._modules), dict(encoder.encoder._modules)
    inner.layer = nn.ModuleList(list(encoder.encoder.layer)[:-1])
    body.encoder = inner
    return body
