"""Published data formats: what lies in a folder, by its layout. The list of docs/data.md."""

from __future__ import annotations

from pathlib import Path

from crossknn.checks import as_path
from crossknn.data.formats.aida import Aida
from crossknn.data.formats.base import DataFolder
from crossknn.data.formats.beir import Beir
from crossknn.data.formats.dstc7 import Dstc7
from crossknn.data.formats.irds import Irds
from crossknn.data.formats.plain import MsMarco, Trec
from crossknn.data.formats.wikipedia import Blink, Wned
from crossknn.data.formats.zeshel import Zeshel
from crossknn.data.records import existing
from crossknn.errors import InputError, nearest

FORMATS: dict[str, type[DataFolder]] = {
    format.format: format
    for format in (Beir, Zeshel, Trec, MsMarco, Dstc7, Aida, Wned, Blink, Irds)
}


def folder_at(source: str | Path) -> DataFolder | None:
    """The data folder or named data set at `source`; None if it is a file.

    Raises `InputError` as `open_folder` does.
    """
    path = as_path(source, "the source")
    is_named = Irds.recognises(path)
    return open_folder(path) if is_named or existing(path).is_dir() else None


def open_folder(
    source: str | Path, *, format: str | None = None, domain: str | None = None
) -> DataFolder:
    """The data folder at `source`, of the format its layout shows, or of `format`.

    Raises `InputError` if there is none, if `format` is unknown, and if the layout is that of none
    or of several formats.
    """
    path = Path(source)
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown data format {format!r}: {nearest(format, FORMATS)}")
    if not Irds.recognises(path) and not existing(path).is_dir():
        raise InputError(f"{path} is a file, where a folder of data is expected")
    found = [format] if format else [name for name in FORMATS if FORMATS[name].recognises(path)]
    if not found:
        raise InputError(
            f"{path} is a folder without corpus.jsonl, documents/, topics or another sign of a "
            f"known format ({', '.join(FORMATS)}; see the docs, data)"
        )
    if len(found) > 1:
        raise InputError(f"{path} looks like {' and '.join(found)}: say which (format=...)")
    return FORMATS[found[0]](path, domain)
