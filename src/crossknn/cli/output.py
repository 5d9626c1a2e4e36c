"""Print answers to standard output; notes, progress bars and errors to standard error. Lines are
wrapped for a terminal only; characters that the stream's encoding lacks are replaced."""

from __future__ import annotations

import codecs
import json
import logging
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from crossknn.errors import visible
from crossknn.table import Table
from crossknn.types import Progress as Report
from crossknn.types import json_value

INTERRUPTED = (
    "interrupted; no file is damaged: run the same command again to resume with the scores "
    "and vectors computed so far"
)
_EVERY = 20.0
"""Seconds between two lines of progress if standard error is a file."""

_WHOLE = 1_000_000
"""Width of consoles that write to a file or a pipe, so that no line is wrapped."""
_ASCII = str.maketrans(
    {"█": "#", "░": ".", "…": "...", "“": '"', "”": '"', "→": "->", "±": "+-", "–": "-", "—": "-"}
)


class _Stream(Console):
    """A console that cuts and wraps lines only for a terminal."""

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        size = super().size
        return size if self.file.isatty() else ConsoleDimensions(_WHOLE, size.height)


out = _Stream()
err = _Stream(stderr=True)


class Notes(logging.Handler):
    """Prints log records on standard error, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def prepare_streams() -> None:
    """Make output safe in any encoding, and read standard input as UTF-8."""
    codecs.register_error("crossknn", _shown)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed; its number must not go to another file
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="crossknn")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")


def _shown(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks, with similar ASCII ones if there are any."""
    assert isinstance(error, UnicodeEncodeError)
    shown = []
    for character in error.object[error.start : error.end].translate(_ASCII):
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        shown.append(plain or "?")
    return "".join(shown), error.end


def let_go() -> None:
    """Discard output that nobody reads any more, since Python would otherwise print an error."""
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str, console: Console = out) -> None:
    """Print a line without interpreting brackets or numbers. A terminal wraps it at words."""
    console.print(visible(text), markup=False, highlight=False)


def note(text: str) -> None:
    """Print a line on standard error."""
    say(text, err)


def show_table(table: Table) -> None:
    """Print a table; a last column of texts is cut at the edge of the terminal."""
    best = {row for row, _ in table.best}
    for place, line in enumerate(table.lines(), start=-1):
        is_bold = place in best or (place >= 0 and len(table.rows[place]) == 1)
        text = Text(line, "bold" if is_bold else "dim" if place < 0 else "")
        text.highlight_regex("█+", "blue" if place in best else "")
        text.highlight_regex("░+", "dim")
        if table.is_right()[-1]:
            out.print(text, soft_wrap=True)
        else:
            out.print(text, no_wrap=True, overflow="ellipsis")
    if table.caption:
        out.print(Text(table.caption, "dim"))


def print_json(value: Any) -> None:
    """Print one JSON object on one line, with everything but printable ASCII escaped."""
    print(json.dumps(json_value(value)), flush=True)


def answer(summary: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of a command, as JSON or with a line per entry."""
    if as_json:
        print_json(dict(summary))
    else:
        for name, value in summary.items():
            if value is not None:
                say(f"{name.replace('_', ' ')}: {plain(value, name)}")


def plain(value: Any, name: str = "") -> str:
    """Format a value for people; values named `..seconds` are formatted as durations.

    >>> plain({"dense": 16, "bm25": 8}), plain(7300.0, "search_seconds"), plain(12345)
    ('dense 16, bm25 8', '2.0 hours', '12,345')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name.endswith("seconds"):
        for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
            if value >= 2 * size:
                return f"{value / size:.1f} {unit}"
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


@contextmanager
def progress(what: str, unit: str = "") -> Iterator[Report]:
    """Show a bar on standard error after a second, or an occasional line if that is a file."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TextColumn(unit))
    bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    number, said = bar.add_task(what, total=None, visible=False), bar.get_time()
    (task,) = bar.tasks

    def report(done: int, total: int) -> None:
        nonlocal said
        bar.update(number, completed=done, total=total, visible=(task.elapsed or 0) > 1)
        if bar.disable and bar.get_time() - said >= _EVERY and task.time_remaining is not None:
            said = bar.get_time()
            note(f"{what}: {done:,} of {total:,} {unit}, {task.time_remaining:,.0f} s left")

    with bar:
        yield report
