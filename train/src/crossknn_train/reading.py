"""Labelled data for training: data folders (docs/how-to/data.md), and the ZESHEL data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from crossknn.data.items import Items, item_records, items_from
from crossknn.data.layouts import DataFolder
from crossknn.data.qrels import Qrels, Run, read_qrels, read_run
from crossknn.data.queries import (
    ENTITY,
    MARKS,
    MENTION_END,
    MENTION_START,
    QuerySet,
    queries_from,
    read_queries,
)
from crossknn.data.records import Record, Records, read_records
from crossknn.data.text_files import existing
from crossknn.errors import InputError, nearest
from crossknn.files import as_path
from crossknn.types import IntArray

SPLITS = ("train", "valid", "test")
"""The splits of ZESHEL."""
ITEM_TEMPLATE = f"{{title}} {ENTITY} {{text}}"
"""The template of an item whose title is marked."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A corpus of items with m labelled queries; an item with a grade above 0 is relevant.

    `candidates` are the ranked lists of candidates that some data sets contain.
    """

    name: str
    items: Items
    queries: QuerySet
    qrels: Qrels
    candidates: Run | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, rows: Iterable[int]) -> Dataset:
        """Select queries at some positions, in this order, with all items."""
        return replace(self, queries=self.queries.take(map(int, rows)))

    def sample(self, count: int, seed: int) -> Dataset:
        """Select `count` random queries (at most all), without changing their order."""
        return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:count]))

    @cached_property
    def positives(self) -> tuple[IntArray, ...]:
        """Positions (p,) of each query's relevant items; `InputError` if an item is missing."""
        positions = []
        for query in self.queries.ids:
            grades = self.qrels.get(query, {})
            try:
                positions.append(self.items.positions(i for i in grades if grades[i] > 0))
            except InputError as error:
                raise InputError(f"query {query!r}: {error}") from None
        return tuple(positions)


def marked_query(left: str, mention: str, right: str) -> str:
    """Return `left [Ms] mention [Me] right`, without the empty parts."""
    parts = (left, MENTION_START, mention, MENTION_END, right)
    return " ".join(part.strip() for part in parts if part.strip())


def read_labelled(
    folder: str | Path, split: str = "train", *, lists: bool = False
) -> list[Dataset]:
    """Read a split of a data folder (docs/how-to/data.md), perhaps with its ranked `lists` of
    candidates: one data set, or one per domain. Queries without a relevant item are left out."""
    path = existing(as_path(folder, "the folder"))
    place = f"{path}, split {split}"
    if (path / "documents").is_dir():
        datasets = _zeshel(path, split)
    else:
        datasets = [_of_folder(DataFolder(path), split, lists)]
    return [_labelled(data, place, lists) for data in datasets]


def _of_folder(folder: DataFolder, split: str, lists: bool) -> Dataset:
    run = folder.lists(folder.split(split)) if lists else None
    return Dataset(
        name=folder.path.name,
        items=items_from(item_records(folder.items()), allow_empty=True),
        queries=read_queries(folder.path, split=split),
        qrels=read_qrels(folder.path, split=split),
        candidates=None if run is None else read_run(run),
    )


def _labelled(data: Dataset, place: str, lists: bool) -> Dataset:
    if unknown := set(data.qrels).difference(data.queries.ids):
        raise InputError(f"{place}: the judged query {min(unknown)!r} is not among the queries")
    relevant = {query for query, grades in data.qrels.items() if max(grades.values()) > 0}
    judged = data.take(row for row, query in enumerate(data.queries.ids) if query in relevant)
    try:
        positives = judged.positives
    except InputError as error:
        raise InputError(f"{place}, {error}") from None
    if not positives:
        raise InputError(f"{place}: no query has a relevant item")
    if lists and not judged.candidates:
        raise InputError(f"{place}: no lists of candidates")
    return judged


def _zeshel(path: Path, split: str) -> list[Dataset]:
    """Read ZESHEL, entity linking (Logeswaran et al. 2019); each domain is a separate corpus.

    Items are the entities in `documents/<domain>.json`, `title [ENT] text`. Queries are mentions
    with the rest of their document, `left [Ms] mention [Me] right`, from `mentions/<split>.json`,
    or from `processed/`, where `label_id` is a position in the documents.
    """
    if split not in SPLITS:
        raise InputError(f"{path} has no split {split!r} ({nearest(split, SPLITS)})")
    by_domain: dict[str, list[Record]] = {}
    for domain, mentions in _mentions(path, split):
        by_domain.setdefault(domain, []).extend(mentions)
    if not by_domain:
        raise InputError(f"{path} has no mentions in the split {split}")
    return [_world(path, *world) for world in by_domain.items()]


def _world(path: Path, domain: str, mentions: Sequence[Record]) -> Dataset:
    documents = list(read_records(path / "documents" / f"{domain}.json").rows)
    processed = (path / "processed").is_dir()
    in_context = _as_processed(mentions) if processed else _placed(mentions, documents)
    queries = queries_from(Records(str(path), in_context))
    items = items_from(Records(str(path), documents), ITEM_TEMPLATE, allow_empty=True)
    item_ids, qrels = set(items.ids), Qrels()
    for query, mention in zip(queries.ids, mentions, strict=True):
        label: object = mention.fields.get("label_id")
        if not processed:
            label = mention.text("label_document_id")
        elif type(label) is int and 0 <= label < len(items):
            label = items.ids[label]
        if not isinstance(label, str) or label not in item_ids:
            raise InputError(
                f"{mention.place} has the label {label!r}, which is none of the {len(items)} "
                f"items of {domain}"
            )
        qrels[query] = {label: 1}
    return Dataset(name=domain, items=items, queries=queries, qrels=qrels)


def _mentions(path: Path, split: str) -> Iterator[tuple[str, Iterable[Record]]]:
    """Yield (domain, mentions) of a split, unchanged from the files."""
    end = "_mentions.jsonl"
    for file in sorted(path.glob(f"processed/{split}_worlds/*{end}")):
        yield file.name.removesuffix(end), read_records(file).rows
    file = path / "mentions" / f"{'val' if split == 'valid' else split}.json"
    if file.is_file() and not (path / "processed").is_dir():
        for record in read_records(file).rows:
            yield record.text("corpus"), [record]


def _as_processed(mentions: Iterable[Record]) -> Iterator[Record]:
    for record in mentions:
        yield _marked(record, *map(record.text, ("context_left", "mention", "context_right")))


def _placed(mentions: Iterable[Record], documents: Iterable[Record]) -> Iterator[Record]:
    """Yield mentions with their contexts, which are found by the positions of the words."""
    contexts = {d.text("document_id"): d.text("text").split(" ") for d in documents}
    for record in mentions:
        words = contexts.get(record.text("context_document_id"), [])
        given = record.field("start_index"), record.field("end_index")
        start, end = (place if type(place) is int else -1 for place in given)
        mention = " ".join(words[start : end + 1])
        if not 0 <= start <= end < len(words) or mention != record.field("text"):
            raise InputError(
                f"{record.place}: the mention {record.field('text')!r} is not the words {given[0]} "
                f"to {given[1]} of the document {record.text('context_document_id')!r}"
            )
        yield _marked(record, " ".join(words[:start]), mention, " ".join(words[end + 1 :]))


def _marked(record: Record, left: str, mention: str, right: str) -> Record:
    if not mention.strip():
        raise InputError(f"{record.place} has an empty mention")
    fields = {"id": record.field("mention_id"), "text": marked_query(left, mention, right)}
    return record._replace(fields=fields)


def unmarked(text: str) -> str:
    """Return a marked query or item as plain text, for models that do not know the marks."""
    for mark in MARKS:
        text = text.replace(mark, " ")
    return " ".join(text.split())
