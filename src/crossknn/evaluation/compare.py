"""Methods at equal budgets on the user's own queries, against exact search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crossknn.data.queries import Qrels, QuerySet
from crossknn.evaluation.measures import exact_top
from crossknn.evaluation.replay import BATCH, Outcome, outcome
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.index.item_index import ItemIndex
from crossknn.methods import Method, method
from crossknn.types import FloatArray, Queries


def task_measures(
    index: ItemIndex, queries: QuerySet, qrels: Qrels, measures: Sequence[str]
) -> TaskMeasures:
    """The task's measures of these queries, by their qrels."""
    return TaskMeasures(Judgements.from_qrels(qrels, queries.ids, index.items.ids), measures)


def compare(
    index: ItemIndex,
    queries: QuerySet,
    scores: FloatArray,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    qrels: Qrels | None = None,
    measures: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Outcome, Iterator[Outcome]]:
    """Exact search itself, and every method and budget, given the exact scores (m, n) of all pairs.

    The methods are searched as they are asked for. One that makes no calls has one budget, 0.
    """
    truth = exact_top(scores, max(ks))
    task = task_measures(index, queries, qrels, measures) if qrels and measures else None
    parts = [
        (index, Queries(queries.texts[s : s + BATCH]), scores[s : s + BATCH])
        for s in range(0, len(queries), BATCH)
    ]

    def made(name: str, chosen: Method, budget: int) -> Outcome:
        return outcome(name, chosen, parts, truth, budget=budget, ks=ks, seed=seed, task=task)

    return made("exact", method("exact"), index.n), (
        made(name, chosen, budget)
        for name, chosen in methods.items()
        for budget in (budgets if chosen.calls else (0,))
    )
