"""Read lines and tables of UTF-8 text files from any system, perhaps compressed by gzip."""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from crossknn.errors import InputError
from crossknn.files import SURPLUS, open_given

LONGEST = 2**28
"""Maximum number of bytes in a line."""
MAX_EXPANSION = 200
"""Maximum ratio of a `.gz` file's unpacked to its packed size; texts have 3 to 10."""
Fields: TypeAlias = Iterator[tuple[int, dict[str, object]]]
"""Line number and fields of each record."""

_GZIP = b"\x1f\x8b"
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|.\x00|\x00", re.DOTALL)


def existing(path: Path) -> Path:
    """Return `path`; `InputError` if it does not exist."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    return path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line with its end) of a UTF-8 file, perhaps `.gz`; a byte order mark is
    dropped."""
    start = 0
    try:
        for number, line in enumerate(_byte_lines(existing(path)), start=1):
            try:
                if number == 1 and _UTF_16.match(line):
                    raise UnicodeDecodeError("UTF-16", line, 0, 1, "")
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = "UTF-16, not" if error.encoding == "UTF-16" else "not"
                raise InputError(
                    f"{path}, line {number} is {what} UTF-8 (byte {start + error.start} of the "
                    "file); convert the file to UTF-8 first"
                ) from None
            yield number, text.removeprefix("\ufeff") if number == 1 else text
            start += len(line)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}") from error


def _byte_lines(path: Path) -> Iterator[bytes]:
    most, size = math.inf, 0
    with open_given(path) as raw:
        file: Any = raw
        if path.suffix.lower() == ".gz" or file.peek(2)[:2] == _GZIP:
            most = SURPLUS + MAX_EXPANSION * os.fstat(file.fileno()).st_size
            file = gzip.GzipFile(fileobj=file)
        while line := file.readline(LONGEST + 1):
            size += len(line)
            if len(line) > LONGEST:
                raise InputError(f"{path} has a line of more than {LONGEST >> 20} MB: is it text?")
            if size > most:
                raise InputError(
                    f"{path} decompresses to more than {MAX_EXPANSION} times its size: if you "
                    "trust it, unpack it first (gunzip)"
                )
            # Old Macs, and their Excel, end lines with a carriage return alone.
            is_mac = size == len(line) and b"\r" in line and not line.endswith(b"\n")
            yield from line.splitlines(keepends=True) if is_mac else (line,)


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    return ((number, line.rstrip("\r\n").split("\t")) for number, line in lines)


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num} is not valid CSV: {error}") from None


def read_table(
    path: Path, tabs: bool, usual: Sequence[str], bare: Sequence[tuple[str, ...]]
) -> Fields:
    """Yield each row's last line number and fields, of a CSV or of a TSV (`tabs`, no quotes); see
    `read_records`."""
    rows = _tsv(path) if tabs else _csv(path)
    first = next(rows, None)
    if first is None:
        return
    names: Sequence[str] = [name.strip() for name in first[1]]
    named = {name.casefold() for name in names} & {*usual}
    if tabs and bare and not (named or is_header(names)):
        rows = chain([first], rows)
        names = next((columns for columns in bare if len(columns) == len(names)), ())
        if not names:
            columns = " or ".join(map(", ".join, bare))
            raise InputError(
                f"{path}, line 1 has {len(first[1])} fields and names none of {', '.join(usual)}; "
                f"a table without a header has the fields {columns}"
            )
    elif len({*names}) < len(names):
        raise InputError(f"{path}, line 1 names a column twice: {', '.join(names)}")
    for number, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {number} has {len(row)} fields, line 1 has {len(names)}"
            )
        yield number, dict(zip(names, row, strict=True))


_ID_NAME = re.compile(
    r"(?i:(\w+[ _-])?id|([qpduscbt]|doc|uu|gu|pm|pmc)id|"
    r"(doc|document|passage|para|query|topic|item|entity|corpus)[ _-]?(id|no|num|number|#))|"
    r"[A-Za-z]+I[Dd]"
)
_NAME = re.compile(
    "abstract|answer|author|body|category|contents?|date|description|doc|document|headline|index|"
    "key|label|lang|language|name|no|num|number|passage|query|question|section|sentence|source|"
    "summary|text|title|topic|url|value",
    re.IGNORECASE,
)


def is_id_name(name: str) -> bool:
    """Whether a field has a typical name of an id.

    >>> is_id_name("DocId"), is_id_name("pid"), is_id_name("acid"), is_id_name("D1")
    (True, True, False, False)
    """
    return _ID_NAME.fullmatch(name.strip("\"'# ")) is not None


def is_header(row: Sequence[str]) -> bool:
    """Whether a table's first row names columns: it begins with an id's name, or has only usual
    names.

    >>> is_header(["pid", "passage"]), is_header(["Title", "Body"]), is_header(["7", "a title"])
    (True, True, False)
    """
    bare = [name.strip("\"'# ") for name in row]
    return is_id_name(row[0]) or all(_NAME.fullmatch(name) or is_id_name(name) for name in bare)
