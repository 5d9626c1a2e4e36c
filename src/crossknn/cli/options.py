"""Options that several commands share, and what is made of their values."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.errors import InputError, MissingExtraError
from crossknn.scorers.base import Scorer

if TYPE_CHECKING:
    from crossknn.data.queries import QuerySet
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.store import ScoreStore

STDIN = "-"
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Seconds of a text such as `500ms`, `90s`, `30m`, `2h`; a bare number is seconds.

    >>> duration("1.5h"), duration("500ms")
    (5400.0, 0.5)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is no duration such as 500ms, 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Made by `crossknn index build`.")]
ScorerName = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="The cross-encoder: 'bundled', an ONNX or sentence-transformers folder, a hub name "
        "(cross-encoder/ms-marco-MiniLM-L6-v2) or the URL of a /rerank endpoint.",
    ),
]
ScorerModel = Annotated[
    str | None,
    typer.Option(
        "--endpoint-model",
        help="The model to ask the endpoint for; without it the scores are not kept.",
    ),
]
ScorerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer-option",
        metavar="KEY=VALUE",
        help="An option of the scorer; may be repeated. Endpoints: api (auto, cohere, tei), "
        "probabilities, timeout, retries, batch, concurrency. Models: max_length.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="A file of exact scores that several indexes share; the index's own if none.",
    ),
]
Lists = Annotated[
    Path | None,
    typer.Option("--lists", help="A TREC run of your own candidates, the retriever 'lists'."),
]
Neighbours = Annotated[
    str | None,
    typer.Option("-k", "--k", help="k of recall@k, with commas; 1,10,100 by default."),
]
Template = Annotated[str, typer.Option("--template", help="Text of an item, from its fields.")]
MaxCalls = Annotated[
    int | None, typer.Option("--max-calls", min=1, help="Stop after so many cross-encoder calls.")
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        parser=duration,
        metavar="DURATION",
        help="Stop after so long: 500ms, 90s, 30m, 2h.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Threads that score; one for each core by default."),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Score on Ray: 'local' starts it here, else a cluster's address."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace what another model has left in the index.")
]
Method = Annotated[str, typer.Option("--method", help="A method's spec.")]
Fused = Annotated[
    str,
    typer.Option(
        "--fuse",
        help="What is added to exact scores: auto (what `crossknn fit INDEX fusion` found, if it "
        "was asked to), none, or weights of retrievers such as dense=0.75,bm25=0.5.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def examples(*commands: str) -> str:
    """The epilogue of a command's help."""
    return "Examples:\n\n" + "\n\n".join(f"$ {command}" for command in commands)


def is_url(name: str) -> bool:
    """Whether a scorer of that name is asked over the network."""
    return name.startswith(("http://", "https://"))


def open_scorer(
    name: str, model: str | None = None, options: list[str] | None = None, *, workers: int = 1
) -> Scorer:
    """The scorer of that name; `model` names what answers at a URL, `options` are KEY=VALUE.

    `workers` threads are to share it, and the cores.
    """
    from crossknn.scorers.opening import CrossEncoder

    given: dict[str, Any] = {}
    for option in options or []:
        key, equals, text = option.partition("=")
        if not key or not equals or key in given:
            raise InputError(f"--scorer-option is KEY=VALUE, each key once, got {option!r}")
        if "key" in key:
            raise InputError(
                "an API key is given in the variable CROSSKNN_API_KEY, not on the command line"
            )
        try:
            given[key] = json.loads(text)
        except ValueError:
            given[key] = text
    if model is not None:
        if not is_url(name):
            raise InputError(
                "--endpoint-model is for endpoints: name a cross-encoder with --scorer"
            )
        given["model"] = model
    return CrossEncoder(name, cores=max(1, threads(None) // workers), **given)


def fuse_of(text: str) -> str | dict[str, float]:
    """Weights by retriever of a text such as `dense=0.75,bm25=0.5`; `auto` and `none` as they are.

    >>> fuse_of("dense=0.75, bm25=0.5")
    {'dense': 0.75, 'bm25': 0.5}
    """
    if text in ("auto", "none"):
        return text
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        raise InputError(
            f"--fuse is {text!r}; give auto, none, or weights such as dense=0.75,bm25=0.5"
        ) from None


def threads(workers: int | None) -> int:
    """Threads that score: as many as were asked for, or one for each core."""
    from crossknn.scorers.onnx import available_threads

    return workers or available_threads()


def open_store(scorer: Scorer, index: ItemIndex, path: Path | None) -> ScoreStore:
    """The store of exact scores: the file `path`, or else the index's own.

    Scores of a scorer without a fingerprint are kept in memory only.
    """
    from crossknn.scores.store import ScoreStore

    if scorer.fingerprint is not None:
        return index.scores if path is None else ScoreStore(path)
    if path is not None:
        raise InputError(
            "--store keeps scores by model: name the model behind the URL with --endpoint-model"
        )
    return ScoreStore()


def source(path: Path) -> Any:
    """What the readers are to read: the file, or lines of standard input for `-`.

    Lines that begin with `{` are JSON objects, all others are texts.
    """
    if str(path) != STDIN:
        return path
    lines = [line.strip() for line in sys.stdin if line.strip()]
    try:
        return [json.loads(line) if line.startswith("{") else line for line in lines]
    except ValueError as error:
        raise InputError(f"standard input has a line that is no JSON object: {error}") from None


def read_queries(path: Path, limit: int | None = None) -> QuerySet:
    """The queries of a file, or of standard input for `-`."""
    from crossknn.data.reading import read_queries as read

    return read(source(path), limit=limit)


def add_lists(index: ItemIndex, path: Path | None, queries: QuerySet | None) -> None:
    """Offer the candidates of a TREC run as the retriever `lists`."""
    if path is None:
        return
    from crossknn.retrievers.base import CandidateLists

    if queries is None:
        raise InputError("--lists names queries by id: give them with --queries FILE")
    index.add_retriever("lists", CandidateLists.from_run(path, queries, index.items.ids))


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas: `50,100`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{what} is {text!r}: give whole numbers of 1 or more, with commas")
    return [int(part) for part in parts]


def neighbours(text: str | None, n: int, of: Path) -> list[int]:
    """The k asked for; without them 1, 10 and 100 as far as a file or an index has n items."""
    if text is None:
        return [k for k in (1, 10, 100) if k <= n]
    ks = numbers(text, "k")
    if max(ks) > n:
        raise InputError(f"k is {max(ks)}, but {of} has {n} items: take a smaller k (-k)")
    return ks


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


def check_picture(option: str, path: Path | None) -> None:
    """Check a picture's extra, suffix and folder before anything is scored."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{option} {path}: the name must end in .png, .pdf or .svg")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
    check_plots(option)
