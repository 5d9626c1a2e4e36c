"""What ways of indexing cost before the first query, and what searches of them find (AXN 3.1, B.3-4).

Item vectors are fitted by alternating least squares to the scores of some pairs of train queries and
items; the matrix's anchor queries are the train queries.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate
from crossknn.evaluation.outcome import outcome, truth_of
from crossknn.evaluation.task import TaskMeasures
from crossknn.fitting.factors import Fit, Targets, inner_products, per_item, per_query
from crossknn.methods import parse_method
from crossknn.retrievers.base import ArrayStore, DenseRetriever
from crossknn.scores.sparse import SparseScores
from crossknn.types import FloatArray, Pairs, Queries, Scale
from crossknn_lab.cells import MatrixFile, divided
from crossknn_lab.curves import Curve, curves, draw
from crossknn_lab.experiment import Experiment
from crossknn_lab.figures import TASK, nearest_value
from crossknn_lab.fits import fit_method
from crossknn_lab.page import Block, Table
from crossknn_lab.replay import judgements_of, parts_of
from crossknn_lab.stored import StoredMatrix
from crossknn_lab.sweep_report import percent

MS_PER_CALL = 2.0
"""A cross-encoder call of six layers on a GPU (AXN B.1): no call is made here."""

PER_QUERY, PER_ITEM = (25, 100, 500), (2, 5, 10)
"""Items scored for each train query (the paper's k_d), and train queries for each item."""

RERANK, AXN, ADACUR = "rerank of fitted vectors", "axn of fitted vectors", "adacur"
BY_ITEM, EXACT = "axn of vectors fitted by items in turn", "exact"
OWN = ("rerank(retriever=dense)", "axn(retriever=dense, rounds=10, ridge=0.3, vectors=dense)")
AXN_OF_FITTED = "axn(retriever=dense, rounds=10, ridge=0.3, vectors=als)"
LABELS = {
    OWN[0]: "rerank of the dual encoder",
    OWN[1]: "axn of the dual encoder",
    EXACT: "exact search",
}


def goals(run: Experiment) -> list[tuple[int, int]]:
    """Calls of a search and the k looked at: the papers' (100, 1) and (500, 100), or the nearest."""
    few, many = nearest_value(run.budgets, 100), nearest_value(run.budgets, 500)
    return [(few, run.k[0]), (many, run.k[-1])]


def measured(run: Experiment) -> dict[str, list[dict[str, Any]]]:
    """By matrix: what each way of indexing cost, and what searches of it found."""
    made = {
        data.name: run.once(
            "indexing",
            data,
            partial(_searches, run, data),
            queries=run.preset.queries,
            goals=goals(run),
            sizes=run.anchor_sizes(data),
        )
        for data in run.data
        if "dense" in data.vectors and data.n_anchors
    }
    if not made:
        raise InputError("no matrix has both anchor queries and vectors of a dual encoder")
    return made


def _searches(run: Experiment, data: MatrixFile) -> list[dict[str, Any]]:
    """Every way of indexing a matrix, by number of train queries."""
    matrix = run.matrix(data)
    search = partial(_searched, run)
    free: dict[str, Any] = {"what": "", "train": 0, "calls": 0, "seconds": 0.0}
    found = [search(matrix, spec, spec, **free) for spec in (*OWN, EXACT)]
    for train in run.anchor_sizes(data):
        fewer = matrix if data.fitted else divided(matrix, anchors=train)[0]
        every = free | {"what": "all items", "train": train, "calls": train * data.n_items}
        spec = "adacur(center=none, retriever=dense, rounds=5)"
        found.append(search(fewer, ADACUR, spec, **every))
        for count in PER_QUERY:
            if count < data.n_items:
                fitted, cost = _fit(fewer, "query", count)
                found.append(search(fitted, RERANK, "rerank(retriever=als)", **cost))
                found.append(search(fitted, AXN, AXN_OF_FITTED, **cost))
    for count in PER_ITEM:
        if count <= matrix.n_anchors:
            fitted, cost = _fit(matrix, "item", count)
            found.append(search(fitted, BY_ITEM, AXN_OF_FITTED, **cost))
    return found


def fit_pairs(
    matrix: StoredMatrix, by: str, count: int, spec: str = "als", seed: int = 0
) -> tuple[Fit, int, float]:
    """Fit vectors to scores of the anchors; return the fit, the number of pairs and the fit's seconds.

    G has `count` train queries for each item (`by` "item"), or of each train query ("query") the dual
    encoder's `count` best items, a tenth of them at random for the scale.
    """
    items, train, n = matrix.dense_items, matrix.n_anchors, matrix.n
    assert items is not None
    assert matrix.dense_queries is not None
    queries = matrix.dense_queries[:train]
    names = [str(row) for row in range(train)]
    if by == "item":
        plan = per_item(n, train, count, seed=seed)
    else:
        stage = DenseRetriever(ArrayStore(items), lambda part: part.vectors["dense"])
        batch = Queries(names, {"dense": queries})
        plan = per_query(stage, batch, count, n=n, random=max(1, count // 10), seed=seed)

    def scores(pairs: Pairs) -> FloatArray:
        return matrix.scores[pairs.query, pairs.item]

    g = SparseScores.of(names, n, plan.pairs, scores(plan.pairs))
    products = inner_products(queries, items, plan.random.query, plan.random.item)
    scale = Scale.match(scores(plan.random), products)
    way: Any = fit_method(spec)
    began = time.perf_counter()
    fit = way.factorize(Targets.of(g, items, queries, scale=scale, seed=seed), seed, None)
    return fit, len(g), time.perf_counter() - began


def _fit(matrix: StoredMatrix, by: str, count: int) -> tuple[StoredMatrix, dict[str, Any]]:
    """The matrix with vectors fitted to a sparse G, and what they cost."""
    made, calls, seconds = fit_pairs(matrix, by, count)
    assert made.map is not None
    assert matrix.dense_queries is not None
    fitted = matrix.with_vectors("als", made.items, made.map(matrix.dense_queries), made.scale)
    what = f"{count} per item" if by == "item" else f"{count} items"
    return fitted, {"what": what, "train": matrix.n_anchors, "calls": calls, "seconds": seconds}


def _searched(
    run: Experiment, matrix: StoredMatrix, way: str, spec: str, **cost: Any
) -> dict[str, Any]:
    """The outcome at both goals; the task's measures are of the first one."""
    parts = parts_of(matrix, run.preset.queries)
    truth = truth_of(parts, max(k for _, k in goals(run)))
    judged = judgements_of(matrix)
    found: dict[str, Any] = {"way": way, **cost, "recall": {}, "task": {}}
    for budget, k in goals(run):
        tasks = None if judged is None or found["task"] else TaskMeasures(judged, TASK)
        got = outcome(spec, parse_method(spec), parts, truth, budget=budget, ks=[k], task=tasks)
        row = next(iter(got.rows()))
        found["recall"][str(k)] = [row["recall"], *row["ci"]]
        for name, values in row.get("measures", {}).items():
            if values is not None and (ends := row["measures_ci"][name]) is not None:
                found["task"][name] = [values, *ends]
    return found


def indexing_recall(run: Experiment, *, ways: Sequence[str]) -> list[Block]:
    """Recall against the calls spent for the index, for both goals, on each matrix."""
    blocks: list[Block] = []
    for data, every in measured(run).items():
        found = [r for r in every if r["way"] in (*ways, *OWN)]
        columns = {
            f"top {k} at {budget} calls": [r["recall"][str(k)] for r in found]
            for budget, k in goals(run)
        }
        blocks += _shown(found, columns, f"{data}: recall against offline calls", "recall")
    return blocks


def indexing_task(run: Experiment) -> list[Block]:
    """The task's measures against the calls spent for the index, at the first goal's calls."""
    blocks: list[Block] = []
    for data, every in measured(run).items():
        found = [r for r in every if r["way"] != BY_ITEM and r["task"]]
        columns = {of: [r["task"][of] for r in found] for of in TASK}
        title = f"{data}: the task at {goals(run)[0][0]} calls per query against offline calls"
        blocks += _shown(found, columns, title, "the measure") if found else []
    if not blocks:
        raise InputError("no matrix with a dual encoder and anchor queries has judgements")
    return blocks


def _shown(
    found: Sequence[Mapping[str, Any]], columns: Mapping[str, Sequence[Any]], title: str, y: str
) -> list[Block]:
    """A picture with a panel for each column and a line for each way, and a table of the same.

    `columns` have a mean and the ends of its interval for each search that was `found`.
    """
    panels: dict[str, list[Curve]] = {}
    for head, values in columns.items():
        lines: dict[str, list[tuple[int, Estimate]]] = {}
        for r, cell in zip(found, values, strict=True):
            lines.setdefault(r["way"], []).append((r["calls"], Estimate(*cell)))
        panels[head] = []
        for way, points in lines.items():
            points.sort(key=lambda point: point[0])
            places, means = zip(*points, strict=True)
            name = LABELS.get(way, way)
            panels[head].append(Curve.through(name, [calls or None for calls in places], means))
    axes: dict[str, Any] = {"x_label": "cross-encoder calls for the index", "y_label": y}
    axes |= {"note": "Lines across: no calls were made for the index."}
    alt = f"{title}. A panel for each column of the table, a line for each way of indexing."
    rows = [
        [r["way"], r["train"] or None, r["what"] or None, f"{r['calls']:,}"]
        + [percent(Estimate(*values)) for values in cells]
        for r, *cells in zip(found, *columns.values(), strict=True)
    ]
    table = Table(
        head=["way", "train queries", "scored", "offline calls", *columns],
        rows=rows,
        caption=f"{title} (%) [95%]. Vectors by alternating least squares; AXN in ten rounds.",
        folded=True,
    )
    return [draw(curves, panels, title=title, alt=alt, **axes), table]


def indexing_cost(run: Experiment) -> list[Block]:
    """Minutes of indexing: the cross-encoder's calls, and the fit."""
    blocks: list[Block] = []
    for data, found in measured(run).items():
        rows = [
            [
                r["train"],
                r["what"],
                f"{r['calls']:,}",
                f"{r['calls'] * MS_PER_CALL / 60_000:.1f}",
                f"{r['seconds'] / 60:.2f}",
            ]
            for r in found
            if r["way"] in (AXN, BY_ITEM, ADACUR)
        ]
        caption = (
            f"{data}: what an index costs, calls at {MS_PER_CALL:g} ms each on one device (AXN "
            "B.1), fitting as measured; `all items` are ANNCUR's and ADACUR's."
        )
        head = ["train queries", "scored", "calls", "minutes of calls", "minutes of fitting"]
        blocks.append(Table(head=head, rows=rows, caption=caption))
    return blocks
