"""`crossknn fit`: fit an index to exact scores, so that every later search finds more."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers.base import Scorer

EPILOG = o.examples(
    "crossknn fit docs.index als --queries train-queries.jsonl --deadline 30m",
    "crossknn fit docs.index stored --retriever 'hybrid(bm25, dense)'",
)

JUDGED = "fusion", "calibration"
"""What is fitted to judgements, and makes no item vectors."""


def command(
    folder: o.Folder,
    method: Annotated[
        str,
        Argument(
            help="als, mf-trns, mf-ind, cur or distill, perhaps with options: item vectors. "
            "stored: kriging's prior and item vectors, from the stored scores; calls no scorer. "
            "fusion: the weights of retrievers' scores beside the exact one. "
            "calibration: probabilities of relevance, from --qrels."
        ),
    ] = "als",
    queries: Annotated[
        str | None,
        Option(
            help="Train queries: a file, or 'auto' for queries made from the items. Required, but "
            "for 'stored'."
        ),
    ] = None,
    qrels: Annotated[
        Path | None, Option(help="Judgements that fusion or calibration is fitted to.")
    ] = None,
    plot: Annotated[
        Path | None, Option(help="With calibration: save its reliability to this picture.")
    ] = None,
    strategy: Annotated[
        Literal["q", "i"],
        Option(help="q: score --per items for each query. i: --per queries for each item."),
    ] = "q",
    per: Annotated[
        int | None,
        Option(min=1, help="100 items (q, fusion, calibration) or 5 queries (i) by default."),
    ] = None,
    retriever: Annotated[str | None, Option(help="Picks the items of strategy q.")] = None,
    count: Annotated[
        int | None, Option(min=1, help="How many train queries: all, or 500 of 'auto'.")
    ] = None,
    name: Annotated[str | None, Option(help="The vectors' name; by default the method's.")] = None,
    vectors: Annotated[str, Option(help="The item vectors to start from.")] = "auto",
    rank: Annotated[int, Option(min=1, help="With stored: factors of the covariance.")] = 100,
    max_calls: o.MaxCalls = None,
    deadline: o.Deadline = None,
    workers: o.Workers = None,
    ray: o.Ray = None,
    start: Annotated[str | None, Option(help="The dual encoder that distill starts from.")] = None,
    encoder_out: Annotated[Path | None, Option(help="Where distill saves its encoder.")] = None,
    replace: o.Replace = False,
    scorer: o.ScorerName = "bundled",
    model: o.ScorerModel = None,
    scorer_option: o.ScorerOptions = None,
    store: o.Store = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Fit an index to exact scores of train queries; later searches use what was fitted.

    With item vectors or kriging's prior they find more. With a fusion they order answers by a final
    score, the exact one plus the retrievers' weighted scores. With a calibration they say how
    probable it is that a hit is relevant.

    Scores are kept in the index batch by batch: after an interruption the same command resumes,
    and no pair is scored twice.
    """
    from crossknn.data.queries import QuerySet
    from crossknn.data.reading import read_qrels
    from crossknn.fitting.fit import fit
    from crossknn.fitting.pseudo_queries import pseudo_queries
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.collect import Limits

    at_once = o.threads(workers)
    if method == "stored":
        if queries is not None:
            raise InputError("fit stored takes the scores that are there: leave --queries out")
        index = ItemIndex.load(folder)
        exact = o.open_scorer(scorer, model, scorer_option)
        _take(index, exact, store)
        answer(_fit_stored(index, exact, retriever, rank), json)
        return
    own = name or retriever or ray or (vectors, strategy) != ("auto", "q")
    if own and method in JUDGED:
        raise InputError(
            f"fit {method} makes no item vectors: leave --name, --vectors, --strategy, --retriever "
            "and --ray out"
        )
    if plot is not None and method != "calibration":
        raise InputError("--plot draws a calibration: leave it out")
    o.check_picture("--plot", plot)
    judged = None if qrels is None else read_qrels(qrels)
    if method == "calibration" and judged is None:
        raise InputError("calibration is fitted to judgements: give them with --qrels FILE")
    if queries is None:
        raise InputError("--queries is missing: give a file of train queries, or 'auto'")
    if ray and (model or scorer_option or o.is_url(scorer)):
        raise InputError(
            "--ray is for a cross-encoder that every worker opens as it is: leave it out for one "
            "behind a URL or with options, and say with --workers how many ask at a time"
        )
    index = ItemIndex.load(folder)
    if queries == "auto":
        texts = tuple(pseudo_queries(index.items, count or 500, seed=seed))
        asked = QuerySet(texts, texts)
    else:
        asked = o.read_queries(Path(queries), count)
    share = 1 if method == "calibration" else at_once  # a search scores on one thread
    given = scorer if ray else o.open_scorer(scorer, model, scorer_option, workers=share)
    _take(index, given, store)
    limits = Limits(workers=at_once, ray=ray, max_calls=max_calls, deadline=deadline)
    if method in JUDGED and not isinstance(given, str):
        from crossknn.fitting.calibration import fit_calibration
        from crossknn.fitting.fusion import fit_fusion
        from crossknn.search.searcher import Budget

        with progress("scoring", "pairs") as report:
            options: dict[str, Any] = {"seed": seed, "progress": report}
            if judged is None or method == "fusion":
                options |= {"depth": per or 100, "limits": limits}
                kept = fit_fusion(index, given, asked, judged, **options)
            else:
                options["budget"] = Budget(per_query=per, deadline=deadline)
                kept = fit_calibration(index, given, asked, judged, **options)
        if plot is not None:
            from crossknn.plots import reliability_plot

            reliability_plot(kept, plot)
        answer(kept, json)
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
        limits=limits,
        replace=replace,
        start=start,
        encoder_out=encoder_out,
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
    note(f"searches use it from now on; vectors={found.name} or retriever={found.name} name it")


def _take(index: ItemIndex, exact: Any, store: Path | None) -> None:
    """Take the scores of a store that several indexes share into the index's own."""
    if store is None:
        return
    from crossknn.fitting.fit import add_scores
    from crossknn.scores.store import ScoreStore

    if not store.is_file():
        raise InputError(f"there is no file {store}: searches make one with  --store {store}")
    fingerprint = getattr(exact, "fingerprint", None)
    if fingerprint is None:
        raise InputError("--store keeps scores by model: name the cross-encoder, without --ray")
    add_scores(index, ScoreStore(store), fingerprint)


def _fit_stored(
    index: ItemIndex, scorer: Scorer, retriever: str | None, rank: int
) -> dict[str, Any]:
    """Fit to the scores that the index has; what was fitted."""
    from crossknn.fitting.learning import VECTORS, fit_from_store
    from crossknn.retrievers.specs import HYBRID
    from crossknn.spec import parse

    began = time.perf_counter()
    spec = HYBRID if retriever is None else parse(retriever)
    found = fit_from_store(index, scorer, retriever=spec, rank=rank)
    note(f"use it with --method 'kriging(retriever={found.retriever})'; axn takes its vectors")
    return {
        "pairs": found.pairs,
        "queries": found.queries,
        "anchor_queries": found.n_anchor_queries,
        "retriever": str(found.retriever),
        "parameters": asdict(found.parameters),
        "vectors": [VECTORS] if VECTORS in index.fitted else [],
        "seconds": round(time.perf_counter() - began, 2),
    }
