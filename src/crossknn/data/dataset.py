"""A data set: items, queries, judgements, and the lists that come with it, counted and checked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossknn.data.formats import open_folder
from crossknn.data.items import Items
from crossknn.data.queries import Qrels, QuerySet, Run
from crossknn.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """Something that may be wrong: what, how often, and the first case; `one` says it of one."""

    what: str
    one: str
    count: int
    example: str

    def __str__(self) -> str:
        if self.count == 1:
            return f"1 {self.one}: {self.example}"
        return f"{self.count} {self.what}, the first {self.example}"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """m queries, n items, judgements by id, and for some data a list of candidates per query.

    Nothing is left out: what does not fit together is counted in `findings` (see `check`).
    Raises `InputError` for an id that comes twice.
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
        chosen = [int(row) for row in rows]
        ids = tuple(self.queries.ids[row] for row in chosen)
        lists = self.candidates
        return Dataset(
            name=self.name,
            items=self.items,
            queries=QuerySet(ids, tuple(self.queries.texts[row] for row in chosen)),
            qrels={query: self.qrels[query] for query in ids if query in self.qrels},
            candidates=None if lists is None else {q: lists[q] for q in ids if q in lists},
        )

    def judged(self) -> Dataset:
        """The queries with a relevant item (a grade above 0)."""
        return self.take(
            row for row, query in enumerate(self.queries.ids) if _has_relevant(self.qrels, query)
        )


def check(data: Dataset) -> tuple[Finding, ...]:
    """What does not fit together, counted.

    Queries without judgements or without a relevant item; judged queries and items that are not
    there; in lists, queries and items that are not there and items listed twice; empty texts.
    """
    _unique("query", data.queries.ids)
    queries, items = set(data.queries.ids), set(_unique("item", data.items.ids))
    judged = [(query, item) for query, found in data.qrels.items() for item in found]
    lists = data.candidates or {}
    listed = [(query, item) for query, found in lists.items() for item, _ in found]
    cases: dict[tuple[str, str], Iterable[str]] = {
        ("queries have no judgement", "query has no judgement"): (
            q for q in data.queries.ids if q not in data.qrels
        ),
        (
            "queries have no relevant item among their judgements",
            "query has no relevant item among its judgements",
        ): (q for q in data.queries.ids if q in data.qrels and not _has_relevant(data.qrels, q)),
        ("judged queries are not there", "judged query is not there"): (
            q for q in data.qrels if q not in queries
        ),
        (
            "judgements name items that are not there",
            "judgement names an item that is not there",
        ): (i for _, i in judged if i not in items),
        ("lists are of queries that are not there", "list is of a query that is not there"): (
            q for q in lists if q not in queries
        ),
        ("listed items are not there", "listed item is not there"): (
            i for _, i in listed if i not in items
        ),
        ("items are listed twice for a query", "item is listed twice for a query"): (
            i for _, i in _twice(listed)
        ),
        ("items have an empty text", "item has an empty text"): _empty(
            data.items.ids, data.items.texts
        ),
        ("queries have an empty text", "query has an empty text"): _empty(
            data.queries.ids, data.queries.texts
        ),
    }
    found = ((said, list(ids)) for said, ids in cases.items())
    return tuple(Finding(*said, len(ids), repr(ids[0])) for said, ids in found if ids)


def read_dataset(
    source: str | Path,
    *,
    split: str | None = None,
    domain: str | None = None,
    limit: int | None = None,
    format: str | None = None,
) -> Dataset:
    """A split of a data folder, or of a data set of ir_datasets (`irds:beir/scifact/test`).

    The format is seen from the layout (docs/data.md), or is `format`. `split` is `test`, or the
    only one, if it is not named; `domain` is one of a folder that has several corpora; `limit`
    keeps the first queries. What does not fit together is logged as a warning (`Dataset.findings`).

    Raises `InputError`, one sentence with the place, for damaged records and what is not there.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1")
    folder = open_folder(source, format=format, domain=domain)
    split = folder.split(split)
    parts = folder.parts(split, None if domain is None else [domain])
    if len(parts) != 1:
        known = ", ".join(str(part.domain) for part in parts)
        raise InputError(f"{source} has the domains {known}: name one (domain=...)")
    part = parts[0]
    data = Dataset(
        name=part.name,
        items=part.items(split),
        queries=part.queries(split),
        qrels=part.qrels(split),
        candidates=part.candidates(split),
    )
    if limit is not None:
        data = data.take(range(min(limit, len(data))))
    for finding in data.findings:
        logger.warning("%s: %s", data.name, finding)
    return data


def _unique(what: str, ids: Sequence[str]) -> Sequence[str]:
    for found, _ in _twice(zip(ids, ids, strict=True)):
        raise InputError(f"the {what} id {found!r} comes twice; ids must differ")
    return ids


def _twice(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair, count in Counter(pairs).items() for _ in range(count - 1)]


def _has_relevant(qrels: Qrels, query: str) -> bool:
    return any(grade > 0 for grade in qrels.get(query, {}).values())


def _empty(ids: Sequence[str], texts: Sequence[str]) -> Iterable[str]:
    return (text_id for text_id, text in zip(ids, texts, strict=True) if not text.strip())
