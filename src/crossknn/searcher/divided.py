"""A search of many queries that looks at the clock between a few of them.

The first stage, the encoding of queries and predictions take as long as there are queries, and a
deadline or a client that has gone ends only what looks. So the queries are divided among searches
of their own, which are asked in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from crossknn.search.loop import Search
from crossknn.search.plan import Plan
from crossknn.types import PADDING, BoolArray, FloatArray, IntArray, Pairs, Queries, Ranking

QUERIES, CHARACTERS, CELLS = 8, 8_192, 1 << 21
"""Of a part, at most: its queries, their text, and scores (m x n)."""


class DividedSearch:
    """What `Search` does, for queries that are divided.

    Args:
        left: Seconds left; 0 or less ends whatever is done for the next part.
    """

    def __init__(
        self,
        plan: Plan,
        texts: Sequence[str],
        n: int,
        *,
        allowed: BoolArray | None = None,
        depth: int = 0,
        left: Callable[[], float],
    ) -> None:
        starts = [0, *_cuts(texts, n), len(texts)]
        spans = pairwise(starts)
        self.parts = [
            Search(plan, Queries(texts[a:b]), n, allowed=allowed, depth=depth) for a, b in spans
        ]
        self._starts, self._left = np.array(starts[:-1], np.int64), left
        self.budget, self.round = self.parts[0].budget, 0
        self._next, self._asked, self._begun = 0, set[int](), set[int]()

    @property
    def n_scored(self) -> IntArray:
        """See `Search.n_scored`."""
        return np.concatenate([part.n_scored for part in self.parts])

    @property
    def n_backfilled(self) -> IntArray:
        """See `Search.n_backfilled`."""
        return np.concatenate([part.n_backfilled for part in self.parts])

    @property
    def n_failed(self) -> int:
        """See `Search.n_failed`."""
        return sum(part.n_failed for part in self.parts)

    @property
    def stopped(self) -> BoolArray:
        """See `Search.stopped`."""
        return np.concatenate([part.stopped for part in self.parts])

    @property
    def unfinished(self) -> BoolArray:
        """See `Search.unfinished`."""
        return np.concatenate([part.unfinished for part in self.parts])

    @property
    def late(self) -> BoolArray:
        """(m,) queries whose first stage there was no time for."""
        sizes = [len(part.queries) for part in self.parts]
        return np.repeat([id(part) not in self._begun for part in self.parts], sizes)

    def ask(self) -> Pairs:
        """The next round of all parts, or of those that half of the time left suffices for: the
        others come first when it is asked again, after these pairs were scored."""
        self.round, self._asked = self.round + 1, set()
        until, found = time.monotonic() + self._left() / 2, list[Pairs]()
        for _ in range(len(self.parts)):
            if self._left() <= 0 or (found and time.monotonic() > until):
                break
            self._asked.add(self._next)
            part = self.parts[self._next]
            if part.plan.batches:
                self._begun.add(id(part))
            pairs = part.ask()
            if len(pairs):
                found.append(Pairs(pairs.query + self._starts[self._next], pairs.item))
            self._next = (self._next + 1) % len(self.parts)
        if not found:
            return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
        query, item = (np.concatenate([getattr(p, of) for p in found]) for of in ("query", "item"))
        return Pairs(query, item)

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """See `Search.tell`."""
        owner = np.searchsorted(self._starts, pairs.query, side="right") - 1
        for number in np.unique(owner).tolist():
            own = owner == number
            part = Pairs(pairs.query[own] - self._starts[number], pairs.item[own])
            self.parts[number].tell(part, np.asarray(scores)[own])

    def end(self, query: int) -> None:
        """See `Search.end`."""
        number = int(np.searchsorted(self._starts, query, side="right")) - 1
        self.parts[number].end(query - int(self._starts[number]))

    def best(self, k: int) -> Ranking:
        """See `Search.best`; of a plan without rounds, nothing of those that come too late."""

        def found(part: Search) -> Ranking:
            if not part.plan.batches:
                if self._left() <= 0:
                    return Ranking.empty(len(part.queries))
                self._begun.add(id(part))
            return part.best(k)

        return self._joined(found)

    def filled(self, k: int) -> Ranking:
        """See `Search.filled`; without predictions where the time is over."""
        return self._joined(lambda part: part.filled(k) if self._left() > 0 else part.best(k))

    def first(self, k: int) -> Ranking:
        """See `Search.first`."""
        return self._joined(lambda part: part.first(k))

    def picks(self) -> Ranking:
        """See `Search.picks`."""
        return self._joined(Search.picks)

    def latest(self) -> Ranking:
        """See `Search.latest`; nothing of queries that were not asked in this round."""
        asked = {id(self.parts[number]) for number in self._asked}
        return self._joined(
            lambda p: p.latest() if id(p) in asked else Ranking.empty(len(p.queries))
        )

    def _joined(self, of: Callable[[Search], Ranking]) -> Ranking:
        """The rankings of all parts as one."""
        found = [of(part) for part in self.parts]
        width = max(ranking.items.shape[1] for ranking in found)
        return Ranking(**{f.name: _padded(found, f.name, width) for f in fields(Ranking)})


def _padded(found: Sequence[Ranking], name: str, width: int) -> Any:
    """The rows of one array of several rankings, each filled to the same width."""
    empty = PADDING[name][0]
    rows = [getattr(ranking, name) for ranking in found]
    return np.concatenate(
        [np.pad(row, ((0, 0), (0, width - row.shape[1])), constant_values=empty) for row in rows]
    )


def _cuts(texts: Sequence[str], n: int) -> Iterator[int]:
    """Where parts begin, but for the first one."""
    most, start, length = max(1, min(QUERIES, CELLS // max(n, 1))), 0, 0
    for q, text in enumerate(texts):
        if q > start and (q - start >= most or length + len(text) > CHARACTERS):
            yield q
            start, length = q, 0
        length += len(text)
