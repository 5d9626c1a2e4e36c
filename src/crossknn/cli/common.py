"""What the commands share: options, output and progress."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from crossknn.errors import InputError, MissingExtraError, visible
from crossknn.scorers.base import Scorer
from crossknn.types import Progress as Report

if TYPE_CHECKING:
    from crossknn.data.queries import QuerySet
    from crossknn.index.item_index import ItemIndex

_ESCAPED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")

out = Console()
err = Console(stderr=True)

ScorerName = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="The cross-encoder: 'bundled', an ONNX or sentence-transformers folder, a hub name, "
        "or the URL of a /rerank endpoint.",
    ),
]
ScorerModel = Annotated[
    str | None,
    typer.Option(
        "--model", help="The model behind the URL of --scorer: tells its scores from others."
    ),
]
ScorerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer-option",
        metavar="KEY=VALUE",
        help="An option of the scorer, as often as there are some: probabilities, timeout, "
        "retries, batch, concurrency, shape of an endpoint; max_length of a model.",
    ),
]
CacheFile = Annotated[
    Path | None, typer.Option("--cache", help="Keep scores in this file; nothing is paid twice.")
]
Lists = Annotated[
    Path | None,
    typer.Option("--lists", help="A TREC run: your own candidates, the retriever 'lists'."),
]
Neighbours = Annotated[
    str | None,
    typer.Option("-k", "--k", help="Neighbours; 1,10,100 as far as there are items by default."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def open_scorer(
    name: str,
    cache: Path | None = None,
    model: str | None = None,
    options: list[str] | None = None,
    *,
    workers: int = 1,
) -> Scorer:
    """The scorer of that name, with its cache; `model` names what answers at a URL.

    `options` are KEY=VALUE. `workers` threads are to share it, and the cores.
    """
    from crossknn.scorers.onnx import available_threads
    from crossknn.scorers.opening import open_with_cores
    from crossknn.scores.stored import StoredScorer

    given = _pairs(options or [])
    if model is not None:
        if not is_url(name):
            raise InputError("--model names the model behind a URL: give it with --scorer URL")
        given["model"] = model
    scorer = open_with_cores(name, max(1, available_threads() // workers), **given)
    if cache is not None and scorer.fingerprint is None:
        raise InputError(
            "--cache keeps scores by model: name the model behind the URL with --model NAME"
        )
    return scorer if cache is None else StoredScorer(scorer, cache)


def _pairs(options: list[str]) -> dict[str, Any]:
    """KEY=VALUE: true, false and numbers are what they look like, anything else is text."""
    found: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not key or not equals:
            raise InputError(f"--scorer-option is KEY=VALUE, got {option!r}")
        if key in found:
            raise InputError(f"--scorer-option {key} is given twice")
        if "key" in key:
            raise InputError(
                "an API key is given in the variable CROSSKNN_API_KEY, not on the command line"
            )
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def is_url(name: str) -> bool:
    """Whether a scorer of that name is asked over the network."""
    return name.startswith(("http://", "https://"))


def add_lists(index: ItemIndex, path: Path | None, queries: QuerySet | None) -> None:
    """Offer the candidates of a TREC run as the retriever `lists`."""
    if path is None:
        return
    from crossknn.retrievers.lists import CandidateLists

    if queries is None:
        raise InputError("--lists names queries by id: give them with --queries FILE")
    index.add_retriever("lists", CandidateLists.from_run(path, queries, index.items.ids))


def check_positive(options: Mapping[str, int | None]) -> None:
    """`InputError` for an option below 1; one that is not given is None."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more")


def check_out(folder: Path) -> None:
    """`InputError` if --out is no folder and cannot be made one."""
    if not folder.absolute().parent.is_dir():
        raise InputError(f"--out {folder}: there is no folder {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; give a folder")


def check_plots(needed_for: str) -> None:
    """`MissingExtraError` if there is nothing to draw with."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(needed_for, "plots")


def say(text: str, console: Console = out) -> None:
    """A line as it is: not wrapped, and brackets and numbers mean nothing."""
    console.print(visible(text), soft_wrap=True, markup=False, highlight=False)


def note(text: str) -> None:
    """A line on stderr, where results do not go."""
    say(text, err)


def print_json(value: Any) -> None:
    """One JSON object on one line, in which control characters and half characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    print(_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas: `50,100`."""
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{what} is {text!r}: give whole numbers separated by commas") from None
    if not values:
        raise InputError(f"{what} is empty: give whole numbers separated by commas")
    for value in values:
        if value < 1:
            raise InputError(f"{what} has {value}; it must be 1 or more")
    return values


def neighbours(text: str | None, n: int, of: Path) -> list[int]:
    """The k asked for; without them 1, 10 and 100 as far as a file or an index has n items.

    Raises `InputError` for what is no k, and for one above n.
    """
    if text is None:
        return [k for k in (1, 10, 100) if k <= n]
    ks = numbers(text, "k")
    if max(ks) > n:
        raise InputError(f"k is {max(ks)}, but {of} has {n} items: take a smaller k (-k)")
    return ks


@contextmanager
def progress(what: str, unit: str = "") -> Iterator[Report]:
    """A bar on stderr that appears after a second; a line now and then where that is a file."""
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


def _lines(what: str, unit: str, every: float = 20.0) -> Report:
    """Progress as lines, one every `every` seconds."""
    began = said = time.perf_counter()
    before: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal before, said
        now = time.perf_counter()
        if before is None:
            before = done
        if now - said < every or done == before:
            return
        said = now
        left = (now - began) / (done - before) * (total - done)
        print(f"{what}: {done:,} of {total:,} {unit}, {left:.0f} s left", file=sys.stderr)

    return report
