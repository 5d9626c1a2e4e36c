"""Data from wherever they are: a file, a data folder, a name of ir_datasets, Python sequences."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from crossknn.data.dataset import Dataset
from crossknn.data.formats import Beir, DataFolder, Irds, MsMarco, Trec, Zeshel
from crossknn.data.items import DEFAULT_TEMPLATE, Items, item_records, items_from
from crossknn.data.queries import (
    Qrels,
    QuerySet,
    file_qrels,
    given_qrels,
    queries_from,
    query_records,
)
from crossknn.data.records import Entries, existing, given_records
from crossknn.errors import InputError, nearest
from crossknn.files import as_path

logger = logging.getLogger(__name__)

FORMATS: dict[str, type[DataFolder]] = {
    format.format: format for format in (Beir, Zeshel, Trec, MsMarco, Irds)
}


def _folder(source: str | Path, format: str | None = None) -> DataFolder:
    """The data folder at `source`, of the format its layout shows, or of `format`."""
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown data format {format!r}: {nearest(format, FORMATS)}")
    folder = _folder_at(source, format)
    if folder is None:
        raise InputError(f"{source} is a file, where a folder of data is expected")
    return folder


def _folder_at(source: str | Path, format: str | None = None) -> DataFolder | None:
    """The data folder or named data set at `source`; None if it is a file."""
    path = as_path(source, "the source")
    if not Irds.recognises(path) and not existing(path).is_dir():
        return None
    found = [format] if format else [name for name in FORMATS if FORMATS[name].recognises(path)]
    if not found:
        raise InputError(
            f"{path} is a folder without corpus.jsonl, documents/, topics or another sign of a "
            f"known format ({', '.join(FORMATS)}; see the docs, data)"
        )
    if len(found) > 1:
        raise InputError(f"{path} looks like {' and '.join(found)}: say which (format=...)")
    return FORMATS[found[0]](path)


def read_items(
    source: str | Path | Entries,
    *,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    template: str = DEFAULT_TEMPLATE,
    limit: int | None = None,
) -> Items:
    """Read items from a file, a data folder, an `irds:` name, or Python containers.

    Files are JSON lines or a JSON array (`.jsonl`, `.ndjson`, `.json`), `.csv` and `.tsv` (which
    knows no quotes), or `.txt` with an item per line; each may end in `.gz`. Blank lines are
    skipped. Containers are lists of texts or records, mappings from ids to them, data frames of
    pandas or polars, and Series of pandas.

    Fields that are not named are found under their usual names, in any case: `id`, `_id`, `docno`,
    `doc_id`, `document_id`, `docid`, `passage_id` or `pid`; `title`, which may be absent; `text`.
    Ids are taken exactly as they are. If the first record has no id, no record may have one, and
    ids are line numbers from 1 (positions from 0 for Python sequences, the index of a data frame).
    NaN and NaT are null, and null is an empty text. All further fields become `extra`, as JSON has
    them.

    Args:
        source: The file, the folder, the name, or a container of texts or records.
        id_field: The field that holds the id.
        title_field: The field that holds the title.
        text_field: The field that holds the text.
        template: How an item's text is made of its fields: `{title}`, `{text}` and any other.
        limit: Keep only so many items, from the first.

    Returns:
        The items, in the order of the source.

    Raises:
        InputError: The corpus is empty, an id comes twice, a text is empty, a field is missing or a
            line cannot be read; the message names file and line.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1")
    if not isinstance(source, (str, Path)):
        records = given_records(source)
    elif (folder := _folder_at(source)) is not None:
        records = folder.item_records()
    else:
        known = [field for field in (id_field, title_field, text_field) if field]
        records = item_records(Path(source), known)
    records = records._replace(rows=islice(records.rows, limit))
    return items_from(
        records, template, id_field=id_field, title_field=title_field, text_field=text_field
    )


def read_queries(
    source: str | Path | Entries,
    *,
    split: str | None = None,
    limit: int | None = None,
) -> QuerySet:
    """Read queries from a file, a data folder (docs/how-to/data.md), an `irds:` name, or a
    container as of `read_items`.

    Records have the fields `id` (`_id`, `qid`, `query_id`) and `query` or `text`, or are mentions
    in context (`mention_id`, `context_left`, `mention`, `context_right`), which become marked
    queries. Ids that are absent are line numbers from 1 (positions from 0 for Python sequences).

    Args:
        source: The file, the folder, the name, or a container of texts or records.
        split: Which part of a folder; without it all queries of a BEIR folder are read.
        limit: Keep only so many queries, from the first.

    Returns:
        The queries, in the order of the source.

    Raises:
        InputError: A query is empty or cannot be read, or an id comes twice; the message names file
            and line.
    """
    if not isinstance(source, (str, Path)):
        folder, records = None, given_records(source)
    elif (folder := _folder_at(source)) is None:
        records = query_records(Path(source))
    if folder is None and split is not None:
        raise InputError(f"split {split!r} needs a data folder such as a BEIR folder, not {source}")
    queries = folder.queries(split) if folder is not None else queries_from(records)
    return queries.take(range(len(queries))[:limit])


def read_qrels(
    path: str | Path | Mapping[Any, Mapping[Any, Any]], *, split: str | None = None
) -> Qrels:
    """Read judgements from a BEIR file (query, item, grade; header optional) or a TREC file.

    TREC lines have four columns, the second of which is ignored. A grade is a whole number, `1.0`
    is one, too.

    Args:
        path: The file; or a data folder (docs/how-to/data.md), an `irds:` name, or a mapping
            `{query id: {item id: grade}}`.
        split: Which judgements of a folder or name, by default `test`.

    Returns:
        `{query id: {item id: grade}}`.

    Raises:
        InputError: A line is no judgement; the message names file and line.
    """
    if not isinstance(path, str | Path):
        return given_qrels(path)
    folder = _folder_at(path)
    return file_qrels(Path(path)) if folder is None else folder.qrels(folder.split(split))


def read_dataset(
    source: str | Path,
    *,
    split: str | None = None,
    domain: str | None = None,
    limit: int | None = None,
    format: str | None = None,
) -> Dataset:
    """Read a split of a data folder, or of a data set of ir_datasets (`irds:beir/scifact/test`).

    What does not fit together is logged as a warning (`Dataset.findings`).

    Args:
        source: The folder, or `irds:` and the name of a data set.
        split: By default `test`, or the only split there is.
        domain: Which corpus of a folder that has several.
        limit: Keep only so many queries, from the first.
        format: The layout (docs/how-to/data.md), by default recognised from the files.

    Returns:
        Items, queries and judgements of the split.

    Raises:
        InputError: A record cannot be read, or the split is not there; the message names the place.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1")
    folder = _folder(source, format)
    data = folder.dataset(folder.split(split), domain)
    if limit is not None:
        data = data.take(range(min(limit, len(data))))
    for finding in data.findings:
        logger.warning("%s: %s", data.name, finding)
    return data


def read_labelled(
    folder: str | Path,
    split: str = "train",
    domains: Iterable[str] | None = None,
    *,
    lists: bool = False,
) -> list[Dataset]:
    """What a data folder (docs/how-to/data.md) holds of a split: one corpus, or one per domain.

    Queries without a relevant item are left out.

    Args:
        domains: keep these; of ZESHEL wherever they lie, without it they are the split's own.
        lists: read the lists that come with the queries too.

    Raises:
        InputError: one sentence, for a missing or duplicate label, a relevant item outside the
            corpus, a mention that is not in its document, and lists that are not there.
    """
    source = _folder(folder)
    split = source.split(split)
    place = f"{source.path}, split {split}"
    return [_labelled(data, place, lists) for data in source.datasets(split, domains, lists)]


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
