"""Methods at equal budgets on the user's own queries, against exact search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crossknn.data.queries import Qrels, QuerySet
from crossknn.evaluation.measures import exact_top
from crossknn.evaluation.replay import BATCH, RecallRow, outcome
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.indexes.item_index import ItemIndex
from crossknn.methods import Method, method
from crossknn.types import FloatArray, Queries


@dataclass(frozen=True, slots=True)
class MethodRows:
    """A method at a budget: recall against exact search, and the task's own measures if judged."""

    recall: tuple[RecallRow, ...]

    @property
    def task(self) -> Mapping[str, float | None]:
        """The task's measures, None where no query has a value."""
        return self.recall[0].measures

    def as_dicts(self) -> Iterator[dict[str, object]]:
        """One JSON-ready row for each k, task measures included."""
        return (row.as_dict() for row in self.recall)


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
) -> Iterator[tuple[str, MethodRows]]:
    """Rows of every method and budget, given the exact scores (m, n) of all pairs.

    Exact search itself comes first, under the name `exact`. A method that makes no calls has one
    budget, 0.
    """
    truth = exact_top(scores, max(ks))
    task = task_measures(index, queries, qrels, measures) if qrels and measures else None
    parts = [
        (index, Queries(queries.texts[s : s + BATCH]), scores[s : s + BATCH])
        for s in range(0, len(queries), BATCH)
    ]
    runs = [("exact", method("exact"), index.n)]
    for name, found in methods.items():
        runs += [(name, found, budget) for budget in (budgets if found.calls else (0,))]
    for name, found, budget in runs:
        made = outcome(name, found, parts, truth, budget=budget, ks=ks, seed=seed, task=task)
        yield name, MethodRows(tuple(made.rows()))
