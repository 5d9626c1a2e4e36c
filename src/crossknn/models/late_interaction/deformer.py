"""DeFormer: the lower layers read each text alone, the upper ones the pair (Cao et al., 2020,
2005.00697).

Of an encoder of n layers the towers keep the lower k = n - `layers`, which can be computed ahead
for items; the rest, L_(k+1) .. L_n, are the head's and read both texts, and a dense layer reads the
first token:

    x = L_(k+1:n)([L_(1:k)(query); L_(1:k)(item)]),    score = w . tanh(W x_1 + w') + w0

The upper layers begin as copies of the encoder's, k = 9 of 12 in the paper.
An index keeps the states of every token. Axes: b queries, c candidates, t tokens, d dimensions.

Deviations: no auxiliary losses (distillation from the whole model), since all rivals have one loss
here; two towers of lower layers, which begin alike (one, as in the paper, with `shared`). From the
authors' code, which also counts positions from 0 in each text: an item has its own [CLS], and token
type 0 (there 1; both as in CMC's code); W begins at random, not as BERT's pooler.
The last layer is computed at the first token only, which changes no score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossknn.models.cross_encoder import ClsHead
from crossknn.models.late_interaction.head import Head, HeadOptions, in_full, listed
from crossknn.models.late_interaction.layers import copies, cut, run


@dataclass(frozen=True, kw_only=True)
class DeformerOptions(HeadOptions):
    """layers: how many upper layers read the pair. dropout: before the last linear layer."""

    layers: int = 3
    dropout: float = 0.1


class Deformer(Head):
    """See the module's docstring."""

    Options = DeformerOptions
    query_reads = "tokens"
    item_reads = "tokens"

    def __init__(self, encoder: Any, options: DeformerOptions) -> None:
        super().__init__(encoder, options)
        self.layers = copies(encoder, options.layers)
        self.out = ClsHead(self.dimensions, dropout=options.dropout)

    def take_over(self, query: Any, item: Any) -> None:
        """Raises InputError if no layer would be left in the towers."""
        for encoder in [query] if item is query else [query, item]:
            cut(encoder, self.options.layers)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        c = items.shape[1]
        queries = query.unsqueeze(1).expand(-1, c, -1, -1)
        masks = query_mask.unsqueeze(1).expand(-1, c, -1)
        found = torch.cat([queries, items], dim=2).flatten(0, 1)
        mask = torch.cat([masks, item_mask], dim=2).flatten(0, 1)
        for layer in self.layers[:-1]:
            found = run(layer, found, found, mask)
        first = run(self.layers[-1], found[:, :1], found, mask)
        with in_full(first):
            scores = self.out.read(first)
        return listed(scores.reshape(item_mask.shape[:2]), item_mask)
