"""Data sets as models are trained and judged on them: queries with the positions of their items.

A `Labelled` is the strict view of a `Dataset`: every query has a relevant item, and every item that
a judgement names is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from crossknn.data.formats import open_folder
from crossknn.data.formats.base import DataFolder
from crossknn.data.items import Items
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.types import Candidates, IntArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """m queries, n items, and for each query the positions of its relevant items (at least one).

    lists: those that come with the queries (m, c), if they were asked for.
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
        rows = [int(row) for row in rows]
        ids, texts, lists = self.queries.ids, self.queries.texts, self.lists
        return Labelled(
            name=self.name,
            items=self.items,
            queries=QuerySet(tuple(ids[r] for r in rows), tuple(texts[r] for r in rows)),
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
        return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:count]))


def read_labelled(
    folder: str | Path,
    split: str = "train",
    domains: Iterable[str] | None = None,
    *,
    lists: bool = False,
) -> list[Labelled]:
    """What a data folder (docs/data.md) holds of a split: one corpus, or one per domain.

    `domains` keeps those domains; of ZESHEL wherever they lie, without it they are the split's own.
    `lists` asks for the lists that come with the queries too. Queries without a relevant item are
    left out; of links to Wikipedia pages those that the list of pages lacks are, with a warning.

    Raises `InputError`, one sentence with file and line, for a missing or duplicate label, a
    relevant item outside the corpus, a mention that is not in its sentence, and lists that are not
    there.
    """
    source = open_folder(folder)
    if domains is None:
        split = source.split(split)
    return [_labelled(part, split, lists) for part in source.parts(split, domains)]


def _labelled(part: DataFolder, split: str, lists: bool) -> Labelled:
    items, queries, qrels = part.items(split), part.queries(split), part.qrels(split)
    known = set(queries.ids)
    for query in qrels:
        if query not in known:
            place = part.judged_at(split, query)
            raise InputError(f"{place}: the query {query!r} is not among the queries")
    found: dict[str, IntArray] = {}
    there = None if part.complete else set(items.ids)
    missing = 0
    for query in queries.ids:
        relevant = [item for item, grade in qrels.get(query, {}).items() if grade > 0]
        if there is not None:
            missing += len(set(relevant) - there)
            relevant = [item for item in relevant if item in there]
        if relevant:
            found[query] = np.array([_position(part, items, split, query, i) for i in relevant])
    if not found:
        raise InputError(f"{part.judged_at(split, '')}: no query has a relevant item")
    if missing:
        logger.warning("%s: %d relevant items are not there and are left out", part.name, missing)
    return Labelled(
        name=part.name,
        items=items,
        queries=queries.select(found),
        positives=tuple(found.values()),
        lists=_lists(part, items, split, found) if lists else None,
    )


def _lists(part: DataFolder, items: Items, split: str, queries: Iterable[str]) -> Candidates:
    given = part.candidates(split)
    if not given:
        raise InputError(f"{part.path} has no lists of candidates for the split {split!r}")
    ranked = [given.get(query, []) for query in queries]
    return Candidates.from_rows(
        [
            (items.positions(item for item, _ in row), np.array([score for _, score in row]))
            for row in ranked
        ]
    )


def _position(part: DataFolder, items: Items, split: str, query: str, item: str) -> int:
    try:
        return items.position(item)
    except InputError as error:
        raise InputError(f"{part.judged_at(split, query, item)}: {error}") from None
