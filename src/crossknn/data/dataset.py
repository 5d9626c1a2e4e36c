"""Data sets, checks of their consistency, and random samples."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from crossknn.data.items import Items, item_records, items_from
from crossknn.data.layouts import layout_at
from crossknn.data.qrels import Qrels, Run, read_qrels, read_run, relevant
from crossknn.data.queries import QuerySet, split_queries
from crossknn.errors import InputError, counted
from crossknn.files import make_folder, write_file
from crossknn.types import IntArray, as_count

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set: m queries, n items, and judgements.

    Judgements or candidates of an unknown query or item are kept; `findings` counts them.

    Args:
        name: The name used in messages.
        items: The n items.
        queries: The m queries.
        qrels: Judgements, `{query id: {item id: grade}}`; above 0 is relevant.
        candidates: Ranked lists that come with some data, `{query id: [(item id, score)]}`.

    Raises:
        InputError: An id occurs twice.
    """

    name: str
    items: Items
    queries: QuerySet
    qrels: Qrels
    candidates: Run | None = None

    def __post_init__(self) -> None:
        for what, ids in (("query", self.queries.ids), ("item", self.items.ids)):
            for repeated in _repeated(ids):
                raise InputError(f"the {what} id {repeated!r} comes twice; ids must differ")

    def __len__(self) -> int:
        return len(self.queries)

    def __str__(self) -> str:
        judgements = sum(map(len, self.qrels.values()))
        sizes = {"query": len(self), "item": len(self.items), "judgement": judgements}
        counts = ", ".join(counted(size, noun) for noun, size in sizes.items())
        return "; ".join([f"{self.name}: {counts}", *self.findings])

    def take(self, rows: Iterable[int]) -> Dataset:
        """Select queries at some positions, in this order, with all items."""
        queries, lists = self.queries.take(map(int, rows)), self.candidates
        return replace(
            self,
            queries=queries,
            qrels={query: self.qrels[query] for query in queries.ids if query in self.qrels},
            candidates=None if lists is None else {q: lists[q] for q in queries.ids if q in lists},
        )

    def judged(self) -> Dataset:
        """Select the queries with a relevant item (a grade above 0)."""
        ids = enumerate(self.queries.ids)
        return self.take(row for row, query in ids if relevant(self.qrels, query))

    def sample(self, count: int, seed: int) -> Dataset:
        """Select `count` random queries (at most all), in their order here, with all items."""
        return self.take(split(len(self), {"sample": min(count, len(self))}, seed)["sample"])

    def save(self, folder: str | Path, split: str = "test") -> None:
        """Write items, queries and judgements as a BEIR folder, which `read_dataset` reads.

        Titles are written before their texts, as they were read; further fields are left out.
        Judgements are written to `qrels/<split>.tsv`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        make_folder(folder / "qrels")
        titled = zip(self.items.ids, self.items.titles, self.items.texts, strict=True)
        rows = {
            "corpus": [
                {"_id": i, "title": head, "text": text.removeprefix(head).strip()}
                if text.startswith(f"{head}\n")
                else {"_id": i, "title": "", "text": text}
                for i, head, text in titled
            ],
            "queries": [
                {"_id": i, "text": text}
                for i, text in zip(self.queries.ids, self.queries.texts, strict=True)
            ],
        }
        for name, records in rows.items():
            lines = (json.dumps(record, ensure_ascii=False) for record in records)
            write_file(folder, f"{name}.jsonl", "".join(f"{line}\n" for line in lines).encode())
        judged = (
            f"{query}\t{item}\t{grade}\n"
            for query, row in self.qrels.items()
            for item, grade in row.items()
        )
        table = "query-id\tcorpus-id\tscore\n" + "".join(judged)
        write_file(folder, f"qrels/{split}.tsv", table.encode())

    @cached_property
    def positives(self) -> tuple[IntArray, ...]:
        """Return positions (p,) of each query's relevant items; `InputError` if one is missing."""
        positions = []
        for query in self.queries.ids:
            try:
                positions.append(self.items.positions(relevant(self.qrels, query)))
            except InputError as error:
                raise InputError(f"query {query!r}: {error}") from None
        return tuple(positions)

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """Count inconsistencies, each with its first example."""
        qrels, lists = self.qrels, self.candidates or {}
        queries, items = set(self.queries.ids), set(self.items.ids)
        listed = [(query, item) for query, found in lists.items() for item, _ in found]
        judged = [item for found in qrels.values() for item in found]
        without = [query for query in self.queries.ids if not relevant(qrels, query)]
        cases = {
            "queries without a judgement": [query for query in without if query not in qrels],
            "queries without a relevant item": [query for query in without if query in qrels],
            "judged queries that are missing": [query for query in qrels if query not in queries],
            "judged items that are missing": [item for item in judged if item not in items],
            "lists of queries that are missing": [query for query in lists if query not in queries],
            "listed items that are missing": [item for _, item in listed if item not in items],
            "items listed twice for a query": [item for _, item in _repeated(listed)],
            "items with an empty text": _without_text(self.items),
            "queries with an empty text": _without_text(self.queries),
        }
        found = ((what, ids) for what, ids in cases.items() if ids)
        return tuple(f"{what}: {len(ids)}, the first {ids[0]!r}" for what, ids in found)


def _repeated(values: Iterable[T]) -> list[T]:
    return [value for value, count in Counter(values).items() for _ in range(count - 1)]


def _without_text(texts: Items | QuerySet) -> list[str]:
    return [found for found, text in zip(texts.ids, texts.texts, strict=True) if not text.strip()]


def split(n: int, sizes: Mapping[str, int], seed: int = 0) -> dict[str, IntArray]:
    """Split n positions at random into disjoint parts: `{name: ascending positions (size,)}`.

    A part depends on the seed, its own size and the sizes named before it. So enlarging the last
    part changes no other part, and a small first part is a subset of a larger one.

    Args:
        n: Number of queries (or items).
        sizes: The size of each part by name.
        seed: Seed of the draw.
    """
    for name, size in sizes.items():
        as_count(size, f"the size of the part {name!r}", 0)
    if sum(sizes.values()) > n:
        asked = " + ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(f"the parts ({asked}) add up to more than {n}: make them smaller")
    order = np.random.default_rng(seed).permutation(n)
    parts = np.split(order, np.cumsum(list(sizes.values()), dtype=np.int64))
    return {name: np.sort(part) for name, part in zip(sizes, parts, strict=False)}


def read_dataset(
    source: str | Path,
    *,
    split: str | None = None,
    limit: int | None = None,
    format: str | None = None,
) -> Dataset:
    """Read a split of a data folder, such as a BEIR folder.

    Inconsistencies are logged as warnings (`Dataset.findings`). `InputError` names the place of a
    record that cannot be read.

    Args:
        source: The folder.
        split: By default `test`, or the only split.
        limit: Maximum number of queries, from the beginning.
        format: The layout (docs/how-to/data.md), by default recognised from the files.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1")
    data = dataset_at(source, split, format)
    if limit is not None:
        data = data.take(range(min(limit, len(data))))
    for finding in data.findings:
        logger.warning("%s: %s", data.name, finding)
    return data


def dataset_at(
    source: str | Path, split: str | None, format: str | None = None, lists: bool = True
) -> Dataset:
    """Read the data set of a split; items may have empty texts, and `lists` may be left unread."""
    layout = layout_at(source, format)
    if layout is None:
        raise InputError(f"{source} is a file, where a folder of data is expected")
    split = layout.split(split)
    listed = layout.lists(split) if lists else None
    return Dataset(
        name=layout.path.name,
        queries=split_queries(layout, split),
        items=items_from(item_records(layout.items()), allow_empty=True),
        qrels=read_qrels(layout.judgements(split)),
        candidates=None if listed is None else read_run(listed),
    )
