"""Ways of indexing (AXN 3.1, B.3-4): what each is paid before the first query, and what searches of
it find.

Item vectors are fitted by alternating least squares to the scores of some pairs of train queries
and items; the matrix's anchor queries are the train queries.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from crossknn.errors import InputError
from crossknn.evaluation.replay import outcome, parts_of, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.fitting.als import als
from crossknn.fitting.factors import Targets, inner_products
from crossknn.fitting.pairs import PairPlan, per_item, per_query
from crossknn.index.base import Scale
from crossknn.index.stored import StoredMatrix
from crossknn.methods import method
from crossknn.retrievers.base import DenseRetriever
from crossknn.scores.views import SparseScores
from crossknn.types import FloatArray, Pairs, Queries
from crossknn_lab.report.data import Data
from crossknn_lab.report.exhibits.found import TASK, nearest
from crossknn_lab.report.exhibits.sweeps import anchor_sizes
from crossknn_lab.report.study import Study
from crossknn_lab.sweep_data import divided

FITTED = "als"
PER_QUERY, PER_ITEM = (25, 100, 500), (2, 5, 10)
"""Items scored for each train query (the paper's k_d), and train queries for each item."""

RNR, AXN, ADACUR = "rerank of fitted vectors", "axn of fitted vectors", "adacur"
BY_ITEM = "axn of vectors fitted by items in turn"
EXACT = "exact"
OWN = ("rerank(retriever=dense)", "axn(retriever=dense, rounds=10, ridge=0.3, vectors=dense)")
AXN_OF_FITTED = f"axn(retriever=dense, rounds=10, ridge=0.3, vectors={FITTED})"


class Goal(NamedTuple):
    """Calls of a search, and the k that is looked at."""

    budget: int
    k: int


def goals(study: Study) -> list[Goal]:
    """The papers' k = 1 at 100 calls and k = 100 at 500, or the nearest."""
    return [
        Goal(nearest(study.budgets, 100), study.k[0]),
        Goal(nearest(study.budgets, 500), study.k[-1]),
    ]


def measured(study: Study) -> dict[str, list[dict[str, Any]]]:
    """By matrix: what each way of indexing cost, and what searches of it found."""
    made = {
        data.name: study.once(
            "indexing",
            data,
            partial(_searches, study, data),
            queries=study.preset.queries,
            goals=goals(study),
            sizes=anchor_sizes(study.preset, data),
            wide=study.preset.settings,
        )
        for data in study.data
        if "dense" in data.vectors and data.file.n_anchors
    }
    if not made:
        raise InputError("no matrix has both anchor queries and vectors of a dual encoder")
    return made


def _searches(study: Study, data: Data) -> list[dict[str, Any]]:
    """Every way of indexing a matrix, by number of train queries."""
    matrix, wide = study.matrix(data), study.preset.settings
    free: dict[str, Any] = {"what": "", "train": 0, "calls": 0, "seconds": 0.0}
    found = [_searched(study, matrix, spec, spec, **free) for spec in (*OWN, EXACT)]
    for train in anchor_sizes(study.preset, data):
        fewer = divided(matrix, anchors=train)[0] if data.divisible else matrix
        cost: dict[str, Any] = {"calls": train * data.file.n_items, "seconds": 0.0}
        cost |= {"what": "all items", "train": train}
        found.append(
            _searched(
                study, fewer, ADACUR, "adacur(center=none, retriever=dense, rounds=5)", **cost
            )
        )
        for count in PER_QUERY if wide else PER_QUERY[:2]:
            if count < data.file.n_items:
                fitted, cost = _fit(matrix, train, count, by_item=False)
                cost["what"] = f"{count} items"
                found.append(_searched(study, fitted, RNR, f"rerank(retriever={FITTED})", **cost))
                found.append(_searched(study, fitted, AXN, AXN_OF_FITTED, **cost))
    train = matrix.n_anchors
    for count in PER_ITEM if wide else PER_ITEM[1:2]:
        if count <= train:
            fitted, cost = _fit(matrix, train, count, by_item=True)
            cost["what"] = f"{count} per item"
            found.append(_searched(study, fitted, BY_ITEM, AXN_OF_FITTED, **cost))
    return found


def _fit(
    matrix: StoredMatrix, train: int, count: int, *, by_item: bool
) -> tuple[StoredMatrix, dict[str, Any]]:
    """The matrix with vectors fitted to a sparse G, and what they cost."""
    assert matrix.item_vectors is not None
    assert matrix.query_vectors is not None
    items, queries, n = matrix.item_vectors, matrix.query_vectors[:train], matrix.scores.shape[1]
    plan = per_item(n, train, count) if by_item else _of_queries(items, queries, count)
    names = [str(row) for row in range(train)]

    def scores(pairs: Pairs) -> FloatArray:
        return matrix.scores[pairs.query, pairs.item]

    g = SparseScores.of(names, n, plan.pairs, scores(plan.pairs))
    products = inner_products(queries, items, plan.random.query, plan.random.item)
    scale = Scale.match(scores(plan.random), products)
    made = als(Targets.of(g, items, queries, scale=scale))
    assert made.map is not None
    fitted = matrix.with_vectors(FITTED, made.items, made.map(matrix.query_vectors), made.scale)
    return fitted, {"train": train, "calls": len(g), "seconds": made.seconds}


def _of_queries(items: FloatArray, queries: FloatArray, count: int) -> PairPlan:
    """Of each train query the dual encoder's best, and a tenth at random for the scale."""
    batch = Queries([str(row) for row in range(len(queries))], {"dense": queries})
    stage = DenseRetriever(items, lambda part: part.vectors["dense"])
    return per_query(stage, batch, count, n=len(items), random=max(1, count // 10))


def _searched(
    study: Study, matrix: StoredMatrix, way: str, spec: str, *, what: str, **cost: Any
) -> dict[str, Any]:
    """The outcome at both goals; the task's measures are of the first one."""
    parts = parts_of(matrix, study.preset.queries)
    truth = truth_of(parts, max(goal.k for goal in goals(study)))
    judged = Judgements.of_matrix(matrix)
    found: dict[str, Any] = {"way": way, "what": what, **cost, "recall": {}, "task": {}}
    for goal in goals(study):
        tasks = None if judged is None or found["task"] else TaskMeasures(judged, TASK)
        got = outcome(spec, method(spec), parts, truth, budget=goal.budget, ks=[goal.k], task=tasks)
        row = next(iter(got.rows()))
        found["recall"][str(goal.k)] = [row.recall, *row.ci]
        found["queries"] = row.n_queries
        for name, values in row.measures.items():
            if values is not None and (ends := row.measures_ci[name]) is not None:
                found["task"][name] = [values, *ends]
    return found
