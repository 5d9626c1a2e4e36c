"""Labelled data for training: data folders as `ck.read_dataset` reads them, and ZESHEL's worlds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from crossknn.data.dataset import Dataset, dataset_at
from crossknn.data.items import items_from
from crossknn.data.qrels import Qrels
from crossknn.data.queries import ITEM_TEMPLATE, queries_from
from crossknn.data.records import Record, Records, read_records
from crossknn.data.text_files import existing
from crossknn.errors import InputError, nearest
from crossknn.files import as_path

SPLITS = ("train", "valid", "test")
"""Of ZESHEL."""


def read_labelled(
    folder: str | Path, split: str = "train", *, lists: bool = False
) -> list[Dataset]:
    """What a data folder (docs/how-to/data.md) holds of a split: one corpus, or one per domain.

    Queries without a relevant item are left out. `InputError` for a missing or duplicate label, a
    relevant item outside the corpus, a mention that is not in its document, and lists that are not
    there.

    Args:
        folder: The folder.
        split: Which queries.
        lists: Read the lists that come with the queries, too.
    """
    path = existing(as_path(folder, "the folder"))
    place = f"{path}, split {split}"
    if (path / "documents").is_dir():
        datasets = _zeshel(path, split)
    else:
        datasets = [dataset_at(path, split, lists=lists)]
    return [_labelled(data, place, lists) for data in datasets]


def _labelled(data: Dataset, place: str, lists: bool) -> Dataset:
    if unknown := set(data.qrels).difference(data.queries.ids):
        raise InputError(f"{place}: the judged query {min(unknown)!r} is not among the queries")
    judged = data.judged()
    try:
        positives = judged.positives
    except InputError as error:
        raise InputError(f"{place}, {error}") from None
    if not positives:
        raise InputError(f"{place}: no query has a relevant item")
    if lists and not judged.candidates:
        raise InputError(f"{place}: no lists of candidates")
    return judged


def _zeshel(path: Path, split: str) -> list[Dataset]:
    """Entity linking in worlds (Logeswaran et al. 2019); each domain is a corpus of its own.

    Items are the entities of `documents/<domain>.json`, `title [ENT] text`; queries are mentions in
    the whole of their document, `left [Ms] mention [Me] right`, from `mentions/<split>.json`, or
    from `processed/`, where `label_id` is a position in the documents.
    """
    if split not in SPLITS:
        raise InputError(f"{path} has no split {split!r} ({nearest(split, SPLITS)})")
    by_domain: dict[str, list[Record]] = {}
    for domain, mentions in _mentions(path, split):
        by_domain.setdefault(domain, []).extend(mentions)
    if not by_domain:
        raise InputError(f"{path} has no mentions in the split {split}")
    return [_world(path, *world) for world in by_domain.items()]


def _world(path: Path, domain: str, mentions: Sequence[Record]) -> Dataset:
    documents = list(read_records(path / "documents" / f"{domain}.json").rows)
    processed = (path / "processed").is_dir()
    in_context = _as_processed(mentions) if processed else _placed(mentions, documents)
    queries = queries_from(Records(str(path), in_context))
    items = items_from(Records(str(path), documents), ITEM_TEMPLATE, allow_empty=True)
    known, qrels = set(items.ids), Qrels()
    for query, mention in zip(queries.ids, mentions, strict=True):
        label: object = mention.fields.get("label_id")
        if not processed:
            label = mention.text("label_document_id")
        elif type(label) is int and 0 <= label < len(items):
            label = items.ids[label]
        if not isinstance(label, str) or label not in known:
            raise InputError(
                f"{mention.place} has the label {label!r}, which is none of the {len(items)} "
                f"items of {domain}"
            )
        qrels[query] = {label: 1}
    return Dataset(name=domain, items=items, queries=queries, qrels=qrels)


def _mentions(path: Path, split: str) -> Iterator[tuple[str, Iterable[Record]]]:
    """Mentions of a split by domain, as they are in their files."""
    end = "_mentions.jsonl"
    for file in sorted(path.glob(f"processed/{split}_worlds/*{end}")):
        yield file.name.removesuffix(end), read_records(file).rows
    file = path / "mentions" / f"{'val' if split == 'valid' else split}.json"
    if file.is_file() and not (path / "processed").is_dir():
        for record in read_records(file).rows:
            yield record.text("corpus"), [record]


_IN_CONTEXT = ("mention_id", "context_left", "mention", "context_right")


def _as_processed(mentions: Iterable[Record]) -> Iterator[Record]:
    for record in mentions:
        yield record._replace(fields={name: record.field(name) for name in _IN_CONTEXT})


def _placed(mentions: Iterable[Record], documents: Iterable[Record]) -> Iterator[Record]:
    """Mentions and what is around them, found by the places of their words, both inclusive."""
    contexts = {d.text("document_id"): d.text("text").split(" ") for d in documents}
    for record in mentions:
        words = contexts.get(record.text("context_document_id"), [])
        given = record.field("start_index"), record.field("end_index")
        start, end = (place if type(place) is int else -1 for place in given)
        mention = " ".join(words[start : end + 1])
        if not 0 <= start <= end < len(words) or mention != record.field("text"):
            raise InputError(
                f"{record.place}: the mention {record.field('text')!r} is not the words {given[0]} "
                f"to {given[1]} of the document {record.text('context_document_id')!r}"
            )
        left, right = " ".join(words[:start]), " ".join(words[end + 1 :])
        values = (record.field("mention_id"), left, mention, right)
        yield record._replace(fields=dict(zip(_IN_CONTEXT, values, strict=True)))
