"""TREC topics: queries between tags, in XML or in the older form that is not XML.

XML (TREC Web, TREC-COVID): `<topics><topic number="1"><query>...</query>...</topic>`. The older
form (TREC 1 to 8, Robust 2004): `<top>`, then the lines `<num> Number: 301`, `<title> ...`,
`<desc> Description: ...`, `<narr> Narrative: ...`, which are not closed, then `</top>`. The query
is `query`, else `title`; the longer fields are not read. Both are as ir_datasets reads them
(`ir_datasets/formats/trec.py`: TrecXmlQueries, TrecQueries).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from crossknn.data.records import Located, Numbered, read_lines
from crossknn.errors import InputError

_OLD_FIELD = re.compile(r"<(num|title|desc|narr)> *(?:(?:Number|Topic|Description|Narrative):)?")
_QUERY_FIELDS = ("query", "title")


def are_topics(path: Path) -> bool:
    """Whether the first line of a file that is not blank begins with a tag."""
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    return first.lstrip().startswith("<")


def read_topics(path: Path) -> Located:
    """Records {id, text} of a file of topics, numbered from 1.

    Raises `InputError` for a topic without a number or a query, and for XML that is not well
    formed.
    """
    lines = list(read_lines(path))
    first = next((line.strip() for _, line in lines if line.strip()), "")
    read = _old if first.startswith("<top>") else _xml
    return Located(read(path, lines), "topic", str(path))


def _xml(path: Path, lines: list[tuple[int, str]]) -> Iterator[Numbered]:
    try:
        root = ET.fromstring("".join(line for _, line in lines))
    except ET.ParseError as error:
        raise InputError(
            f"{path}, line {error.position[0]} is not well-formed XML: {error}"
        ) from None
    for number, topic in enumerate(root.iter("topic"), start=1):
        fields = {str(child.tag): "".join(child.itertext()) for child in topic}
        fields = fields or {"query": "".join(topic.itertext())}
        topic_id = topic.get("number") or fields.get("num") or fields.get("number") or ""
        yield number, _record(f"{path}, topic {number}", topic_id, fields)


def _old(path: Path, lines: list[tuple[int, str]]) -> Iterator[Numbered]:
    count, fields = 0, dict[str, str]()
    name: str | None = None
    for number, line in lines:
        found = _OLD_FIELD.match(line.strip())
        if line.startswith("<top>"):
            count, fields, name = count + 1, {}, None
        elif line.startswith("</top>"):
            yield count, _record(f"{path}, topic {count}", fields.get("num", ""), fields)
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


def _record(place: str, topic_id: str, fields: dict[str, str]) -> dict[str, str]:
    if not topic_id.strip():
        raise InputError(f"{place} has no number")
    text = next((fields[name] for name in _QUERY_FIELDS if name in fields), None)
    if text is None:
        raise InputError(f"{place} has neither a query nor a title")
    return {"id": topic_id.strip(), "text": " ".join(text.split())}
