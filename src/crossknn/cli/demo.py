"""`crossknn demo`: the main job on real text that every machine has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from crossknn.cli.common import AsJson, Seed, check_positive, err, note, out, print_json, progress
from crossknn.cli.compare import show as show_table
from crossknn.cli.search import as_json, show
from crossknn.data.dataset import Dataset
from crossknn.data.docstrings import collect_standard_library
from crossknn.demo import (
    BUDGETS,
    KS,
    METHODS,
    SEARCHES,
    WORKERS,
    DemoFiles,
    open_scorer,
    sample,
)
from crossknn.errors import MissingExtraError
from crossknn.evaluation.compare import compare
from crossknn.evaluation.replay import RecallRow
from crossknn.index.item_index import ItemIndex
from crossknn.methods import methods
from crossknn.scores.collect import Limits, dense_scores
from crossknn.scores.stored import StoredScorer

NAME = "demo"


def command(
    search: Annotated[
        str | None, typer.Option(help="Only answer this query from the demo's index.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the demo keeps its files.")] = Path(
        "crossknn-demo"
    ),
    queries: Annotated[int, typer.Option(help="Held-out queries to compare on.")] = 20,
    k: Annotated[int, typer.Option("-k", "--k", help="Hits to show.")] = 5,
    budget: Annotated[int, typer.Option(help="Calls of the shown searches.")] = 100,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Search the documentation of your Python with the bundled cross-encoder, offline.

    Builds an index, shows a few searches, and compares methods at equal budgets with exact search.
    """
    from crossknn.search.searcher import Searcher

    check_positive({"queries": queries})
    files = DemoFiles(folder)
    if search is not None and files.index.exists():
        results = Searcher(ItemIndex.load(files.index), open_scorer()).search(
            search, k=k, budget=budget
        )
        print_json(as_json(results)) if json else show(results)
        return
    began = time.perf_counter()
    with progress("reading the standard library", "modules") as report:
        data = collect_standard_library(report)
    folder.mkdir(parents=True, exist_ok=True)
    index = _index(data, files)
    note(
        f"{index.n} documented things of your Python, {len(data.queries)} held-out queries; "
        f"index in {files.index} ({time.perf_counter() - began:.0f} s)"
    )
    scorer = open_scorer()
    searcher = Searcher(index, StoredScorer(scorer, index.scores))
    results = searcher.search([search] if search else list(SEARCHES), k=k, budget=budget)
    print_json(as_json(results)) if json else show(results)
    if search is not None:
        return
    asked = sample(data, queries, seed)
    note(f"exact search for {len(asked)} held-out queries: {len(asked) * index.n} pairs")
    with progress("exact search", "pairs") as report:
        scores = dense_scores(
            index.scores,
            scorer,
            asked.texts,
            index.items.texts,
            limits=Limits(workers=WORKERS),
            progress=report,
        )
    with err.status("comparing"):
        best, found = compare(
            index,
            asked,
            scores,
            methods(", ".join(METHODS)),
            BUDGETS,
            KS,
            qrels=data.qrels,
            measures=("P@1", "RR@10", "nDCG@10"),
            seed=seed,
        )
        ceiling, table = list(best.rows()), [list(each.rows()) for each in found]
    rows = [row for cells in table for row in cells]
    if json:
        for row in (*ceiling, *rows):
            print_json(row.as_dict())
    else:
        show_table([ceiling, *table], KS)
        out.print(Text("P@1: how often the right item comes first", "dim"))
    _plot(rows, files, f"Python docs: {index.n} items, {len(asked)} queries")
    note(f"{time.perf_counter() - began:.0f} s; next: crossknn demo --search 'your question'")


def _index(data: Dataset, files: DemoFiles) -> ItemIndex:
    with progress("encoding", "items") as report:
        index = ItemIndex.build(data.items, encoder="bundled", progress=report)
    index.save(files.index)
    return index


def _plot(rows: list[RecallRow], files: DemoFiles, title: str) -> None:
    from crossknn.plots import recall_against_cost

    try:
        recall_against_cost(rows, files.plot, title=title, labels=METHODS)
    except MissingExtraError as error:
        note(f"no picture: {error}")
    else:
        note(f"recall against cost: {files.plot}")
