"""MixEncoder: the query is encoded once, and each item attends over it (Yang et al., 2023,
2210.05261; equations as in the authors' code).

An item is a vector e (k = 1 context embedding), computed ahead. In the last layer of the query
encoder, whose token states are x before it, e is enriched by the query and by itself, and u gathers
what of the query matters to the item:

    e' = F(e + O MHA(Q e, [K x; K' e], [V x; V' e]))
    u  = F(g * a),    a = O MHA(Q' e, K x, V x),    g = sigmoid(W [e; a])
    score = e' . u

O is the output of attention, F the norm and the feed-forward block after it. The query tower keeps
the layers below; that last layer is the head's, Q' being its Q, and Q, K', V' begin as copies.

Axes: b queries, c candidates, t tokens, h heads, d dimensions. Items do not see one another.

Deviations: e is the item tower's vector ([CLS] by default) and not the state of a learned token in
its place; k is 1, and one layer interacts (the paper also tries more; u passes from one to the
next); two towers in place of one. As in the authors' code and CMC's, but not in the paper (3.2),
the score is the inner product and not the cosine; as in the authors' code, attention has no
dropout.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.late_interaction.head import Head, HeadOptions, bias_of, listed
from crossknn.models.late_interaction.layers import cut, in_heads, joined, layers_of


class MixEncoder(Head):
    """See the module's docstring."""

    query_reads = "tokens"

    def __init__(self, encoder: Any, options: HeadOptions) -> None:
        super().__init__(encoder, options)
        layer = copy.deepcopy(layers_of(encoder)[-1])
        own = layer.attention.self
        self.heads = int(own.num_attention_heads)
        self.query, self.key, self.value = own.query, own.key, own.value
        self.item_query = copy.deepcopy(own.query)
        self.item_key, self.item_value = copy.deepcopy(own.key), copy.deepcopy(own.value)
        self.output, self.wide, self.narrow = (
            layer.attention.output,
            layer.intermediate,
            layer.output,
        )
        self.gate = nn.Linear(2 * self.dimensions, self.dimensions)

    def take_over(self, query: Any, item: Any) -> None:
        """Raises InputError if no layer would be left in the query tower, or if it is shared."""
        if item is query:
            raise InputError(
                "the query tower of a mixencoder has a layer less than its item tower: set "
                "shared = false"
            )
        cut(query, 1)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        vectors, bias = items[:, :, 0], bias_of(query_mask)[:, None, None, :]
        scale = (self.dimensions // self.heads) ** -0.5
        keys = in_heads(self.key(query), self.heads).transpose(2, 3) * scale
        values = in_heads(self.value(query), self.heads)
        asked, key, value = (
            in_heads(linear(vectors), self.heads)
            for linear in (self.item_query, self.item_key, self.item_value)
        )
        itself = (asked * key).sum(-1, keepdim=True) * scale
        weights = torch.softmax(torch.cat([asked @ keys + bias, itself], dim=-1), dim=-1)
        enriched = self.output(
            joined(weights[..., :-1] @ values + weights[..., -1:] * value), vectors
        )

        weights = torch.softmax(in_heads(self.query(vectors), self.heads) @ keys + bias, dim=-1)
        seen = self.output.dropout(self.output.dense(joined(weights @ values)))
        share = torch.sigmoid(self.gate(torch.cat([vectors, seen], dim=-1)))
        gathered = self.output.LayerNorm(share * seen)
        scores = (self._widened(enriched) * self._widened(gathered)).sum(-1)
        return listed(scores, item_mask)

    def _widened(self, found: Tensor) -> Tensor:
        """The feed-forward block: (b, c, d) -> (b, c, d)."""
        out: Tensor = self.narrow(self.wide(found), found)
        return out
