"""`crossknn learn`: what searches left behind makes the next ones better."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.common import (
    AsJson,
    CacheFile,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    check_positive,
    open_scorer,
    print_json,
    progress,
    say,
)
from crossknn.errors import InputError

NAME = "learn"


def command(
    folder: Annotated[Path, typer.Argument(help="An index made by `crossknn index`.")],
    retriever: Annotated[
        str, typer.Option(help="The retriever of the searches that are to use it.")
    ] = "hybrid",
    rank: Annotated[int, typer.Option(help="Factors of the covariance, at most.")] = 100,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    cache: CacheFile = None,
    json: AsJson = False,
) -> None:
    """Learn from all exact scores at hand: how items vary together, for `kriging`, and item
    vectors, for `axn`.

    Takes the scores that searches have left in --cache, those that `crossknn fit` paid for and
    those of anchor queries, of this cross-encoder alone; calls none. The index keeps them: a cache
    that has been read is not needed again.
    """
    from crossknn.fitting.log import VECTORS, add_scores, fit_from_log
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.stored import StoredScorer
    from crossknn.spec import parse

    check_positive({"rank": rank})
    if cache is not None and not cache.is_file():
        raise InputError(f"there is no file {cache}: searches make one with  --cache {cache}")
    began = time.perf_counter()
    index, spec = ItemIndex.load(folder), parse(retriever)
    judge = open_scorer(scorer, cache, model, scorer_option)
    if isinstance(judge, StoredScorer):
        add_scores(index, judge.store, judge.fingerprint)
    with progress("learning", "sweeps") as report:
        found = fit_from_log(index, judge.fingerprint, retriever=spec, rank=rank, progress=report)
    seconds = round(time.perf_counter() - began, 2)
    if json:
        fitted = [VECTORS] if VECTORS in index.fitted else []
        print_json({"index": str(folder), **found.meta(), "vectors": fitted, "seconds": seconds})
        return
    anchors = f", {found.anchors} of them anchors" if found.anchors else ""
    say(
        f"learned from {found.pairs:,} scores of {found.queries:,} queries{anchors}, in {seconds} "
        f"s, for searches with  --method 'kriging(retriever={found.retriever})'"
    )
    if VECTORS in index.fitted:
        say(f"item vectors {VECTORS} for axn, which takes them by itself")
    shown = ", ".join(f"{name} {value:g}" for name, value in asdict(found.parameters).items())
    say(f"kernel parameters: {shown}")
