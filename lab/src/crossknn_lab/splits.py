"""A budget of calls divided into anchor items and reranked items: k_i + k_r.

Recall "at a cost" in the figures of ANNCUR and ADACUR is that of the best division, chosen on the
very queries it is reported on. Here that is called the oracle's, and stands beside the division
chosen on other queries.

The papers' accounting differs, too: ANNCUR's code retrieves the k_r best approximate scores of all
items and reranks those alone, so that an anchor item retrieved again is paid twice, and one that
is not is lost. Ours never pays twice, and answers with the best of all scored items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate, bootstrap, recall_at
from crossknn.evaluation.replay import Part, outcome
from crossknn.linalg import top_k
from crossknn.methods import Method
from crossknn.methods.base import part
from crossknn.types import FloatArray, IntArray
from crossknn_lab.approximation import approximate

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of a budget that may go to anchor items."""

Accounting: TypeAlias = Literal["distinct", "paper"]

ByShare: TypeAlias = dict[float, FloatArray]
"""Share of the budget for anchor items -> recall of each query (m,)."""


def retrieved(
    method: Method, parts: Sequence[Part], *, calls: int, depth: int, seed: int = 0
) -> IntArray:
    """The `depth` best approximate scores of each query after `calls` exact ones: (m, depth).

    Scored items are not kept out. With `recall_at` this is Top-k-Recall@k_r of ANNCUR with k_i
    anchor items (ANNCUR, figure 3a), the method being `anncur(anchors=1)` and `calls` k_i.
    """
    found = []
    for index, queries, scores in parts:
        approx, _ = approximate(method, index, queries, scores, budget=calls, seed=seed)
        found.append(top_k(approx, depth).items)
    return np.concatenate(found)


def recall_by_split(
    divided: Callable[[float], Method],
    parts: Sequence[Part],
    truth: IntArray,
    *,
    budget: int,
    ks: Sequence[int],
    shares: Sequence[float] = SHARES,
    accounting: Accounting = "distinct",
    seed: int = 0,
) -> dict[int, ByShare]:
    """Recall of every division of a budget, for each k: `{k: {share: (m,)}}`.

    `divided(share)` is the method that spends `share` of its budget on anchor items, all of it for
    1, e.g. `lambda s: method(f"anncur(anchors={s})")`. `truth` (m, max(ks)) are the exact top
    items. With the accounting `paper` k_i + k_r is the budget, but anchor items count as retrieved
    only if they are retrieved again.
    """
    if not shares or not all(0 < share < 1 for share in shares):
        raise InputError(f"shares are {list(shares)}; each must lie between 0 and 1")
    found: dict[int, ByShare] = {k: {} for k in ks}
    for share in shares:
        for k, values in _recall(
            divided, share, parts, truth, budget, ks, accounting, seed
        ).items():
            found[k][share] = values
    return found


def _recall(
    divided: Callable[[float], Method],
    share: float,
    parts: Sequence[Part],
    truth: IntArray,
    budget: int,
    ks: Sequence[int],
    accounting: Accounting,
    seed: int,
) -> Mapping[int, FloatArray]:
    if accounting == "distinct":
        name, method = str(share), divided(share)
        return outcome(name, method, parts, truth, budget=budget, ks=ks, seed=seed).recall
    anchors = part(budget, share)
    if anchors >= budget:
        return {k: np.zeros(len(truth)) for k in ks}
    reranked = budget - anchors
    ranked = retrieved(divided(1.0), parts, calls=anchors, depth=reranked, seed=seed)
    return {k: recall_at(ranked, truth[:, :k], [reranked])[0] for k in ks}


@dataclass(frozen=True, kw_only=True)
class BestSplit:
    """The share chosen on dev queries, the oracle's, and what both give on the test queries."""

    chosen: float
    recall: Estimate
    oracle: float
    oracle_recall: Estimate


def best_split(
    dev: Mapping[float, FloatArray], test: Mapping[float, FloatArray], *, seed: int = 0
) -> BestSplit:
    """Choose among shares by the mean of their values on dev queries, and on the test queries.

    The values (m,) of a share are of as many queries as you like; ties go to the smaller share.
    Raises InputError if both sides do not have the same shares.
    """
    if not dev or set(dev) != set(test):
        raise InputError(
            f"the shares on dev are {sorted(dev)} and those on test {sorted(test)}: they must be "
            "the same, and at least one"
        )
    chosen, oracle = _best(dev), _best(test)
    return BestSplit(
        chosen=chosen,
        recall=bootstrap(test[chosen], seed=seed),
        oracle=oracle,
        oracle_recall=bootstrap(test[oracle], seed=seed),
    )


def _best(values: Mapping[float, FloatArray]) -> float:
    return max(sorted(values), key=lambda share: float(np.mean(values[share])))
