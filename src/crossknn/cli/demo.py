"""`crossknn demo`: the main job on real text that every machine has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from crossknn.cli import compare
from crossknn.cli import options as o
from crossknn.cli.output import note, progress
from crossknn.cli.search import show
from crossknn.errors import MissingExtraError

FOLDER = Path("crossknn-demo")
EPILOG = o.examples("crossknn demo", 'crossknn demo --search "how do I unzip a file"')


def command(
    search: Annotated[str | None, Option(help="Answer this query, and no more.")] = None,
    folder: Annotated[Path, Option(help="Where the demo keeps its files.")] = FOLDER,
    n_queries: Annotated[int, Option(min=1, help="Held-out queries to compare on.")] = 20,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Search the documentation of your Python with the bundled cross-encoder, offline.

    Builds an index, shows a few searches, and compares methods at equal budgets with exact search.
    """
    from crossknn import demo
    from crossknn.index.item_index import ItemIndex
    from crossknn.methods import parse_methods
    from crossknn.plots import recall_against_cost
    from crossknn.scorers import CrossEncoder
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.searcher import Searcher

    saved, began = folder / "stdlib.index", time.perf_counter()
    scorer = CrossEncoder(max_length=96, threads=1)  # most docstrings say early what they do
    if search is not None and saved.exists():
        index = ItemIndex.load(saved)
    else:
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
    show(searcher.search(texts, k=5, budget=100), json)
    if search is not None:
        return
    size = min(n_queries, len(data))
    drawn = np.random.default_rng(seed).choice(len(data), size, replace=False)
    sampled = data.queries.take(sorted(drawn.tolist()))
    note(f"exact search for {len(sampled)} held-out queries: {len(sampled) * index.n} pairs")
    rows = compare.run(
        index,
        sampled,
        scorer,
        parse_methods(", ".join(demo.METHODS)),
        (25, 50, 100, 200),
        (1, 10, 50),
        json=json,
        qrels=data.qrels,
        measures=("P@1", "RR@10", "nDCG@10"),
        seed=seed,
    )
    note("P@1: how often the right item comes first")
    picture, of = folder / "recall.png", f"Python docs: {index.n:,} items, {len(sampled)} queries"
    try:
        recall_against_cost(rows, picture, note=f"{of}. Bands: 95% intervals.")
        note(f"recall against cost: {picture}")
    except MissingExtraError as error:
        note(f"no picture: {error}")
    note(f"{time.perf_counter() - began:.0f} s; next: crossknn demo --search 'your question'")
