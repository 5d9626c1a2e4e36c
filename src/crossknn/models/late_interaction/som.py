"""Sum-of-max: each token of the query finds its best match in the item (Zhang and Stratos, 2021;
ColBERT, Khattab and Zaharia, 2020, 3.3).

    score = sum_j max_k W h_j . W g_k

over the states h_j of the query's tokens and g_k of the item's. W is linear, from d to 128
dimensions, and one for both (ColBERT, 3.2); an index keeps W g_k for every token.

Axes: b queries, c candidates, t tokens, d dimensions.

Deviations: from Zhang and Stratos, whose states are not projected (`projected = false` does as they
do); from ColBERT, whose projected states have unit length, whose queries are filled up with [MASK]
and whose items lose their punctuation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from crossknn.models.late_interaction.head import Head, HeadOptions, bias_of, in_full, listed


@dataclass(frozen=True, kw_only=True)
class SumOfMaxOptions(HeadOptions):
    """dimensions: of a token, if `projected`; otherwise a token keeps the encoder's."""

    dimensions: int = 128
    projected: bool = True


class SumOfMax(Head):
    """See the module's docstring."""

    Options = SumOfMaxOptions
    query_reads = "tokens"
    item_reads = "tokens"

    def __init__(self, encoder: Any, options: SumOfMaxOptions) -> None:
        super().__init__(encoder, options)
        self.project: nn.Module = nn.Identity()
        if options.projected:
            self.project = nn.Linear(self.dimensions, options.dimensions, bias=False)
            self.dimensions = options.dimensions

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, t, d) and (b, t) -> (b, t, 128) and (b, t)."""
        return self.project(states).float(), mask

    def of_items(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, t, d) and (b, t) -> (b, t, 128) and (b, t)."""
        return self.of_queries(states, mask)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        with in_full(items):
            matches = items.float() @ query.float().unsqueeze(1).transpose(2, 3)
        matches = matches + bias_of(item_mask).unsqueeze(-1)
        best = matches.amax(2) * query_mask.unsqueeze(1)
        return listed(best.sum(-1), item_mask)
