"""`crossknn fit`: fit an index to exact scores, so that every later search finds more."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError, nearest

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers.base import Scorer

EPILOG = o.examples(
    "crossknn fit docs.index als --queries train-queries.jsonl --deadline 30m",
    "crossknn fit docs.index stored --retriever 'hybrid(bm25, dense)'",
)

JUDGED = "fusion", "calibration"
"""What is fitted to judgements, and makes no item vectors."""


@o.grouped
def command(
    folder: o.Folder,
    method: Annotated[
        str,
        Argument(
            help="What to fit. als (also with options, as 'als(sweeps=10)'): "
            "item vectors. stored: kriging's prior and item vectors, from the "
            "scores in the index, without cross-encoder calls. fusion: weights of retriever scores "
            "that are added to exact scores. calibration: probabilities of relevance, from --qrels."
        ),
    ] = "als",
    *,
    queries: Annotated[
        str | None,
        Option(
            help="Training queries: a file, or 'auto' to make some from the items. Required unless "
            "METHOD is stored."
        ),
    ] = None,
    qrels: Annotated[
        Path | None, Option(help="Relevance judgements to fit a fusion or calibration to.")
    ] = None,
    plot: Annotated[
        Path | None, Option(help="With calibration: draw its reliability diagram to this file.")
    ] = None,
    strategy: Annotated[
        Literal["q", "i"],
        Option(help="q: score --per items for each query. i: --per queries for each item."),
    ] = "q",
    per: Annotated[
        int | None,
        Option(
            min=1,
            help="Items to score per query, by default 100; with --strategy i queries per item, "
            "by default 5.",
        ),
    ] = None,
    retriever: Annotated[
        str | None,
        Option(
            help="Retriever that selects the items of strategy q; with stored, the one whose "
            "scores kriging starts from."
        ),
    ] = None,
    count: Annotated[
        int | None,
        Option(
            min=1, help="Number of training queries; by default all of a file, 500 with 'auto'."
        ),
    ] = None,
    name: Annotated[
        str | None, Option(help="Name of the fitted vectors; by default METHOD's.")
    ] = None,
    vectors: Annotated[str, Option(help="Item vectors to start from.")] = "auto",
    limits: o.LimitOptions,
    keep_own: o.KeepOwn = False,
    replace: o.Replace = False,
    scorer: o.ScorerOptions,
    store: o.Store = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Fit an index to exact scores of training queries, for use by later searches.

    Fitted item vectors and kriging's prior let searches find more under the
    same budget. A fusion orders results by a final score: the exact score plus
    weighted retriever scores. A calibration adds the probability that a hit is
    relevant.

    Exact scores are stored in the index batch by batch: run the same command
    again to resume after an interruption. No pair is scored twice.
    """
    from crossknn.data.queries import QuerySet
    from crossknn.data.reading import read_qrels
    from crossknn.fitting.fit import METHODS, fit
    from crossknn.fitting.pseudo_queries import pseudo_queries
    from crossknn.index.item_index import ItemIndex
    from crossknn.spec import parse

    if method == "stored":
        from crossknn.scores.collect import fingerprint_of

        if queries is not None:
            raise InputError(
                "fit stored uses only scores that are already in the index: leave --queries out"
            )
        index = ItemIndex.load(folder)
        exact = scorer.open()
        fingerprint_of(exact, index.scores)  # of one without a name nothing was kept
        _take(index, exact, store)
        answer(_fit_stored(index, exact, retriever), json)
        return
    own = name or retriever or (vectors, strategy) != ("auto", "q")
    if own and method in JUDGED:
        raise InputError(
            f"fit {method} fits no item vectors: leave out --name, --vectors, --strategy and "
            "--retriever"
        )
    if limits.ray and method == "calibration":
        raise InputError("calibration scores in searches, which do not use Ray: leave out --ray")
    if plot is not None and method != "calibration":
        raise InputError(f"--plot applies only to calibration, not to {method}: leave it out")
    o.check_picture("--plot", plot)
    judged = None if qrels is None else read_qrels(qrels)
    if method == "calibration" and judged is None:
        raise InputError("calibration needs relevance judgements: give --qrels FILE")
    if method not in JUDGED and (named := parse(method).name) not in METHODS:
        hint = nearest(named, (*METHODS, *JUDGED, "stored"))
        raise InputError(f"unknown METHOD {named!r}: {hint}")
    if queries is None:
        raise InputError("--queries is missing: give a file of training queries, or 'auto'")
    if limits.ray and (scorer.is_endpoint or scorer.endpoint_model or scorer.scorer_option):
        raise InputError(
            "--ray cannot be used with an endpoint or with --scorer-option: leave it out, and set "
            "the number of parallel requests with --workers"
        )
    index = ItemIndex.load(folder)
    if queries == "auto":
        texts = tuple(pseudo_queries(index.items, count or 500, seed=seed))
        asked = QuerySet(texts, texts)
    else:
        asked = o.read_queries(Path(queries), count)
    # A search scores on one thread.
    share = 1 if method == "calibration" else o.threads(limits.workers)
    given: Any = scorer.scorer if limits.ray else scorer.open(workers=share)
    _take(index, given, store)
    if method in JUDGED:
        from crossknn.fitting.calibration import fit_calibration
        from crossknn.fitting.fusion import fit_fusion
        from crossknn.searcher.searcher import Budget

        with progress("scoring", "pairs") as report:
            options: dict[str, Any] = {"seed": seed, "progress": report, "keep_own": keep_own}
            if judged is None or method == "fusion":
                options |= {"depth": per or 100, "limits": limits.limits()}
                kept = fit_fusion(index, given, asked, judged, **options)
            else:
                options["budget"] = Budget(per_query=per, deadline=limits.deadline)
                kept = fit_calibration(index, given, asked, judged, **options)
        if plot is not None:
            from crossknn.plots import reliability_plot

            reliability_plot(kept, plot)
        answer({name: value for name, value in kept.items() if name != "note" or json}, json)
        if "note" in kept:
            note(kept["note"])
        return
    found = fit(
        index,
        given,
        asked.texts,
        method,
        name=name,
        vectors=vectors,
        strategy=strategy,
        per=per,
        retriever=retriever,
        limits=limits.limits(),
        replace=replace,
        seed=seed,
        progress=progress,
    )
    made, collected = found.vectors, found.collected
    summary = {
        "name": found.name,
        "method": made.method,
        "dimensions": int(made.values.shape[1]),
        "cost": asdict(made.cost),
        "calls": collected.calls,
        "reused": collected.reused,
        "stopped_by": collected.stopped_by,
        "details": dict(made.details),
        "notes": found.notes,
    }
    answer(summary, json)
    note(f"later searches use these vectors by default; to choose them, write vectors={found.name}")


def _take(index: ItemIndex, exact: Any, store: Path | None) -> None:
    """Take the scores of a store that several indexes share into the index's own."""
    if store is None:
        return
    from crossknn.fitting.fit import add_scores
    from crossknn.scorers import as_scorer
    from crossknn.scores.store import ScoreStore

    if not store.is_file():
        raise InputError(f"there is no file {store}: a search with  --store {store}  creates it")
    fingerprint = as_scorer(exact).fingerprint
    if fingerprint is None:
        raise InputError(
            "--store needs to know the model: name it with --scorer, or --endpoint-model for a URL"
        )
    add_scores(index, ScoreStore(store), fingerprint)


def _fit_stored(index: ItemIndex, scorer: Scorer, retriever: str | None) -> dict[str, Any]:
    """Fit to the scores that the index has; what was fitted."""
    from crossknn.fitting.learning import VECTORS, fit_from_store
    from crossknn.retrievers.specs import HYBRID
    from crossknn.spec import parse

    began = time.perf_counter()
    spec = HYBRID if retriever is None else parse(retriever)
    with progress("fitting kriging's prior", "steps") as report:
        found = fit_from_store(index, scorer, retriever=spec, progress=report)
    own = index.for_scorer(scorer.fingerprint)
    note(
        f"search with --method 'kriging(retriever={found.retriever})', or axn, to use what was "
        "fitted"
    )
    return {
        "pairs": found.pairs,
        "queries": found.queries,
        "anchor_queries": found.n_anchor_queries,
        "retriever": str(found.retriever),
        "vectors": [VECTORS] if VECTORS in {*own.fitted} - own.of_others else [],
        "seconds": round(time.perf_counter() - began, 2),
    }
