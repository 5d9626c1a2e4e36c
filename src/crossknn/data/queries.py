"""Queries, marked mentions, judgements (qrels) and ranked lists (runs), read all-or-nothing.

Marked mentions are entity linking as text pairs: a query is a sentence whose mention stands between
`[Ms]` and `[Me]`; an item is its title, `[ENT]`, and its description (ANNCUR, Yadav et al. 2022,
A.2). Both are plain strings: a model whose tokenizer knows the marks (`crossknn.models.tokens`)
reads them as one token each.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.data.records import Record, Records, read_lines, read_records
from crossknn.errors import InputError

ID_FIELDS = ("id", "_id", "qid", "query_id", "query-id", "mention_id")
TEXT_FIELDS = ("text", "query")
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
_OLD_FIELD = re.compile(r"<(num|title)>(?:\s*(?:Number|Topic):)?([^<]*)")


@dataclass(frozen=True)
class QuerySet:
    """m queries with their ids, in the order of their file.

    Args:
        ids: Ids (m), as judgements name them.
        texts: Texts (m).
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]

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
        return QuerySet(tuple(self.ids[r] for r in rows), tuple(self.texts[r] for r in rows))


Texts: TypeAlias = str | Sequence[str] | Mapping[str, str] | QuerySet
"""One query, several, or several with ids."""


def query_set(queries: Texts) -> QuerySet:
    """The queries with ids; `InputError` for none, or for one that is empty."""
    if not isinstance(queries, Iterable | QuerySet):
        raise InputError(f"the queries are {queries!r:.80}; give a text or a list of texts")
    if not isinstance(queries, QuerySet):
        texts = [queries] if isinstance(queries, str) else queries
        named = texts if isinstance(texts, Mapping) else dict(enumerate(texts))
        queries = QuerySet(tuple(map(str, named)), tuple(named.values()))
    if not queries.texts:
        raise InputError("there are no queries: give at least one")
    for position, text in enumerate(queries.texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"query {position} is {text!r}; a query must be a text that is not empty"
            )
    return queries


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
    return read_records(path, known=(*ID_FIELDS, *TEXT_FIELDS), bare=(("id", "text"),))


def queries_from(records: Records) -> QuerySet:
    """Queries from records; `InputError` for an empty one, an id that comes twice, and for none."""
    ids: dict[str, int] = {}
    texts = []
    for record in records.rows:
        id_name = record.first_of(ID_FIELDS)
        record.add_id(record.id(id_name) if id_name else str(record.number), ids)
        texts.append(_text(record))
        if not texts[-1]:
            raise InputError(f"{record.place} has an empty query")
    if not ids:
        raise InputError(f"{records.source} holds no queries")
    return QuerySet(tuple(ids), tuple(texts))


def _text(record: Record) -> str:
    """The query's text; a mention in its context is marked."""
    if "context_document_id" in record.fields:
        raise InputError(
            f"{record.place} is a mention without its context: read the folder that has documents/ "
            "too"
        )
    name = record.first_of(TEXT_FIELDS)
    if name is not None or "mention" not in record.fields:
        return record.text(name or "text", ADVICE).strip()
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
        topics = [dict(_OLD_FIELD.findall(topic)) for topic in _OLD_TOPIC.findall(text)]
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
    for number, line in read_lines(path):
        line, place = line.strip(), f"{path}, line {number}"
        row = line.split("\t") if "\t" in line else line.split()
        is_judged = bool(row) and re.fullmatch(r"[+-]?\d+", row[-1]) is not None
        if not row or (number == 1 and not is_judged):
            continue
        if len(row) not in (3, 4) or not is_judged:
            raise InputError(
                f"{place} is not a judgement: expected query, item and a whole number (BEIR), or "
                "query, 0, item and a whole number (TREC)"
            )
        query, item, grade = row[0], row[-2], int(row[-1])
        if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
            raise InputError(
                f"{place} judges query {query!r} and item {item!r} a second time, with another "
                "grade"
            )
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


def relevant(qrels: Qrels, query: str) -> list[str]:
    """Ids of a query's relevant items: those of a grade above 0."""
    return [item for item, grade in qrels.get(query, {}).items() if grade > 0]


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
    for number, line in read_lines(path):
        if not line.strip():
            continue
        row = line.rstrip("\r\n").split("\t")
        try:
            if len(row) == 4:
                query, item, rank = row[0], row[1], len(found.get(row[0], ())) + 1
                score = -float(rank)
            elif len(row) == 3:
                query, item, rank, score = row[0], row[1], int(row[2]), -float(row[2])
            else:
                query, _, item, place, value, _ = line.split()
                rank, score = int(place), float(value)
        except ValueError:
            raise InputError(
                f"{path}, line {number} is not a line of a TREC run: expected query, Q0, item, "
                "rank, score, tag (MS MARCO: query, item, rank, or query id, item id, query, text)"
            ) from None
        ranked = found.setdefault(query, {})
        if item in ranked:
            raise InputError(f"{path}, line {number} lists item {item!r} twice for {query!r}")
        ranked[item] = (-score, rank)
    if not found:
        raise InputError(f"{path} holds no ranked lists")
    return {
        query: [(i, -ranked[i][0]) for i in sorted(ranked, key=ranked.__getitem__)]
        for query, ranked in found.items()
    }
