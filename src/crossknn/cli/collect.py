"""`crossknn collect`: compute exact scores once and store them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.scores.collect import CollectReport

EPILOG = o.examples(
    "crossknn collect docs.index --anchors train-queries.jsonl --max-calls 100000",
    "crossknn collect docs.index --queries queries.jsonl --deadline 30m",
)


@o.grouped
def command(
    folder: o.Folder,
    *,
    anchors: Annotated[
        Path | None, Option(help="File of anchor queries to score with every item.")
    ] = None,
    queries: Annotated[
        Path | None, Option(help="File of queries to score with every item.")
    ] = None,
    limits: o.LimitOptions,
    ray: Annotated[
        str | None,
        Option(help="Score on Ray: 'local' starts it here; otherwise the address of a cluster."),
    ] = None,
    replace: o.Replace = False,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Score queries with every item, and store the exact scores in the index.

    Searches, comparisons and fits reuse stored scores. Kriging's prior is fitted to anchor queries,
    which gives later searches a higher recall. Run the same command again to resume after an
    interruption: no pair is scored twice.
    """
    from crossknn.fitting.anchors import collect_anchors
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.collect import collect

    if anchors is None and queries is None:
        raise InputError("nothing to score: give --anchors FILE or --queries FILE")
    index = ItemIndex.load(folder)
    exact = scorer.open(workers=o.threads(limits.workers))
    asked = scorer.scorer if ray else exact
    reports: list[CollectReport] = []

    def score(what: str, collecting: Callable[..., CollectReport], *of: Any, **how: Any) -> None:
        calls, seconds = sum(r.calls for r in reports), sum(r.seconds for r in reports)
        left = limits.limits(calls=calls, seconds=seconds, ray=ray)
        with progress(f"scoring {what}", "pairs") as report:
            reports.append(collecting(*of, **how, limits=left, progress=report))

    # Both files are read before anything is scored.
    anchor_texts = None if anchors is None else o.read_queries(anchors).texts
    query_texts = None if queries is None else o.read_queries(queries).texts
    if anchor_texts is not None:
        score("anchor queries", collect_anchors, index, asked, anchor_texts, replace=replace)
    if query_texts is not None:
        score("queries", collect, index.scores, asked, query_texts, index.items.texts)
    anchor_queries = index.for_scorer(exact.fingerprint).anchor_queries
    summary = _summary(reports) | {"index": str(folder), "anchor_queries": len(anchor_queries)}
    answer(summary, json)
    if not summary["complete"]:
        note("not finished: run the same command again to resume")


def _summary(reports: Sequence[CollectReport]) -> dict[str, Any]:
    """What collections did together."""
    totals = ("pairs", "reused", "scored", "calls", "failed")
    return {
        **{name: sum(getattr(report, name) for report in reports) for name in totals},
        "complete": all(report.complete for report in reports),
        "stopped_by": next((r.stopped_by for r in reports if r.stopped_by), None),
        "seconds": round(sum(report.seconds for report in reports), 2),
    }
