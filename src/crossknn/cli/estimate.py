"""`crossknn estimate`: how long scoring takes, from a short measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, err

EPILOG = o.examples(
    "crossknn estimate docs.jsonl --anchor-queries 100",
    "crossknn estimate docs.index --budget 200 --scorer bundled",
)


@o.grouped
def command(
    items: Annotated[
        Path,
        Argument(
            metavar="ITEMS_OR_INDEX",
            help="File of items, index folder, or - for standard input.",
        ),
    ],
    *,
    budget: Annotated[
        int, Option(min=1, help="Budget of the search: cross-encoder calls per query.")
    ] = 100,
    anchor_queries: Annotated[
        int, Option(min=0, help="Number of anchor queries to score with every item.")
    ] = 0,
    fields: o.FieldOptions,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Estimate the calls and seconds of anchor queries, a search and exact search.

    The command scores items for a second, with the first words of other items as queries.
    """
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST
    from crossknn.trial.plan import pairs_per_second

    indexed = ItemIndex.load(items).items if (items / MANIFEST).is_file() else None
    texts = (indexed or fields.read(items)).texts
    exact, n = scorer.open(), len(texts)
    with err.status("measuring the cross-encoder"):
        speed = pairs_per_second(exact, texts)
    costs: dict[str, Any] = {"n": n, "pairs_per_second": speed}
    for name, calls in (("anchors", anchor_queries * n), ("search", min(budget, n)), ("exact", n)):
        if calls or json:
            costs |= {f"{name}_calls": calls, f"{name}_seconds": calls / speed}
    answer(costs, json)
