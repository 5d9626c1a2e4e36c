"""A corpus with queries whose relevant items are known: what models are trained and judged on.

Two layouts are read: a BEIR folder (`corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`), and the
ZESHEL layout of entity linking (Logeswaran et al. 2019), where every domain has its own corpus:
`documents/<domain>.json` and either `processed/<split>_worlds/<domain>_mentions.jsonl` (the
authors' preprocessing: context_left, mention, context_right, label_id) or
`mentions/<split>.json` (the published files: context_document_id, start_index, end_index, text).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items, read_items
from crossknn.data.marks import marked_item, marked_query
from crossknn.data.queries import QuerySet, read_qrels, read_queries
from crossknn.data.records import Ids, as_text, existing, missing_field, read_lines, read_records
from crossknn.errors import InputError, nearest
from crossknn.types import IntArray

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """m queries, n items, and for each query the positions of its relevant items (at least one)."""

    name: str
    items: Items
    queries: QuerySet
    positives: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def gold(self) -> IntArray:
        """The first relevant item of each query: (m,)."""
        return np.array([found[0] for found in self.positives], dtype=np.int64)

    def take(self, rows: Iterable[int]) -> Labelled:
        """The queries at `rows`, with the whole corpus."""
        rows = [int(row) for row in rows]
        ids, texts = self.queries.ids, self.queries.texts
        return Labelled(
            name=self.name,
            items=self.items,
            queries=QuerySet(tuple(ids[r] for r in rows), tuple(texts[r] for r in rows)),
            positives=tuple(self.positives[r] for r in rows),
        )

    def without(self, ids: Iterable[str]) -> Labelled:
        """All queries but those with these ids."""
        held = set(ids)
        return self.take(row for row, query in enumerate(self.queries.ids) if query not in held)

    def sample(self, count: int | None, seed: int) -> Labelled:
        """`count` random queries, in their order; all if None or if there are no more."""
        if count is None or count >= len(self):
            return self
        return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:count]))


def read_labelled(
    folder: str | Path, split: str = "train", domains: Iterable[str] | None = None
) -> list[Labelled]:
    """What a folder holds of a split: one corpus for BEIR, one per domain for ZESHEL.

    `domains` keeps those domains, wherever they lie; without it they are the split's own.

    Raises `InputError`, one sentence with file and line, for a missing or duplicate label, a
    relevant item outside the corpus, and a mention that is not in its sentence.
    """
    folder = existing(Path(folder))
    if (folder / "documents").is_dir():
        return _zeshel(folder, split, None if domains is None else list(domains))
    if domains is not None:
        raise InputError(f"{folder} is a BEIR folder, which has no domains")
    return [_beir(folder, split)]


def _beir(folder: Path, split: str) -> Labelled:
    items = read_items(folder)
    judged = read_qrels(folder, split=split)
    path = folder / "qrels" / f"{split}.tsv"
    queries = read_queries(folder)
    known = set(queries.ids)
    for query in judged:
        if query not in known:
            place = _judgement(path, query)
            raise InputError(f"{place}: the query {query!r} is not in queries.jsonl")
    positives, kept = [], []
    for query in queries.select(judged).ids:
        relevant = [item for item, grade in judged[query].items() if grade > 0]
        if relevant:
            positives.append(np.array([_judged(items, path, query, item) for item in relevant]))
            kept.append(query)
    if not kept:
        raise InputError(f"{path}: no query has a relevant item")
    return Labelled(
        name=folder.name, items=items, queries=queries.select(kept), positives=tuple(positives)
    )


def _judged(items: Items, path: Path, query: str, item: str) -> int:
    try:
        return items.position(item)
    except InputError as error:
        raise InputError(f"{_judgement(path, query, item)}: {error}") from None


def _judgement(path: Path, query: str, item: str | None = None) -> str:
    """The file and the first line that judges the query, and the item if one is given."""
    for number, line in read_lines(path):
        row = line.strip().split("\t") if "\t" in line else line.split()
        if row and row[0] == query and item in (None, *row[1:]):
            return f"{path}, line {number}"
    return str(path)


def _zeshel(folder: Path, split: str, wanted: list[str] | None) -> list[Labelled]:
    if split not in SPLITS:
        raise InputError(f"{folder} has no split {split!r} ({nearest(split, SPLITS)})")
    processed = (folder / "processed").is_dir()
    splits = SPLITS if wanted is not None else (split,)
    found: dict[str, list[_Mention]] = {}
    for name in splits:
        read = (_processed if processed else _published)(folder, name, wanted)
        for domain, mention in read:
            found.setdefault(domain, []).append(mention)
    for domain in wanted or ():
        if domain not in found:
            raise InputError(f"{folder} has no mentions of {domain!r} ({nearest(domain, found)})")
    if not found:
        raise InputError(f"{folder} has no mentions in the split {split}")
    return [_domain(folder, domain, mentions) for domain, mentions in found.items()]


@dataclass(frozen=True)
class _Mention:
    """One mention; `label` is a position in the corpus or an item's id."""

    place: str
    id: str
    text: str
    label: Any


def _processed(
    folder: Path, split: str, wanted: list[str] | None
) -> Iterator[tuple[str, _Mention]]:
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
            yield domain, _Mention(place, str(record["mention_id"]), text, record.get("label_id"))


def _published(
    folder: Path, split: str, wanted: list[str] | None
) -> Iterator[tuple[str, _Mention]]:
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
                for document, _, text in _read_documents(_documents(folder, domain))
            }
        words = contexts[domain].get(str(record["context_document_id"]))
        if words is None:
            context = record["context_document_id"]
            raise InputError(f"{place}: the context document {context!r} is not in {domain}")
        start, end = _whole(record, "start_index", place), _whole(record, "end_index", place)
        mention = " ".join(words[start : end + 1])
        if not 0 <= start <= end < len(words) or mention != str(record["text"]):
            raise InputError(
                f"{place}: the mention {record['text']!r} is not in its sentence: words {start} to "
                f"{end} of {record['context_document_id']} are {mention!r}"
            )
        if not mention.strip():
            raise InputError(f"{place} has an empty mention")
        text = marked_query(" ".join(words[:start]), mention, " ".join(words[end + 1 :]))
        label = record.get("label_document_id")
        label = None if label is None else str(label)
        yield domain, _Mention(place, str(record.get("mention_id", number)), text, label)


def _whole(record: Any, name: str, place: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{place}: {name} is {value!r}, not a whole number")
    return value


def _documents(folder: Path, domain: str) -> Path:
    path = folder / "documents" / f"{domain}.json"
    if not path.is_file():
        raise InputError(f"{folder} has mentions of {domain} but no documents/{domain}.json")
    return path


def _domain(folder: Path, domain: str, mentions: list[_Mention]) -> Labelled:
    items = read_marked_items(_documents(folder, domain))
    places: dict[str, str] = {}
    gold: list[int] = []
    for mention in mentions:
        first = places.setdefault(mention.id, mention.place)
        if first != mention.place:
            raise InputError(
                f"{mention.place} repeats the mention_id {mention.id!r} of {first}; ids must differ"
            )
        if mention.label is None:
            raise InputError(f"{mention.place} has no label")
        if isinstance(mention.label, str):
            try:
                gold.append(items.position(mention.label))
            except InputError as error:
                raise InputError(f"{mention.place}: {error}") from None
        elif type(mention.label) is int and 0 <= mention.label < len(items):
            gold.append(mention.label)
        else:
            raise InputError(
                f"{mention.place} has the label {mention.label!r}, which is outside the "
                f"{len(items)} items of {domain}"
            )
    queries = QuerySet(tuple(places), tuple(mention.text for mention in mentions))
    positives = tuple(np.array([position]) for position in gold)
    return Labelled(name=domain, items=items, queries=queries, positives=positives)


def read_marked_items(path: str | Path) -> Items:
    """`documents/<domain>.json`: lines {document_id, title, text} -> items `title [ENT] text`."""
    path = existing(Path(path))
    rows = list(_read_documents(path))
    if not rows:
        raise InputError(f"{path} holds no items")
    return Items(
        ids=[document for document, _, _ in rows],
        texts=[marked_item(title, text) for _, title, text in rows],
        titles=[title for _, title, _ in rows],
        extra=[{}] * len(rows),
        template="marked",
    )


def _read_documents(path: Path) -> Iterator[tuple[str, str, str]]:
    """(id, title, text) of each line; InputError for a missing field or an id that comes twice."""
    ids = Ids("line")
    for number, record in read_records(path, text_field="text"):
        place = f"{path}, line {number}"
        for name in ("document_id", "title", "text"):
            if name not in record:
                raise missing_field(place, name, record)
        document = str(record["document_id"])
        ids.add(document, number, place)
        title, text = (as_text(record[name], place, name) for name in ("title", "text"))
        yield document, title, text
