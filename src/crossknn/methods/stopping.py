"""When to stop a query: what a search expects to have found, calibrated on anchor queries.

Predictions are a little too sure of themselves, and whoever stops at the first good moment picks
the lucky ones. Both are measured: queries whose exact scores are all known are searched to the
end, and the threshold is where stopping would have reached the target on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossknn.linalg import top_k
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan, Stop
from crossknn.types import BoolArray, FloatArray, Queries

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Course:
    """What m searches expected of their top k before each round, and what they had achieved.

    Both (t, m), for t - 1 rounds after the first, and the end: there nothing is expected any more.
    """

    expected: FloatArray
    achieved: FloatArray

    @classmethod
    def of_all(cls, parts: Sequence[Course]) -> Course:
        """Searches of several batches, as one."""
        return cls(
            expected=np.hstack([part.expected for part in parts]),
            achieved=np.hstack([part.achieved for part in parts]),
        )

    def recall(self, threshold: float) -> float:
        """Mean over queries that stop when they expect so much, or at the end."""
        enough: BoolArray = self.expected >= threshold
        enough[-1] = True
        return float(self.achieved[enough.argmax(axis=0), np.arange(enough.shape[1])].mean())

    def threshold(self, target: float) -> float:
        """The least expectation at which stopping reaches the target; `NEVER` if none does."""
        known = self.expected[:-1]
        tried = np.unique(known[np.isfinite(known)])
        reached = [one for one in tried if self.recall(one) >= target]
        # From above: below the first that falls short, others may reach it by luck.
        short = [one for one in tried if self.recall(one) < target]
        above = [one for one in reached if not short or one > max(short)]
        return float(min(above, default=NEVER))


def course(plan: Plan, queries: Queries, scores: FloatArray, k: int) -> Course:
    """Search queries whose exact scores (m, n) are known, to the end."""
    m = len(scores)
    search = simulate(replace(plan, stop=Stop(k=k, expected=NEVER)), queries, scores)
    picks, truth = search.picks().items, top_k(scores, k).items
    found = np.array([np.isin(picks[q], truth[q]) for q in range(m)])
    so_far = np.cumsum(found, axis=1) / truth.shape[1]
    counts = [count for count, _ in search.expectations]
    achieved = [so_far[np.arange(m), count - 1] for count in counts]
    expected = [expected for _, expected in search.expectations]
    return Course(
        expected=np.array([*expected, np.full(m, np.nan)]),
        achieved=np.array([*achieved, so_far[:, -1]]),
    )
