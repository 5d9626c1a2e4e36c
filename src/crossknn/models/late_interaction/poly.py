"""Poly-encoder: m views of the query, of which each item picks its own mixture (Humeau et al.,
2020, 1905.01969), with learnt codes.

Section 4.4: codes a_1 .. a_m attend over the states h_1 .. h_t of the query's tokens, and the
item's vector y over what they found:

    v_k = sum_j softmax_j(a_k . h_j) h_j,    v = sum_k softmax_k(y . v_k) v_k,    score = v . y

An item is one vector, as with a dual encoder.

Axes: b queries, c candidates, t tokens, d dimensions, m codes.

Deviations: special tokens are attended to like others; codes begin with a deviation of d ** -0.5,
so that no token has all the weight at first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.models.late_interaction.head import Head, HeadOptions, attended, listed


@dataclass(frozen=True, kw_only=True)
class PolyOptions(HeadOptions):
    """codes: m, 64 in the comparison of CMC (up to 360 in the paper)."""

    codes: int = 64


class Poly(Head):
    """See the module's docstring."""

    Options = PolyOptions
    query_reads = "tokens"

    def __init__(self, encoder: Any, options: PolyOptions) -> None:
        super().__init__(encoder, options)
        self.codes = nn.Parameter(
            torch.randn(options.codes, self.dimensions) * self.dimensions**-0.5
        )

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The views of queries: (b, t, d) and (b, t) -> (b, m, d) and (b, m)."""
        views = attended(self.codes @ states.transpose(1, 2), mask, states)
        return views, mask.any(1, keepdim=True).expand(-1, self.options.codes)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        vectors = items[:, :, 0]
        mixed = attended(vectors @ query.transpose(1, 2), query_mask, query)
        return listed((mixed * vectors).sum(-1), item_mask)
