"""Queries, marked mentions, judgements (qrels) and ranked lists (runs), read all-or-nothing.

Marked mentions are entity linking as text pairs: a query is a sentence whose mention stands between
`[Ms]` and `[Me]`; an item is its title, `[ENT]`, and its description (ANNCUR, Yadav et al. 2022,
A.2). Both are plain strings: a model whose tokenizer knows the marks (`crossknn.models.tokens`)
reads them as one token each.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.records import (
    Entries,
    Record,
    Records,
    as_id,
    given_records,
    is_container,
    is_header,
    read_lines,
    read_records,
)
from crossknn.errors import InputError
from crossknn.types import NO_ITEM, IntArray, is_whole, whole_text

ID_FIELDS = ("id", "_id", "qid", "query_id", "query-id", "topic_id", "mention_id")
TEXT_FIELDS = ("query", "text")
"""A row of results has both: the query, and the text of what was found."""
ADVICE = "call the field that holds the query 'text' or 'query'"

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Query id -> item id -> grade."""

LARGEST_GRADE = 100_000
"""trec_eval counts items by grade: one of a billion takes it minutes, and larger ones overflow."""

Run: TypeAlias = dict[str, list[tuple[str, float]]]
"""Query id -> (item id, score), best first."""

MENTION_START, MENTION_END, ENTITY = "[Ms]", "[Me]", "[ENT]"
MARKS = (MENTION_START, MENTION_END, ENTITY)

ITEM_TEMPLATE = f"{{title}} {ENTITY} {{text}}"
"""How an item's record becomes a marked item."""

_OLD_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL)
# A field ends at the next tag of topics: a title may hold a "<" of its own.
_OLD_FIELD = re.compile(
    r"<(num|title)>(?:\s*(?:Number|Topic):)?(.*?)"
    r"(?=</?(?:top|num|dom|title|desc|smry|narr|con|fac|def|nat|time)>|\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class QuerySet:
    """m queries with their ids, in the order of their file.

    Args:
        ids: Ids (m), as judgements name them.
        texts: Texts (m).
        numbered: The ids are the queries' numbers, since they came without ids.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    numbered: bool = field(default=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Iterable[int]) -> QuerySet:
        """Some of the queries.

        Args:
            rows: Which, as positions.

        Returns:
            The queries at these positions, in this order.
        """
        rows = list(rows)
        ids, texts = (tuple(of[r] for r in rows) for of in (self.ids, self.texts))
        return QuerySet(ids, texts, self.numbered)


Texts: TypeAlias = str | Entries | QuerySet
"""One query, several, or several with ids, as `read_queries` takes them."""


def query_set(queries: Texts) -> QuerySet:
    """The queries with ids, their texts as given; `InputError` for none, or for an empty one."""
    if isinstance(queries, str):
        found = QuerySet(("0",), (whole_text(queries),), numbered=True)
    elif isinstance(queries, QuerySet):
        found = queries
    elif is_container(queries):
        found = queries_from(given_records(queries), as_given=True)
    else:
        raise InputError(f"the queries are {queries!r:.80}; give a text or a list of texts")
    for position, text in enumerate(found.texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"query {position} is {text!r}; a query must be a text that is not empty"
            )
    return found


def marked_query(left: str, mention: str, right: str) -> str:
    """`left [Ms] mention [Me] right`, without the empty parts."""
    if not mention.strip():
        raise InputError("the mention is empty")
    parts = (left, MENTION_START, mention, MENTION_END, right)
    return " ".join(part.strip() for part in parts if part.strip())


def item_as_query(item: str) -> str:
    """An item in a query's place: `[Ms] title [Me] description`; an unmarked text stays (A.2)."""
    title, mark, description = item.partition(ENTITY)
    return marked_query("", title, description) if mark and title.strip() else item


def unmarked(text: str) -> str:
    """A marked query or item as plain text, for models that do not know the marks."""
    for mark in MARKS:
        text = text.replace(mark, " ")
    return " ".join(text.split())


def query_records(path: Path) -> Records:
    """The records of a file of queries."""
    start = next((line for _, line in read_lines(path) if line.strip()), "").lstrip()
    if start.startswith("<"):
        return Records(str(path), _topics(path))
    return read_records(path, known=(*ID_FIELDS, *TEXT_FIELDS[::-1]), bare=(("id", "text"),))


def queries_from(records: Records, *, as_given: bool = False) -> QuerySet:
    """Queries from records; `InputError` for an id that comes twice, for none, and, unless texts
    are taken `as_given`, with their outer blanks, for an empty one."""
    ids: dict[str, int] = {}
    texts, numbered = [], True
    for record in records.rows:
        name = record.first_of(ID_FIELDS)
        numbered &= name is None and record.key is None
        record.add_id(record.id(name), ids)
        text = _text(record)
        if not (as_given or text.strip()):
            raise InputError(f"{record.place} has an empty query")
        texts.append(text if as_given else text.strip())
    if not ids:
        raise InputError(f"{records.source} holds no queries")
    return QuerySet(tuple(ids), tuple(texts), numbered)


def _text(record: Record) -> str:
    """The query's text; a mention in its context is marked."""
    if "context_document_id" in record.fields:
        raise InputError(
            f"{record.place} is a mention without its context: read the folder that has documents/ "
            "too"
        )
    name = record.first_of(TEXT_FIELDS)
    if name is not None or "mention" not in record.fields:
        return record.text(name or "text", ADVICE)
    parts = ("context_left", "mention", "context_right")
    left, mention, right = (record.text(part) if part in record.fields else "" for part in parts)
    if not mention.strip():
        raise InputError(f"{record.place} has an empty mention")
    return marked_query(left, mention, right)


def _topics(path: Path) -> Iterator[Record]:
    """TREC topics as ir_datasets reads them (`ir_datasets/formats/trec.py`): the short field only.

    In XML (TREC Web, TREC-COVID), `<topics><topic number="1"><query>...`, or in the older form that
    is not XML (TREC 1 to 8, Robust 2004): `<top>`, then `<num> Number: 301` and `<title> ...`,
    which are not closed, then `</top>`.
    """
    text = "".join(line for _, line in read_lines(path))
    if text.lstrip().startswith("<top>"):
        topics = [dict(reversed(_OLD_FIELD.findall(topic))) for topic in _OLD_TOPIC.findall(text)]
        if rest := _OLD_TOPIC.sub("", text).strip():
            raise InputError(f"{path} holds {rest[:40]!r} outside of <top> ... </top>")
    else:
        try:
            topics = [_topic_fields(topic) for topic in ET.fromstring(text).iter("topic")]
        except ET.ParseError as error:
            line, _ = error.position
            raise InputError(f"{path}, line {line} is not well-formed XML: {error}") from None
    for number, fields in enumerate(topics, start=1):
        topic_id, query = fields.get("num", "").strip(), fields.get("query", fields.get("title"))
        if not topic_id or query is None:
            raise InputError(f"{path}, topic {number} must have a number, and a query or a title")
        record = {"id": topic_id, "text": " ".join(query.split())}
        yield Record(record, number, f"{path}, topic {number}")


def _topic_fields(topic: ET.Element) -> dict[str, str]:
    fields = {child.tag: "".join(child.itertext()) for child in topic}
    fields = fields or {"query": "".join(topic.itertext())}
    return fields | {"num": topic.get("number") or fields.get("num", "")}


def file_qrels(path: Path) -> Qrels:
    """The judgements of a file; see `crossknn.data.reading.read_qrels`."""
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
    """Add a judgement; `InputError` if there is another one of the same pair."""
    if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
        raise InputError(
            f"{place} judges query {query!r} and item {item!r} a second time, with another grade"
        )


def given_qrels(judgements: Mapping[Any, Mapping[Any, Any]]) -> Qrels:
    """Judgements `{query id: {item id: grade}}` of Python, with ids as texts and whole grades."""
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
    """Ids of a query's relevant items: those of a grade above 0."""
    return [item for item, grade in qrels.get(query, {}).items() if grade > 0]


def own_items(queries: QuerySet, item_ids: Iterable[str], qrels: Qrels | None = None) -> IntArray:
    """The item that is the query itself, where queries are documents of the corpus: that which has
    the query's id, as BEIR has it (ArguAna, Quora).

    Args:
        queries: m queries. Those without ids of their own are no items.
        item_ids: Ids of the items.
        qrels: An item that these call relevant to its query is not left out: the ids agree by
            chance.

    Returns:
        Positions (m,), `NO_ITEM` for a query that is no item.
    """
    found = np.full(len(queries), NO_ITEM, np.int64)
    if queries.numbered:
        return found
    rows = {name: row for row, name in enumerate(queries.ids)}
    for position, name in enumerate(item_ids):
        row = rows.get(name)
        if row is not None and (qrels or {}).get(name, {}).get(name, 0) <= 0:
            found[row] = position
    return found


def without_own(items: IntArray, own: IntArray) -> IntArray:
    """Answers (m, c) without each query's own item (m,); what follows moves up, and -1 ends rows.

    >>> without_own(np.array([[3, 1, 2], [4, 5, 6]]), np.array([1, -1])).tolist()
    [[3, 2, -1], [4, 5, 6]]
    """
    left_out = (items == own[:, None]) & (items != NO_ITEM)
    order = np.argsort(left_out, axis=1, kind="stable")
    return np.take_along_axis(np.where(left_out, NO_ITEM, items), order, axis=1)


def by_position(
    qrels: Qrels, query_ids: Iterable[str], item_ids: Sequence[str]
) -> list[dict[str, int]]:
    """Grades of each query by position of the items, as text; others are named `absent ...`."""
    position = {item: str(i) for i, item in enumerate(item_ids)}
    rows = (qrels.get(query, {}) for query in query_ids)
    return [{position.get(i, f"absent {i}"): grade for i, grade in row.items()} for row in rows]


def judged(qrels: Qrels, query_ids: Iterable[str]) -> list[dict[str, int]]:
    """Item id -> grade of each query; empty for a query that the qrels do not name.

    Raises:
        InputError: if no query is judged (then the ids are of something else), and for a grade
            beyond `LARGEST_GRADE`.
    """
    found = [qrels.get(query, {}) for query in query_ids]
    if not any(found):
        raise InputError("the qrels judge none of the queries: do their ids agree?")
    largest = max((grade for row in found for grade in row.values()), key=abs)
    if abs(largest) > LARGEST_GRADE:
        raise InputError(f"the qrels have the grade {largest}; it must be {LARGEST_GRADE} at most")
    return found


def read_run(path: str | Path) -> Run:
    """Ranked lists from a TREC run (query, Q0, item, rank, score, tag) or those of MS MARCO.

    MS MARCO has tab-separated lines query, item, rank, or (`top1000`) query id, item id, query,
    text, in no order: the score is -rank, and without a rank the place in the list counts as one.

    Returns:
        Lists sorted by score, ties by rank.

    Raises:
        InputError: one sentence with file and line.
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
