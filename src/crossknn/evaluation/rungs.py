"""What the default search finds after a search with cheaper scorers, beside what it finds alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import mul

import numpy as np

from crossknn.evaluation.compare import Evaluation
from crossknn.evaluation.measures import paired
from crossknn.evaluation.outcome import Outcome
from crossknn.methods import DEFAULT, Method, parse_method
from crossknn.search.ladder import CHEAPER_SHARE, Rate, affordable
from crossknn.search.searcher import Searcher
from crossknn.table import Cell, Table
from crossknn.types import Progress

SHARES = (CHEAPER_SHARE, 0.3, 0.5)
"""Shares of the time that a cheaper scorer may take in `splits_of`."""


def after_cheaper(
    searcher: Searcher,
    evaluation: Evaluation,
    methods: Mapping[str, Method],
    splits: Sequence[tuple[int, ...]],
    progress: Progress,
) -> Iterator[tuple[tuple[int, ...], Outcome]]:
    """Yield the outcome of each method after the searches with the cheaper scorers of `searcher`,
    for each split: the numbers of pairs that all scorers score for a query. Queries, measures and
    exact scores are those of `evaluation`; `progress` counts splits."""
    assert searcher.cheaper is not None
    for done, split in enumerate(splits):
        progress(done, len(splits))
        *cheaper, budget = split
        index = searcher.of_scorer().after_search(searcher.cheaper.as_retriever(cheaper))
        batches = [replace(batch, index=index) for batch in evaluation.batches]
        after = replace(evaluation, batches=batches, _outcomes={})
        for found in after.outcomes(methods, [budget]):
            name = f"{found.method}, after {' + '.join(map(str, cheaper))} cheaper calls"
            yield split, replace(found, method=name)


def splits_of(
    searcher: Searcher,
    evaluation: Evaluation,
    budget: int,
    rates: Sequence[Rate],
    progress: Progress,
) -> Table:
    """Tabulate what the default search finds in the time of `budget` calls of the last scorer,
    alone and with several splits of that time between the scorers."""
    seconds = [rate.seconds or 0.0 for rate in rates]
    methods, k = {DEFAULT: parse_method(DEFAULT)}, max(evaluation.ks)
    (alone,) = evaluation.outcomes(methods, [budget])
    time, n = budget * seconds[-1], len(searcher.index)
    splits = {affordable(rates, time, n, of_time=True, share=share) for share in SHARES}
    after = after_cheaper(searcher, evaluation, methods, sorted(splits), progress)
    lines = list[list[Cell]]()
    for split, outcome in [((budget,), alone), *after]:
        spent = sum(map(mul, split, seconds[-len(split) :]))
        line: list[Cell] = [" + ".join(map(str, split)), float(f"{spent:.2g}")]
        pairs = [(outcome.recall[k], alone.recall[k])]
        pairs += [(outcome.task[name], alone.task[name]) for name in outcome.task]
        for own, before in pairs:
            line.append(round(100 * float(np.nanmean(own)), 1))
            gain = paired(100 * (own - before))
            interval = f"{gain.difference:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"
            line.append(None if outcome is alone else interval)
        lines.append(line)
    names = [f"top {k} found, %", *(f"{name}, %" for name in alone.task)]
    columns = [column for name in names for column in (name, "gain [95%]")]
    about = f"Calls of each scorer in the time of {budget} of the last one"
    return Table(head=["calls", "seconds", *columns], rows=lines, caption=about)


def sentence_after(
    alone: Sequence[Outcome], split: Sequence[int], after: Outcome, seconds: Sequence[float | None]
) -> str:
    """Say how many calls alone find as much, by the measure, or else by recall of the k best;
    `seconds` are those of a pair by each scorer, None if unknown."""
    name = next(iter(after.task), None)
    k = max(after.recall, default=0)

    def value(of: Outcome) -> float:
        return float(np.nanmean(of.task[name] if name is not None else of.recall[k]))

    found, values = value(after), {each.budget: value(each) for each in alone}
    enough = [budget for budget in values if values[budget] >= found]
    calls, than = min(enough, default=max(values)), "as much as at most"
    if found < min(values.values()) or not enough:
        than = "less than" if enough else "more than"
    text = (
        f"{after.budget} calls after {' + '.join(map(str, split[:-1]))} of the cheaper scorer find "
        f"{than} {calls} alone ({name or f'recall of the {k} best'} {found:.3f} and "
        f"{values[calls]:.3f})"
    )
    if None in seconds:
        return f"{text}."
    own = sum(map(mul, split, (each or 0.0 for each in seconds)))
    return f"{text}, in {own:.2g} s of scoring instead of {calls * (seconds[-1] or 0.0):.2g} s."
