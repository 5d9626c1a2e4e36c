"""Options that several commands share, and what is made of their values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.cli.output import note
from crossknn.errors import InputError, MissingExtraError
from crossknn.files import parse_json
from crossknn.scorers.base import Scorer

if TYPE_CHECKING:
    from crossknn.data.queries import QuerySet
    from crossknn.index.item_index import ItemIndex
    from crossknn.methods import Method as SearchMethod
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
        raise typer.BadParameter(f"{text!r} is not a duration: write it as 500ms, 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


Folder = Annotated[
    Path, typer.Argument(metavar="INDEX", help="Index folder, made by `crossknn index build`.")
]
ScorerName = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="Cross-encoder: 'bundled', a model folder (ONNX or sentence-transformers), a Hugging "
        "Face hub name, or the URL of a /rerank endpoint.",
    ),
]
ScorerModel = Annotated[
    str | None,
    typer.Option(
        "--endpoint-model",
        help="Name of the model to request from the endpoint; without it no scores are stored.",
    ),
]
ScorerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer-option",
        metavar="KEY=VALUE",
        help="Option of the cross-encoder; can be given several times. Endpoints take api (auto, "
        "cohere, tei), probabilities, timeout, retries, batch, concurrency and proxy; models take "
        "max_length.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="File of exact scores, which several indexes can share; by default each index has "
        "its own.",
    ),
]
Lists = Annotated[
    Path | None,
    typer.Option(
        "--lists",
        help="TREC run of your own candidates: searches begin with them, and --method names them "
        "as the retriever 'lists'.",
    ),
]
Neighbours = Annotated[
    str | None,
    typer.Option(
        "-k", "--k", help="Values of k for recall@k, separated by commas; 1,10,100 by default."
    ),
]
Template = Annotated[
    str, typer.Option("--template", help="How the text of an item is made from its fields.")
]
IdField = Annotated[str | None, typer.Option("--id-field", help="Field that holds the id.")]
TitleField = Annotated[
    str | None, typer.Option("--title-field", help="Field that holds the title.")
]
TextField = Annotated[str | None, typer.Option("--text-field", help="Field that holds the text.")]
MaxCalls = Annotated[
    int | None, typer.Option("--max-calls", min=1, help="Stop after this many cross-encoder calls.")
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        parser=duration,
        metavar="DURATION",
        help="Stop after this time: 500ms, 90s, 30m, 2h.",
    ),
]
Private = Annotated[
    bool,
    typer.Option(
        "--private",
        help="Keep digests of queries beside their scores, not their texts; nothing is learned "
        "from them.",
    ),
]
KeepOwn = Annotated[
    bool,
    typer.Option(
        "--keep-own",
        help="Keep the item that has a query's id in run files and measures; as in BEIR it is left "
        "out, since it is the query itself where queries are documents of the corpus.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Number of scoring threads, or of Ray's processes; one per core by default.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Work on Ray: 'local' starts it on this machine; otherwise a cluster address.",
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace what a different model computed before.")
]
Method = Annotated[
    str,
    typer.Option(
        "--method",
        help="Search method, with its options in brackets: auto, 'rerank(retriever=bm25)', "
        "'axn(rounds=5)', ...",
    ),
]
Fused = Annotated[
    str,
    typer.Option(
        "--fuse",
        help="Weights of the retriever scores that are added to exact scores: auto (fitted by "
        "`crossknn fit INDEX fusion`, if that was run), none, or for example dense=0.75,bm25=0.5.",
    ),
]
PerQuery = Annotated[
    int,
    typer.Option("--budget", help="Query-item pairs to score per query, stored scores included."),
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON instead of text (keys: the docs' page 'Formats')."),
]


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
            raise InputError(f"--scorer-option must be KEY=VALUE, each key once, got {option!r}")
        if "key" in key:
            raise InputError(
                "set the API key in the environment variable CROSSKNN_API_KEY, not on the "
                "command line"
            )
        try:
            given[key] = parse_json(text)
        except ValueError:
            given[key] = text
    if model is not None:
        if not is_url(name):
            raise InputError(
                f"--endpoint-model needs an endpoint, and --scorer is {name!r}: give a whole URL, "
                "http://..."
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
            "--store keeps the scores of each model apart: name the model behind the URL with "
            "--endpoint-model"
        )
    return ScoreStore()


def typed(texts: Sequence[str]) -> list[str]:
    """Texts of the command line, which are UTF-8 in any locale."""
    return [os.fsencode(text).decode("utf-8", "replace") for text in texts]


def source(path: Path) -> Any:
    """What the readers are to read: the file, or for `-` standard input, a JSON array or lines.

    Lines that begin with `{` are JSON objects, all others are texts.
    """
    if str(path) != STDIN:
        return path
    try:
        lines = [line.strip() for line in sys.stdin if line.strip()]
        with suppress(ValueError):  # a text may begin with a bracket
            if isinstance(whole := parse_json("\n".join(lines)), list):
                return whole
        return [parse_json(line) if line.startswith("{") else line for line in lines]
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8: {error}") from None
    except ValueError as error:
        raise InputError(f"standard input has a line that is not valid JSON: {error}") from None


def read_ids(path: Path) -> list[str]:
    """Ids, one a line and exactly as they are, of a text file, or of standard input for `-`."""
    from crossknn.data.records import read_lines

    lines = sys.stdin if str(path) == STDIN else (line for _, line in read_lines(path))
    if ids := [line.rstrip("\r\n") for line in lines if line.strip()]:
        return ids
    raise InputError(f"{path} holds no ids")


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
        raise InputError("--lists refers to queries by id: give the queries with --queries FILE")
    index.add_retriever("lists", CandidateLists.from_run(path, queries, index.items.ids))


def using_lists(
    index: ItemIndex,
    method: SearchMethod,
    queries: QuerySet | None,
    fingerprint: str | None,
    budget: int,
) -> SearchMethod:
    """The method, which begins with the candidates of `--lists` unless it names its retriever.

    The default method takes their scores into its trend, too, where it starts from no other
    queries, which have no lists. Lists that are shorter than its first batch are filled up by the
    first stage.
    """
    from crossknn.methods.kriging import LEAST, Kriging, stored_prior
    from crossknn.retrievers.specs import AUTO, HYBRID, first_stage, stage_names
    from crossknn.spec import Spec
    from crossknn.types import NO_ITEM, Queries

    if getattr(method, "retriever", None) != AUTO:
        if "lists" not in str(method):
            note(
                f"--lists has no part in {method}: name it, as in --method "
                "'rerank(retriever=lists)', or leave --method out"
            )
        return method
    assert queries is not None
    lists, first, named = index.retrievers["lists"], max(LEAST, budget // 20), Spec("lists")
    found = lists.top(Queries(queries.texts), min(first, index.n)).items
    if found.shape[1] < min(first, index.n) or (found == NO_ITEM).any():
        named = replace(HYBRID, args=(named, Spec(first_stage(index))))
    options: dict[str, Any] = {"retriever": named}
    own = index.for_scorer(fingerprint)
    if isinstance(method, Kriging) and method.mean is None:
        alone = own.anchors is None and stored_prior(own) is None
        if alone or not method.use_anchors:
            stages = (*map(Spec, stage_names(index, HYBRID)), Spec("lists"))
            options["mean"] = replace(HYBRID, args=stages)
    return replace(method, **options)


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas: `50,100`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(
            f"{what} is {text!r}: give whole numbers of 1 or more, separated by commas"
        )
    return [int(part) for part in parts]


def neighbours(text: str | None, n: int, of: Path) -> list[int]:
    """The k asked for; without them 1, 10 and 100 as far as a file or an index has n items."""
    if text is None:
        return [k for k in (1, 10, 100) if k <= n]
    ks = numbers(text, "k")
    if max(ks) > n:
        raise InputError(f"k is {max(ks)}, but {of} has only {n} items: give a smaller k with -k")
    return ks


def check_path(option: str, path: Path | None, *, folder: bool = False) -> None:
    """`InputError` if `path` cannot be written, as a file or as a `folder`."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; create it first")
    if path.exists() and path.is_dir() != folder:
        found, wanted = ("file", "folder") if folder else ("folder", "file")
        raise InputError(f"{option} {path} is a {found}; give a {wanted}")


def check_extra(needed_for: str, module: str = "matplotlib", extra: str = "plots") -> None:
    """`MissingExtraError` if a module is not installed."""
    if find_spec(module) is None:
        raise MissingExtraError(needed_for, extra)


def check_picture(option: str, path: Path | None) -> None:
    """Check a picture's extra, suffix and folder before anything is scored."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{option} {path}: the name must end in .png, .pdf or .svg")
    check_path(option, path)
    check_extra(option)
