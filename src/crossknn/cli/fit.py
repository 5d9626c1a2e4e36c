"""`crossknn fit`: fit an index to exact scores, so that every later search finds more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crossknn.cli.options import (
    AsJson,
    Deadline,
    Folder,
    MaxCalls,
    Ray,
    Replace,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    Seed,
    Store,
    Workers,
    check_positive,
    duration,
    examples,
    is_url,
    open_scorer,
    read_queries,
    threads,
)
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

NAME = "fit"
EPILOG = examples(
    "crossknn fit docs.index als --queries train-queries.jsonl --deadline 30m",
    "crossknn fit docs.index log --retriever 'hybrid(bm25, dense)'",
)
AUTO, LOG = "auto", "log"
PSEUDO_QUERIES = 500


def command(
    folder: Folder,
    method: Annotated[
        str,
        typer.Argument(
            help="als, mf-trns, mf-ind, cur or distill, perhaps with options: item vectors. log: "
            "kriging's prior and item vectors from the scores that are there; calls no scorer."
        ),
    ] = "als",
    queries: Annotated[
        str | None,
        typer.Option(
            help="A file of train queries, or 'auto': made of the items' titles, first sentences "
            "and telling words."
        ),
    ] = None,
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
    rank: Annotated[int, typer.Option(help="With log: factors of the covariance.")] = 100,
    max_calls: MaxCalls = None,
    deadline: Deadline = None,
    workers: Workers = None,
    ray: Ray = None,
    start: Annotated[
        str | None,
        typer.Option(help="The model that distill begins with; the index's own by default."),
    ] = None,
    encoder_out: Annotated[
        Path | None, typer.Option(help="The folder for the dual encoder that distill trains.")
    ] = None,
    replace: Replace = False,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    store: Store = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Fit item vectors, or kriging's prior, to exact scores of train queries.

    Scores are kept in the index as they come: after an interruption the same command goes on, and
    no pair is scored twice. Searches use what was fitted from then on.
    """
    from crossknn.index.item_index import ItemIndex

    check_positive({"per": per, "count": count, "max-calls": max_calls, "rank": rank})
    seconds = duration(deadline)
    at_once = threads(workers)
    if method == LOG:
        if queries is not None:
            raise InputError("fit log takes the scores that are there: leave --queries out")
        index = ItemIndex.load(folder)
        exact = open_scorer(scorer, model, scorer_option)
        _take(index, exact, store)
        _from_log(index, exact.fingerprint, retriever, rank, json)
        return
    if queries is None:
        raise InputError("--queries is missing: give a file of train queries, or 'auto'")
    if ray and (model or scorer_option or is_url(scorer)):
        raise InputError(
            "--ray is for a cross-encoder that every worker opens as it is: leave it out for one "
            "behind a URL or with options, and say with --workers how many ask at a time"
        )
    from crossknn.fitting.fit import fit
    from crossknn.scores.collect import Limits

    index = ItemIndex.load(folder)
    texts = _train_queries(queries, index, count, marked, seed)
    given = scorer if ray else open_scorer(scorer, model, scorer_option, workers=at_once)
    _take(index, given, store)
    found = fit(
        index,
        given,
        texts,
        method,
        name=name,
        vectors=vectors,
        strategy=strategy,
        per=per,
        retriever=retriever,
        limits=Limits(workers=at_once, ray=ray, max_calls=max_calls, deadline=seconds),
        replace=replace,
        start=start,
        encoder_folder=encoder_out,
        seed=seed,
        progress=progress,
    )
    for sentence in found.notes:
        note(sentence)
    answer(_summary(found), _sentence(found), json)


def _take(index: ItemIndex, exact: Any, store: Path | None) -> None:
    """Take the scores of a store that several indexes share into the index's own."""
    if store is None:
        return
    from crossknn.fitting.log import add_scores
    from crossknn.scores.store import ScoreStore

    if not store.is_file():
        raise InputError(f"there is no file {store}: searches make one with  --store {store}")
    fingerprint = getattr(exact, "fingerprint", None)
    if fingerprint is None:
        raise InputError("--store keeps scores by model: name the cross-encoder, without --ray")
    add_scores(index, ScoreStore.open(store), fingerprint)


def _from_log(
    index: ItemIndex,
    fingerprint: str | None,
    retriever: str | None,
    rank: int,
    json: bool,
) -> None:
    from crossknn.fitting.log import VECTORS, fit_from_log
    from crossknn.retrievers.specs import HYBRID
    from crossknn.spec import parse

    began = time.perf_counter()
    spec = HYBRID if retriever is None else parse(retriever)
    with progress("fitting", "sweeps") as report:
        found = fit_from_log(index, fingerprint, retriever=spec, rank=rank, progress=report)
    seconds = round(time.perf_counter() - began, 2)
    fitted = [VECTORS] if VECTORS in index.fitted else []
    parameters = asdict(found.parameters)
    shown = ", ".join(f"{name} {value:g}" for name, value in parameters.items())
    anchors = f", {found.anchors} of them anchors" if found.anchors else ""
    lines = [
        f"fitted to {found.pairs:,} scores of {found.queries:,} queries{anchors}, in {seconds} s, "
        f"for searches with  --method 'kriging(retriever={found.retriever})'",
        *[f"item vectors {name} for axn, which takes them by itself" for name in fitted],
        f"kernel parameters: {shown}",
    ]
    summary = {
        "pairs": found.pairs,
        "queries": found.queries,
        "anchors": found.anchors,
        "retriever": str(found.retriever),
        "parameters": parameters,
        "vectors": fitted,
        "seconds": seconds,
    }
    answer(summary, "\n".join(lines), json)


def _train_queries(
    given: str, index: ItemIndex, count: int | None, marked: bool, seed: int
) -> Sequence[str]:
    from crossknn.data.items import Items
    from crossknn.fitting.pseudo_queries import pseudo_queries

    if given != AUTO:
        if marked:
            raise InputError("--marked is for --queries auto; a file's queries are taken as is")
        return read_queries(Path(given), count).texts
    items = index.items
    whole = Items(ids=items.ids, texts=items.texts, titles=items.titles, extra=items.extra)
    return pseudo_queries(whole, count or PSEUDO_QUERIES, marked=marked, seed=seed)


def _sentence(found: Any) -> str:
    """What was fitted, what it cost and how to use it."""
    made, cost, details = found.vectors, found.vectors.cost, found.vectors.details
    calls = found.collected.calls
    now = f"{calls:,} of them now" if calls else "all before"
    lines = [f"{made.method}: {cost.calls:,} scores of {cost.queries:,} train queries ({now})"]
    if details.get("initial") is not None:
        lines.append(
            f"error on scores held out: {details['initial']:.4f} before, {details['held_out']:.4f} "
            "after"
        )
    lines.append(
        f"seconds: {cost.vector_seconds:.1f} for vectors, {cost.scoring_seconds:.1f} for scoring, "
        f"{cost.fitting_seconds:.1f} for fitting"
    )
    if stopped_by := found.collected.stopped_by:
        lines.append(f"stopped by {stopped_by}: the same command goes on from here")
    lines.append(
        f"in the index as {found.name!r}; searches use it from now on, and "
        f"vectors={found.name} or retriever={found.name} name it"
    )
    return "\n".join(lines)


def _summary(found: Any) -> dict[str, object]:
    made, collected = found.vectors, found.collected
    return {
        "name": found.name,
        "method": made.method,
        "dimensions": int(made.values.shape[1]),
        "cost": asdict(made.cost),
        "calls": collected.calls,
        "reused": collected.reused,
        "stopped_by": collected.stopped_by,
        "details": dict(made.details),
        "notes": list(found.notes),
    }
