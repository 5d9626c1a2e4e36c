"""Records of files and of Python containers; each knows its place for messages.

Reading is all or nothing: the first bad line raises an error that names it.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from crossknn.data.text_files import Fields, read_lines, read_table
from crossknn.errors import InputError, nearest
from crossknn.types import LARGEST, is_missing, is_whole, whole_text

logger = logging.getLogger(__name__)

FILE_TYPES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")


class Frame(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""


Entries: TypeAlias = Iterable[str | Mapping[str, Any]] | Mapping[Any, Any] | Frame
"""Texts or records: a list of them, a mapping from ids to them, a data frame, a pandas Series."""

_RECORD_FIELDS = frozenset({"id", "_id", "title", "text", "query"})
_FEW = 20
"""A mapping with at most this many entries and one of these keys is one record, not a mapping from
ids."""


class Record(NamedTuple):
    """The named fields of a record, its number, and its place for messages, such as `FILE, line 3`.

    The number is a line (from 1), a position (from 0) in a Python sequence, or the label of a data
    frame's row; `key` is the record's id in a mapping.
    """

    fields: Mapping[str, object]
    number: Any
    place: str
    key: str | None = None

    def first_of(self, names: Iterable[str]) -> str | None:
        """Return the first of the field names that the record has, ignoring case if necessary."""
        names = tuple(names)
        found = next((name for name in names if name in self.fields), None)
        if found is not None:
            return found
        folded = {str(name).casefold(): name for name in reversed([*self.fields])}
        return next((folded[name] for name in names if name in folded), None)

    def field(self, name: str, advice: str = "") -> object:
        """Return a field's value; if it is missing, `InputError` with the nearest name and
        `advice`."""
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
            return _checked(value, self.place)
        if is_missing(value):
            return ""
        if isinstance(value, bool) or not (is_whole(value) or isinstance(value, _FRACTIONS)):
            raise InputError(f"{self.place}: field {name!r} is a {type(value).__name__}, not text")
        if is_whole(value) and abs(value) >= LARGEST:
            raise InputError(f"{self.place}: field {name!r} is a number of over 4000 digits")
        if not (is_whole(value) or math.isfinite(value)):
            raise InputError(f"{self.place}: field {name!r} is {value}, not text")
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

    def add_id(self, value: str, seen: dict[str, int]) -> None:
        """Add this record's id to `seen`; `InputError` if another record has it."""
        if value in seen:
            raise InputError(f"{self.place} repeats the id {value!r}; ids must differ")
        seen[value] = self.number


_FRACTIONS = (float, np.floating, Decimal)


class Records(NamedTuple):
    """The records of a file, or of a Python container."""

    source: str
    rows: Iterable[Record]


def as_id(value: object, place: str) -> str:
    """Return an id unchanged: an integer, or a string without tabs."""
    if is_whole(value):
        if abs(value) >= LARGEST:
            raise InputError(f"{place} has an id of over 4000 digits")
        return str(value)
    text = _checked(value, place) if isinstance(value, str) else ""
    if not text.strip() or text.splitlines() != [text] or "\t" in text:
        raise InputError(
            f"{place} has the id {value!r:.80}; an id is a non-empty string or an integer"
        )
    return text


def read_records(
    path: Path, known: Sequence[str] = (), bare: Sequence[tuple[str, ...]] = ()
) -> Records:
    """Read the records of a file by its type; a line of a `.txt` file becomes the field `text`.

    A `.tsv` whose first row has none of the `known` names has no header: its fields are the entry
    of `bare` with the same number of fields.
    """
    ending = (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()
    if ending not in FILE_TYPES:
        raise InputError(
            f"{path} has the unknown file type {ending or '(none)'!r}; "
            f"known: {', '.join(FILE_TYPES)}, or a BEIR folder"
        )
    if ending not in (".txt", ".tsv", ".csv"):
        return Records(str(path), _json_records(path))
    if ending == ".txt":
        lines = ((number, line.strip()) for number, line in read_lines(path))
        rows: Fields = ((number, {"text": line}) for number, line in lines if line)
    else:
        rows = read_table(path, ending == ".tsv", known, bare)
    name = str(path)
    return Records(name, (Record(row, number, f"{name}, line {number}") for number, row in rows))


def is_container(source: object) -> bool:
    """Whether records can be read from a Python value: it has ordered entries, and is neither a
    text nor a table of an unknown package."""
    if isinstance(source, str | bytes | set | frozenset) or not getattr(source, "ndim", True):
        return False
    known = any(hasattr(source, name) for name in ("to_pylist", "to_dicts", "to_dict"))
    return known or (isinstance(source, Iterable) and not hasattr(source, "columns"))


def given_records(source: Entries) -> Records:
    """Read the records of a Python container of texts or mappings."""
    if not is_container(source):
        raise InputError(f"{source!r:.80} is neither a file nor a list of texts")
    return Records("the sequence", _entries(source))


def _entries(source: Any) -> Iterator[Record]:
    """Yield a container's entries, recognised by its methods, so that no package is imported."""
    if isinstance(source, Mapping):
        if len(source) <= _FEW and any(isinstance(source.get(n), str) for n in _RECORD_FIELDS):
            raise InputError(
                f"{dict(source)!r:.80} is one record: give a list of texts or mappings, or a "
                "mapping from ids to them"
            )
        for number, (key, entry) in enumerate(source.items()):
            place = f"entry {key!r:.80}"
            yield _record(entry, number, place, as_id(key, place))
        return
    labels: Iterable[Any] = count()
    rows = source
    is_pandas = hasattr(source, "columns") and hasattr(source, "to_dict")
    names = [*(source.columns if is_pandas else getattr(source, "column_names", None) or ())]
    if len({*names}) < len(names):
        raise InputError("the table has two columns of the same name: rename one")
    if listed := getattr(source, "to_dicts", None) or getattr(source, "to_pylist", None):
        rows = listed()  # of polars, of pyarrow
    elif is_pandas:
        labels, rows = source.index, source.to_dict("records")
    elif hasattr(source, "index") and hasattr(source, "to_frame"):  # pandas.Series
        labels, rows = source.index, source.tolist()
    for label, entry in zip(labels, rows, strict=False):
        yield _record(entry, label, f"entry {label!r:.80}")


def _record(entry: object, number: object, place: str, key: str | None = None) -> Record:
    """Make a record from a text (its field is `text`) or a mapping; null is an empty text."""
    fields = {"text": entry} if isinstance(entry, str) or is_missing(entry) else entry
    if not isinstance(fields, Mapping):
        kind = type(entry).__name__
        raise InputError(f"{place} is a {kind}; each must be a string or a mapping")
    return Record(fields, number, place, key)


def _json_records(path: Path) -> Iterator[Record]:
    """Read JSON lines, or a file that is one array or has objects over several lines."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return
    if second is None or not _begins_json_lines(first[1]):
        yield from _document(path)
        return
    for number, line in chain((first, second), lines):
        yield _object(_decoded(path, number, line), path, number)


def _begins_json_lines(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _document(path: Path) -> Iterator[Record]:
    """Read JSON that is not one object per line: an array, a mapping from ids to records, or
    objects over several lines."""
    text = "".join(line for _, line in read_lines(path))
    decode, number, at = json.JSONDecoder().raw_decode, 1, 0
    values = list[tuple[int, Any]]()
    while (start := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", at, start)
        try:
            value, at = decode(text, start)
        except (ValueError, RecursionError) as error:
            line = text[start:].partition("\n")[0]
            if not values and line.strip() != "{" and not line.startswith("["):
                _decoded(path, number, line)  # the first of JSON lines is what is wrong
            raise _not_json(path, getattr(error, "lineno", number), error) from None
        values.append((number, value))
        number += text.count("\n", start, at)
    whole = values[0][1] if len(values) == 1 else None
    if isinstance(whole, list):
        for place, entry in enumerate(whole, start=1):
            yield _record(entry, place, f"{path}, entry {place}")
    elif isinstance(whole, dict) and whole and all(isinstance(v, dict) for v in whole.values()):
        for key, entry in whole.items():
            at_key = f"{path}, entry {key!r:.80}"
            yield _record(entry, key, at_key, as_id(key, at_key))
    else:
        for place, (number, value) in enumerate(values, start=1):
            yield _object(value, path, number)._replace(number=place)


_BLANK = re.compile(r"\s*")


_DECODE = json.JSONDecoder().decode


def _decoded(path: Path, number: int, line: str) -> Any:
    try:
        return _DECODE(line)
    except (ValueError, RecursionError) as error:
        raise _not_json(path, number, error) from None


def _not_json(path: Path, number: int, error: Exception) -> InputError:
    # Report only the reason: the line itself may be a megabyte long.
    reason = getattr(error, "msg", error)
    return InputError(f"{path}, line {number} is not valid JSON: {reason}")


def _object(value: Any, path: Path, number: int) -> Record:
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise InputError(f"{path}, line {number} holds a JSON {kind} where an object is expected")
    return Record(value, number, f"{path}, line {number}")


def _checked(text: str, place: str) -> str:
    """Replace halves of surrogate pairs, which JSON can express but UTF-8 files and tokenizers
    cannot."""
    if (whole := whole_text(text)) != text:
        logger.warning("%s holds half a surrogate pair; it is replaced by U+FFFD", place)
    return whole
