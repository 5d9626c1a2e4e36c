"""Methods at equal budgets on the user's own queries, against exact search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crossknn.data.queries import Qrels, QuerySet
from crossknn.evaluation.replay import BATCH, Outcome, outcomes
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
    """Compare methods with exact search, given the exact scores of all pairs.

    Args:
        scores: of every query with every item (m, n).
        methods: by name, e.g. from `crossknn.methods.methods`.
        budgets: calls per query. A method that makes no calls has one budget, 0.
        ks: the depths of recall.
        qrels: judgements, for the task's own `measures`.

    Returns:
        What exact search itself gives, and every method at every budget, searched as it is asked
        for.
    """
    task = task_measures(index, queries, qrels, measures) if qrels and measures else None
    parts = [
        (index, Queries(queries.texts[s : s + BATCH]), scores[s : s + BATCH])
        for s in range(0, len(queries), BATCH)
    ]
    [exact] = outcomes(parts, {"exact": method("exact")}, [index.n], ks, seed=seed, task=task)
    return exact, outcomes(parts, methods, budgets, ks, seed=seed, task=task)
