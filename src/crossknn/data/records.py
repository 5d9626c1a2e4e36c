"""Records of JSONL, CSV, TSV and text files, each with its line number.

Readers are all-or-nothing: the first bad line ends the reading with one sentence that names it.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TypeAlias, cast

from crossknn.errors import InputError, nearest

logger = logging.getLogger(__name__)

Record: TypeAlias = Mapping[str, object]
Numbered: TypeAlias = tuple[int, Record]
"""A record and its line number (from 1), or its position (from 0) in a Python sequence."""


@dataclass(frozen=True)
class Located:
    """Records, and how to say where one stands: `FILE, line 3`, or `entry 3` of a sequence."""

    numbered: Iterable[Numbered]
    unit: str
    file: str = ""

    def __iter__(self) -> Iterator[Numbered]:
        return iter(self.numbered)

    def place(self, number: int) -> str:
        """Where the record with this number stands."""
        return f"{self.file}, {self.unit} {number}" if self.file else f"{self.unit} {number}"


FILE_TYPES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_LONGEST_FIELD = 2**31 - 1


def file_type(path: Path) -> str:
    """The ending that says how to read `path`; `.gz` is looked through."""
    ending = (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()
    if ending not in FILE_TYPES:
        raise InputError(
            f"{path} has the unknown file type {ending or '(none)'!r}; "
            f"known: {', '.join(FILE_TYPES)}, or a BEIR folder"
        )
    return ending


def existing(path: Path) -> Path:
    """`path`, or the error that it does not exist."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    return path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line with its end) of a UTF-8 file; a byte order mark is dropped."""
    existing(path)
    start = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{path}, line {number} is not UTF-8 (byte {start + error.start} of the "
                        "file); convert the file to UTF-8 first"
                    ) from None
                yield number, text.removeprefix("\ufeff") if number == 1 else text
                start += len(line)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from error


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def read_records(
    path: Path,
    *,
    text_field: str,
    known: Collection[str] = (),
    bare: Collection[tuple[str, ...]] = (),
) -> Iterator[Numbered]:
    """Records of a file, by its type; a line of a `.txt` file becomes `{text_field: line}`.

    A `.tsv` whose first row names none of the `known` fields has no header: its fields are those of
    `bare` that are as many.
    """
    kind = file_type(path)
    if kind == ".txt":
        return _text_records(path, text_field)
    if kind == ".tsv":
        return _table_records(path, read_rows(path, tabs=True), known, bare)
    if kind == ".csv":
        return _table_records(path, read_rows(path, tabs=False), (), ())
    return _json_records(path)


def records_of(
    path: Path,
    *,
    text_field: str = "text",
    known: Collection[str] = (),
    bare: Collection[tuple[str, ...]] = (),
) -> Located:
    """The records of a file (`read_records`) with their places."""
    found = read_records(path, text_field=text_field, known=known, bare=bare)
    return Located(found, "line", str(path))


def _text_records(path: Path, text_field: str) -> Iterator[Numbered]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, {text_field: line.strip()}


def _json_records(path: Path) -> Iterator[Numbered]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            # Only the reason: the line itself may be a megabyte long.
            reason = getattr(error, "msg", str(error))
            raise InputError(f"{path}, line {number} is not valid JSON: {reason}") from None
        if not isinstance(record, dict):
            raise InputError(
                f"{path}, line {number} holds a JSON {type(record).__name__}; "
                "each line must be one JSON object"
            )
        yield number, record


def read_rows(path: Path, *, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """(number of its last line, fields) of each row that is not blank; quotes only in CSV."""
    last = 0

    def lines() -> Iterator[str]:
        nonlocal last
        for number, line in read_lines(path):
            last = number
            yield line

    if tabs:
        for line in lines():
            if line.strip():
                yield last, line.rstrip("\r\n").split("\t")
        return
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        for row in csv.reader(lines(), strict=True):
            if row:
                yield last, row
    except csv.Error as error:
        raise InputError(f"{path}, line {last} is not valid CSV: {error}") from None
    finally:
        csv.field_size_limit(before)


def _table_records(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    known: Collection[str],
    bare: Collection[tuple[str, ...]],
) -> Iterator[Numbered]:
    first = next(rows, None)
    if first is None:
        return
    names = [name.strip() for name in first[1]]
    if bare and not set(names) & set(known):
        names = _names_of_columns(path, len(names), known, bare)
        rows = chain([first], rows)
    elif len(set(names)) < len(names):
        raise InputError(f"{path}, line 1 names a column twice: {', '.join(names)}")
    for number, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {number} has {len(row)} fields, line 1 has {len(names)}"
            )
        yield number, dict(zip(names, row, strict=True))


def _names_of_columns(
    path: Path, count: int, known: Collection[str], bare: Collection[tuple[str, ...]]
) -> list[str]:
    for names in bare:
        if len(names) == count:
            return list(names)
    usual = " or ".join(", ".join(names) for names in bare)
    raise InputError(
        f"{path}, line 1 has {count} fields and names none of {', '.join(known)}; a table without "
        f"a header has the fields {usual}"
    )


def given_records(source: Iterable[object], *, text_field: str) -> Located:
    """Records from Python strings and mappings, numbered by position from 0."""
    return Located(_given(source, text_field), "entry")


def _given(source: Iterable[object], text_field: str) -> Iterator[Numbered]:
    if not isinstance(source, Iterable):
        raise InputError(f"{source!r:.80} is neither a file nor a list of texts")
    for position, entry in enumerate(source):
        if isinstance(entry, str):
            yield position, {text_field: entry}
        elif isinstance(entry, Mapping):
            yield position, entry
        else:
            raise InputError(
                f"entry {position} is a {type(entry).__name__}; each must be a string or a mapping"
            )


def pick_field(record: Record, wanted: str | None, usual: tuple[str, ...]) -> str | None:
    """The field named `wanted`, or the first usual one `record` has; None if it has neither."""
    return next((name for name in ((wanted,) if wanted else usual) if name in record), None)


def missing_field(where: str, what: str, record: Record) -> InputError:
    """The error that `record` lacks the field `what`, with the nearest one it has."""
    return InputError(f"{where} has no field {what!r} ({nearest(what, map(str, record))})")


def as_text(value: object, where: str, name: str) -> str:
    """A field's value as text; numbers are written out, null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _without_surrogates(value, where)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{where}: field {name!r} is a {type(value).__name__}, not text")


def _without_surrogates(text: str, where: str) -> str:
    # JSON can spell half a surrogate pair, which no UTF-8 file and no tokenizer can hold.
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        logger.warning("%s holds half a surrogate pair; it is replaced by U+FFFD", where)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def id_text(value: object, where: str) -> str:
    """An id as text: a non-empty string without line ends, or an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = _without_surrogates(value, where).strip() if isinstance(value, str) else ""
    if not text or len(text.splitlines()) > 1 or "\t" in text:
        raise InputError(f"{where} has the id {value!r}; an id is a non-empty string or an integer")
    return text


class Ids:
    """Collects ids and names both places of the first one that comes twice."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._seen: dict[str, int] = {}

    def add(self, value: str, number: int, where: str) -> None:
        """Note `value`, or raise that it was seen before."""
        first = self._seen.setdefault(value, number)
        if first != number:
            raise InputError(
                f"{where} repeats the id {value!r} of {self._unit} {first}; ids must differ"
            )

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)
