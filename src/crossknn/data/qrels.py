"""Judgements of relevance (qrels) and ranked lists (runs)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.layouts import folder_at
from crossknn.data.records import NAMED_TYPES, as_id, file_type, read_records
from crossknn.data.text_files import is_header, read_lines
from crossknn.errors import InputError
from crossknn.types import is_whole

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Query id -> item id -> grade."""

LARGEST_GRADE = 100_000
"""Largest grade accepted, because trec_eval counts items by grade: a grade of a billion takes it
minutes, and larger ones overflow."""

Run: TypeAlias = dict[str, list[tuple[str, float]]]
"""Query id -> (item id, score), best first."""

_COLUMNS = (
    ("query-id", "query_id", "qid", "query", "topic_id", "topic"),
    ("corpus-id", "corpus_id", "doc_id", "docno", "docid", "document_id", "item_id", "item", "pid"),
    ("score", "relevance", "rel", "label", "grade", "rating"),
)
_GRADE = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
_GRADE_NAME = re.compile(
    "gain|grade|judge?ment|label|rel(evanc[ey])?([ _-]?(score|label|grade))?|rating|score",
    re.IGNORECASE,
)
_ITEM_NAME = re.compile("corpus|doc|item|passage|pid|entity", re.IGNORECASE)
_NUMBER = (bool, float, np.floating, np.bool_)
_ADVICE = "give a mapping {query id: {item id: grade}}"


def read_qrels(
    path: str | Path | Mapping[Any, Mapping[Any, Any]], *, split: str | None = None
) -> Qrels:
    """Read judgements: a query, an item, and a grade, which is a whole number (or `1.0`).

    TREC lines have four columns, the second of which is ignored; a table of three columns, as in
    BEIR, may have a header. In CSV, JSON and Parquet the fields are named `query-id` (`query_id`,
    `qid`), `corpus-id` (`doc_id`, `docno`) and `score` (`relevance`, `label`, `grade`).

    Args:
        path: The file; or a data folder (docs/how-to/data.md), or a mapping
            `{query id: {item id: grade}}`.
        split: The split of a folder, by default `test`.
    """
    if not isinstance(path, str | Path):
        return given_qrels(path)
    folder = folder_at(path)
    path = Path(path) if folder is None else folder.judgements(folder.split(split))
    qrels: Qrels = {}
    rows = _records(path) if file_type(path) in NAMED_TYPES else _lines(path)
    for place, query, item, value in rows:
        grade = _GRADE.fullmatch(value)
        if grade is None:
            raise _no_judgement(place)
        _judge(qrels, query, item, int(grade[1]), place)
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


def _records(path: Path) -> Iterator[tuple[str, str, str, str]]:
    for record in read_records(path).rows:
        query, item, grade = (record.first_of(names) or names[0] for names in _COLUMNS)
        yield record.place, record.id(query), record.id(item), record.text(grade).strip()


def _lines(path: Path) -> Iterator[tuple[str, str, str, str]]:
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    for count, (number, line) in enumerate(lines):
        place, line = f"{path}, line {number}", line.rstrip("\t\r\n")
        row = line.split("\t") if "\t" in line.strip() else line.split()
        names = [name.strip("\"'# ") for name in row]
        if not count and _GRADE_NAME.fullmatch(names[-1]) and is_header(names[:1]):
            if len(names) > 2 and _ITEM_NAME.match(names[0]) and not _ITEM_NAME.match(names[-2]):
                raise InputError(f"{place} names {names[0]} first: put the queries first")
            continue
        if len(row) not in (3, 4) or not all(map(str.strip, row)):
            raise _no_judgement(place)
        yield place, row[0], row[-2], row[-1].strip()


def _no_judgement(place: str) -> InputError:
    return InputError(
        f"{place} is not a judgement: expected query, item and a whole number (BEIR), or query, 0, "
        "item and a whole number (TREC)"
    )


def _judge(qrels: Qrels, query: str, item: str, grade: int, place: str) -> None:
    if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
        raise InputError(
            f"{place} judges query {query!r} and item {item!r} a second time, with another grade"
        )


def given_qrels(judgements: Mapping[Any, Mapping[Any, Any]]) -> Qrels:
    """Check judgements from Python; return ids as texts and integer grades."""
    qrels: Qrels = {}
    if not isinstance(judgements, Mapping):
        raise InputError(f"the judgements are {judgements!r:.80}; {_ADVICE}")
    for query, row in judgements.items():
        place = f"the judgements of query {query!r:.80}"
        if not isinstance(row, Mapping):
            raise InputError(f"{place} are {row!r:.80}; {_ADVICE}")
        name = as_id(query, place)
        qrels.setdefault(name, {})
        for item, grade in row.items():
            whole = is_whole(grade) or (isinstance(grade, _NUMBER) and float(grade).is_integer())
            if not whole:
                raise InputError(f"{place} have the grade {grade!r:.80}; it must be a whole number")
            _judge(qrels, name, as_id(item, place), int(grade), place)
    return qrels


def by_position(
    qrels: Qrels, query_ids: Iterable[str], item_ids: Sequence[str]
) -> list[dict[str, int]]:
    """Return each query's grades by the item's position, written as text; an item that is not in
    the corpus is called `absent ID`."""
    position = {item: str(i) for i, item in enumerate(item_ids)}
    rows = (qrels.get(query, {}) for query in query_ids)
    return [{position.get(i, f"absent {i}"): grade for i, grade in row.items()} for row in rows]


def judged(qrels: Qrels, query_ids: Iterable[str]) -> list[dict[str, int]]:
    """Return item id -> grade for each query, {} for a query without judgements; `InputError` if
    no query is judged, or if a grade is above `LARGEST_GRADE`."""
    rows = [qrels.get(query, {}) for query in query_ids]
    if not any(rows):
        raise InputError("the qrels judge none of the queries: do their ids agree?")
    largest = max((grade for row in rows for grade in row.values()), key=abs)
    if abs(largest) > LARGEST_GRADE:
        raise InputError(f"the qrels have the grade {largest}; it must be {LARGEST_GRADE} at most")
    return rows


def read_run(path: str | Path) -> Run:
    """Read ranked lists from a TREC run (query, Q0, item, rank, score, tag); they are returned
    sorted by score, ties by rank."""
    lists: dict[str, dict[str, tuple[float, int]]] = {}
    for number, line in read_lines(Path(path)):
        if not line.strip():
            continue
        row = line.split("\t")
        try:
            query, _, item, rank, value, _ = row if len(row) == 6 else line.split()
            score, place = float(value), int(rank)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InputError(
                f"{path}, line {number} is not a line of a TREC run: expected query, Q0, item, "
                "rank, score, tag"
            )
        ranked = lists.setdefault(query, {})
        if item in ranked:
            raise InputError(f"{path}, line {number} lists item {item!r} twice for {query!r}")
        ranked[item] = (-score, place)
    if not lists:
        raise InputError(f"{path} holds no ranked lists")
    return {
        query: [(i, -ranked[i][0]) for i in sorted(ranked, key=ranked.__getitem__)]
        for query, ranked in lists.items()
    }
