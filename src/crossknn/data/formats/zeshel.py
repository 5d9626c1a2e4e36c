"""ZESHEL: mentions in context and the entities of the domains ("worlds") they link to.

Logeswaran et al. 2019 (lajanugen/zeshel, README): `documents/<domain>.json` with the fields
`document_id`, `title`, `text`; `mentions/<split>.json` with `mention_id`, `context_document_id`,
`start_index`, `end_index` (words, inclusive), `text`, `corpus`, `label_document_id`. The layout
that the authors of ANNCUR make of them (iesl/anncur, `utils/preprocess_zeshel.py`):
`processed/<split>_worlds/<domain>_mentions.jsonl` with `context_left`, `mention`, `context_right`,
`label_id`, a position in the domain's documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from crossknn.data.formats.base import DataFolder
from crossknn.data.items import Items
from crossknn.data.marks import ITEM_TEMPLATE, marked_query
from crossknn.data.queries import Qrels, QuerySet
from crossknn.data.records import Located, Record, as_text, missing_field, read_records, records_of
from crossknn.errors import InputError, nearest

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Mention:
    """One mention; `label` is a position in the corpus or an item's id."""

    place: str
    id: str
    text: str
    label: object


class Zeshel(DataFolder):
    """A ZESHEL folder; every domain is a corpus of its own.

    Queries read `left [Ms] mention [Me] right`, items `title [ENT] text`.
    """

    format = "zeshel"
    layout = "a ZESHEL folder"
    template = ITEM_TEMPLATE
    id_field = "document_id"
    title_field = "title"

    def __init__(self, path: Path, domain: str | None = None) -> None:
        super().__init__(path, domain)
        self._read: dict[str, Sequence[Mention]] = {}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with a folder `documents`."""
        return (path / "documents").is_dir()

    def splits(self) -> Sequence[str]:
        """The splits of the paper."""
        return SPLITS

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[Zeshel]:
        """The domains of a split; `domains` are found in any split."""
        wanted = None if domains is None else list(domains)
        parts = []
        for domain, mentions in _read_mentions(self.path, split, wanted).items():
            part = Zeshel(self.path, domain)
            part._read[split] = _with_own_ids(mentions)
            parts.append(part)
        return parts

    def item_records(self, split: str | None = None) -> Located:
        """The documents of the domain."""
        domain = self.domain
        if domain is None:
            [domain] = self._only(path.stem for path in (self.path / "documents").glob("*.json"))
        return records_of(_documents(self.path, domain))

    def queries(self, split: str | None) -> QuerySet:
        """The marked mentions of the domain."""
        mentions = self._of_one_domain(self.split(split))
        return QuerySet(tuple(m.id for m in mentions), tuple(m.text for m in mentions))

    def qrels(self, split: str) -> Qrels:
        """The one entity of each mention."""
        return {m.id: {self._label(m): 1} for m in self._of_one_domain(split)}

    def items(self, split: str | None = None) -> Items:
        """The entities of the domain."""
        del split
        return self._items

    @cached_property
    def _items(self) -> Items:
        return super().items()

    def _of_one_domain(self, split: str) -> Sequence[Mention]:
        if split not in self._read:
            parts = self.parts(split, None if self.domain is None else [self.domain])
            self._only(part.name for part in parts)
            self.domain, self._read = parts[0].domain, parts[0]._read
        return self._read[split]

    def _only(self, domains: Iterable[str]) -> list[str]:
        known = sorted(domains)
        if len(known) != 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(known) or 'none'}: name one (domain=...; "
                "for items alone, a file of documents/)"
            )
        return known

    def _label(self, mention: Mention) -> str:
        label, items = mention.label, self._items
        if label is None:
            raise InputError(f"{mention.place} has no label")
        if isinstance(label, str):
            try:
                items.position(label)
            except InputError as error:
                raise InputError(f"{mention.place}: {error}") from None
            return label
        if type(label) is int and 0 <= label < len(items):
            return items.ids[label]
        raise InputError(
            f"{mention.place} has the label {label!r}, which is outside the {len(items)} items of "
            f"{self.domain}"
        )


def _with_own_ids(mentions: Sequence[Mention]) -> Sequence[Mention]:
    places: dict[str, str] = {}
    for mention in mentions:
        first = places.setdefault(mention.id, mention.place)
        if first != mention.place:
            raise InputError(
                f"{mention.place} repeats the mention_id {mention.id!r} of {first}; ids must differ"
            )
    return mentions


def _read_mentions(folder: Path, split: str, wanted: list[str] | None) -> dict[str, list[Mention]]:
    """The mentions of each domain: those of a split, or of `wanted` domains in any split."""
    if split not in SPLITS:
        raise InputError(f"{folder} has no split {split!r} ({nearest(split, SPLITS)})")
    read = _processed if (folder / "processed").is_dir() else _published
    found: dict[str, list[Mention]] = {}
    for name in SPLITS if wanted is not None else (split,):
        for domain, mention in read(folder, name, wanted):
            found.setdefault(domain, []).append(mention)
    for domain in wanted or ():
        if domain not in found:
            known = [path.stem for path in (folder / "documents").glob("*.json")]
            hint = f" ({nearest(domain, known)})" if domain not in known else ""
            raise InputError(f"{folder} has no mentions of {domain!r}{hint}")
    if not found:
        raise InputError(f"{folder} has no mentions in the split {split}")
    return found


def _processed(folder: Path, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Mention]]:
    worlds = folder / "processed" / f"{split}_worlds"
    for path in sorted(worlds.glob("*_mentions.jsonl")):
        domain = path.name.removesuffix("_mentions.jsonl")
        if wanted is not None and domain not in wanted:
            continue
        for number, record in read_records(path, text_field="text"):
            place = f"{path}, line {number}"
            for name in ("mention_id", "mention", "context_left", "context_right"):
                if name not in record:
                    raise missing_field(place, name, record)
            left, mention, right = (
                as_text(record[name], place, name)
                for name in ("context_left", "mention", "context_right")
            )
            if not mention.strip():
                raise InputError(f"{place} has an empty mention")
            text = marked_query(left, mention, right)
            yield domain, Mention(place, str(record["mention_id"]), text, record.get("label_id"))


def _published(folder: Path, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Mention]]:
    names = {"valid": ("valid", "val")}.get(split, (split,))
    paths = [folder / "mentions" / f"{name}.json" for name in names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return
    contexts: dict[str, dict[str, list[str]]] = {}
    for number, record in read_records(path, text_field="text"):
        place = f"{path}, line {number}"
        for name in ("corpus", "context_document_id", "start_index", "end_index", "text"):
            if name not in record:
                raise missing_field(place, name, record)
        domain = str(record["corpus"])
        if wanted is not None and domain not in wanted:
            continue
        if domain not in contexts:
            contexts[domain] = {
                document: text.split(" ")
                for document, text in _raw_documents(_documents(folder, domain))
            }
        words = contexts[domain].get(str(record["context_document_id"]))
        if words is None:
            context = record["context_document_id"]
            raise InputError(f"{place}: the context document {context!r} is not in {domain}")
        start, end = _whole(record, "start_index", place), _whole(record, "end_index", place)
        mention = " ".join(words[start : end + 1])
        inside = 0 <= start <= end < len(words)
        if not inside or mention != str(record["text"]):
            there = f" are {mention!r}" if inside else f", which has {len(words)} words"
            raise InputError(
                f"{place}: the mention {record['text']!r} is not in its sentence: words {start} to "
                f"{end} of {record['context_document_id']}{there}"
            )
        if not mention.strip():
            raise InputError(f"{place} has an empty mention")
        text = marked_query(" ".join(words[:start]), mention, " ".join(words[end + 1 :]))
        label = record.get("label_document_id")
        label = None if label is None else str(label)
        yield domain, Mention(place, str(record.get("mention_id", number)), text, label)


def _whole(record: Record, name: str, place: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{place}: {name} is {value!r}, not a whole number")
    return value


def _documents(folder: Path, domain: str) -> Path:
    path = folder / "documents" / f"{domain}.json"
    if not path.is_file():
        raise InputError(f"{folder} has mentions of {domain} but no documents/{domain}.json")
    return path


def _raw_documents(path: Path) -> Iterator[tuple[str, str]]:
    """(id, text as it stands) of each document: mentions count its words."""
    for number, record in read_records(path, text_field="text"):
        place = f"{path}, line {number}"
        for name in ("document_id", "text"):
            if name not in record:
                raise missing_field(place, name, record)
        yield str(record["document_id"]), as_text(record["text"], place, "text")
