"""The items of an index: one text each, with an id, a title and any further fields.

A template makes an item's text from its record once, on reading, so that scorer, encoder and word
model read the same text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.layouts import folder_at
from crossknn.data.records import Entries, Records, given_records, read_records
from crossknn.data.text_files import is_id_name
from crossknn.errors import InputError
from crossknn.types import BoolArray, IntArray, json_value

logger = logging.getLogger(__name__)

_ADVICE = (
    "if the text is in another field, name it with --text-field, and the id with --id-field "
    "(text_field= and id_field= in Python)"
)
DEFAULT_TEMPLATE = "{title}\n{text}"
"""Default template of title and text; the ends are stripped, so either may be empty."""

_ID_FIELDS = ("id", "_id", "docno", "doc_id", "document_id", "docid", "passage_id", "pid")

_FIELD = re.compile(r"\{([^\W\d][\w-]*)\}")

_BARE_FIELDS = (("id", "text"), ("id", "url", "title", "text"))
"""Fields of a TSV without a header, by their number: passages and documents of MS MARCO."""


class Item(NamedTuple):
    """One item; `text` is made by the template, `extra` has the record's other fields."""

    id: str
    text: str
    title: str
    extra: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """n items in a fixed order, as columns: lists, or sequences on disk.

    A search refers to an item by its position, 0 to n - 1.

    Args:
        ids: Ids (n), all different.
        texts: Texts (n), as the cross-encoder reads them: title and text by `template`.
        titles: Titles (n), "" for an item without one.
        extra: Further fields (n) of each item, by name.
        template: The template that made the texts from fields.
        alive: Mask (n,), false for deleted items; None if no item is deleted.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    titles: Sequence[str]
    extra: Sequence[Mapping[str, object]]
    template: str = DEFAULT_TEMPLATE
    alive: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> Item:
        return Item(self.ids[at], self.texts[at], self.titles[at], self.extra[at])

    @cached_property
    def _position(self) -> dict[str, int]:
        alive = self.alive
        return {i: p for p, i in enumerate(self.ids) if alive is None or alive[p]}

    @cached_property
    def alike(self) -> tuple[IntArray, IntArray]:
        """Positions (p,) of items that share their text with another item, grouped by text and
        ascending, and numbers (p,) of their texts. Computed once, in 1 us per text."""
        codes = np.fromiter(map(hash, self.texts), np.int64, len(self))
        _, of, counts = np.unique(codes, return_inverse=True, return_counts=True)
        numbers = dict[str, int]()  # texts whose hashes are equal may differ
        same = np.flatnonzero(counts[of] > 1)
        texts = np.array(
            [numbers.setdefault(self.texts[p], len(numbers)) for p in same.tolist()], np.int64
        )
        order = np.argsort(texts, kind="stable")
        return same[order], texts[order]

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._position

    def position(self, item_id: str) -> int:
        """Return the position of the item with an id; `InputError` if there is none."""
        if item_id not in self._position:
            hint = f" (ids look like {self.ids[0]!r})" if len(self) else ""
            raise InputError(f"there is no item with the id {item_id!r}{hint}")
        return self._position[item_id]

    def take(self, positions: Sequence[int]) -> Items:
        """Select items at some positions, in this order."""
        alive = None if self.alive is None else self.alive[list(positions)]
        columns: dict[str, Any] = {
            name: [getattr(self, name)[position] for position in positions]
            for name in ("ids", "texts", "titles", "extra")
        }
        return replace(self, **columns, alive=None if alive is None or alive.all() else alive)

    def positions(self, item_ids: Iterable[str]) -> IntArray:
        """Return the positions (p,) of the items with these ids."""
        return np.array([self.position(item_id) for item_id in item_ids], dtype=np.int64)


def read_items(
    source: str | Path | Entries,
    *,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    template: str = DEFAULT_TEMPLATE,
) -> Items:
    """Read items from a file, a data folder, or a container of Python (docs/how-to/data.md).

    Further fields are kept in `extra`, as JSON values. Records without ids get line numbers, from
    1, as ids (positions, from 0, in Python sequences; the index of a data frame).

    Args:
        source: A file (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, or `.txt` with an item per
            line), a folder, a list of texts or records, a mapping from ids to them, or a data
            frame.
        id_field, title_field, text_field: The fields that hold id, title and text; by default the
            usual names, such as `_id` or `docno`, in any case.
        template: How an item's text is made of its fields: `{title}`, `{text}` and any other.
    """
    if isinstance(source, (str, Path)):
        folder = folder_at(source)
        path = Path(source) if folder is None else folder.items()
        records = item_records(path, *filter(None, (id_field, title_field, text_field)))
    else:
        records = given_records(source)
    return items_from(
        records, template, id_field=id_field, title_field=title_field, text_field=text_field
    )


def item_records(path: Path, *named: str) -> Records:
    """Read the records of a file of items; `named` are field names besides the usual ones."""
    return read_records(path, (*_ID_FIELDS, "title", "text", *named), _BARE_FIELDS)


def items_from(
    records: Records,
    template: str = DEFAULT_TEMPLATE,
    *,
    id_field: str | None = None,
    title_field: str | None = None,
    text_field: str | None = None,
    allow_empty: bool = False,
) -> Items:
    """Make items from records, as `read_items` does; with `allow_empty` texts may be empty."""
    names = _template_fields(template)
    ids: dict[str, None] = {}
    texts: list[str] = []
    titles: list[str] = []
    extra: list[Mapping[str, object]] = []
    id_name: str | None = None
    columns: list[str] | None = None
    for record in records.rows:
        if columns != (columns := [*record.fields]):  # mostly as in the record before
            own = id_field or record.first_of(_ID_FIELDS)
            title = title_field or record.first_of(("title",))
            body = text_field or record.first_of(("text",)) or "text"
        if not ids:
            id_name = own
        elif record.key is None and id_name != own:
            if id_name is None:
                raise InputError(f"{record.place} has an {own!r}, but the first record has none")
            own = id_name
        record.add_id(own, ids)
        values = {"title": "" if title is None else record.text(title).strip()}
        for name in names:
            values[name] = record.text(body if name == "text" else name, _ADVICE).strip()
        text = template.format_map(values).strip()
        if not (allow_empty or text):
            raise InputError(f"{record.place} has an empty text")
        texts.append(text)
        titles.append(values["title"])
        used = {own, title, body}
        try:
            others = {str(k): json_value(v) for k, v in record.fields.items() if k not in used}
        except RecursionError:
            raise InputError(f"{record.place} has a field that is nested too deeply") from None
        extra.append(others)
    if not ids:
        raise InputError(f"{records.source} holds no items")
    if id_name is None and (unused := next(filter(is_id_name, extra[0]), None)):
        message = "%s: items are numbered; if %r is their id, name it with --id-field (id_field=)"
        logger.warning(message, records.source, unused)
    return Items(ids=list(ids), texts=texts, titles=titles, extra=extra, template=template)


def _template_fields(template: str) -> list[str]:
    """Return the names that the template uses, except `title`."""
    names = _FIELD.findall(template)
    if not names or set("{}") & set(_FIELD.sub("", template)):
        raise InputError(
            f"the template {template!r} must name fields of the records, e.g. {{title}}: {{text}}"
        )
    return [name for name in names if name != "title"]
