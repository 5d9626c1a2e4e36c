"""`crossknn fit`: pay for scores of train queries once, so that every search finds more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossknn.cli.common import (
    AsJson,
    CacheFile,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    Seed,
    check_positive,
    is_url,
    note,
    open_scorer,
    print_json,
    progress,
    say,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.fitting.fit import FitReport
    from crossknn.index.item_index import ItemIndex

NAME = "align"
AUTO = "auto"
PSEUDO_QUERIES = 500


def command(
    folder: Annotated[Path, typer.Argument(help="An index made by `crossknn index`.")],
    queries: Annotated[
        str,
        typer.Option(
            help="A file of train queries, or 'auto': made of the items' titles, first sentences "
            "and telling words."
        ),
    ],
    method: Annotated[
        str, typer.Option(help="als, mf-trns, mf-ind, cur or distill, perhaps with options.")
    ] = "als",
    strategy: Annotated[
        Literal["q", "i"],
        typer.Option(help="q: items for each train query. i: train queries for each item."),
    ] = "q",
    per: Annotated[
        int | None, typer.Option(help="How many of them: 100 items, or 5 queries, by default.")
    ] = None,
    retriever: Annotated[
        str | None,
        typer.Option(help="The retriever that picks a query's items; 'random' is one."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help="How many train queries: by default 500 of 'auto', all of a file."),
    ] = None,
    marked: Annotated[
        bool, typer.Option("--marked", help="With 'auto': mark a mention in each query.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="What to call the vectors; the method's name by default.")
    ] = None,
    vectors: Annotated[str, typer.Option(help="The item vectors to start from.")] = "auto",
    max_calls: Annotated[
        int | None, typer.Option(help="Stop paying after so many cross-encoder calls.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Stop paying after so long: 90s, 30m, 2h.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many score at a time; one for each core by default.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Score on Ray: 'local' starts it here, else a cluster's address."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="The model that distill begins with; the index's own by default."),
    ] = None,
    encoder_out: Annotated[
        Path | None, typer.Option(help="The folder for the dual encoder that distill trains.")
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Drop anchors that another cross-encoder has scored.")
    ] = False,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    cache: CacheFile = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Align the items of an index with a cross-encoder.

    Scores are kept in the index as they come: after an interruption the same command goes on, and
    no pair is paid twice. Searches use the new vectors from then on.
    """
    from crossknn.fitting.fit import fit
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers.onnx import available_threads
    from crossknn.scores.collect import Limits

    check_positive({"per": per, "count": count, "workers": workers, "max-calls": max_calls})
    if ray and (model or scorer_option or is_url(scorer)):
        raise InputError(
            "--ray is for a cross-encoder that every worker opens as it is: leave it out for one "
            "behind a URL or with options, and say with --workers how many ask at a time"
        )
    if ray and cache is not None:
        raise InputError(
            "--ray scores in processes that share no cache: leave --cache out, or score here with "
            "--workers"
        )
    seconds = None if deadline is None else duration(deadline)
    index = ItemIndex.load(folder)
    texts = _train_queries(queries, index, count, marked, seed)
    at_once = workers or available_threads()
    found = fit(
        index,
        scorer if ray else open_scorer(scorer, cache, model, scorer_option, workers=at_once),
        texts,
        method,
        name=name,
        vectors=vectors,
        strategy=strategy,
        per=per,
        retriever=retriever,
        limits=Limits(workers=at_once, ray=ray, max_calls=max_calls, deadline=seconds),
        replace=rescore,
        start=start,
        encoder_folder=encoder_out,
        seed=seed,
        progress=progress,
    )
    if json:
        print_json(_summary(found))
        return
    show(found)


def duration(text: str) -> float:
    """Seconds of a text such as `90s`, `30m`, `2h`; a bare number is seconds.

    >>> duration("1.5h")
    5400.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match.group(1)):
        raise InputError(f"deadline is {text!r}: give a duration such as 90s, 30m or 2h")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]


def show(found: FitReport) -> None:
    """Print what was fitted, what it cost and how to use it."""
    made, cost, details = found.vectors, found.vectors.cost, found.vectors.details
    paid = f"{found.collected.calls:,} of them now" if found.collected.calls else "all before"
    say(f"{made.method}: {cost.calls:,} scores of {cost.queries:,} train queries ({paid})")
    if details.get("initial") is not None:
        say(
            f"error on scores held out: {details['initial']:.4f} before, {details['held_out']:.4f} "
            "after"
        )
    say(
        f"seconds: {cost.vector_seconds:.1f} for vectors, {cost.scoring_seconds:.1f} for scoring, "
        f"{cost.fitting_seconds:.1f} for fitting"
    )
    for sentence in found.notes:
        note(sentence)
    if found.collected.stopped_by:
        note(f"stopped by {found.collected.stopped_by}: the same command goes on from here")
    say(
        f"in the index as {found.name!r}; searches use it from now on, and "
        f"vectors={found.name} or retriever={found.name} name it"
    )


def _train_queries(
    source: str, index: ItemIndex, count: int | None, marked: bool, seed: int
) -> Sequence[str]:
    from crossknn.data.items import Items
    from crossknn.data.reading import read_queries
    from crossknn.fitting.pseudo_queries import pseudo_queries

    if source != AUTO:
        if marked:
            raise InputError("--marked is for --queries auto; a file's queries are taken as is")
        return read_queries(Path(source), limit=count).texts
    items = index.items
    whole = Items(ids=items.ids, texts=items.texts, titles=items.titles, extra=items.extra)
    return pseudo_queries(whole, count or PSEUDO_QUERIES, marked=marked, seed=seed)


def _summary(found: FitReport) -> dict[str, object]:
    made = found.vectors
    return {
        "name": found.name,
        "method": made.method,
        "dimensions": int(made.values.shape[1]),
        "cost": asdict(made.cost),
        "calls": found.collected.calls,
        "reused": found.collected.reused,
        "stopped_by": found.collected.stopped_by,
        "details": dict(made.details),
        "notes": list(found.notes),
    }
