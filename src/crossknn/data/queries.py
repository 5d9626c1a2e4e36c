"""Queries from files, data folders and Python containers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from crossknn.data.layouts import folder_at
from crossknn.data.qrels import Qrels, read_qrels
from crossknn.data.records import (
    NAMED_TYPES,
    Entries,
    Record,
    Records,
    file_type,
    given_records,
    is_container,
    read_records,
)
from crossknn.data.text_files import read_lines
from crossknn.errors import InputError
from crossknn.types import NO_ITEM, IntArray, whole_text

_ID_FIELDS = ("id", "_id", "qid", "query_id", "query-id", "topic_id", "mention_id")
_TEXT_FIELDS = ("query", "text")
_ADVICE = "call the field that holds the query 'text' or 'query'"

MARKS = MENTION_START, MENTION_END, ENTITY = "[Ms]", "[Me]", "[ENT]"
"""Entity linking: a query is `left [Ms] mention [Me] right`, an item `title [ENT] description`
(ANNCUR, Yadav et al. 2022, A.2)."""

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
        ids: Ids (m), as used in judgements.
        texts: Texts (m).
        numbered: Whether the ids are the queries' numbers, because none were given.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    numbered: bool = field(default=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Iterable[int]) -> QuerySet:
        """Select queries at some positions, in this order."""
        rows = list(rows)
        ids, texts = (tuple(of[r] for r in rows) for of in (self.ids, self.texts))
        return QuerySet(ids, texts, self.numbered)


Texts: TypeAlias = str | Entries | QuerySet
"""One query, several, or several with ids, as `read_queries` takes them."""


def query_set(queries: Texts) -> QuerySet:
    """Give queries ids, texts unchanged; `InputError` if there are none, or a text is empty."""
    if isinstance(queries, str):
        queries = QuerySet(("0",), (whole_text(queries),), numbered=True)
    elif not isinstance(queries, QuerySet):
        if not is_container(queries):
            raise InputError(f"the queries are {queries!r:.80}; give a text or a list of texts")
        queries = queries_from(given_records(queries), as_given=True)
    for position, text in enumerate(queries.texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"query {position} is {text!r}; a query must be a text that is not empty"
            )
    return queries


def read_queries(source: str | Path | Entries, *, split: str | None = None) -> QuerySet:
    """Read queries from a file, a data folder (docs/how-to/data.md), or a container such as
    `read_items` accepts.

    Records have the fields `id` (`_id`, `qid`, `query_id`) and `query` or `text`. Ids that are
    absent are line numbers from 1 (positions from 0 for Python sequences).

    Args:
        source: The file, the folder, or a container of texts or records.
        split: The split of a folder; by default all queries of a BEIR folder are read.
    """
    folder = folder_at(source) if isinstance(source, str | Path) else None
    if folder is None and split is not None:
        raise InputError(f"split {split!r} needs a data folder such as a BEIR folder, not {source}")
    if not isinstance(source, str | Path):
        queries = queries_from(given_records(source))
    elif folder is None:
        queries = _file_queries(Path(source))
    elif not folder.is_beir:
        queries = _file_queries(folder.queries(folder.split(split)))
    else:
        queries = _file_queries(folder.queries(""))
        if split is not None:
            queries = _judged(queries, folder.judgements(folder.split(split)))
    return queries


def _file_queries(path: Path) -> QuerySet:
    if file_type(path) not in NAMED_TYPES:
        start = next((line for _, line in read_lines(path) if line.strip()), "")
        if start.lstrip().startswith("<"):
            return queries_from(Records(str(path), _topics(path)))
    return queries_from(read_records(path, (*_ID_FIELDS, *_TEXT_FIELDS), (("id", "text"),)))


def _judged(queries: QuerySet, path: Path) -> QuerySet:
    qrels = read_qrels(path)
    judged = [row for row, query in enumerate(queries.ids) if query in qrels]
    if not judged:
        raise InputError(
            f"{path} judges none of the queries: it names {next(iter(qrels))!r}, and the first "
            f"query is {queries.ids[0]!r}"
        )
    return queries.take(judged)


def queries_from(records: Records, *, as_given: bool = False) -> QuerySet:
    """Make queries; texts taken `as_given` keep their outer blanks and may be empty."""
    ids: dict[str, None] = {}
    texts, numbered = [], True
    for record in records.rows:
        name = record.first_of(_ID_FIELDS)
        numbered &= name is None and record.key is None
        record.add_id(name, ids)
        # A record with both fields is a row of search results: the query, and a result's text.
        text = record.text(record.first_of(_TEXT_FIELDS) or "text", _ADVICE)
        if not (as_given or text.strip()):
            raise InputError(f"{record.place} has an empty query")
        texts.append(text if as_given else text.strip())
    if not ids:
        raise InputError(f"{records.source} holds no queries")
    return QuerySet(tuple(ids), tuple(texts), numbered)


def _topics(path: Path) -> Iterator[Record]:
    """Read the short field of TREC topics, as ir_datasets does: XML (`<topics><topic number="1">
    <query>...`), or the older format with unclosed tags (`<top><num> Number: 301 <title> ...
    </top>`)."""
    text = "".join(line for _, line in read_lines(path))
    if text.lstrip().startswith("<top>"):
        topics = [dict(reversed(_OLD_FIELD.findall(topic))) for topic in _OLD_TOPIC.findall(text)]
        if outside := _OLD_TOPIC.sub("", text).strip():
            raise InputError(f"{path} holds {outside[:40]!r} outside of <top> ... </top>")
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


def own_items(queries: QuerySet, item_ids: Iterable[str], qrels: Qrels | None = None) -> IntArray:
    """Return the position (m,) of the item that has each query's id, or `NO_ITEM`. It is the query
    itself if queries are documents of the corpus, as in BEIR (ArguAna, Quora); but if it is
    relevant to this query, the ids agree by chance, and `NO_ITEM` is returned."""
    own = np.full(len(queries), NO_ITEM, np.int64)
    if queries.numbered:
        return own
    rows = {name: row for row, name in enumerate(queries.ids)}
    for position, name in enumerate(item_ids):
        row = rows.get(name)
        if row is not None and (qrels or {}).get(name, {}).get(name, 0) <= 0:
            own[row] = position
    return own


def without_own(items: IntArray, own: IntArray) -> IntArray:
    """Remove each query's own item (m,) from its row of answers (m, c): later items move up, and -1
    fills the end.

    >>> without_own(np.array([[3, 1, 2], [4, 5, 6]]), np.array([1, -1])).tolist()
    [[3, 2, -1], [4, 5, 6]]
    """
    left_out = (items == own[:, None]) & (items != NO_ITEM)
    order = np.argsort(left_out, axis=1, kind="stable")
    return np.take_along_axis(np.where(left_out, NO_ITEM, items), order, axis=1)
