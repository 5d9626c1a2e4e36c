"""Options that several commands share, and parsing of their values."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Argument, BadParameter, Option

from crossknn.data.items import Items, read_items
from crossknn.data.queries import QuerySet
from crossknn.data.queries import read_queries as read_query_set
from crossknn.data.text_files import read_lines
from crossknn.errors import InputError, counted
from crossknn.files import parse_json
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import available_threads
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import CrossEncoder, is_url
from crossknn.scores.collect import Limits
from crossknn.scores.store import ScoreStore
from crossknn.scores.stored import StoredScorer

Result = TypeVar("Result")
STDIN = "-"
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Parse a duration such as `500ms`, `90s`, `30m`, `2h` to seconds; a bare number is seconds.

    >>> duration("1.5h"), duration("500ms")
    (5400.0, 0.5)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise BadParameter(f"{text!r} is not a duration: write it as 500ms, 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


Folder = Annotated[
    Path, Argument(metavar="INDEX", help="Index folder, made by `crossknn index build`.")
]
Passages = Annotated[
    int | None,
    Option(min=1, help="Cut long documents into passages of at most so many tokens, such as 200."),
]
Store = Annotated[
    Path | None, Option(help="File of exact scores that indexes share; else each has its own.")
]
Lists = Annotated[
    Path | None, Option(help="TREC run of your own candidates, the retriever 'lists' of --method.")
]
Neighbours = Annotated[
    str | None, Option("-k", "--k", help="Values of k for recall@k; 1,10,100 by default.")
]
Deadline = Annotated[
    float | None,
    Option(parser=duration, metavar="DURATION", help="Stop after 500ms, 90s, 30m or 2h."),
]
Private = Annotated[
    bool, Option("--private", help="Store digests of queries, not texts, and learn nothing.")
]
KeepOwn = Annotated[
    bool, Option("--keep-own", help="Keep an item that has its query's id; BEIR leaves it out.")
]
Workers = Annotated[int | None, Option(min=1, help="Scoring threads; one per core by default.")]
Method = Annotated[str, Option(help="Search method, such as auto, rerank or 'axn(rounds=5)'.")]
Fused = Annotated[
    str, Option(help="Weights of retriever scores: auto (fitted), none, or dense=0.75,bm25=0.5.")
]
PerQuery = Annotated[
    list[int] | None,
    Option(
        metavar="INTEGER",
        help="Most pairs to score per query, stored scores included; 100 by default. With several "
        "--scorer, one for each, or the last one's.",
    ),
]
Seed = Annotated[int, Option(help="Random seed.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON (keys: the docs' page 'Formats').")]


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """Let a command take dataclasses whose fields are options: Typer, which reads options from a
    function's signature, sees the fields in their place."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group, types, members = groups.get(name), hints, [parameter]
        if group is not None:
            types = get_type_hints(group, include_extras=True)
            members = [*inspect.signature(group).parameters.values()]
        parameters += [member.replace(annotation=types[member.name]) for member in members]

    @functools.wraps(command)
    def run(**values: Any) -> Result:
        made = {
            name: group(**{option.name: values.pop(option.name) for option in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **made)

    # Each paragraph on one line, which a terminal breaks where it must.
    run.__doc__ = re.sub(r"(?<=\S)\n *(?=\S)", " ", command.__doc__ or "")
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


@dataclass(frozen=True, kw_only=True)
class ScorerOptions:
    """Options that select the cross-encoder, or several, cheapest first."""

    scorer: Annotated[
        list[str],
        Option(
            help="Cross-encoder: 'bundled' (for trying things), a model folder, a hub name, or a "
            "/rerank URL, or llm: and a language model's URL; repeat it, cheapest first."
        ),
    ] = ("bundled",)  # type: ignore[assignment]
    endpoint_model: Annotated[
        list[str] | None,
        Option(help="Model of each URL, in order; without it no scores are stored."),
    ] = None
    scorer_option: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="Options of the last --scorer, such as max_length=256; of URLs: timeout=5.",
        ),
    ] = None

    def open(self, *, workers: int = 1) -> Scorer:
        """Open the cross-encoder for this many threads, which share the machine's cores."""
        if len(self.scorer) > 1:
            raise InputError("this command works with one --scorer: name only one")
        return self.open_all(workers=workers)[0]

    def open_all(self, *, workers: int = 1) -> list[Scorer]:
        """Open the cross-encoders; --scorer-option is for the last one."""
        options: dict[str, dict[str, Any]] = {name: {} for name in self.scorer}
        if len(options) < len(self.scorer):
            raise InputError("--scorer names the same cross-encoder twice: name each once")
        options[self.scorer[-1]] = self._options()
        urls, models = [*filter(is_url, self.scorer)], self.endpoint_model or []
        if len(models) not in (0, 1, len(urls)) or (models and not urls):
            raise InputError(
                f"--endpoint-model names {counted(len(models), 'model')}, and --scorer "
                f"{counted(len(urls), 'URL')}: give one for each, or the last one's"
            )
        for url, model in zip(urls[::-1], models[::-1], strict=False):
            options[url]["model"] = model
        cores = max(1, threads(None) // workers)
        return [CrossEncoder(name, cores=cores, **own) for name, own in options.items()]

    def _options(self) -> dict[str, Any]:
        """Parse the values of --scorer-option."""
        given: dict[str, Any] = {}
        for option in self.scorer_option or []:
            key, _, text = option.partition("=")
            if not text or key in given:
                message = f"--scorer-option must be KEY=VALUE, each key once, got {option!r}"
                raise InputError(message)
            if "key" in key:
                raise InputError("set the API key in the environment variable CROSSKNN_API_KEY")
            try:
                given[key] = parse_json(text)
            except ValueError:
                given[key] = text
        return given


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """Options that name the fields of a record with an item's id, title and text."""

    id_field: Annotated[str | None, Option(help="Field that holds the id.")] = None
    title_field: Annotated[str | None, Option(help="Field that holds the title.")] = None
    text_field: Annotated[str | None, Option(help="Field that holds the text.")] = None

    def read(self, path: Path, **options: Any) -> Items:
        """Read the items of a file, or of standard input for `-`."""
        return read_items(source(path), **vars(self), **options)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Options that limit cross-encoder calls and time."""

    max_calls: Annotated[int | None, Option(min=1, help="Stop after so many scored pairs.")] = None
    deadline: Deadline = None
    workers: Workers = None

    def limits(self) -> Limits:
        """Return the limits of a scoring run."""
        workers = threads(self.workers)
        return Limits(workers=workers, max_calls=self.max_calls, deadline=self.deadline)


def examples(*commands: str) -> str:
    """Format examples for the end of a command's help."""
    return "Examples:\n\n" + "\n\n".join(f"$ {command}" for command in commands)


RERANKERS = """

Cross-encoders for real work, as --scorer (extra torch), with parameters and licence:

cross-encoder/ms-marco-MiniLM-L6-v2 (23M, Apache-2.0)

cross-encoder/ettin-reranker-17m-v1 to -1b-v1 (17M to 1B, Apache-2.0)

BAAI/bge-reranker-base (278M, MIT), BAAI/bge-reranker-v2-m3 (568M, Apache-2.0)

mixedbread-ai/mxbai-rerank-base-v2 (0.5B, Apache-2.0)

Qwen/Qwen3-Reranker-0.6B (0.6B, Apache-2.0)"""


def fuse_of(text: str) -> str | dict[str, float]:
    """Parse weights by retriever; `auto` and `none` are returned as they are.

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
    """Return the number of scoring threads, by default one per core."""
    return workers or available_threads()


def open_store(scorer: Scorer, index: ItemIndex, path: Path | None) -> ScoreStore:
    """Open the store of exact scores: the file `path`, or else the index's own; in memory for a
    scorer without a fingerprint."""
    if scorer.fingerprint is not None:
        return index.scores if path is None else ScoreStore(path)
    if path is not None:
        raise InputError(
            "--store keeps the scores of each model separately: name the model behind the URL "
            "with --endpoint-model"
        )
    return ScoreStore()


def stored(
    scorer: Scorer, index: ItemIndex, path: Path | None = None, *, private: bool = False
) -> Scorer:
    """Return the scorer with a store of exact scores, if it has a fingerprint."""
    store = open_store(scorer, index, path)
    store.private |= private
    return scorer if scorer.fingerprint is None else StoredScorer(scorer, store)


def typed(texts: Sequence[str]) -> list[str]:
    """Decode texts of the command line as UTF-8, in any locale."""
    return [os.fsencode(text).decode("utf-8", "replace") for text in texts]


def source(path: Path) -> Any:
    """Return the file, or for `-` standard input: a JSON array, or lines of objects or texts."""
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
    """Read ids, one per line and unchanged, from a text file or from standard input for `-`."""
    lines = sys.stdin if str(path) == STDIN else (line for _, line in read_lines(path))
    if ids := [line.rstrip("\r\n") for line in lines if line.strip()]:
        return ids
    raise InputError(f"{path} contains no ids")


def read_queries(path: Path) -> QuerySet:
    """Read the queries of a file, or of standard input for `-`."""
    return read_query_set(source(path))


def numbers(text: str, what: str) -> list[int]:
    """Parse integers of 1 or more, separated by commas: `50,100`."""
    given = [number.strip() for number in text.split(",") if number.strip()]
    if not given or not all(number.isdecimal() and int(number) for number in given):
        raise InputError(f"{what} is {text!r}: give numbers of 1 or more, separated by commas")
    return [int(number) for number in given]


def neighbours(text: str | None, n: int, of: Path) -> list[int]:
    """Return the requested values of k; by default 1, 10 and 100, as far as there are n items."""
    if text is None:
        return [k for k in (1, 10, 100) if k <= n]
    ks = numbers(text, "k")
    if max(ks) > n:
        raise InputError(f"k is {max(ks)}, but {of} has only {n} items: give a smaller k with -k")
    return ks


def check_path(option: str, path: Path | None, *, folder: bool = False) -> None:
    """Raise `InputError` if `path` cannot be written, as a file or as a `folder`."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; create it first")
    if path.exists() and path.is_dir() != folder:
        kind, wanted = ("file", "folder") if folder else ("folder", "file")
        raise InputError(f"{option} {path} is a {kind}; give a {wanted}")
