"""What methods find after a search with a cheaper scorer, beside what they find alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import mul

import numpy as np

from crossknn.data.queries import query_set
from crossknn.evaluation.compare import Evaluation, query_batches
from crossknn.evaluation.measures import paired
from crossknn.evaluation.outcome import Outcome
from crossknn.methods import DEFAULT, Method, parse_method
from crossknn.search.ladder import CHEAPER_SHARE, Rate, affordable
from crossknn.search.searcher import Searcher
from crossknn.table import Cell, Table
from crossknn.types import FloatArray, Progress

SHARES = (0.15, CHEAPER_SHARE, 0.5)
"""Shares of the time that the cheaper scorers may take in `splits_of`."""


def after_cheaper(
    searcher: Searcher,
    evaluation: Evaluation,
    exact: FloatArray | None,
    methods: Mapping[str, Method],
    splits: Sequence[tuple[int, ...]],
    progress: Progress,
) -> Iterator[tuple[tuple[int, ...], Outcome]]:
    """Yield the outcome of each method after the searches with the cheaper scorers of `searcher`,
    for each split: the numbers of pairs that all scorers score for a query. Queries, measures and
    exact scores (m, n) are those of `evaluation`; `progress` counts splits."""
    assert searcher.cheaper is not None
    texts = [text for batch in evaluation.batches for text in batch.queries.texts]
    for done, split in enumerate(splits):
        progress(done, len(splits))
        *cheaper, budget = split
        index = searcher.index.after_search(searcher.cheaper.as_retriever(cheaper))
        batches = query_batches(index, query_set(texts), searcher.scorer, exact)
        after = replace(evaluation, batches=batches, _outcomes={})
        for outcome in after.outcomes(methods, [budget]):
            name = f"{outcome.method}, after {' + '.join(map(str, cheaper))} cheaper calls"
            yield split, replace(outcome, method=name)


def splits_of(
    searcher: Searcher,
    evaluation: Evaluation,
    exact: FloatArray,
    budget: int,
    rates: Sequence[Rate],
    progress: Progress,
) -> Table:
    """Tabulate what the default search finds in the time of `budget` calls of the last scorer,
    alone and with several splits between the scorers."""
    seconds, n = budget * rates[-1].seconds, len(searcher.index)
    methods, k = {DEFAULT: parse_method(DEFAULT)}, max(evaluation.ks)
    (alone,) = evaluation.outcomes(methods, [budget])
    splits = {affordable(rates, seconds, n, of_time=True, share=share) for share in SHARES}
    tried = after_cheaper(searcher, evaluation, exact, methods, sorted(splits), progress)
    lines = list[list[Cell]]()
    for split, outcome in [((budget,), alone), *tried]:
        spent = sum(map(mul, split, [rate.seconds for rate in rates][-len(split) :]))
        line: list[Cell] = [" + ".join(map(str, split)), float(f"{spent:.2g}")]
        pairs = [(outcome.recall[k], alone.recall[k])]
        pairs += [(outcome.task[name], alone.task[name]) for name in outcome.task]
        for own, before in pairs:
            line.append(round(100 * float(np.nanmean(own)), 1))
            line.append(None if outcome is alone else str(paired(100 * (own - before))))
        lines.append(line)
    names = [f"top {k} found, %", *(f"{name}, %" for name in alone.task)]
    columns = [column for name in names for column in (name, "gain [95%]")]
    about = f"Calls of each scorer in the time of {budget} of the last one"
    return Table(head=["calls", "seconds", *columns], rows=lines, caption=about)


def sentence(
    alone: Sequence[Outcome], split: Sequence[int], outcome: Outcome, seconds: Sequence[float]
) -> str:
    """Say how many calls alone find as much, by the measure, or else by recall of the k best;
    `seconds` are those of a pair by each scorer."""
    name = next(iter(outcome.task), None)
    k = max(outcome.recall, default=0)
    what = name if name is not None else f"recall of the {k} best"

    def value(of: Outcome) -> float:
        return float(np.nanmean(of.task[name] if name is not None else of.recall[k]))

    budgets = {each.budget: value(each) for each in alone}
    enough = [budget for budget, found in sorted(budgets.items()) if found >= value(outcome)]
    most = max(budgets)
    than = f"as much as {enough[0]} alone" if enough else f"more than {most} alone"
    own = sum(map(mul, split, seconds))
    other = (enough[0] if enough else most) * seconds[-1]
    return (
        f"{outcome.budget} calls after {' + '.join(map(str, split[:-1]))} of the cheaper scorer "
        f"find {than} ({what} {value(outcome):.3f} and {budgets[enough[0] if enough else most]:.3f}"
        f"), in {own:.2g} s of scoring instead of {other:.2g} s."
    )
