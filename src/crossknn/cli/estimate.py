"""`crossknn estimate`: what indexing and a search will cost, from a short probe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from crossknn.cli.options import (
    AsJson,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    examples,
    open_scorer,
    source,
)
from crossknn.cli.output import answer, err
from crossknn.errors import InputError

NAME = "estimate"
EPILOG = examples(
    "crossknn estimate docs.jsonl --anchors 100",
    "crossknn estimate docs.index --scorer http://localhost:8080/rerank --budget 50",
)
UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))
_BATCH, _WORDS = 16, 10


def command(
    items: Annotated[
        Path, typer.Argument(help="Items to index, or an index; - is standard input.")
    ],
    budget: Annotated[int, typer.Option(help="Calls per query of the search.")] = 100,
    anchors: Annotated[int, typer.Option(help="Anchor queries to score against every item.")] = 0,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    seconds: Annotated[float, typer.Option(help="How long the probe may take.")] = 2.0,
    json: AsJson = False,
) -> None:
    """Say in calls and seconds what anchors and a search cost here.

    The probe scores random items with the first words of others as queries.
    """
    from crossknn.data.reading import read_items
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST
    from crossknn.types import Pairs, as_count

    as_count(budget, "budget")
    as_count(anchors, "the number of anchors", 0)
    if not 0 < seconds < 1e9:
        raise InputError(f"seconds is {seconds}; it must be a number above 0")
    saved = (items / MANIFEST).is_file()
    texts = ItemIndex.load(items).items.texts if saved else read_items(source(items)).texts
    exact, rng, n = open_scorer(scorer, model, scorer_option), np.random.default_rng(0), len(texts)

    def probe() -> int:
        queries = [" ".join(texts[p].split()[:_WORDS]) for p in rng.integers(n, size=_BATCH)]
        pairs = Pairs(np.arange(_BATCH), rng.integers(n, size=_BATCH))
        return sum(len(where) for where, _ in exact.score(pairs, queries, texts))

    with err.status("probing"):
        probe()  # what opens the model is not counted
        began, scored = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < seconds or not scored:
            scored += probe()
    calls = {"anchors": anchors * n, "search": min(budget, n), "exact": n}
    took = {name: count * spent / scored for name, count in calls.items()}
    names = {"anchors": "the anchors", "search": "a search", "exact": "exact search of a query"}
    lines = [f"{n} items; the scorer does {scored / spent:.0f} pairs a second here"]
    lines += [f"{names[k]}: {calls[k]} calls, about {_time(took[k])}" for k in calls if calls[k]]
    found = {"n": n, "pairs_per_second": scored / spent, "calls": calls, "seconds": took}
    answer(found, "\n".join(lines), json)


def _time(seconds: float) -> str:
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} seconds"
