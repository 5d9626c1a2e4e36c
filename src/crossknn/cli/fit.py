"""`crossknn fit`: fit an index to exact scores, so that later searches have a higher recall."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.data.qrels import read_qrels
from crossknn.errors import InputError, nearest
from crossknn.index.item_index import ItemIndex
from crossknn.scores.collect import fingerprint_of
from crossknn.search.searcher import Budget
from crossknn.spec import parse

EPILOG = o.examples(
    "crossknn fit docs.index als --queries train-queries.jsonl --deadline 30m",
    "crossknn fit docs.index stored --retriever 'hybrid(bm25, dense)'",
)

JUDGED = "fusion", "calibration"
"""Fits that need judgements, and make no item vectors."""

_METHOD = (
    "als or 'als(sweeps=10)': item vectors. stored: kriging's prior, from the scores in the index. "
    "fusion: weights of retriever scores. calibration: probabilities of relevance, from --qrels."
)
_PER = "Items to score per query (100 if not given); with --strategy i queries per item (5)."
_RETRIEVER = "Retriever of the items to score; for stored, of those that predict exact scores."


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Options of fits that make item vectors."""

    strategy: Annotated[
        Literal["q", "i"],
        Option(help="q: score --per items for each query. i: --per queries for each item."),
    ] = "q"
    retriever: Annotated[str | None, Option(help=_RETRIEVER)] = None
    name: Annotated[str | None, Option(help="Name of the vectors; by default METHOD's.")] = None
    vectors: Annotated[str, Option(help="Item vectors to start from.")] = "auto"


@o.grouped
def command(
    folder: o.Folder,
    method: Annotated[str, Argument(help=_METHOD)] = "als",
    *,
    queries: Annotated[
        Path | None, Option(help="Training queries, for all but the method stored.")
    ] = None,
    qrels: Annotated[Path | None, Option(help="Judgements for fusion or calibration.")] = None,
    per: Annotated[int | None, Option(min=1, help=_PER)] = None,
    fitted: VectorOptions,
    limits: o.LimitOptions,
    keep_own: o.KeepOwn = False,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Fit an index to exact scores of training queries, for use by later searches.

    Fitted item vectors and kriging's prior give searches a higher recall under the same budget.
    Exact scores are stored in the index: run the same command again to resume after an
    interruption.
    """
    from crossknn.fitting.fit import fit

    _check(method, queries, qrels, fitted)
    index = ItemIndex.load(folder)
    # Fitting may use all threads, but a search scores on one.
    threads = 1 if method in ("calibration", "stored") else o.threads(limits.workers)
    given = scorer.open(workers=threads)
    if method == "stored" or queries is None:
        report = _fit_stored(index, given, fitted.retriever)
    elif method in JUDGED:
        from crossknn.fitting.calibration import fit_calibration
        from crossknn.fitting.fusion import fit_fusion

        judged, asked = None if qrels is None else read_qrels(qrels), o.read_queries(queries)
        with progress("scoring", "pairs") as scored:
            how: dict[str, Any] = {"qrels": judged, "keep_own": keep_own, "progress": scored}
            if method == "fusion":
                how |= {"depth": per or 100, "limits": limits.limits()}
                report = fit_fusion(index, given, asked, **how)
            else:
                budget = Budget(per_query=per, deadline=limits.deadline)
                report = fit_calibration(index, given, asked, budget=budget, **how)
    else:
        options = asdict(fitted) | {"per": per, "limits": limits.limits(), "progress": progress}
        made = fit(index, given, o.read_queries(queries).texts, method, **options)
        said = f"later searches use these vectors by default; to select them: vectors={made.name}"
        report = made.summary() | {"note": said}
    answer({name: value for name, value in report.items() if name != "note" or json}, json)
    if "note" in report:
        note(report["note"])


def _check(method: str, queries: Path | None, qrels: Path | None, fitted: VectorOptions) -> None:
    """Raise `InputError` for options that exclude each other."""
    from crossknn.fitting.fit import METHODS

    known = (*METHODS, *JUDGED, "stored")
    if method not in known and (named := parse(method).name) not in METHODS:
        raise InputError(f"unknown METHOD {named!r}: {nearest(named, known)}")
    if (method == "stored") != (queries is None):
        raise InputError(
            "fit stored uses only scores that are already in the index: leave --queries out"
            if method == "stored"
            else "--queries is missing: give a file of training queries"
        )
    if method in JUDGED and fitted != VectorOptions():
        raise InputError(
            f"fit {method} makes no item vectors: leave out --name, --vectors, --strategy and "
            "--retriever"
        )
    if method == "calibration" and qrels is None:
        raise InputError("calibration needs relevance judgements: give --qrels FILE")


def _fit_stored(index: ItemIndex, scorer: Any, retriever: str | None) -> dict[str, Any]:
    """Fit kriging's prior to the scores in the index, and return its report."""
    from crossknn.fitting.learning import fit_from_store

    fingerprint_of(scorer, index.scores)  # no scores were stored for one without a name
    with progress("fitting kriging's prior", "steps") as report:
        prior = fit_from_store(index, scorer, retriever=retriever, progress=report)
    use = "now use the prior" if prior.predicts else "do not use a prior that predicts no better"
    return {
        "pairs": prior.pairs,
        "queries": prior.queries,
        "anchor_queries": prior.n_anchor_queries,
        "retriever": prior.retriever,
        "note": f"searches with the default method {use}",
    }
