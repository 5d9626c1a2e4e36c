"""`crossknn scores`: a score matrix to replay and analyze."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

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
    open_scorer,
    print_json,
    progress,
    say,
)
from crossknn.errors import InputError

NAME = "scores"


def command(
    folder: Annotated[Path, typer.Argument(help="An index made by `crossknn index`.")],
    file: Annotated[Path, typer.Option("--out", help="The score matrix to write (.npz).")],
    queries: Annotated[
        Path | None, typer.Option(help="Score the queries of this file with every item.")
    ] = None,
    item_item: Annotated[
        int | None,
        typer.Option(help="Score so many random items, as queries, with every item."),
    ] = None,
    anchors: Annotated[
        int | None,
        typer.Option(
            help="How many of the first queries are anchors; the others are tests. Half by default."
        ),
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="Judgements, for each query's gold item.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float16 (the default of a new file) or float32.")
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option(help="Stop paying after so many cross-encoder calls.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop what the file holds, unfinished scores too.")
    ] = False,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    cache: CacheFile = None,
    workers: Annotated[
        int | None, typer.Option(help="How many score at a time; one for each core by default.")
    ] = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Score queries, or random items in their place, with every item: a matrix for `replay`.

    Run again after an interruption and no pair is paid twice. A file can hold both: each run adds
    its part to what is there.
    """
    from crossknn.data.reading import read_qrels, read_queries
    from crossknn.fitting.matrix import DType, MatrixFile
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers.onnx import available_threads

    if queries is None and item_item is None:
        raise InputError("nothing to score: give --queries FILE, --item-item N, or both")
    for name, given in (("anchors", anchors), ("qrels", qrels)):
        if queries is None and given is not None:
            raise InputError(f"--{name} belongs to queries: give them with --queries FILE")
    check_positive({"max-calls": max_calls, "item-item": item_item, "workers": workers})
    if model is None and is_url(scorer):
        raise InputError(
            f"what answers at {scorer} may change: name its model with --model NAME, so that "
            "an interrupted run can be taken up again"
        )
    began = time.perf_counter()
    asked = read_queries(queries) if queries is not None else None
    judged = read_qrels(qrels) if qrels is not None else None
    index = ItemIndex.load(folder)
    if item_item is not None and item_item > index.n:
        raise InputError(f"item-item is {item_item}, but the index has {index.n} items")
    at_once = workers or available_threads()
    matrix = MatrixFile(
        file,
        index,
        open_scorer(scorer, cache, model, scorer_option, workers=at_once),
        dtype=cast("DType | None", dtype),
        replace=replace,
        workers=at_once,
    )
    calls, complete = 0, True
    if asked is not None:
        with progress("scoring queries", "pairs") as report:
            done = matrix.add_queries(
                asked, anchors=anchors, qrels=judged, max_calls=max_calls, progress=report
            )
        calls, complete = done.calls, done.complete
    if item_item is not None:
        left = None if max_calls is None else max_calls - calls
        with progress("scoring items with items", "pairs") as report:
            done = matrix.add_items(item_item, seed=seed, max_calls=left, progress=report)
        calls, complete = calls + done.calls, complete and done.complete
    summary = {
        "matrix": str(file),
        "items": index.n,
        **_held(matrix.arrays),
        "dtype": str(matrix.dtype),
        "complete": complete,
        "calls": calls,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if json:
        print_json(summary)
        return
    paid = f"{calls} cross-encoder calls, {summary['seconds']} s"
    if not complete:
        say(f"not finished: {paid}; the same command goes on from here")
        return
    held = f"{summary['queries']} queries ({summary['anchors']} of them anchors)"
    say(
        f"{file}: {held} and {summary['item_queries']} items in a query's place, "
        f"x {index.n} items, {matrix.dtype}; {paid}"
    )


def _held(arrays: dict[str, Any]) -> dict[str, int]:
    return {
        "queries": len(arrays.get("scores", ())),
        "anchors": int(arrays.get("n_anchors", 0)),
        "item_queries": len(arrays.get("item_scores", ())),
    }
