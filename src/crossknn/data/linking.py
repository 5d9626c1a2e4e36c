"""Entity linking: ZESHEL, AIDA CoNLL-YAGO, WNED (MSNBC, WNED-CWEB) and BLINK's files of mentions.

Queries are mentions in their context, `left [Ms] mention [Me] right`; items are the entities or
Wikipedia pages that they may mean, `title [ENT] text`. Mentions of no entity are queries without a
judgement.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from crossknn.data.formats import DataFolder
from crossknn.data.items import Items, item_records
from crossknn.data.marks import ITEM_TEMPLATE, marked_query
from crossknn.data.queries import Qrels, QuerySet, mention_text, queries_from
from crossknn.data.records import Record, Records, parse_xml, read_lines, read_records
from crossknn.errors import InputError, nearest


class Mention(NamedTuple):
    """One mention: the marked query, what it is linked to, and the place for messages."""

    id: str
    text: str
    label: object
    place: str


class Linked(DataFolder):
    """A folder of mentions and of what they may mean."""

    template = ITEM_TEMPLATE

    @abstractmethod
    def mentions(self, split: str) -> Iterable[Mention]:
        """The mentions of a split, each id once."""

    @abstractmethod
    def label(self, mention: Mention) -> str | None:
        """The id of the item that a mention is linked to; None if to none."""

    def queries(self, split: str | None) -> QuerySet:
        mentions = list(self.mentions(self.split(split)))
        return QuerySet(tuple(m.id for m in mentions), tuple(m.text for m in mentions))

    def qrels(self, split: str) -> Qrels:
        labels = ((m.id, self.label(m)) for m in self.mentions(self.split(split)))
        return {query: {label: 1} for query, label in labels if label}

    def items(self, split: str | None = None) -> Items:
        return self._items

    @cached_property
    def _items(self) -> Items:
        return super().items()


# ZESHEL (Logeswaran et al. 2019; lajanugen/zeshel, README; iesl/anncur,
# `utils/preprocess_zeshel.py`)


class Zeshel(Linked):
    """`documents/<domain>.json` and `mentions/<split>.json`; every domain is a corpus of its own.

    Or, for the mentions, `processed/<split>_worlds/<domain>_mentions.jsonl` as the authors of
    ANNCUR make them, where `label_id` is a position in the domain's documents.
    """

    format = "zeshel"
    layout = "a ZESHEL folder"
    signs = ("documents/",)
    id_field = "document_id"
    title_field = "title"

    def splits(self) -> Sequence[str]:
        return ("train", "valid", "test")

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[Zeshel]:
        """The domains of a split; `domains` are found in any split."""
        wanted = None if domains is None else list(domains)
        if split not in self.splits():
            hint = nearest(split, self.splits())
            raise InputError(f"{self.path} has no split {split!r} ({hint})")
        read = _processed if (self.path / "processed").is_dir() else _published
        found: dict[str, list[Mention]] = {}
        places: dict[tuple[str, str], str] = {}
        for name in (split,) if wanted is None else self.splits():
            for domain, mention in read(self.path, name, wanted):
                first = places.setdefault((domain, mention.id), mention.place)
                if first != mention.place:
                    raise InputError(
                        f"{mention.place} repeats the mention_id {mention.id!r} of {first}; ids "
                        "must differ"
                    )
                found.setdefault(domain, []).append(mention)
        for domain in wanted or ():
            if domain not in found:
                known = [path.stem for path in (self.path / "documents").glob("*.json")]
                hint = f" ({nearest(domain, known)})" if domain not in known else ""
                raise InputError(f"{self.path} has no mentions of {domain!r}{hint}")
        if not found:
            raise InputError(f"{self.path} has no mentions in the split {split}")
        parts = [Zeshel(self.path, domain) for domain in found]
        for part, mentions in zip(parts, found.values(), strict=True):
            part._read[split] = mentions
        return parts

    def item_records(self, split: str | None = None) -> Records:
        documents = (path.stem for path in (self.path / "documents").glob("*.json"))
        return read_records(_documents(self.path, self.domain or self._only(documents)))

    def mentions(self, split: str) -> Iterable[Mention]:
        if split not in self._read:
            parts = self.parts(split, None if self.domain is None else [self.domain])
            self.domain, self._read = self._only(p.name for p in parts), parts[0]._read
        return self._read[split]

    def label(self, mention: Mention) -> str | None:
        label, items = mention.label, self.items()
        if label is None:
            raise InputError(f"{mention.place} has no label")
        if isinstance(label, str):
            try:
                return items.ids[items.position(label)]
            except InputError as error:
                raise InputError(f"{mention.place}: {error}") from None
        if type(label) is int and 0 <= label < len(items):
            return items.ids[label]
        raise InputError(
            f"{mention.place} has the label {label!r}, which is outside the {len(items)} items of "
            f"{self.domain}"
        )

    def _only(self, domains: Iterable[str]) -> str:
        known = sorted(domains)
        if len(known) != 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(known) or 'none'}: name one (domain=...; "
                "for items alone, a file of documents/)"
            )
        return known[0]


def _processed(folder: Path, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Mention]]:
    for path in sorted((folder / "processed" / f"{split}_worlds").glob("*_mentions.jsonl")):
        domain = path.name.removesuffix("_mentions.jsonl")
        for record in read_records(path).rows if wanted is None or domain in wanted else ():
            for name in ("mention_id", "mention", "context_left", "context_right"):
                record.field(name)
            label = record.fields.get("label_id")
            mention_id = str(record.field("mention_id"))
            yield domain, Mention(mention_id, mention_text(record), label, record.place)


def _published(folder: Path, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Mention]]:
    names = {"valid": ("valid", "val")}.get(split, (split,))
    paths = [folder / "mentions" / f"{name}.json" for name in names]
    path = next((path for path in paths if path.is_file()), None)
    contexts: dict[str, dict[str, list[str]]] = {}
    for record in () if path is None else read_records(path).rows:
        for name in ("corpus", "context_document_id", "start_index", "end_index", "text"):
            record.field(name)
        domain = str(record.field("corpus"))
        if wanted is not None and domain not in wanted:
            continue
        if domain not in contexts:  # as the text stands: mentions count its words
            contexts[domain] = {
                str(document.field("document_id")): document.text("text").split(" ")
                for document in read_records(_documents(folder, domain)).rows
            }
        label = record.fields.get("label_document_id")
        yield (
            domain,
            Mention(
                str(record.fields.get("mention_id", record.number)),
                _in_words(record, contexts[domain], domain),
                None if label is None else str(label),
                record.place,
            ),
        )


def _in_words(record: Record, contexts: Mapping[str, list[str]], domain: str) -> str:
    """The marked query of a mention that is given by the places of its words, inclusive."""
    place, context = record.place, record.fields["context_document_id"]
    words = contexts.get(str(context))
    if words is None:
        raise InputError(f"{place}: the context document {context!r} is not in {domain}")
    start, end = (_whole(record, name) for name in ("start_index", "end_index"))
    mention = " ".join(words[start : end + 1])
    inside = 0 <= start <= end < len(words)
    if not inside or mention != str(record.fields["text"]):
        there = f" are {mention!r}" if inside else f", which has {len(words)} words"
        raise InputError(
            f"{place}: the mention {record.fields['text']!r} is not in its sentence: words {start} "
            f"to {end} of {context}{there}"
        )
    if not mention.strip():
        raise InputError(f"{place} has an empty mention")
    return marked_query(" ".join(words[:start]), mention, " ".join(words[end + 1 :]))


def _whole(record: Record, name: str) -> int:
    value = record.field(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{record.place}: {name} is {value!r}, not a whole number")
    return value


def _documents(folder: Path, domain: str) -> Path:
    path = folder / "documents" / f"{domain}.json"
    if not path.is_file():
        raise InputError(f"{folder} has mentions of {domain} but no documents/{domain}.json")
    return path


# Links to Wikipedia pages


class Pages(Linked):
    """A folder with mentions, and a list of the Wikipedia pages that they may mean.

    The list is `entity.jsonl` of BLINK (`blink/main_dense.py`, `_load_candidates`), with `idx` (a
    URL that ends in `curid=` and the Wikipedia id), `title` and `text`, or any `entity` or
    `entities` file of items with Wikipedia ids as ids.
    """

    complete = False
    lists = ("entity", "entities")

    def item_records(self, split: str | None = None) -> Records:
        found = [path for name in self.lists for path in self.path.glob(f"{name}.*")]
        records = item_records(self.only(found, "lists of entities (entity.jsonl)"))
        return Records(records.source, map(_with_page_id, records.rows))

    def page(self, title: str) -> str:
        """The id of the page with a title; the title itself if it is not in the list."""
        title = title.replace("_", " ").strip()
        return self._ids.get(title, title)

    @cached_property
    def _ids(self) -> Mapping[str, str]:
        return dict(zip(self.items().titles, self.items().ids, strict=True))


def _with_page_id(record: Record) -> Record:
    """BLINK's `idx` as an `id`."""
    if "idx" not in record.fields:
        return record
    rest = {name: value for name, value in record.fields.items() if name != "idx"}
    page = str(record.fields["idx"]).rpartition("curid=")[2].strip()
    return record._replace(fields={"id": page, **rest})


class Aida(Pages):
    """`AIDA-YAGO2-dataset.tsv` (Hoffart et al. 2011, its README) and a list of entities.

    A document begins with `-DOCSTART- (1 EU)`, `(947testa CRICKET)`, `(1163testb SOCCER)`; a token
    a line, blank lines between sentences. Tokens of mentions have tab-separated columns: token, `B`
    or
    `I`, the full mention, the YAGO2 entity or `--NME--`, and for entities the Wikipedia URL and id.
    Queries are named `<document>:<first token>`; their context is the whole document.
    """

    format = "aida"
    layout = "an AIDA folder"
    signs = ("AIDA*dataset*.tsv",)

    def splits(self) -> Sequence[str]:
        return ("train", "testa", "testb")

    def split(self, wanted: str | None) -> str:
        names = {None: "testb", "test": "testb", "valid": "testa", "dev": "testa"}
        return super().split(names.get(wanted, wanted))

    def mentions(self, split: str) -> Iterable[Mention]:
        path = self.only(list(self.path.glob("AIDA*dataset*.tsv")), "files AIDA*dataset*.tsv")
        found = [
            mention
            for name, part, lines in _aida_documents(path)
            if part == split
            for mention in _aida_mentions(path, name, lines)
        ]
        if not found:
            raise InputError(f"{path} has no mentions in the split {split}")
        return found

    def label(self, mention: Mention) -> str | None:
        return str(mention.label) if mention.label else None


_DOCUMENT = re.compile(r"-DOCSTART- \((\d+)(testa|testb)?\b.*\)")


def _aida_documents(path: Path) -> list[tuple[str, str, list[tuple[int, list[str]]]]]:
    """(name, split, numbered lines as columns) of each document."""
    documents: list[tuple[str, str, list[tuple[int, list[str]]]]] = []
    for number, line in read_lines(path):
        if line.startswith("-DOCSTART-"):
            found = _DOCUMENT.fullmatch(line.strip())
            if found is None:
                raise InputError(f"{path}, line {number} is not  -DOCSTART- (<number> <name>)")
            documents.append((found[1] + (found[2] or ""), found[2] or "train", []))
        elif line.strip():
            if not documents:
                raise InputError(f"{path}, line {number} stands before the first -DOCSTART-")
            documents[-1][2].append((number, line.rstrip("\r\n").split("\t")))
    return documents


def _aida_mentions(
    path: Path, document: str, lines: list[tuple[int, list[str]]]
) -> Iterator[Mention]:
    words = [row[0] for _, row in lines]
    for number, row in lines:
        if len(row) > 1 and row[1] not in ("B", "I", "O"):
            raise InputError(f"{path}, line {number} has {row[1]!r} where B, I or O is expected")
    tags = "".join(row[1] if len(row) > 1 else "O" for _, row in lines)
    if stray := re.search("(?<![BI])I", tags):
        number, _ = lines[stray.start()]
        raise InputError(f"{path}, line {number} continues a mention that has not begun")
    for start, end in (span.span() for span in re.finditer("BI*", tags)):
        number, row = lines[start]
        page = row[5].strip() if len(row) > 5 else ""
        if row[3:4] == ["--NME--"]:
            page = ""
        elif not page.isdigit():
            raise InputError(
                f"{path}, line {number} has neither --NME-- nor a Wikipedia id in column 6"
            )
        parts = (words[:start], words[start:end], words[end:])
        text = marked_query(*map(" ".join, parts))
        yield Mention(f"{document}:{start}", text, page, f"{path}, line {number}")


class Blink(Pages):
    """BLINK's files of mentions, with a list of entities. A split is a file, by its name.

    JSON lines (facebookresearch/BLINK, `scripts/create_BLINK_benchmark_data.py`) with
    `context_left`, `mention`, `context_right`, `query_id`; `Wikipedia_ID` or `label_id`, and
    `Wikipedia_title` or `label_title`, by which a page without an id is looked up in the list.
    """

    format = "blink"
    layout = "a BLINK folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        is_list = any((path / f"{name}.jsonl").is_file() for name in cls.lists)
        return is_list and bool(cls(path)._files())

    def splits(self) -> Sequence[str]:
        return list(self._files())

    def mentions(self, split: str) -> Iterable[Mention]:
        path = self._files()[split]
        queries = queries_from(read_records(path))
        for query, text, record in zip(
            queries.ids, queries.texts, read_records(path).rows, strict=True
        ):
            yield Mention(query, text, record, record.place)

    def label(self, mention: Mention) -> str | None:
        record = mention.label
        assert isinstance(record, Record)
        id_name = record.first_of(("Wikipedia_ID", "label_id"))
        title = record.first_of(("Wikipedia_title", "label_title"))
        if id_name is None and title is None:
            record.field("label_id")  # says that it is missing
        page = record.text(id_name).strip() if id_name else ""
        if page.isdecimal():
            return page
        if page not in ("", "-1"):
            raise InputError(f"{record.place}: {id_name} is {page!r}, not a Wikipedia id")
        return self.page(record.text(title)) if title else None

    def _files(self) -> Mapping[str, Path]:
        found = sorted(self.path.glob("*.jsonl"))
        return {path.stem: path for path in found if path.stem not in self.lists}


_AROUND = 100
"""Characters before and behind its offset where a mention is looked for."""


class Wned(Pages):
    """A data set of WNED (Guo and Barbosa 2018), or a folder of several, with a list of entities.

    `<set>.xml` beside a folder `RawText`; a split is a data set. Each `document docName=` holds
    `annotation`s of `mention`, `wikiName` (a page's title; empty or `NIL`: no entity), `offset` and
    `length`, in characters of `RawText/<docName>`. Some offsets are off by a few characters, and
    `&` is `&amp;` in some texts (dalab/end2end_neural_el, `code/preprocessing/
    prepro_other_datasets.py`). Queries are named `<document>:<first character>-<last>`; their
    context is the whole document.
    """

    format = "wned"
    layout = "a WNED folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return bool(cls(path)._sets())

    def splits(self) -> Sequence[str]:
        if not (found := list(self._sets())):
            raise InputError(f"{self.path} has no XML beside a folder RawText")
        return found

    def mentions(self, split: str) -> Iterable[Mention]:
        path = self._sets()[split]
        found: dict[str, Mention] = {}
        for mention in _annotated(path):  # some are annotated twice
            if found.setdefault(mention.id, mention).label != mention.label:
                raise InputError(
                    f"{mention.place} links {mention.id} a second time, to another page"
                )
        if not found:
            raise InputError(f"{path} has no annotated mentions")
        return found.values()

    def label(self, mention: Mention) -> str | None:
        title = str(mention.label)
        return None if title in ("", "NIL") else self.page(title)

    def _sets(self) -> Mapping[str, Path]:
        found = sorted((*self.path.glob("*.xml"), *self.path.glob("*/*.xml")))
        return {path.stem: path for path in found if (path.parent / "RawText").is_dir()}


def _annotated(path: Path) -> Iterator[Mention]:
    lines = []
    for number, line in read_lines(path):
        if "<!DOCTYPE" in line:  # one can define entities that fill the memory
            raise InputError(f"{path}, line {number} declares a document type: remove it")
        lines.append(line)
    for number, document in enumerate(parse_xml("".join(lines), path).iter("document"), start=1):
        name = document.get("docName") or ""
        text = _raw_text(path, name, f"{path}, document {number}")
        for count, annotation in enumerate(document.iter("annotation"), start=1):
            place = f"{path}, document {name}, annotation {count}"
            mention, title = (_value(annotation, field, place) for field in ("mention", "wikiName"))
            offset, length = (_number(annotation, field, place) for field in ("offset", "length"))
            span = _span(text, mention.replace("&amp;", "&"), offset)
            if span is None:
                there = text[offset : offset + length]
                raise InputError(
                    f"{place}: the mention {mention!r} is not in its text: RawText/{name} has "
                    f"{len(text)} characters, and {offset} to {offset + length} are {there!r}"
                )
            start, end = span
            parts = (text[:start], text[start:end], text[end:])
            query = marked_query(*(" ".join(part.split()) for part in parts))
            yield Mention(f"{name}:{start}-{end}", query, title.strip(), place)


def _raw_text(path: Path, name: str, place: str) -> str:
    if not name or Path(name).name != name or name == "..":
        raise InputError(f"{place} has the docName {name!r}, where a file in RawText is expected")
    file = path.parent / "RawText" / name
    if not os.path.isfile(file):  # of a name that no file can have, too
        raise InputError(f"{place}: there is no {file}")
    text = "".join(line for _, line in read_lines(file))
    return text.replace("\r\n", "\n").replace("&amp;", "&")


def _span(text: str, mention: str, offset: int) -> tuple[int, int] | None:
    """Where a mention stands, at its offset or nearest to it, whatever its blanks."""
    wanted = re.compile(r"\s+".join(re.escape(word) for word in mention.split()))
    there = wanted.match(text, offset)
    if there is None:
        first, last = max(0, offset - _AROUND), offset + _AROUND + len(mention)
        near = wanted.finditer(text, first, last)
        there = min(near, key=lambda found: abs(found.start() - offset), default=None)
    return there.span() if there else None


def _value(annotation: ET.Element, field: str, place: str) -> str:
    value = annotation.findtext(field)
    if value is None or (field == "mention" and not value.strip()):
        raise InputError(f"{place} has no {field}")
    return value


def _number(annotation: ET.Element, field: str, place: str) -> int:
    value = _value(annotation, field, place).strip()
    if not re.fullmatch("[0-9]{1,9}", value):
        raise InputError(f"{place}: {field} is {value!r}, not a whole number of 0 or more")
    return int(value)
