"""Queries, judgements (qrels) and ranked lists (runs), read all-or-nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.data.marks import marked_query
from crossknn.data.records import (
    Ids,
    Located,
    Record,
    as_text,
    existing,
    id_text,
    missing_field,
    pick_field,
    read_lines,
    records_of,
)
from crossknn.data.topics import are_topics, read_topics
from crossknn.errors import InputError
from crossknn.types import Queries

ID_FIELDS = ("id", "_id", "qid", "query_id", "query-id", "mention_id")
TEXT_FIELDS = ("text", "query")

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Query id -> item id -> grade."""

Run: TypeAlias = dict[str, list[tuple[str, float]]]
"""Query id -> (item id, score), best first."""


@dataclass(frozen=True)
class QuerySet:
    """m queries with their ids, in the order of their file."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self) -> Queries:
        """The queries as a search takes them."""
        return Queries(self.texts)

    def first(self, count: int | None) -> QuerySet:
        """The first `count` queries; all if None."""
        return QuerySet(self.ids[:count], self.texts[:count])

    def select(self, ids: Iterable[str]) -> QuerySet:
        """The queries with these ids, in this set's order; unknown ids are left out."""
        wanted = set(ids)
        kept = [(i, t) for i, t in zip(self.ids, self.texts, strict=True) if i in wanted]
        return QuerySet(tuple(i for i, _ in kept), tuple(t for _, t in kept))


def query_records(path: Path) -> Located:
    """The records of a file of queries."""
    if are_topics(existing(path)):
        return read_topics(path)
    return records_of(path, known=(*ID_FIELDS, *TEXT_FIELDS), bare=(("id", "text"),))


def queries_from(records: Located) -> QuerySet:
    """Queries from records; InputError for an empty one, an id that comes twice, and if none."""
    ids, texts = Ids(records.unit), []
    for number, record in records:
        place = records.place(number)
        id_name = pick_field(record, None, ID_FIELDS)
        query_id = id_text(record[id_name], place) if id_name else str(number)
        ids.add(query_id, number, place)
        text = _text(record, place)
        if not text:
            raise InputError(f"{place} has an empty query")
        texts.append(text)
    if not len(ids):
        raise InputError(f"{records.file or 'the sequence'} holds no queries")
    return QuerySet(tuple(ids), tuple(texts))


def _text(record: Record, place: str) -> str:
    """The query's text; a mention in its context is marked (`crossknn.data.marks`)."""
    if "context_document_id" in record:
        raise InputError(
            f"{place} is a mention without its context: read the folder that has documents/ too"
        )
    name = pick_field(record, None, TEXT_FIELDS)
    if name is not None:
        return as_text(record[name], place, name).strip()
    if "mention" not in record:
        raise missing_field(place, "text", record)
    left, mention, right = (
        as_text(record.get(field, ""), place, field)
        for field in ("context_left", "mention", "context_right")
    )
    if not mention.strip():
        raise InputError(f"{place} has an empty mention")
    return marked_query(left, mention, right)


def file_qrels(path: Path) -> Qrels:
    """The judgements of a file; see `crossknn.data.reading.read_qrels`."""
    qrels: Qrels = {}
    for number, line in read_lines(existing(path)):
        row = columns(line)
        if not row or (number == 1 and not _is_grade(row[-1])):
            continue
        if len(row) not in (3, 4) or not _is_grade(row[-1]):
            raise InputError(
                f"{path}, line {number} is not a judgement: expected query, item and a whole "
                "number (BEIR), or query, 0, item and a whole number (TREC)"
            )
        judge(qrels, row[0], row[-2], int(row[-1]), f"{path}, line {number}")
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


def judge(qrels: Qrels, query: str, item: str, grade: int, place: str) -> None:
    """Note a judgement, or raise that the pair was judged before with another grade."""
    if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
        raise InputError(
            f"{place} judges query {query!r} and item {item!r} a second time, with another grade"
        )


def read_run(path: str | Path) -> Run:
    """Ranked lists from a TREC run (query, Q0, item, rank, score, tag) or those of MS MARCO.

    MS MARCO has tab-separated lines query, item, rank, or (`top1000`) query id, item id, query,
    text, in no order: the score is -rank, and without a rank the place in the list counts as one.

    Lists are sorted by score, ties by rank. Raises `InputError` with file and line.
    """
    path = existing(Path(path))
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            query, item, rank, score = _listed(line)
        except ValueError:
            raise InputError(
                f"{path}, line {number} is not a line of a TREC run: expected query, Q0, item, "
                "rank, score, tag (MS MARCO: query, item, rank, or query id, item id, query, text)"
            ) from None
        ranked = found.setdefault(query, {})
        rank = len(ranked) + 1 if rank is None else rank
        entry = (rank if score is None else -score, rank)
        if ranked.setdefault(item, entry) is not entry:
            raise InputError(f"{path}, line {number} lists item {item!r} twice for {query!r}")
    if not found:
        raise InputError(f"{path} holds no ranked lists")
    return {
        query: [(item, -float(cost)) for item, (cost, _) in sorted(items.items(), key=_cost)]
        for query, items in found.items()
    }


def _listed(line: str) -> tuple[str, str, int | None, float | None]:
    """(query, item, rank, score) of a line; ValueError if it is none."""
    row = line.rstrip("\r\n").split("\t")
    if len(row) == 4:
        return row[0], row[1], None, None
    if len(row) == 3:
        return row[0], row[1], int(row[2]), None
    query, _, item, rank, score, _ = line.split()
    return query, item, int(rank), float(score)


def _cost(entry: tuple[str, tuple[float, int]]) -> tuple[float, int]:
    return entry[1]


def columns(line: str) -> list[str]:
    """The columns of a line: between tabs if it has some, else between blanks."""
    line = line.strip()
    return line.split("\t") if "\t" in line else line.split()


def _is_grade(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text) is not None
