"""Items, queries and judgements from wherever they are: a file, a data folder, Python sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from crossknn.data.formats import folder_at
from crossknn.data.items import DEFAULT_TEMPLATE, Items, item_records, items_from
from crossknn.data.queries import Qrels, QuerySet, file_qrels, queries_from, query_records
from crossknn.data.records import given_records
from crossknn.errors import InputError


def read_items(
    source: str | Path | Iterable[str | Mapping[str, object]],
    *,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    template: str = DEFAULT_TEMPLATE,
    limit: int | None = None,
) -> Items:
    """Items from a file, a data folder (docs/data.md), an `irds:` name, or Python sequences.

    Files are JSON lines (`.jsonl`, `.ndjson`, `.json`), `.csv` and `.tsv` (which knows no quotes)
    with a header, or `.txt` with an item per line; each may end in `.gz`. Without a header, a TSV
    has the columns of MS MARCO: id and text, or id, url, title and text. Blank lines are skipped.

    Fields that are not named are found under their usual names: `id`, `_id`, `docno`, `doc_id` or
    `document_id`; `title`, which may be absent; `text`. If the first record has no id, no record
    may have one, and ids are line numbers from 1 (positions from 0 for Python sequences).
    `template` may use `{title}`, `{text}` and any other field. `limit` keeps the first items only.
    All further fields become `extra`.

    Raises `InputError`, one sentence with file and line, for an empty corpus, an id that comes
    twice, an empty text, a missing field, and a line that cannot be read.
    """
    if not isinstance(source, (str, Path)):
        records = given_records(source, text_field=text_field or "text")
    else:
        folder = folder_at(source)
        if folder is None:
            given = [field for field in (id_field, title_field, text_field) if field]
            records = item_records(Path(source), text_field=text_field or "text", known=given)
        else:
            id_field = id_field or folder.id_field
            title_field = title_field or folder.title_field
            records = folder.item_records()
    return items_from(
        records,
        id_field=id_field,
        title_field=title_field,
        text_field=text_field,
        template=template,
        limit=limit,
    )


def read_queries(
    source: str | Path | Iterable[str | Mapping[str, object]],
    *,
    split: str | None = None,
    limit: int | None = None,
) -> QuerySet:
    """Queries from a file, a data folder (docs/data.md), an `irds:` name, or Python sequences.

    JSON lines and CSV have the fields `id` (`_id`, `qid`, `query_id`) and `text` (`query`); a TSV
    has such a header or two columns, id and text, without one; a `.txt` has a query per line. A
    file that begins with a tag holds TREC topics (`crossknn.data.topics`). Mentions in context
    (ZESHEL: `context_left`, `mention`, `context_right`, `mention_id`) become marked queries. Ids
    that are absent are line numbers from 1 (positions from 0 for Python sequences). `split` names
    the part of a folder, without it all queries of a BEIR folder are read; `limit` keeps the first.

    Raises `InputError`, one sentence with file and line.
    """
    if isinstance(source, (str, Path)):
        folder = folder_at(source)
        if folder is not None:
            return folder.queries(split).first(limit)
        records = query_records(Path(source))
    else:
        records = given_records(source, text_field="text")
    if split is not None:
        raise InputError(f"split {split!r} needs a data folder such as a BEIR folder, not {source}")
    return queries_from(records).first(limit)


def read_qrels(path: str | Path, *, split: str | None = None) -> Qrels:
    """Judgements from a BEIR file (query, item, grade; with a header or not) or a TREC file.

    TREC lines have four columns, the second of which is ignored. Of a data folder (docs/data.md) or
    an `irds:` name the judgements of `split` are read, `test` by default.

    Raises `InputError`, one sentence with file and line.
    """
    folder = folder_at(path)
    return file_qrels(Path(path)) if folder is None else folder.qrels(folder.split(split))
