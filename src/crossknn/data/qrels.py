"""Judgements (qrels) and ranked lists (runs), which are read completely or not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.layouts import layout_at
from crossknn.data.records import as_id
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


def read_qrels(
    path: str | Path | Mapping[Any, Mapping[Any, Any]], *, split: str | None = None
) -> Qrels:
    """Read judgements from a BEIR file (query, item, grade; header optional) or a TREC file.

    TREC lines have four columns, the second of which is ignored. A grade is a whole number, `1.0`
    is one, too.

    Args:
        path: The file; or a data folder (docs/how-to/data.md), or a mapping
            `{query id: {item id: grade}}`.
        split: The split of a folder, by default `test`.
    """
    if not isinstance(path, str | Path):
        return given_qrels(path)
    layout = layout_at(path)
    return _file_qrels(Path(path) if layout is None else layout.judgements(layout.split(split)))


def _file_qrels(path: Path) -> Qrels:
    """Read the judgements of a file."""
    qrels: Qrels = {}
    lines = ((number, line.rstrip("\r\n")) for number, line in read_lines(path) if line.strip())
    for first, (number, line) in zip(chain([True], repeat(False)), lines, strict=False):
        place = f"{path}, line {number}"
        row = line.rstrip("\t").split("\t") if "\t" in line.strip() else line.split()
        names = [name.strip("\"'# ") for name in row]
        if first and _GRADE_NAME.fullmatch(names[-1]) and is_header(names[:1]):
            if len(names) > 2 and _ITEM_NAME.match(names[0]) and not _ITEM_NAME.match(names[-2]):
                raise InputError(f"{place} names {names[0]} first: put the queries first")
            continue
        grade = _GRADE.fullmatch(row[-1].strip())
        if len(row) not in (3, 4) or grade is None or not all(map(str.strip, row)):
            raise InputError(
                f"{place} is not a judgement: expected query, item and a whole number (BEIR), or "
                "query, 0, item and a whole number (TREC)"
            )
        _judge(qrels, row[0], row[-2], int(grade[1]), place)
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


_GRADE = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
_GRADE_NAME = re.compile(
    "gain|grade|judge?ment|label|rel(evanc[ey])?([ _-]?(score|label|grade))?|rating|score",
    re.IGNORECASE,
)
_ITEM_NAME = re.compile("corpus|doc|item|passage|pid|entity", re.IGNORECASE)


def _judge(qrels: Qrels, query: str, item: str, grade: int, place: str) -> None:
    """Add a judgement; `InputError` if the pair already has another grade."""
    if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
        raise InputError(
            f"{place} judges query {query!r} and item {item!r} a second time, with another grade"
        )


def given_qrels(judgements: Mapping[Any, Mapping[Any, Any]]) -> Qrels:
    """Check judgements `{query id: {item id: grade}}` from Python; return ids as texts and integer
    grades."""
    qrels: Qrels = {}
    if not isinstance(judgements, Mapping):
        raise InputError(f"the judgements are {judgements!r:.80}; {_QRELS}")
    for query, row in judgements.items():
        place = f"the judgements of query {query!r:.80}"
        if not isinstance(row, Mapping):
            raise InputError(f"{place} are {row!r:.80}; {_QRELS}")
        name = as_id(query, place)
        qrels.setdefault(name, {})
        for item, grade in row.items():
            whole = is_whole(grade) or (isinstance(grade, _NUMBER) and float(grade).is_integer())
            if not whole:
                raise InputError(f"{place} have the grade {grade!r:.80}; it must be a whole number")
            _judge(qrels, name, as_id(item, place), int(grade), place)
    return qrels


_QRELS = "give a mapping {query id: {item id: grade}}"
_NUMBER = (bool, float, np.floating, np.bool_)


def relevant(qrels: Qrels, query: str) -> list[str]:
    """Return the ids of a query's relevant items: those with a grade above 0."""
    return [item for item, grade in qrels.get(query, {}).items() if grade > 0]


def by_position(
    qrels: Qrels, query_ids: Iterable[str], item_ids: Sequence[str]
) -> list[dict[str, int]]:
    """Return the grades of each query by item position, as text; other items are named `absent
    ...`."""
    position = {item: str(i) for i, item in enumerate(item_ids)}
    rows = (qrels.get(query, {}) for query in query_ids)
    return [{position.get(i, f"absent {i}"): grade for i, grade in row.items()} for row in rows]


def judged(qrels: Qrels, query_ids: Iterable[str]) -> list[dict[str, int]]:
    """Return item id -> grade for each query; empty for a query without judgements.

    `InputError` if no query is judged (then the ids do not match), and for a grade above
    `LARGEST_GRADE`.
    """
    found = [qrels.get(query, {}) for query in query_ids]
    if not any(found):
        raise InputError("the qrels judge none of the queries: do their ids agree?")
    largest = max((grade for row in found for grade in row.values()), key=abs)
    if abs(largest) > LARGEST_GRADE:
        raise InputError(f"the qrels have the grade {largest}; it must be {LARGEST_GRADE} at most")
    return found


def read_run(path: str | Path) -> Run:
    """Read ranked lists from a TREC run (query, Q0, item, rank, score, tag) or one of MS MARCO.

    MS MARCO has tab-separated lines query, item, rank, or (`top1000`) query id, item id, query,
    text, in any order. The score is -rank; without ranks the order of lines is used. Lists are
    returned sorted by score, ties by rank.
    """
    path = Path(path)
    found: dict[str, dict[str, tuple[float, int]]] = {}
    ranks = set[tuple[str, int]]()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        row = line.rstrip("\r\n").split("\t")
        try:
            if len(row) == 4 and (row[1] in ("0", "Q0") and row[3].strip().isdecimal()):
                raise ValueError("a judgement")
            if len(row) == 4:
                query, item, rank = row[0], row[1], len(found.get(row[0], ())) + 1
                score = -float(rank)
            elif len(row) == 3:
                query, item, rank, score = row[0], row[1], int(row[2]), -float(row[2])
            else:
                query, _, item, place, value, _ = line.split()
                rank, score = int(place), float(value)
                if not math.isfinite(score):
                    raise ValueError("no number")
        except ValueError:
            raise InputError(
                f"{path}, line {number} is not a line of a TREC run: expected query, Q0, item, "
                "rank, score, tag (MS MARCO: query, item, rank, or query id, item id, query, text)"
            ) from None
        ranked = found.setdefault(query, {})
        if item in ranked:
            raise InputError(f"{path}, line {number} lists item {item!r} twice for {query!r}")
        if len(row) == 3 and (query, rank) in ranks:
            raise InputError(
                f"{path}, line {number} gives the rank {rank} twice for {query!r}: are these "
                "judgements? Lists have the columns query, item, rank"
            )
        ranks.add((query, rank))
        ranked[item] = (-score, rank)
    if not found:
        raise InputError(f"{path} holds no ranked lists")
    return {
        query: [(i, -ranked[i][0]) for i in sorted(ranked, key=ranked.__getitem__)]
        for query, ranked in found.items()
    }
