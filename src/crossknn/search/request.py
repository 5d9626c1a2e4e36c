"""The checked arguments of a search.

Axes: m queries, n items.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.index.database import Column
from crossknn.index.item_index import ItemIndex
from crossknn.methods.base import Method, Plan, planned
from crossknn.scorers.base import Scorer
from crossknn.search.fusion import Calibration, Fusion
from crossknn.search.groups import Groups
from crossknn.search.loop import SearchRetriever
from crossknn.search.results import EqualTexts
from crossknn.types import BoolArray

AT_ONCE = 1 << 26
"""Maximum number of approximate scores (m x n) in memory, 256 MB: more queries are searched in
batches."""
QUERIES, CHARACTERS, CELLS = 8, 8_192, 1 << 21
"""With a deadline, a batch has at most this many queries, characters of query texts, and
approximate scores (m x n), because the first stage does not check the deadline."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchRequest:
    """The checked arguments of a search (see `Searcher.search`), and the data that it reads.

    `index` is a snapshot of the index with the fits of this scorer, `pairs` the budget per query,
    and `allowed` the mask (n,) of items that pass the filter. `cheaper` is the search with a
    cheaper scorer that comes first, and `found` the retriever that runs it; `rung` is the number of
    the scorer, from the cheapest, 1; `scored` is called with the number of newly scored pairs;
    `group_by` is the field whose values make groups, with `group_size` items of each in the answer.
    """

    index: ItemIndex
    scorer: Scorer | None
    fusion: Fusion | None
    calibration: Calibration | None
    queries: QuerySet
    method: Method
    k: int
    pairs: int
    allowed: BoolArray | None
    seed: int
    deadline: float | None
    min_score: float | None = None
    trace: bool = False
    cancel: threading.Event | None = None
    fallback: bool = False
    cheaper: SearchRequest | None = None
    found: SearchRetriever | None = None
    rung: int = 1
    scored: Callable[[int], object] | None = None
    group_by: str | None = None
    group_size: int = 1

    @cached_property
    def plan(self) -> Plan:
        """The method's plan; with fusion, it searches for the top k by final score."""
        make = planned
        if len(self.queries) > 1:
            from crossknn.fitting.multitask import plan_together

            make = plan_together
        plan = make(self.method, self.index, self.pairs, self.seed)
        if plan.stop is not None and self.k > plan.stop.k:
            raise InputError(
                f"k is {self.k}, but the method's target_recall refers to the top "
                f"{plan.stop.k}: give the method k={self.k}, too"
            )
        return plan if self.fusion is None else self.fusion.plan(plan)

    @cached_property
    def groups(self) -> Groups | None:
        """The groups of items of which the k best are wanted, with `group_by`."""
        if self.group_by is None:
            return None
        least = -np.inf if self.min_score is None else self.min_score
        return Groups(self.index.groups(self.group_by), self.k, least)

    @cached_property
    def equal_texts(self) -> EqualTexts:
        """The items that have the same text as another item, and so share its score."""
        items, none = self.index.items, np.zeros(0, np.int64)
        fits = self.allowed is None or self.allowed.shape == (len(items),)
        reads_texts = self.method.calls and getattr(self.scorer, "reads_texts", True)
        # Texts in a database are not compared. `Search` refuses a mask of the wrong length.
        if not fits or not reads_texts or isinstance(items.texts, Column):
            return EqualTexts(none, none)
        return EqualTexts.among(items.alike, self.allowed)

    def starts(self) -> Sequence[int]:
        """Return the position of the first query of each batch that is searched together."""
        texts, n = self.queries.texts, self.index.n
        if self.deadline is None and self.cancel is None:
            return range(0, len(texts), max(1, AT_ONCE // n))
        most, starts, length = max(1, min(QUERIES, CELLS // max(n, 1))), [0], 0
        for q, text in enumerate(texts):
            if q - starts[-1] >= most or (q > starts[-1] and length + len(text) > CHARACTERS):
                starts.append(q)
                length = 0
            length += len(text)
        return starts
