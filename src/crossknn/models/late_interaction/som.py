"""Sum-of-max: each token of the query finds its best match in the item (Zhang and Stratos, 2021;
ColBERT, Khattab and Zaharia, 2020, 3.3).

    score = sum_j max_k h_j . g_k

over the states h_j of the query's tokens and g_k of the item's, as Zhang and Stratos and the
comparison of CMC take them; an index keeps g_k for every token. With `projected`, W h_j and W g_k
stand in their place, W linear, from d to 128 dimensions, and one for both (ColBERT, 3.2).

Axes: b queries, c candidates, t tokens, d dimensions (128 if projected).

Deviations: padding is no token (the code of CMC and of Zhang and Stratos takes a fixed number of
positions, whatever they hold); from ColBERT, whose projected states have unit length, whose queries
are filled up with [MASK] and whose items lose their punctuation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.late_interaction.head import Head, HeadOptions, bias_of, in_full, listed

_COLBERT = 128


@dataclass(frozen=True, kw_only=True)
class SumOfMaxOptions(HeadOptions):
    """projected: whether tokens are; dimensions: of a projected token."""

    projected: bool = False
    dimensions: int = _COLBERT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimensions != _COLBERT and not self.projected:
            raise InputError(
                f"dimensions is {self.dimensions}, and without a projection a token keeps the "
                "encoder's: set projected = true, or leave dimensions out"
            )


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
        """(b, t, d) and (b, t) -> (b, t, d') and (b, t), d' = 128 if projected."""
        return self.project(states).float(), mask

    def of_items(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """As `of_queries`."""
        return self.of_queries(states, mask)

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        with in_full(items):
            matches = items.float() @ query.float().unsqueeze(1).transpose(2, 3)
        matches = matches + bias_of(item_mask).unsqueeze(-1)
        best = matches.amax(2) * query_mask.unsqueeze(1)
        return listed(best.sum(-1), item_mask)
