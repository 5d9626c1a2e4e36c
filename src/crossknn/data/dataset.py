"""Data sets: `Dataset` leaves nothing out and counts what is amiss, `Labelled` is for training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import TypeVar

import numpy as np

from crossknn.data.items import Items
from crossknn.data.queries import Qrels, QuerySet, Run
from crossknn.errors import InputError
from crossknn.types import Candidates, IntArray

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Something that may be wrong: what, in the number of `count`, and the first case."""

    what: str
    count: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.count} {self.what}{': ' if self.count == 1 else ', the first '}{self.example}"
        )


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """m queries, n items, judgements by id, and for some data a list of candidates per query.

    Nothing is left out: what does not fit together is counted in `findings` (see `check`).

    Raises:
        InputError: for an id that comes twice.
    """

    name: str
    items: Items
    queries: QuerySet
    qrels: Qrels
    candidates: Run | None = None
    findings: tuple[Finding, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", check(self))

    def __len__(self) -> int:
        return len(self.queries)

    def __str__(self) -> str:
        counts = (
            (len(self), "query", "queries"),
            (len(self.items), "item", "items"),
            (sum(map(len, self.qrels.values())), "judgement", "judgements"),
        )
        said = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)
        return "; ".join([f"{self.name}: {said}", *map(str, self.findings)])

    def take(self, rows: Iterable[int]) -> Dataset:
        """The queries at `rows`, with their judgements and lists, and all items."""
        queries, lists = self.queries.take(map(int, rows)), self.candidates
        return Dataset(
            name=self.name,
            items=self.items,
            queries=queries,
            qrels={query: self.qrels[query] for query in queries.ids if query in self.qrels},
            candidates=None if lists is None else {q: lists[q] for q in queries.ids if q in lists},
        )

    def judged(self) -> Dataset:
        """The queries with a relevant item (a grade above 0)."""
        ids = enumerate(self.queries.ids)
        return self.take(row for row, query in ids if _has_relevant(self.qrels, query))


def check(data: Dataset) -> tuple[Finding, ...]:
    """What does not fit together, counted.

    Queries without judgements or without a relevant item; judged queries and items that are not
    there; in lists, queries and items that are not there and items listed twice; empty texts.

    Raises:
        InputError: for an id that comes twice.
    """
    qrels, lists = data.qrels, data.candidates or {}
    for what, ids in (("query", data.queries.ids), ("item", data.items.ids)):
        for repeated in _repeated(ids):
            raise InputError(f"the {what} id {repeated!r} comes twice; ids must differ")
    queries, items = set(data.queries.ids), set(data.items.ids)
    judged = [item for found in qrels.values() for item in found]
    listed = [(query, item) for query, found in lists.items() for item, _ in found]
    judged_queries = [query for query in data.queries.ids if query in qrels]
    cases = {
        "[query has|queries have] no judgement": [q for q in data.queries.ids if q not in qrels],
        "[query has|queries have] no relevant item among [its|their] judgements": [
            query for query in judged_queries if not _has_relevant(qrels, query)
        ],
        "judged [query is|queries are] not there": [q for q in qrels if q not in queries],
        "[judgement names an item that is|judgements name items that are] not there": [
            item for item in judged if item not in items
        ],
        "[list is of a query that is|lists are of queries that are] not there": [
            query for query in lists if query not in queries
        ],
        "listed [item is|items are] not there": [i for _, i in listed if i not in items],
        "[item is|items are] listed twice for a query": [i for _, i in _repeated(listed)],
        "[item has|items have] an empty text": _empty(data.items.ids, data.items.texts),
        "[query has|queries have] an empty text": _empty(data.queries.ids, data.queries.texts),
    }
    found = [(said, ids) for said, ids in cases.items() if ids]
    return tuple(Finding(_form(said, len(ids)), len(ids), repr(ids[0])) for said, ids in found)


def _form(said: str, count: int) -> str:
    """The singular or the plural of `[singular|plural]`."""
    return re.sub(r"\[(.*?)\|(.*?)\]", r"\1" if count == 1 else r"\2", said)


def _repeated(values: Iterable[T]) -> list[T]:
    return [value for value, count in Counter(values).items() for _ in range(count - 1)]


def _has_relevant(qrels: Qrels, query: str) -> bool:
    return any(grade > 0 for grade in qrels.get(query, {}).values())


def _empty(ids: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [text_id for text_id, text in zip(ids, texts, strict=True) if not text.strip()]


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """m queries, n items, and for each query the positions of its relevant items (at least one).

    The strict view of a data set: every item that a judgement names is there. `lists` are those
    that come with the queries (m, c), if they were asked for.
    """

    name: str
    items: Items
    queries: QuerySet
    positives: tuple[IntArray, ...]
    lists: Candidates | None = None

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def gold(self) -> IntArray:
        """The first relevant item of each query: (m,)."""
        return np.array([found[0] for found in self.positives], dtype=np.int64)

    def take(self, rows: Iterable[int]) -> Labelled:
        """The queries at `rows`, with the whole corpus."""
        rows, lists = [int(row) for row in rows], self.lists
        return Labelled(
            name=self.name,
            items=self.items,
            queries=self.queries.take(rows),
            positives=tuple(self.positives[r] for r in rows),
            lists=None if lists is None else Candidates(lists.items[rows], lists.scores[rows]),
        )

    def without(self, ids: Iterable[str]) -> Labelled:
        """All queries but those with these ids."""
        held = set(ids)
        return self.take(row for row, query in enumerate(self.queries.ids) if query not in held)

    def sample(self, count: int | None, seed: int) -> Labelled:
        """`count` random queries, in their order; all if None or if there are no more."""
        if count is None or count >= len(self):
            return self
        return self.take(split(self, {"sample": count}, seed)["sample"])


def split(of: int | Sized, sizes: Mapping[str, int], seed: int = 0) -> dict[str, IntArray]:
    """Disjoint random parts: name -> positions (size,), ascending; what is left over is in none.

    A part depends on the seed, on the sizes before it and on its own; a smaller first part lies
    within a larger one.

    Args:
        of: how many queries (or items) there are, or the ids themselves.
        sizes: the size of each part by name.

    Raises:
        InputError: for a size that is negative or no whole number, and if the sizes exceed what
            there is.
    """
    n = of if isinstance(of, int) else len(of)
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 0:
            raise InputError(
                f"the part {name!r} has the size {size}; it must be a whole number, 0 or more"
            )
    if sum(sizes.values()) > n:
        asked = " + ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(f"the parts ({asked}) are more than the {n} there are: make them smaller")
    order = np.random.default_rng(seed).permutation(n)
    parts = np.split(order, np.cumsum(list(sizes.values()), dtype=np.int64))
    return {name: np.sort(part) for name, part in zip(sizes, parts, strict=False)}
