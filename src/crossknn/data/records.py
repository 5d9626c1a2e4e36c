"""Records of JSON lines, CSV, TSV and text files; each says where it stands.

Readers are all-or-nothing: the first bad line ends the reading with one sentence that names it.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from crossknn.errors import InputError, nearest
from crossknn.files import SURPLUS, open_given

logger = logging.getLogger(__name__)

LONGEST = 2**28
"""Bytes of a line."""
MOST_UNFOLDED = 200
"""So many times the size of a `.gz` file its content may be: texts have 3 to 10 times."""
FILE_TYPES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
Fields: TypeAlias = Iterator[tuple[int, dict[str, object]]]
"""(line, fields) of each record."""


class Record(NamedTuple):
    """Named fields, the record's number, and its place for messages, e.g. `FILE, line 3`.

    Numbers are lines (from 1), or positions (from 0) in a Python sequence.
    """

    fields: Mapping[str, object]
    number: int
    place: str

    def first_of(self, names: Iterable[str]) -> str | None:
        """The first of the field names that the record has."""
        return next((name for name in names if name in self.fields), None)

    def field(self, name: str, advice: str = "") -> object:
        """A field's value; `InputError` if it is missing, with the nearest one and `advice`."""
        if name not in self.fields:
            hint = nearest(name, map(str, self.fields))
            error = InputError(f"{self.place} has no field {name!r} ({hint})")
            if advice:
                error.add_note(advice)
            raise error
        return self.fields[name]

    def text(self, name: str, advice: str = "") -> str:
        """A field's value as text; numbers are written out, null is empty."""
        value = self.field(name, advice)
        if isinstance(value, str):
            return _without_surrogates(value, self.place)
        if value is None:
            return ""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        raise InputError(f"{self.place}: field {name!r} is a {type(value).__name__}, not text")

    def id(self, name: str) -> str:
        """A field's value as an id: an integer, or a string that fits between two tabs."""
        value = self.field(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        text = _without_surrogates(value, self.place).strip() if isinstance(value, str) else ""
        if not text or len(text.splitlines()) > 1 or "\t" in text:
            raise InputError(
                f"{self.place} has the id {value!r}; an id is a non-empty string or an integer"
            )
        return text

    def add_id(self, value: str, seen: dict[str, int]) -> None:
        """Add an id of this record to `seen`; `InputError` if another record has it."""
        if value in seen:
            raise InputError(f"{self.place} repeats the id {value!r}; ids must differ")
        seen[value] = self.number


class Records(NamedTuple):
    """The records of a file, or of a Python sequence."""

    source: str
    rows: Iterable[Record]


def existing(path: Path) -> Path:
    """`path`, or the error that it does not exist."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    return path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line with its end) of a UTF-8 file, maybe `.gz`; a byte order mark is dropped."""
    existing(path)
    start = 0
    try:
        with opened_lines(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{path}, line {number} is not UTF-8 (byte {start + error.start} of the "
                        "file); convert the file to UTF-8 first"
                    ) from None
                yield number, text.removeprefix("\ufeff") if number == 1 else text
                start += len(line)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from error


@contextmanager
def opened_lines(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file with their ends; of a `.gz`, what it unfolds to, up to `MOST_UNFOLDED`
    times its size. `InputError` for more, for a line above `LONGEST` bytes, a device and a pipe."""
    with ExitStack() as held:
        file: Any = held.enter_context(open_given(path))
        most = math.inf
        if path.suffix == ".gz":
            most = SURPLUS + MOST_UNFOLDED * os.fstat(file.fileno()).st_size
            file = held.enter_context(gzip.GzipFile(fileobj=file))

        def lines() -> Iterator[bytes]:
            read = 0
            while line := file.readline(LONGEST + 1):
                read += len(line)
                if len(line) > LONGEST:
                    raise InputError(
                        f"{path} has a line of more than {LONGEST >> 20} MB: is it text?"
                    )
                if read > most:
                    raise InputError(
                        f"{path} unfolds to more than {MOST_UNFOLDED} times its size: if you trust "
                        "it, unpack it first (gunzip)"
                    )
                yield line

        yield lines()


def read_records(
    path: Path, known: Sequence[str] = (), bare: Sequence[tuple[str, ...]] = ()
) -> Records:
    """Records of a file by its type; a line of a `.txt` file becomes the field `text`.

    A `.tsv` whose first row names none of the `known` fields has no header: its fields are those of
    `bare` that are as many.
    """
    ending = (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()
    if ending not in FILE_TYPES:
        raise InputError(
            f"{path} has the unknown file type {ending or '(none)'!r}; "
            f"known: {', '.join(FILE_TYPES)}, or a BEIR folder"
        )
    if ending == ".txt":
        lines = ((number, line.strip()) for number, line in read_lines(path))
        rows: Fields = ((number, {"text": line}) for number, line in lines if line)
    elif ending == ".tsv":
        rows = _table(path, _tsv(path), known, bare)
    elif ending == ".csv":
        rows = _table(path, _csv(path))
    else:
        rows = _json_lines(path)
    name = str(path)
    return Records(name, (Record(row, number, f"{name}, line {number}") for number, row in rows))


def given_records(source: Iterable[object]) -> Records:
    """Records of Python strings (their field is `text`) and mappings, numbered from 0."""

    def given(position: int, entry: object) -> Record:
        fields = {"text": entry} if isinstance(entry, str) else entry
        if not isinstance(fields, Mapping):
            kind = type(entry).__name__
            raise InputError(f"entry {position} is a {kind}; each must be a string or a mapping")
        return Record(fields, position, f"entry {position}")

    if not isinstance(source, Iterable):
        raise InputError(f"{source!r:.80} is neither a file nor a list of texts")
    return Records("the sequence", (given(*entry) for entry in enumerate(source)))


def _json_lines(path: Path) -> Fields:
    decode = json.JSONDecoder().decode
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (ValueError, RecursionError) as error:
            # Only the reason: the line itself may be a megabyte long.
            reason = getattr(error, "msg", error)
            raise InputError(f"{path}, line {number} is not valid JSON: {reason}") from None
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise InputError(
                f"{path}, line {number} holds a JSON {kind} where an object is expected"
            )
        yield number, record


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each row that is not blank; a TSV knows no quotes."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    return ((number, line.rstrip("\r\n").split("\t")) for number, line in lines)


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(last line, fields) of each row that is not blank."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num} is not valid CSV: {error}") from None


def _table(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    known: Sequence[str] = (),
    bare: Sequence[tuple[str, ...]] = (),
) -> Fields:
    first = next(rows, None)
    if first is None:
        return
    names: Sequence[str] = [name.strip() for name in first[1]]
    if bare and not set(names) & set(known):
        count, rows = len(names), chain([first], rows)
        names = next((usual for usual in bare if len(usual) == count), ())
        if not names:
            usual = " or ".join(", ".join(fields) for fields in bare)
            raise InputError(
                f"{path}, line 1 has {count} fields and names none of {', '.join(known)}; a table "
                f"without a header has the fields {usual}"
            )
    elif len(set(names)) < len(names):
        raise InputError(f"{path}, line 1 names a column twice: {', '.join(names)}")
    for number, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {number} has {len(row)} fields, line 1 has {len(names)}"
            )
        yield number, dict(zip(names, row, strict=True))


def _without_surrogates(text: str, place: str) -> str:
    """JSON can spell half a surrogate pair, which no UTF-8 file and no tokenizer can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        logger.warning("%s holds half a surrogate pair; it is replaced by U+FFFD", place)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
