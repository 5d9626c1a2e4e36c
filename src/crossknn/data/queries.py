"""Queries, judgements (qrels) and ranked lists (runs), read all-or-nothing.

A file of queries that begins with a tag holds TREC topics, in XML (TREC Web, TREC-COVID:
`<topics><topic number="1"><query>...`) or in the older form that is not XML (TREC 1 to 8, Robust
2004: `<top>`, then the lines `<num> Number: 301`, `<title> ...`, `<desc> ...`, which are not
closed,
then `</top>`). The query is `query`, else `title`; the longer fields are not read. Both are as
ir_datasets reads them (`ir_datasets/formats/trec.py`: TrecXmlQueries, TrecQueries).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.data.marks import marked_query
from crossknn.data.records import Record, Records, parse_xml, read_lines, read_records
from crossknn.errors import InputError
from crossknn.types import Queries

ID_FIELDS = ("id", "_id", "qid", "query_id", "query-id", "mention_id")
TEXT_FIELDS = ("text", "query")

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Query id -> item id -> grade."""

Run: TypeAlias = dict[str, list[tuple[str, float]]]
"""Query id -> (item id, score), best first."""

_OLD_FIELD = re.compile(r"<(num|title|desc|narr)> *(?:(?:Number|Topic|Description|Narrative):)?")


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

    def take(self, rows: Iterable[int]) -> QuerySet:
        """The queries at `rows`."""
        rows = list(rows)
        return QuerySet(tuple(self.ids[r] for r in rows), tuple(self.texts[r] for r in rows))

    def select(self, ids: Iterable[str]) -> QuerySet:
        """The queries with these ids, in this set's order; unknown ids are left out."""
        wanted = set(ids)
        return self.take(row for row, query in enumerate(self.ids) if query in wanted)


def query_records(path: Path) -> Records:
    """The records of a file of queries."""
    start = next((line for _, line in read_lines(path) if line.strip()), "").lstrip()
    if not start.startswith("<"):
        return read_records(path, known=(*ID_FIELDS, *TEXT_FIELDS), bare=(("id", "text"),))
    lines = list(read_lines(path))
    topics = _old_topics(path, lines) if start.startswith("<top>") else _xml_topics(path, lines)
    return Records(str(path), topics)


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
        raise records.none("queries")
    return QuerySet(tuple(ids), tuple(texts))


def _text(record: Record) -> str:
    """The query's text; a mention in its context is marked (`crossknn.data.marks`)."""
    if "context_document_id" in record.fields:
        raise InputError(
            f"{record.place} is a mention without its context: read the folder that has documents/ "
            "too"
        )
    name = record.first_of(TEXT_FIELDS)
    if name is None and "mention" in record.fields:
        return mention_text(record)
    return record.text(name or "text").strip()


def mention_text(record: Record) -> str:
    """The marked query of `context_left`, `mention` and `context_right`."""
    context = record.fields
    left, right = (
        record.text(f"context_{side}") if f"context_{side}" in context else ""
        for side in ("left", "right")
    )
    mention = record.text("mention")
    if not mention.strip():
        raise InputError(f"{record.place} has an empty mention")
    return marked_query(left, mention, right)


def _xml_topics(path: Path, lines: list[tuple[int, str]]) -> Iterator[Record]:
    root = parse_xml("".join(line for _, line in lines), path)
    for number, topic in enumerate(root.iter("topic"), start=1):
        fields = {str(child.tag): "".join(child.itertext()) for child in topic}
        fields = fields or {"query": "".join(topic.itertext())}
        topic_id = topic.get("number") or fields.get("num") or fields.get("number") or ""
        yield _topic(path, number, topic_id, fields)


def _old_topics(path: Path, lines: list[tuple[int, str]]) -> Iterator[Record]:
    count, fields = 0, dict[str, str]()
    name: str | None = None
    for number, line in lines:
        found = _OLD_FIELD.match(line.strip())
        if line.startswith("<top>"):
            count, fields, name = count + 1, {}, None
        elif line.startswith("</top>"):
            yield _topic(path, count, fields.get("num", ""), fields)
            fields, name = {}, None
        elif found:
            name = found[1]
            fields[name] = line.strip()[found.end() :].replace(f"</{name}>", "")
        elif line.startswith("<"):
            name = None
        elif name is not None:
            fields[name] += f" {line}"
        elif line.strip():
            raise InputError(f"{path}, line {number} stands outside the fields of a topic")
    if fields:
        raise InputError(f"{path}, topic {count} has no end </top>")


def _topic(path: Path, number: int, topic_id: str, fields: dict[str, str]) -> Record:
    place = f"{path}, topic {number}"
    if not topic_id.strip():
        raise InputError(f"{place} has no number")
    text = fields.get("query", fields.get("title"))
    if text is None:
        raise InputError(f"{place} has neither a query nor a title")
    return Record({"id": topic_id.strip(), "text": " ".join(text.split())}, number, place)


def file_qrels(path: Path) -> Qrels:
    """The judgements of a file; see `crossknn.data.reading.read_qrels`."""
    qrels: Qrels = {}
    for number, line in read_lines(path):
        row, place = columns(line), f"{path}, line {number}"
        is_judged = bool(row) and re.fullmatch(r"[+-]?\d+", row[-1]) is not None
        if not row or (number == 1 and not is_judged):
            continue
        if len(row) not in (3, 4) or not is_judged:
            raise InputError(
                f"{place} is not a judgement: expected query, item and a whole number (BEIR), or "
                "query, 0, item and a whole number (TREC)"
            )
        judge(qrels, row[0], row[-2], int(row[-1]), place)
    if not qrels:
        raise InputError(f"{path} holds no judgements")
    return qrels


def columns(line: str) -> list[str]:
    """The columns of a line: between tabs if it has some, else between blanks."""
    line = line.strip()
    return line.split("\t") if "\t" in line else line.split()


def judge(qrels: Qrels, query: str, item: str, grade: int, place: str) -> None:
    """Add a judgement, or raise that the pair was judged before with another grade."""
    if qrels.setdefault(query, {}).setdefault(item, grade) != grade:
        raise InputError(
            f"{place} judges query {query!r} and item {item!r} a second time, with another grade"
        )


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
        query: [(i, -float(ranked[i][0])) for i in sorted(ranked, key=ranked.__getitem__)]
        for query, ranked in found.items()
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
