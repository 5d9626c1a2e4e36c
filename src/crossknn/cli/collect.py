"""`crossknn collect`: exact scores, computed once and kept."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crossknn.cli.options import (
    AsJson,
    Deadline,
    Folder,
    MaxCalls,
    Replace,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    Seed,
    Workers,
    check_positive,
    duration,
    examples,
    open_scorer,
    read_queries,
    threads,
)
from crossknn.cli.output import answer, progress
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.collect import CollectReport, Limits

NAME = "collect"
EPILOG = examples(
    "crossknn collect docs.index --anchors train-queries.jsonl --max-calls 100000",
    "crossknn collect docs.index --queries queries.jsonl --out scores.npz",
)


def command(
    folder: Folder,
    anchors: Annotated[
        Path | None,
        typer.Option(
            help="Score these train queries with every item: anchors of anncur, adacur, kriging "
            "and of axn's scale."
        ),
    ] = None,
    item_scores: Annotated[
        int | None,
        typer.Option(help="Score so many items, as queries, with every item (itemcur, fixeditem)."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Score these queries with every item.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="Write --queries and --item-scores to a score matrix (.npz)."),
    ] = None,
    n_anchors: Annotated[
        int | None,
        typer.Option(help="In --out, so many of the first queries are anchors; half by default."),
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="In --out, judgements: each query's gold item.")
    ] = None,
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        typer.Option(help="Of --out; float32 for a new file."),
    ] = None,
    max_calls: MaxCalls = None,
    deadline: Deadline = None,
    workers: Workers = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Score on Ray: 'local' starts it here, else a cluster's address."),
    ] = None,
    replace: Replace = False,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Compute exact scores and keep them in the index: nothing is computed twice.

    After an interruption the same command goes on, and searches, comparisons and fits of the index
    use what is there. Anchor queries also fit the prior of `kriging`.
    """
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.collect import Limits

    check_positive({"max-calls": max_calls, "item-scores": item_scores})
    if anchors is None and item_scores is None and queries is None:
        raise InputError("nothing to score: give --anchors FILE, --item-scores N or --queries FILE")
    for name, given in (("n-anchors", n_anchors), ("qrels", qrels), ("dtype", dtype)):
        if given is not None and (file is None or queries is None):
            raise InputError(f"--{name} belongs to a score matrix: give --queries FILE and --out")
    at_once = threads(workers)
    limits = Limits(workers=at_once, ray=ray, max_calls=max_calls, deadline=duration(deadline))
    index = ItemIndex.load(folder)
    exact = open_scorer(scorer, model, scorer_option, workers=at_once)
    reports = _Reports(limits)
    if anchors is not None:
        _anchors(index, exact, read_queries(anchors).texts, reports, replace)
    if file is not None:
        given = (None if queries is None else read_queries(queries), n_anchors, qrels)
        _matrix(index, exact, file, given, item_scores, reports, dtype, replace, seed)
    else:
        if item_scores is not None:
            _item_scores(index, exact, item_scores, reports, replace)
        if queries is not None:
            from crossknn.scores.collect import collect

            with progress("scoring queries", "pairs") as report:
                texts = read_queries(queries).texts
                reports.add(
                    collect(
                        index.scores,
                        exact,
                        texts,
                        index.items.texts,
                        limits=reports.left(),
                        progress=report,
                    )
                )
    summary = reports.summary() | {
        "index": str(folder),
        "anchor_queries": len(index.anchor_queries),
        "matrix": None if file is None else str(file),
    }
    sentence = (
        f"{summary['calls']:,} cross-encoder calls in {summary['seconds']} s; "
        f"{summary['reused']:,} scores were there; {summary['anchor_queries']} anchor queries"
    )
    if file is not None:
        sentence += f"; matrix {file}"
    if not summary["complete"]:
        sentence += "\nnot finished: the same command goes on from here"
    answer(summary, sentence, json)


class _Reports:
    """What the parts of one command have scored, and what the next may."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.done = limits, list[Any]()

    def add(self, report: CollectReport) -> None:
        self.done.append(report)

    def left(self) -> Limits:
        """The limits, less the calls and seconds that are spent."""
        calls, seconds = self.limits.max_calls, self.limits.deadline
        spent = sum(report.calls for report in self.done)
        took = sum(report.seconds for report in self.done)
        return replace(
            self.limits,
            max_calls=None if calls is None else max(0, calls - spent),
            deadline=None if seconds is None else max(1e-3, seconds - took),
        )

    def summary(self) -> dict[str, Any]:
        totals = ("pairs", "reused", "scored", "calls", "failed")
        rows = [asdict(report) for report in self.done]
        return {
            **{name: sum(row[name] for row in rows) for name in totals},
            "complete": all(report.complete for report in self.done),
            "stopped_by": next((r.stopped_by for r in self.done if r.stopped_by), None),
            "seconds": round(sum(report.seconds for report in self.done), 2),
        }


def _anchors(index: ItemIndex, scorer: Any, texts: Any, reports: _Reports, replace: bool) -> None:
    from crossknn.fitting.anchors import collect_anchors
    from crossknn.fitting.log import fit_from_log

    with progress("scoring anchor queries", "pairs") as report:
        reports.add(
            collect_anchors(
                index, scorer, texts, limits=reports.left(), replace=replace, progress=report
            )
        )
    if len(index.anchor_queries) > 1 and index.retrievers and index.vectors:
        with progress("fitting", "sweeps") as report:
            fit_from_log(index, scorer.fingerprint, progress=report)


def _item_scores(
    index: ItemIndex, scorer: Any, count: int, reports: _Reports, replace: bool
) -> None:
    from crossknn.fitting.anchors import collect_item_scores

    if count > index.n:
        raise InputError(f"item-scores is {count}, but the index has {index.n} items")
    with progress("scoring items with items", "pairs") as report:
        reports.add(
            collect_item_scores(
                index,
                scorer,
                index.anchor_items[:count],
                limits=reports.left(),
                replace=replace,
                progress=report,
            )
        )


def _matrix(
    index: ItemIndex,
    scorer: Any,
    file: Path,
    given: tuple[Any, int | None, Path | None],
    item_scores: int | None,
    reports: _Reports,
    dtype: Literal["float16", "float32"] | None,
    replace: bool,
    seed: int,
) -> None:
    from crossknn.data.reading import read_qrels
    from crossknn.fitting.matrix import MatrixFile

    queries, n_anchors, qrels = given
    judged = None if qrels is None else read_qrels(qrels)
    matrix = MatrixFile(file, index, scorer, dtype=dtype, replace=replace)
    if queries is not None:
        with progress("scoring queries", "pairs") as report:
            reports.add(
                matrix.add_queries(
                    queries,
                    anchors=n_anchors,
                    qrels=judged,
                    limits=reports.left(),
                    progress=report,
                )
            )
    if item_scores is not None:
        with progress("scoring items with items", "pairs") as report:
            reports.add(
                matrix.add_items(item_scores, seed=seed, limits=reports.left(), progress=report)
            )
