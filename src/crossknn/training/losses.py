"""Losses of queries over lists of candidates. Axes: b queries, c candidates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def softmax_cross_entropy(scores: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean over queries of -log softmax of the first candidate: (b, c) -> ().

    `present` (b, c) is false where a list has ended (ANNCUR, A.1: one gold item, 63 negatives).
    """
    if present is not None:
        scores = scores.masked_fill(~present, float("-inf"))
    target = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return functional.cross_entropy(scores, target)


def in_batch_cross_entropy(scores: Tensor, gold: Tensor, wrong: Tensor) -> Tensor:
    """Mean over queries of -log softmax of the gold among all items of a batch: (b, c) -> ().

    `gold` (b,) are columns; `wrong` (b, c) is true where a column may count as a negative: an item
    that is right for a query is no negative of it, whoever brought it in.
    """
    keep = wrong.clone()
    keep[torch.arange(len(scores)), gold] = True
    return functional.cross_entropy(scores.masked_fill(~keep, float("-inf")), gold)
