"""What a search returns: hits by exact score, with what each cost and where it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A scored item.

    `score` is the raw logit, or the retriever's own score where the method makes no calls (then
    `round` is 0); `round` (from 1) and `source` say when and by whom the item was
    picked: by the retriever, by the method, or in item `order` because those ran short.
    `approx` is the score that was predicted when it was picked (the retriever's own score in
    round 1; None in item order), `std` its deviation, from methods that know it. `extra` holds the
    item's further fields.
    """

    id: str
    score: float
    position: int
    round: int
    source: str
    approx: float | None = None
    std: float | None = None
    title: str = ""
    text: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def probability(self) -> float:
        """The logistic function of the logit, 0-1: same order, easier to read."""
        if self.score >= 0:
            return 1 / (1 + math.exp(-self.score))
        return math.exp(self.score) / (1 + math.exp(self.score))


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Sequence[list[Hit]]):
    """Answers to m queries: `results[q]` is query q's list of hits, best first.

    `calls` are pairs really computed and `n_scored` pairs whose score was used, cache hits
    included; both summed over the queries. `seconds` is the whole search, `scoring_seconds` the
    part spent waiting for the scorer. `stopped_by` is `budget`, `target` (every query
    expects to have found enough), `deadline`, `cancelled` or `scorer`: it failed, for some queries
    or for all; `errors` says for each query why, or None, and its hits are those found before.
    `failed` counts pairs
    that could not be scored, `n_backfilled` items taken in item order, `truncated` pairs that
    the model read only the beginning of (other threads' pairs included, if the scorer is shared).
    `trace[q]`, if asked for, has
    every scored item of query q in the order of scoring.
    """

    queries: tuple[str, ...]
    hits: tuple[list[Hit], ...]
    method: str
    budget: int
    calls: int
    n_scored: int
    seconds: float
    scoring_seconds: float
    stopped_by: str = "budget"
    failed: int = 0
    errors: tuple[str | None, ...] = ()
    n_backfilled: int = 0
    truncated: int = 0
    trace: tuple[list[Hit], ...] | None = None

    @property
    def error(self) -> str | None:
        """Why the first query that failed did, if one did."""
        return next(filter(None, self.errors), None)

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, query: int) -> list[Hit]: ...
    @overload
    def __getitem__(self, query: slice) -> list[list[Hit]]: ...
    def __getitem__(self, query: int | slice) -> list[Hit] | list[list[Hit]]:
        return list(self.hits[query]) if isinstance(query, slice) else self.hits[query]

    def __iter__(self) -> Iterator[list[Hit]]:
        return iter(self.hits)
