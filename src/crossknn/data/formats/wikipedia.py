"""Mentions linked to Wikipedia pages, and a list of those pages: what AIDA and others share, WNED's
data sets (MSNBC, WNED-CWEB), and BLINK's files of mentions.

WNED (Guo and Barbosa 2018): `<set>.xml` beside a folder `RawText`. Each `document docName=` holds
`annotation`s of `mention`, `wikiName` (a page's title; empty or `NIL`: no entity), `offset` and
`length`, in characters of `RawText/<docName>`. Some offsets are off by a few characters, and `&` is
`&amp;` in some texts (dalab/end2end_neural_el, `code/preprocessing/prepro_other_datasets.py`).

BLINK (facebookresearch/BLINK, `scripts/create_BLINK_benchmark_data.py`): `msnbc_questions.jsonl`,
`clueweb_questions.jsonl` (WNED-CWEB), `AIDA-YAGO2_train.jsonl` and others, JSON lines with
`context_left`, `mention`, `context_right`, `query_id`, `label_id` (a Wikipedia id) and
`Wikipedia_title`, which is `label_title` in its training data.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from crossknn.data.formats.base import DataFolder
from crossknn.data.items import Items, item_records
from crossknn.data.marks import ITEM_TEMPLATE, marked_query
from crossknn.data.queries import Qrels, QuerySet, queries_from
from crossknn.data.records import (
    Located,
    Numbered,
    Record,
    as_text,
    missing_field,
    pick_field,
    read_lines,
    records_of,
)
from crossknn.errors import InputError

_LISTS = ("entity", "entities")
_NO_ENTITY = ("", "NIL")
_AROUND = 100
"""Characters before and behind its offset where a mention is looked for."""
_ID_FIELDS = ("Wikipedia_ID", "label_id")
_TITLE_FIELDS = ("Wikipedia_title", "label_title")


class Pages(DataFolder):
    """A folder with mentions, and a list of the Wikipedia pages that they may mean.

    The list is `entity.jsonl` of BLINK (`blink/main_dense.py`, `_load_candidates`), with `idx` (a
    URL that ends in `curid=` and the Wikipedia id), `title` and `text`, or any `entity` or
    `entities` file of items with Wikipedia ids as ids. Items read `title [ENT] text`.
    """

    template = ITEM_TEMPLATE
    complete = False

    def item_records(self, split: str | None = None) -> Located:
        """The entities."""
        del split
        found = [path for name in _LISTS for path in self.path.glob(f"{name}.*")]
        if len(found) != 1:
            raise InputError(
                f"{self.path} has {len(found)} lists of entities (entity.jsonl); there must be one"
            )
        records = item_records(found[0])
        return Located(map(_with_page_id, records), records.unit, records.file)

    def items(self, split: str | None = None) -> Items:
        """The entities, rendered."""
        del split
        return self._items

    @cached_property
    def _items(self) -> Items:
        return super().items()

    @cached_property
    def _ids(self) -> Mapping[str, str]:
        return dict(zip(self._items.titles, self._items.ids, strict=True))

    def page(self, title: str) -> str:
        """The id of the page with a title; the title itself if it is not in the list."""
        title = title.replace("_", " ").strip()
        return self._ids.get(title, title)


class Wned(Pages):
    """A data set of WNED, or a folder of several, with a list of entities.

    A split is a data set. Queries are marked mentions in their whole document, named
    `<document>:<first character>-<last>`.
    """

    format = "wned"
    layout = "a WNED folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with XML beside a folder `RawText`."""
        return bool(_sets(path))

    def splits(self) -> Sequence[str]:
        """The data sets."""
        found = list(_sets(self.path))
        if not found:
            raise InputError(f"{self.path} has no XML beside a folder RawText")
        return found

    def queries(self, split: str | None) -> QuerySet:
        """The marked mentions."""
        mentions = self._mentions(self.split(split))
        return QuerySet(tuple(m.id for m in mentions), tuple(m.text for m in mentions))

    def qrels(self, split: str) -> Qrels:
        """The one page of each mention that has one."""
        linked = (m for m in self._mentions(self.split(split)) if m.title not in _NO_ENTITY)
        return {mention.id: {self.page(mention.title): 1} for mention in linked}

    def _mentions(self, split: str) -> Sequence[_Mention]:
        path = _sets(self.path)[split]
        found: dict[str, _Mention] = {}
        for place, mention in _read_mentions(path):  # some are annotated twice
            if found.setdefault(mention.id, mention).title != mention.title:
                raise InputError(f"{place} links {mention.id} a second time, to another page")
        if not found:
            raise InputError(f"{path} has no annotated mentions")
        return list(found.values())


class Blink(Pages):
    """BLINK's files of mentions, with a list of entities. A split is a file, by its name.

    Queries are marked mentions with their context, items as in `Pages`. A page that is named by
    its title alone is looked up in the list.
    """

    format = "blink"
    layout = "a BLINK folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with a list of entities and other JSON lines."""
        return any((path / f"{name}.jsonl").is_file() for name in _LISTS) and bool(_files(path))

    def splits(self) -> Sequence[str]:
        """The names of the files."""
        return list(_files(self.path))

    def queries(self, split: str | None) -> QuerySet:
        """The marked mentions."""
        return queries_from(records_of(_files(self.path)[self.split(split)]))

    def qrels(self, split: str) -> Qrels:
        """The one page of each mention that has one."""
        records = records_of(_files(self.path)[self.split(split)])
        found = zip(self.queries(split).ids, records, strict=True)
        pages = {
            query: self._page(record, records.place(number)) for query, (number, record) in found
        }
        return {query: {page: 1} for query, page in pages.items() if page}

    def _page(self, record: Record, place: str) -> str:
        """The id of the page that a record says, "" for none."""
        id_name, title = (pick_field(record, None, kind) for kind in (_ID_FIELDS, _TITLE_FIELDS))
        if id_name is None and title is None:
            raise missing_field(place, "label_id", record)
        page = as_text(record[id_name], place, id_name).strip() if id_name else ""
        if page.isdecimal():
            return page
        if page not in ("", "-1"):
            raise InputError(f"{place}: {id_name} is {page!r}, not a Wikipedia id")
        return self.page(as_text(record[title], place, title)) if title else ""


@dataclass(frozen=True)
class _Mention:
    """A mention in its document, and the title of the page that it means."""

    id: str
    text: str
    title: str


def _with_page_id(numbered: Numbered) -> Numbered:
    """BLINK's `idx` as an `id`."""
    number, record = numbered
    if "idx" not in record:
        return numbered
    rest = {name: value for name, value in record.items() if name != "idx"}
    return number, {"id": str(record["idx"]).rpartition("curid=")[2].strip(), **rest}


def _files(folder: Path) -> Mapping[str, Path]:
    """Files of mentions by name."""
    found = sorted(folder.glob("*.jsonl"))
    return {path.stem: path for path in found if path.stem not in _LISTS}


def _sets(folder: Path) -> Mapping[str, Path]:
    """Annotations by data set: those of the folder, and of the folders in it."""
    found = sorted((*folder.glob("*.xml"), *folder.glob("*/*.xml")))
    return {path.stem: path for path in found if (path.parent / "RawText").is_dir()}


def _read_mentions(path: Path) -> Iterator[tuple[str, _Mention]]:
    """The mentions in a file of annotations, and where each is annotated."""
    for number, document in enumerate(_root(path).iter("document"), start=1):
        name = document.get("docName") or ""
        text = _raw_text(path, name, f"{path}, document {number}")
        for count, annotation in enumerate(document.iter("annotation"), start=1):
            place = f"{path}, document {name}, annotation {count}"
            mention, title = (_text(annotation, field, place) for field in ("mention", "wikiName"))
            offset, length = (_whole(annotation, field, place) for field in ("offset", "length"))
            span = _span(text, mention.replace("&amp;", "&"), offset)
            if span is None:
                there = text[offset : offset + length]
                raise InputError(
                    f"{place}: the mention {mention!r} is not in its text: RawText/{name} has "
                    f"{len(text)} characters, and {offset} to {offset + length} are {there!r}"
                )
            start, end = span
            parts = (text[:start], text[start:end], text[end:])
            marked = marked_query(*(" ".join(part.split()) for part in parts))
            yield place, _Mention(f"{name}:{start}-{end}", marked, title.strip())


def _root(path: Path) -> ET.Element:
    """The root of XML without a document type: one can define entities that fill the memory."""
    lines = []
    for number, line in read_lines(path):
        if "<!DOCTYPE" in line:
            raise InputError(f"{path}, line {number} declares a document type: remove it")
        lines.append(line)
    try:
        return ET.fromstring("".join(lines))
    except ET.ParseError as error:
        raise InputError(
            f"{path}, line {error.position[0]} is not well-formed XML: {error}"
        ) from None


def _raw_text(path: Path, name: str, place: str) -> str:
    if not name or Path(name).name != name or name == "..":
        raise InputError(f"{place} has the docName {name!r}, where a file in RawText is expected")
    file = path.parent / "RawText" / name
    if not os.path.isfile(file):  # of a name that no file can have, too
        raise InputError(f"{place}: there is no {file}")
    text = "".join(line for _, line in read_lines(file))
    return text.replace("\r\n", "\n").replace("&amp;", "&")


def _span(text: str, mention: str, offset: int) -> tuple[int, int] | None:
    """Where a mention stands, at its offset or nearest to it, whatever its blanks; None if not."""
    wanted = re.compile(r"\s+".join(re.escape(word) for word in mention.split()))
    there = wanted.match(text, offset)
    if there is None:
        first, last = max(0, offset - _AROUND), offset + _AROUND + len(mention)
        near = wanted.finditer(text, first, last)
        there = min(near, key=lambda found: abs(found.start() - offset), default=None)
    return there.span() if there else None


def _text(annotation: ET.Element, field: str, place: str) -> str:
    value = annotation.findtext(field)
    if value is None or (field == "mention" and not value.strip()):
        raise InputError(f"{place} has no {field}")
    return value


def _whole(annotation: ET.Element, field: str, place: str) -> int:
    value = _text(annotation, field, place).strip()
    if not re.fullmatch("[0-9]{1,9}", value):
        raise InputError(f"{place}: {field} is {value!r}, not a whole number of 0 or more")
    return int(value)
