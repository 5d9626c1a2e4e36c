"""`crossknn demo`: the main job on real text that every machine has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from crossknn.cli.compare import show as show_table
from crossknn.cli.options import AsJson, Seed, check_positive, examples, threads
from crossknn.cli.output import err, note, out, print_json, progress
from crossknn.cli.search import as_json, show
from crossknn.errors import MissingExtraError

if TYPE_CHECKING:
    from crossknn.evaluation.replay import RecallRow
    from crossknn.search.results import Results

NAME = "demo"
EPILOG = examples("crossknn demo", 'crossknn demo --search "how do I unzip a file"')


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
    from crossknn import demo
    from crossknn.evaluation.compare import compare
    from crossknn.index.item_index import ItemIndex
    from crossknn.methods import methods
    from crossknn.scores.collect import Limits, dense_scores
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.searcher import Searcher

    check_positive({"queries": queries})
    saved, scorer = folder / "stdlib.index", demo.open_scorer()
    if search is not None and saved.exists():
        index = ItemIndex.load(saved)
        searcher = Searcher(index, StoredScorer(scorer, index.scores))
        _answer(searcher.search(search, k=k, budget=budget), json)
        return
    began = time.perf_counter()
    with progress("reading the standard library", "modules") as report:
        data = demo.build_corpus(demo.standard_library_items(report))
    folder.mkdir(parents=True, exist_ok=True)
    with progress("encoding", "items") as report:
        index = ItemIndex.build(data.items, encoder="bundled", progress=report)
    index.save(saved)
    note(
        f"{index.n} documented things of your Python, {len(data.queries)} held-out queries; "
        f"index in {saved} ({time.perf_counter() - began:.0f} s)"
    )
    searcher = Searcher(index, StoredScorer(scorer, index.scores))
    texts = [search] if search else list(demo.SEARCHES)
    _answer(searcher.search(texts, k=k, budget=budget), json)
    if search is not None:
        return
    sampled = demo.sample(data, queries, seed)
    note(f"exact search for {len(sampled)} held-out queries: {len(sampled) * index.n} pairs")
    with progress("exact search", "pairs") as report:
        scores = dense_scores(
            index.scores,
            scorer,
            sampled.texts,
            index.items.texts,
            limits=Limits(workers=threads(None)),
            progress=report,
        )
    with err.status("comparing"):
        best, found = compare(
            index,
            sampled,
            scores,
            methods(", ".join(demo.METHODS)),
            demo.BUDGETS,
            demo.KS,
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
        show_table([ceiling, *table], demo.KS)
        out.print(Text("P@1: how often the right item comes first", "dim"))
    _plot(rows, folder / "recall.png", f"Python docs: {index.n} items, {len(sampled)} queries")
    note(f"{time.perf_counter() - began:.0f} s; next: crossknn demo --search 'your question'")


def _answer(results: Results, json: bool) -> None:
    print_json(as_json(results)) if json else show(results)


def _plot(rows: list[RecallRow], file: Path, title: str) -> None:
    from crossknn.demo import METHODS
    from crossknn.plots import recall_against_cost

    try:
        recall_against_cost(rows, file, title=title, labels=METHODS)
    except MissingExtraError as error:
        note(f"no picture: {error}")
    else:
        note(f"recall against cost: {file}")
