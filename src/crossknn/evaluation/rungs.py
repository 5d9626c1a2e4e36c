"""What methods find after a search with a cheaper scorer, beside what they find alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import mul

import numpy as np

from crossknn.data.queries import query_set
from crossknn.evaluation.compare import Evaluation, query_batches
from crossknn.evaluation.outcome import Outcome
from crossknn.methods import Method
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import FloatArray, Progress


def after_cheaper(
    searcher: Searcher,
    evaluation: Evaluation,
    exact: FloatArray | None,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    progress: Progress,
) -> Iterator[tuple[tuple[int, ...], Outcome]]:
    """Yield the outcome of each method and budget after the searches with the cheaper scorers of
    `searcher`, after the numbers of pairs that these score for a query. Queries, measures and exact
    scores (m, n) are those of `evaluation`; `progress` counts budgets."""
    assert searcher.cheaper is not None
    texts = [text for batch in evaluation.batches for text in batch.queries.texts]
    for done, budget in enumerate(budgets):
        progress(done, len(budgets))
        *cheaper, _ = searcher.budgets(Budget(per_query=budget))
        index = searcher.index.after_search(searcher.cheaper.as_retriever(cheaper))
        batches = query_batches(index, query_set(texts), searcher.scorer, exact)
        after = replace(evaluation, batches=batches, _outcomes={})
        for outcome in after.outcomes(methods, [budget]):
            name = f"{outcome.method}, after {' + '.join(map(str, cheaper))} cheaper calls"
            yield tuple(cheaper), replace(outcome, method=name)


def sentence(
    alone: Sequence[Outcome], cheaper: Sequence[int], outcome: Outcome, seconds: Sequence[float]
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
    own = sum(map(mul, (*cheaper, outcome.budget), seconds))
    other = (enough[0] if enough else most) * seconds[-1]
    return (
        f"{outcome.budget} calls after {' + '.join(map(str, cheaper))} of the cheaper scorer "
        f"find {than} ({what} {value(outcome):.3f} and {budgets[enough[0] if enough else most]:.3f}"
        f"), in {own:.2g} s of scoring instead of {other:.2g} s."
    )
