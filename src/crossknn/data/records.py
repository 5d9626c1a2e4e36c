"""Records of files and of Python containers, each with its place, such as `FILE, line 3`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from crossknn.data.text_files import read_lines, read_table
from crossknn.errors import InputError, nearest
from crossknn.files import open_given
from crossknn.types import LARGEST, is_missing, is_whole, whole_text

JSON_TYPES = (".jsonl", ".ndjson", ".json")
NAMED_TYPES = (*JSON_TYPES, ".csv", ".parquet")
"""Types of files whose fields always have names."""
FILE_TYPES = (*NAMED_TYPES, ".tsv", ".txt")


Entries: TypeAlias = Iterable[str | Mapping[str, Any]] | Mapping[Any, Any] | Any
"""Texts or records: a list of them, a mapping from ids to them, a data frame, a pandas Series."""

_RECORD_FIELDS = frozenset({"id", "_id", "title", "text", "query"})
_FEW = 20
"""A mapping with at most this many entries and one of these keys is one record, not a mapping from
ids."""
_FRACTIONS = (float, np.floating, Decimal)


class Record(NamedTuple):
    """The named fields of a record, its number, and its place for messages, such as `FILE, line 3`.

    The number is a line (from 1), a position (from 0) in a Python sequence, or the label of a data
    frame's row; `key` is the record's id in a mapping.
    """

    fields: Mapping[str, object]
    number: Any
    place: str
    key: str | None = None

    def first_of(self, names: Sequence[str]) -> str | None:
        """Return the first of the field names that the record has, ignoring case if necessary."""
        folded = {str(name).casefold(): name for name in reversed([*self.fields])}
        in_any_case = (folded.get(name) for name in names)
        return next(filter(self.fields.__contains__, chain(names, in_any_case)), None)

    def field(self, name: str, advice: str = "") -> object:
        """Return a field's value; if it is missing, raise `InputError` with `advice`."""
        if name not in self.fields:
            hint = nearest(name, map(str, self.fields))
            error = InputError(f"{self.place} has no field {name!r} ({hint})")
            if advice:
                error.add_note(advice)
            raise error
        return self.fields[name]

    def text(self, name: str, advice: str = "") -> str:
        """Return a field's value as text; numbers are written out, null is empty."""
        value = self.field(name, advice)
        if isinstance(value, str):
            return whole_text(value)
        if is_missing(value):
            return ""
        shown: object = f"a {type(value).__name__}"
        if is_whole(value):
            shown = None if abs(value) < LARGEST else "a number of over 4000 digits"
        elif isinstance(value, _FRACTIONS):
            shown = None if math.isfinite(value) else value
        if shown is not None:
            raise InputError(f"{self.place}: field {name!r} is {shown}, not text")
        return str(value)

    def id(self, name: str | None) -> str:
        """Return the record's id: its key in a mapping, or a field, or else its number."""
        if self.key is None:
            return as_id(self.number if name is None else self.field(name), self.place)
        if name is not None and (own := as_id(self.field(name), self.place)) != self.key:
            raise InputError(
                f"{self.place} has the id {own!r} in its field {name!r}: where both are given they "
                "must agree; give the records as a list if the field is right"
            )
        return self.key

    def add_id(self, name: str | None, ids: dict[str, None]) -> None:
        """Add this record's id to `ids`; `InputError` if another record has it."""
        value = self.id(name)
        if value in ids:
            raise InputError(f"{self.place} repeats the id {value!r}; ids must differ")
        ids[value] = None


class Records(NamedTuple):
    """The records of a file, or of a Python container."""

    source: str
    rows: Iterable[Record]


def as_id(value: object, place: str) -> str:
    """Return an id unchanged: an integer, or a string without tabs."""
    if is_whole(value) and abs(value) < LARGEST:
        return str(value)
    text = whole_text(value) if isinstance(value, str) else ""
    if not text.strip() or text.splitlines() != [text] or "\t" in text:
        shown = "an id of over 4000 digits" if is_whole(value) else f"the id {value!r:.80}"
        raise InputError(f"{place} has {shown}; an id is a non-empty string or an integer")
    return text


def file_type(path: Path) -> str:
    """Return the ending of a file without `.gz`, in lower case."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def read_records(
    path: Path, usual: Sequence[str] = (), bare: Sequence[tuple[str, ...]] = ()
) -> Records:
    """Read the records of a file by its type; a line of a `.txt` file becomes the field `text`.

    A `.tsv` whose first row has none of the `usual` names has no header: its fields are the entry
    of `bare` with the same number of fields.
    """
    ending, name = file_type(path), str(path)
    if ending not in FILE_TYPES:
        raise InputError(
            f"{path} has the unknown file type {ending or '(none)'!r}; "
            f"known: {', '.join(FILE_TYPES)}, or a BEIR folder"
        )
    if ending in JSON_TYPES:
        return Records(name, _json_records(path))
    if ending == ".parquet":
        return Records(name, _parquet_records(path))
    if ending == ".txt":
        lines = ((number, line.strip()) for number, line in read_lines(path))
        rows: Iterator[tuple[int, Any]] = ((n, {"text": line}) for n, line in lines if line)
    else:
        rows = read_table(path, ending == ".tsv", usual, bare)
    return Records(name, (Record(row, number, f"{name}, line {number}") for number, row in rows))


def is_container(source: object) -> bool:
    """Whether a Python value holds records: a list, a mapping or a data frame, but no text, set or
    table of an unknown package."""
    if isinstance(source, str | bytes | set | frozenset) or not getattr(source, "ndim", True):
        return False
    is_table = any(hasattr(source, name) for name in ("to_pylist", "to_dicts", "to_dict"))
    return is_table or (isinstance(source, Iterable) and not hasattr(source, "columns"))


def given_records(source: Entries) -> Records:
    """Read the records of a Python container of texts or mappings."""
    if not is_container(source):
        raise InputError(f"{source!r:.80} is neither a file nor a list of texts")
    return Records("the sequence", _entries(source))


def _entries(source: Any) -> Iterator[Record]:
    """Yield a container's records; data frames are recognised by their methods, without importing
    pandas or polars."""
    if isinstance(source, Mapping):
        if len(source) <= _FEW and any(isinstance(source.get(n), str) for n in _RECORD_FIELDS):
            raise InputError(
                f"{dict(source)!r:.80} is one record: give a list of texts or mappings, or a "
                "mapping from ids to them"
            )
        yield from _by_id(source, "entry")
        return
    labels: Iterable[Any] = count()
    rows = source
    is_pandas = hasattr(source, "columns") and hasattr(source, "to_dict")
    names = [*(source.columns if is_pandas else getattr(source, "column_names", None) or ())]
    if len({*names}) < len(names):
        raise InputError("the table has two columns of the same name: rename one")
    if to_list := getattr(source, "to_dicts", None) or getattr(source, "to_pylist", None):
        rows = to_list()  # of polars, of pyarrow
    elif is_pandas:
        labels, rows = source.index, source.to_dict("records")
    elif hasattr(source, "index") and hasattr(source, "to_frame"):  # pandas.Series
        labels, rows = source.index, source.tolist()
    for label, entry in zip(labels, rows, strict=False):
        yield _record(entry, label, f"entry {label!r:.80}")


def _by_id(entries: Mapping[Any, Any], place: str) -> Iterator[Record]:
    for key, entry in entries.items():
        of_key = f"{place} {key!r:.80}"
        yield _record(entry, key, of_key, as_id(key, of_key))


def _record(entry: object, number: object, place: str, key: str | None = None) -> Record:
    """Make a record from a text (its field is `text`) or a mapping; null is an empty text."""
    fields = {"text": entry} if isinstance(entry, str) or is_missing(entry) else entry
    if not isinstance(fields, Mapping):
        kind = type(entry).__name__
        raise InputError(f"{place} is a {kind}; each must be a string or a mapping")
    return Record(fields, number, place, key)


def _parquet_records(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise InputError(f"reading {path} needs pyarrow: run  pip install pyarrow") from None
    try:
        with open_given(path) as file:
            batches = parquet.ParquetFile(file).iter_batches()
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, row in enumerate(rows, start=1):
                yield Record(row, number, f"{path}, row {number}")
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from None


def _json_records(path: Path) -> Iterator[Record]:
    """Read JSON lines, or else the whole file as JSON."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return
    try:
        is_lines = second is not None and isinstance(json.loads(first[1]), dict)
    except (ValueError, RecursionError):
        is_lines = False
    if not is_lines:
        yield from _json_document(path)
        return
    for number, line in chain((first, second), lines):  # type: ignore[misc]
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, number, error) from None
        yield _record(value, number, f"{path}, line {number}")


def _json_document(path: Path) -> Iterator[Record]:
    """Read an array, a mapping from ids to records, or objects one after another."""
    text, at = "".join(line for _, line in read_lines(path)), 0
    decode, values = json.JSONDecoder().raw_decode, list[Any]()
    try:
        while (at := _AFTER_BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decode(text, at)
            values.append(value)
    except (ValueError, RecursionError) as error:
        line = 1 + text.count("\n", 0, at)
        raise _not_json(path, getattr(error, "lineno", line), error) from None
    whole = values[0] if len(values) == 1 else None
    if isinstance(whole, dict) and whole and all(isinstance(v, dict) for v in whole.values()):
        yield from _by_id(whole, f"{path}, entry")
        return
    for number, entry in enumerate(whole if isinstance(whole, list) else values, start=1):
        yield _record(entry, number, f"{path}, entry {number}")


_AFTER_BLANKS = re.compile(r"\s*")


def _not_json(path: Path, line: int, error: Exception) -> InputError:
    # Report only the reason: the line itself may be a megabyte long.
    reason = getattr(error, "msg", error)
    return InputError(f"{path}, line {line} is not valid JSON: {reason}")
