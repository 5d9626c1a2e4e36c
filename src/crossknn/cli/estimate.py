"""`crossknn estimate`: what indexing and a search will cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.options import (
    AsJson,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    examples,
    open_scorer,
    read_queries,
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


def command(
    items: Annotated[
        Path, typer.Argument(help="Items to index, or an index; - is standard input.")
    ],
    budget: Annotated[int, typer.Option(help="Calls per query of the search.")] = 100,
    anchors: Annotated[int, typer.Option(help="Anchor queries to score against every item.")] = 0,
    queries: Annotated[Path | None, typer.Option(help="Typical queries, to probe with.")] = None,
    encoder: Annotated[str, typer.Option(help="The dual encoder, or 'none'.")] = "bundled",
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    seconds: Annotated[float, typer.Option(help="How long the probe may take.")] = 2.0,
    json: AsJson = False,
) -> None:
    """Say in calls and seconds what indexing and a search cost here, from a short probe."""
    from crossknn.data.reading import read_items
    from crossknn.index.estimate import estimate
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST
    from crossknn.scorers import DualEncoder

    if not 0 < seconds < 1e9:
        raise InputError(f"seconds is {seconds}; it must be a number above 0")
    saved = (items / MANIFEST).is_file()
    given = ItemIndex.load(items) if saved else read_items(source(items))
    texts = None if queries is None else read_queries(queries).texts
    exact = open_scorer(scorer, model, scorer_option)
    dual = None if encoder == "none" or saved else DualEncoder(encoder)
    with err.status("probing"):
        cost = estimate(
            given,
            scorer=exact,
            encoder=dual,
            n_anchors=anchors,
            budget=budget,
            queries=texts,
            seconds=seconds,
        )
    lines = [
        f"{cost.n} items; the scorer does {cost.pairs_per_second:.0f} pairs a second here "
        f"(the probe scored {cost.probe_calls})"
    ]
    if cost.index_seconds is not None:
        lines.append(f"indexing: {cost.index_calls} calls, about {_time(cost.index_seconds)}")
    if cost.search_seconds is not None:
        lines.append(f"a search: {cost.search_calls} calls, about {_time(cost.search_seconds)}")
        all_items = cost.search_seconds / cost.search_calls * cost.n
        lines.append(f"exact search: {cost.n} calls, about {_time(all_items)} a query")
    answer(asdict(cost), "\n".join(lines), json)


def _time(seconds: float) -> str:
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} seconds"
