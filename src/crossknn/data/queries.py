"""Queries, judgements (qrels) and ranked lists (runs), read all-or-nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.data.marks import marked_query
from crossknn.data.records import (
    Ids,
    Numbered,
    Record,
    as_text,
    existing,
    file_type,
    given_records,
    id_text,
    missing_field,
    pick_field,
    read_lines,
    read_records,
    read_rows,
)
from crossknn.errors import InputError, nearest
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

    def select(self, ids: Iterable[str]) -> QuerySet:
        """The queries with these ids, in this set's order; unknown ids are left out."""
        wanted = set(ids)
        kept = [(i, t) for i, t in zip(self.ids, self.texts, strict=True) if i in wanted]
        return QuerySet(tuple(i for i, _ in kept), tuple(t for _, t in kept))


def read_queries(
    source: str | Path | Iterable[str | Mapping[str, object]],
    *,
    split: str | None = None,
    limit: int | None = None,
) -> QuerySet:
    """Queries from a file, a BEIR folder, or Python strings and mappings.

    JSON lines and CSV have the fields `id` (`_id`, `qid`, `query_id`) and `text` (`query`); a TSV
    has such a header or two columns, id and text, without one; a `.txt` has a query per line.
    Mentions in context (ZESHEL: `context_left`, `mention`, `context_right`, `mention_id`) become
    marked queries. Ids that are absent are line numbers from 1 (positions from 0 for Python
    sequences). `split` keeps the queries that `qrels/<split>.tsv` of the BEIR folder judges;
    `limit` the first ones.

    Raises `InputError`, one sentence with file and line.
    """
    folder: Path | None = None
    where, unit = "entry", "entry"
    if isinstance(source, (str, Path)):
        path = existing(Path(source))
        if path.is_dir():
            folder, path = path, path / "queries.jsonl"
            if not path.is_file():
                raise InputError(f"{folder} is a folder without queries.jsonl")
        records = _query_records(path)
        where, unit = f"{path}, line", "line"
    else:
        records = given_records(source, text_field="text")

    ids, texts = Ids(unit), []
    for number, record in records:
        place = f"{where} {number}"
        id_name = pick_field(record, None, ID_FIELDS)
        query_id = id_text(record[id_name], place) if id_name else str(number)
        ids.add(query_id, number, place)
        text = _text(record, place)
        if not text:
            raise InputError(f"{place} has an empty query")
        texts.append(text)
    queries = QuerySet(tuple(ids), tuple(texts))
    if split is not None:
        if folder is None:
            raise InputError(f"split {split!r} needs a BEIR folder, not {source}")
        queries = queries.select(read_qrels(folder, split=split))
    if limit is not None:
        queries = QuerySet(queries.ids[:limit], queries.texts[:limit])
    if not len(queries):
        raise InputError(f"{source if unit == 'line' else 'the sequence'} holds no queries")
    return queries


def _text(record: Record, place: str) -> str:
    """The query's text; a mention in its context is marked (`crossknn.data.marks`)."""
    name = pick_field(record, None, TEXT_FIELDS)
    if name is not None:
        return as_text(record[name], place, name).strip()
    if "mention" not in record:
        raise missing_field(place, "text", record)
    left, mention, right = (
        as_text(record.get(field, ""), place, field)
        for field in ("context_left", "mention", "context_right")
    )
    return marked_query(left, mention, right)


def _query_records(path: Path) -> Iterator[Numbered]:
    if file_type(path) != ".tsv":
        yield from read_records(path, text_field="text")
        return
    header: list[str] | None = None
    for number, row in read_rows(path, tabs=True):
        if header is None:
            named = any(name in ID_FIELDS + TEXT_FIELDS for name in row)
            header = row if named else ["id", "text"]
            if named:
                continue
        if len(row) != len(header):
            raise InputError(f"{path}, line {number} has {len(row)} fields, not {len(header)}")
        yield number, dict(zip(header, row, strict=True))


def read_qrels(path: str | Path, *, split: str | None = None) -> Qrels:
    """Judgements from a BEIR file (query, item, grade; with a header or not) or a TREC file.

    TREC lines have four columns, the second of which is ignored. Of a BEIR folder
    `qrels/<split>.tsv` is read, `test` by default.

    Raises `InputError`, one sentence with file and line.
    """
    path = existing(Path(path))
    if path.is_dir():
        splits = {file.stem: file for file in (path / "qrels").glob("*.tsv")}
        name = split or "test"
        if name not in splits:
            hint = nearest(name, splits) if splits else "there are none"
            raise InputError(f"{path} has no judgements qrels/{name}.tsv ({hint})")
        path = splits[name]
    qrels: Qrels = {}
    for number, line in read_lines(path):
        row = _columns(line)
        if not row or (number == 1 and not _is_grade(row[-1])):
            continue
        if len(row) not in (3, 4) or not _is_grade(row[-1]):
            raise InputError(
                f"{path}, line {number} is not a judgement: expected query, item and a whole "
                "number (BEIR), or query, 0, item and a whole number (TREC)"
            )
        query, item, grade = row[0], row[-2], int(row[-1])
        if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
            raise InputError(
                f"{path}, line {number} judges query {query!r} and item {item!r} a second time, "
                "with another grade"
            )
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


def read_run(path: str | Path) -> Run:
    """Ranked lists from a TREC run: query, Q0, item, rank, score, tag.

    Lists are sorted by score, ties by rank. Raises `InputError` with file and line.
    """
    path = existing(Path(path))
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for number, line in read_lines(path):
        row = line.split()
        if not row:
            continue
        try:
            query, _, item, rank, score, _ = row
            entry = (-float(score), int(rank))
        except ValueError:
            raise InputError(
                f"{path}, line {number} is not a line of a TREC run: expected query, Q0, item, "
                "rank, score, tag"
            ) from None
        if found.setdefault(query, {}).setdefault(item, entry) is not entry:
            raise InputError(f"{path}, line {number} lists item {item!r} twice for {query!r}")
    if not found:
        raise InputError(f"{path} holds no ranked lists")
    return {
        query: [(item, -cost) for item, (cost, _) in sorted(items.items(), key=lambda kv: kv[1])]
        for query, items in found.items()
    }


def _columns(line: str) -> list[str]:
    line = line.strip()
    return line.split("\t") if "\t" in line else line.split()


def _is_grade(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text) is not None
