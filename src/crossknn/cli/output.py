"""What commands print: answers to standard output; notes, bars and errors to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from crossknn.errors import visible
from crossknn.types import Progress as Report

INTERRUPTED = (
    "interrupted; nothing is half-written: run the same command again, and it goes on from the "
    "scores and vectors that were kept"
)
_EVERY = 20.0
"""Seconds between two lines of progress where standard error is a file."""

out = Console()
err = Console(stderr=True)


def say(text: str, console: Console = out) -> None:
    """Print a line as it is, brackets and numbers without meaning. A terminal wraps it at words."""
    console.print(visible(text), soft_wrap=not console.is_terminal, markup=False, highlight=False)


def note(text: str) -> None:
    """Print a line on standard error."""
    say(text, err)


def print_json(value: Any) -> None:
    """Print one JSON object on one line; all but printable ASCII is escaped."""
    print(json.dumps(value, default=str), flush=True)


def answer(summary: Mapping[str, Any], as_json: bool) -> None:
    """Print what a command did: as JSON, or a line for each entry."""
    if as_json:
        print_json(dict(summary))
    else:
        for name, value in summary.items():
            if value is not None:
                say(f"{name.replace('_', ' ')}: {plain(value, name)}")


def plain(value: Any, name: str = "") -> str:
    """A value as a person writes it; those of `..seconds` as a duration.

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
    """Show a bar on standard error after a second, or a line now and then where that is a file."""
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
