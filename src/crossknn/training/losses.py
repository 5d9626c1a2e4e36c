"""Losses of queries over lists of candidates, and against a teacher's scores or vectors.

Axes: b queries or vectors, c candidates, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crossknn.training.settings import Divergence

RELATIONS = 10.0
"""How much similarities within a batch count beside single vectors."""


def softmax_cross_entropy(scores: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean over queries of -log softmax of the first candidate: (b, c) -> ().

    `present` (b, c) is false where a list has ended (ANNCUR, A.1: one gold item, 63 negatives).
    """
    if present is not None:
        scores = scores.masked_fill(~present.to(scores.device), float("-inf"))
    target = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return functional.cross_entropy(scores, target)


def in_batch_cross_entropy(scores: Tensor, gold: Tensor, wrong: Tensor) -> Tensor:
    """Mean over queries of -log softmax of the gold among all items of a batch: (b, c) -> ().

    `gold` (b,) are columns; `wrong` (b, c) is true where a column may count as a negative: an item
    that is right for a query is no negative of it, whoever brought it in.
    """
    keep, gold = wrong.to(scores.device, copy=True), gold.to(scores.device)
    keep[torch.arange(len(scores), device=scores.device), gold] = True
    return functional.cross_entropy(scores.masked_fill(~keep, float("-inf")), gold)


def match_cross_entropy(scores: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """Mean over queries of the cross-entropy of softmax(scores) against softmax(teacher), L_match
    of ANNCUR, A.3: (b, c) twice -> ().

    `present` (b, c) is false where a list has ended; every list has at least one candidate. The
    least value is the entropy of the teacher's softmax.
    """
    wanted = teacher.masked_fill(~present, float("-inf")).softmax(-1)
    found = scores.masked_fill(~present, float("-inf")).log_softmax(-1)
    return -(wanted * found.masked_fill(~present, 0.0)).sum(-1).mean()


def softmax_near_retriever(
    scores: Tensor, retriever: Tensor, present: Tensor, *, weight: float, kl: Divergence
) -> Tensor:
    """Mean over queries of weight * -log softmax of the first candidate + (1 - weight) * the KL
    divergence of softmax(scores) and softmax(retriever), CMC, eq. 5 and 8: (b, c) twice -> ().

    kl: see `LossSettings`. `present` (b, c) is false where a list has ended.
    """
    present = present.to(scores.device)
    found = scores.float().masked_fill(~present, float("-inf")).log_softmax(-1)
    right = -found[:, 0].mean()
    if kl == "none":
        return right
    wanted = retriever.to(scores.device).float()
    wanted = wanted.masked_fill(~present, float("-inf")).log_softmax(-1)
    left, other = (found, wanted) if kl == "model-retriever" else (wanted, found)
    apart = (left - other).masked_fill(~present, 0.0)
    return weight * right + (1 - weight) * (left.exp() * apart).sum(-1).mean()


def pair_cross_entropy(right: Tensor, wrong: Tensor, present: Tensor) -> Tensor:
    """Mean over queries of the mean over j of -log softmax of right j against wrong j alone, L_pair
    of ANNCUR, A.3: (b, c) twice -> ().

    `present` (b, c) is false where there is no j-th pair; a query without any counts as 0.
    """
    losses = functional.softplus(wrong - right).masked_fill(~present, 0.0)
    return (losses.sum(-1) / present.sum(-1).clamp(min=1)).mean()


def distance_to_teacher(vectors: Tensor, teacher: Tensor) -> Tensor:
    """Mean of 1 - cosine to the teacher's vectors, and ten times the mean squared difference of
    the cosines within the batch: (b, d) twice -> ().

    The second term is relational distillation (Park et al. 2019) with cosines for distances.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        own = functional.normalize(vectors.float(), dim=-1)
        taught = functional.normalize(teacher.float(), dim=-1)
        single = (1 - (own * taught).sum(-1)).mean()
        relations = (own @ own.T - taught @ taught.T).square().mean()
        return single + RELATIONS * relations
