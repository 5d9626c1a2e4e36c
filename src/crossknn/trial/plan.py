"""Plan the size of a trial for a given time, from the speed of the models."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.diagnosis import ENOUGH
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import DualEncoder
from crossknn.types import Pairs

FEWEST_ITEMS = 100
"""With fewer items there is no point in searching."""

SECONDS = 1.0
"""Seconds for measuring a cross-encoder's speed."""

_BATCH, _WORDS = 16, 10


def pairs_per_second(scorer: Scorer, texts: Sequence[str]) -> float:
    """Measure how fast items are scored, with the first ten words of other items as queries."""
    n, rng = len(texts), np.random.default_rng(0)

    def score_batch() -> int:
        queries = [" ".join(texts[p].split()[:_WORDS]) for p in rng.integers(n, size=_BATCH)]
        pairs = Pairs(np.arange(_BATCH), rng.integers(n, size=_BATCH))
        return sum(len(where) for where, _ in scorer.score(pairs, queries, texts))

    score_batch()  # the first batch also opens the model
    began, scored = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SECONDS or not scored:
        scored += score_batch()
    return scored / spent


def texts_per_second(encoder: str, texts: Sequence[str]) -> float:
    """Measure how fast a dual encoder encodes random items."""
    model, rng = DualEncoder(encoder), np.random.default_rng(0)
    some = [texts[p] for p in rng.integers(len(texts), size=2 * _BATCH)]
    model.encode_items(some[:1])
    began = time.perf_counter()
    model.encode_items(some)
    return len(some) / (time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size of a trial: `queries` are scored against all `items`, and `judged` queries count in
    the verdict, which is made at half, once and twice the requested budget. `complete` says whether
    all requested items and queries fit into the time."""

    items: int
    queries: int
    judged: int
    budgets: list[int]
    pairs_per_second: float
    minutes: float
    complete: bool

    @property
    def verdict_pairs(self) -> int:
        """Return the maximum number of pairs scored only for the verdict, over all budgets."""
        return 2 * sum(self.budgets) * (self.judged - self.queries)

    @classmethod
    def within(
        cls,
        minutes: float,
        *,
        pairs_per_second: float,
        seconds_per_text: float,
        items: int,
        judged: int,
        n_queries: int,
        budget: int,
    ) -> Plan:
        """Choose as many items, and then as many of `n_queries`, as fit into the time. If the
        verdict uses more queries than that, half of the time is kept for the verdict."""
        fewest = min(ENOUGH, judged, n_queries)
        whole = 60 * minutes
        for_exact = whole * (0.5 if judged > n_queries else 1.0)
        seconds_per_item = seconds_per_text + fewest / pairs_per_second
        fitting = min(items, int(for_exact / seconds_per_item))
        needed_items = min(items, max(FEWEST_ITEMS, 2 * budget))
        if fitting < needed_items:
            needed = needed_items * seconds_per_item * whole / for_exact
            enough = f"{math.ceil(needed / 6) / 10:g}"
            raise InputError(
                f"{minutes:g} minutes are too few: with {pairs_per_second:,.3g} pairs a second, "
                f"{fewest} queries with {needed_items} items take {enough} minutes; give --minutes "
                f"{enough}"
            )
        encoding = fitting * seconds_per_text
        affordable = int(pairs_per_second * (for_exact - encoding) / fitting)
        queries = min(judged, n_queries, affordable)
        budgets = sorted({b for b in (budget // 2, budget, 2 * budget) if 0 < b <= fitting})
        left = pairs_per_second * (whole - encoding) - queries * fitting
        in_verdict = min(judged, queries + int(left / (2 * sum(budgets))))
        pairs = queries * fitting + 2 * sum(budgets) * (in_verdict - queries)
        return cls(
            items=fitting,
            queries=queries,
            judged=in_verdict,
            budgets=budgets,
            pairs_per_second=pairs_per_second,
            minutes=(encoding + pairs / pairs_per_second) / 60,
            complete=(fitting, in_verdict) == (items, judged),
        )
