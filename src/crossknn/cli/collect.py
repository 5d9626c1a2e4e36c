"""`crossknn collect`: compute exact scores once and store them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.scores.collect import collect

EPILOG = o.examples(
    "crossknn collect docs.index --anchors train-queries.jsonl --max-calls 100000",
    "crossknn collect docs.index --queries queries.jsonl --deadline 30m",
)


@o.grouped
def command(
    folder: o.Folder,
    *,
    anchors: Annotated[
        Path | None, Option(help="Queries to score with every item, and to fit the index to.")
    ] = None,
    queries: Annotated[
        Path | None, Option(help="Queries to score with every item, without a fit.")
    ] = None,
    limits: o.LimitOptions,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Score queries with every item, and store the exact scores in the index.

    Searches, comparisons and fits reuse stored scores. With --anchors, the default search method is
    fitted to the scores, which gives later searches a higher recall. Run the same command again to
    resume after an interruption: no pair is scored twice.
    """
    from crossknn.fitting.anchors import collect_anchors

    given = anchors or queries
    if given is None or (anchors and queries):
        raise InputError("give a file of queries to score: --anchors FILE or --queries FILE")
    index = ItemIndex.load(folder)
    texts = o.read_queries(given).texts
    exact = scorer.open(workers=o.threads(limits.workers))
    with progress("scoring queries", "pairs") as report:
        shared: dict[str, Any] = {"limits": limits.limits(), "progress": report}
        if anchors is not None:
            made = collect_anchors(index, exact, texts, **shared)
        else:
            made = collect(index.scores, exact, texts, index.items.texts, **shared)
    anchor_queries = index.for_scorer(exact.fingerprint).anchor_queries
    about = {"complete": made.complete, "seconds": round(made.seconds, 2), "index": str(folder)}
    answer(vars(made) | about | {"anchor_queries": len(anchor_queries)}, json)
    if not made.complete:
        note("not finished: run the same command again to resume")
