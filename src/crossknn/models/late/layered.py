"""Late-interaction heads made of the encoder's upper layers: DeFormer and MixEncoder.

Axes: b queries, c candidates, t tokens, h heads of attention, d dimensions.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.backbone import (
    bias_of,
    copy_layers,
    cut_layers,
    in_heads,
    join_heads,
    layers_of,
    run_layer,
)
from crossknn.models.cross_encoder import ClsHead
from crossknn.models.late.heads import Head, in_full, listed


class Deformer(Head):
    """The lower layers read each text alone, the upper ones the pair (Cao et al., 2020,
    2005.00697).

    Of an encoder of n layers the towers keep the lower k = n - `layers`, which can be computed
    ahead for items; the rest, L_(k+1) .. L_n, are the head's and read both texts, and a dense layer
    reads the first token:

        x = L_(k+1:n)([L_(1:k)(query); L_(1:k)(item)]),    score = w . tanh(W x_1 + w') + w0

    The upper layers begin as copies of the encoder's, k = 9 of 12 in the paper. An index keeps the
    states of every token.

    Deviations: no auxiliary losses (distillation from the whole model), since all rivals have one
    loss here; two towers of lower layers, which begin alike (one, as in the paper, with `shared`).
    From the authors' code, which also counts positions from 0 in each text: an item has its own
    [CLS], and token type 0 (there 1; both as in CMC's code); W begins at random, not as BERT's
    pooler. The last layer is computed at the first token only, which changes no score.
    """

    query_reads = "tokens"
    item_reads = "tokens"

    def __init__(self, encoder: Any, *, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__(encoder)
        self.layers = copy_layers(encoder, layers)
        self.out = ClsHead(self.dimensions, dropout=dropout)

    def take_over(self, query: Any, item: Any) -> None:
        """Raises InputError if no layer would be left in the towers."""
        for encoder in [query] if item is query else [query, item]:
            cut_layers(encoder, len(self.layers))

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        c = items.shape[1]
        queries = query.unsqueeze(1).expand(-1, c, -1, -1)
        masks = query_mask.unsqueeze(1).expand(-1, c, -1)
        x = torch.cat([queries, items], dim=2).flatten(0, 1)
        mask = torch.cat([masks, item_mask], dim=2).flatten(0, 1)
        for layer in self.layers[:-1]:
            x = run_layer(layer, x, x, mask)
        first = run_layer(self.layers[-1], x[:, :1], x, mask)
        with in_full(first):
            scores = self.out(first)
        return listed(scores.reshape(item_mask.shape[:2]), item_mask)


class MixEncoder(Head):
    """The query is encoded once, and each item attends over it (Yang et al., 2023, 2210.05261;
    equations as in the authors' code).

    An item is a vector e (k = 1 context embedding), computed ahead. In the last layer of the query
    encoder, whose token states are x before it, e is enriched by the query and by itself, and u
    gathers what of the query matters to the item:

        e' = F(e + O MHA(Q e, [K x; K' e], [V x; V' e]))
        u  = F(g * a),    a = O MHA(Q' e, K x, V x),    g = sigmoid(W [e; a])
        score = e' . u

    O is the output of attention, F the norm and the feed-forward block after it. The query tower
    keeps the layers below; that last layer is the head's, Q' being its Q, and Q, K', V' begin as
    copies. Items do not see one another.

    Deviations: e is the item tower's vector ([CLS] by default) and not the state of a learned token
    in its place; k is 1, and one layer interacts (the paper also tries more; u passes from one to
    the next); two towers in place of one. As in the authors' code and CMC's, but not in the paper
    (3.2), the score is the inner product and not the cosine; as in the authors' code, attention has
    no dropout.
    """

    query_reads = "tokens"

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder)
        layer = copy.deepcopy(layers_of(encoder)[-1])
        own = layer.attention.self
        self.heads = int(own.num_attention_heads)
        self.query, self.key, self.value = own.query, own.key, own.value
        self.item_query = copy.deepcopy(own.query)
        self.item_key, self.item_value = copy.deepcopy(own.key), copy.deepcopy(own.value)
        self.output, self.wide = layer.attention.output, layer.intermediate
        self.narrow = layer.output
        self.gate = nn.Linear(2 * self.dimensions, self.dimensions)

    def take_over(self, query: Any, item: Any) -> None:
        """Raises InputError if no layer would be left in the query tower, or if it is shared."""
        if item is query:
            raise InputError(
                "the query tower of a mixencoder has a layer less than its item tower: set "
                "shared = false"
            )
        cut_layers(query, 1)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        e, bias = items[:, :, 0], bias_of(query_mask)[:, None, None, :]
        scale = (self.dimensions // self.heads) ** -0.5
        keys = in_heads(self.key(query), self.heads).transpose(2, 3) * scale  # K x
        values = in_heads(self.value(query), self.heads)  # V x
        own_query, own_key, own_value = (
            in_heads(linear(e), self.heads)
            for linear in (self.item_query, self.item_key, self.item_value)
        )
        own_logit = (own_query * own_key).sum(-1, keepdim=True) * scale
        weights = torch.softmax(torch.cat([own_query @ keys + bias, own_logit], dim=-1), dim=-1)
        mixed = weights[..., :-1] @ values + weights[..., -1:] * own_value
        enriched = self.output(join_heads(mixed), e)

        weights = torch.softmax(in_heads(self.query(e), self.heads) @ keys + bias, dim=-1)
        a = self.output.dropout(self.output.dense(join_heads(weights @ values)))
        gate = torch.sigmoid(self.gate(torch.cat([e, a], dim=-1)))
        gathered = self.output.LayerNorm(gate * a)
        return listed((self._widened(enriched) * self._widened(gathered)).sum(-1), item_mask)

    def _widened(self, x: Tensor) -> Tensor:
        """The feed-forward block: (b, c, d) -> (b, c, d)."""
        out: Tensor = self.narrow(self.wide(x), x)
        return out
