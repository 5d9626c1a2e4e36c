"""What commands print: answers to standard output; notes, bars and errors to standard error."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from crossknn.errors import visible
from crossknn.types import Progress as Report

_ESCAPED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
_EVERY = 20.0
"""Seconds between two lines of progress where standard error is a file."""

out = Console()
err = Console(stderr=True)


def say(text: str, console: Console = out) -> None:
    """Print a line as it is: not wrapped, brackets and numbers without meaning."""
    console.print(visible(text), soft_wrap=True, markup=False, highlight=False)


def note(text: str) -> None:
    """Print a line on standard error."""
    say(text, err)


def print_json(value: Any) -> None:
    """Print one JSON object on one line; control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    print(_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def answer(summary: Mapping[str, Any], sentence: str, as_json: bool) -> None:
    """Print what a command did: `summary` as JSON, or `sentence`."""
    if as_json:
        print_json(dict(summary))
    else:
        say(sentence)


@contextmanager
def progress(what: str, unit: str = "") -> Iterator[Report]:
    """Show a bar on standard error after a second, or a line now and then where that is a file."""
    if not err.is_terminal:
        yield _lines(what, unit)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
    task = bar.add_task(what, total=None, visible=False)

    def report(done: int, total: int) -> None:
        shown = (bar.tasks[0].elapsed or 0) > 1
        bar.update(task, completed=done, total=total, visible=shown)

    with bar:
        yield report


def _lines(what: str, unit: str) -> Report:
    began = last = time.perf_counter()
    before: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal before, last
        now = time.perf_counter()
        if before is None:
            before = done
        if now - last < _EVERY or done == before:
            return
        last = now
        left = (now - began) / (done - before) * (total - done)
        print(f"{what}: {done:,} of {total:,} {unit}, {left:.0f} s left", file=sys.stderr)

    return report
