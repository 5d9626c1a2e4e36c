"""Recall, and the task's measures, against what was paid before the first query (AXN 3.1, B.3-4).

Item vectors are fitted by alternating least squares to the scores of some pairs of train queries
and items; the matrix's anchor queries are the train queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from crossknn.align.als import als
from crossknn.align.factors import Targets, inner_products
from crossknn.align.plan import Plan, per_item, per_query
from crossknn.errors import InputError
from crossknn.evaluation.replay import RecallRow, outcome, parts_of, truth_of
from crossknn.evaluation.sweep_data import divided
from crossknn.evaluation.task import ACCURACY, Judgements, TaskMeasures
from crossknn.first.vectors import VectorFirst
from crossknn.indexes.base import Scale
from crossknn.indexes.sparse import SparseScores
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import method
from crossknn.plots import Bar, Stack, grouped_bars, recall_against_indexing, stacked_bars
from crossknn.report.data import Data
from crossknn.report.exhibits.found import nearest
from crossknn.report.exhibits.latency import MS_PER_CALL
from crossknn.report.exhibits.sweeps import anchor_sizes
from crossknn.report.page import Block, TableOf, draw
from crossknn.report.study import Study
from crossknn.types import Pairs, Queries

FITTED = "als"
PER_QUERY, PER_ITEM = (25, 100, 500), (2, 5, 10)
"""Items scored for each train query (the paper's k_d), and train queries for each item."""

TASK = (ACCURACY, "nDCG@10", "R@100")
RNR, AXN, ADACUR = "rnr of fitted vectors", "axn of fitted vectors", "adacur"
BY_ITEM = "axn of vectors fitted by items in turn"
EXACT = "exact"
OWN = ("rnr(first=de)", "axn(first=de, rounds=10, ridge=0.3, vectors=de)")


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


def recall(study: Study, *, ways: Sequence[str] = (RNR, AXN, ADACUR)) -> list[Block]:
    """Recall against the calls paid for the index, for both goals, on each matrix."""
    blocks: list[Block] = []
    for data, found in _found(study).items():
        for goal in goals(study):
            shown = [_row(r, goal) for r in found if r["way"] in (*ways, *OWN)]
            title = f"{data}: recall against offline calls"
            alt = f"{title}, top {goal.k} at {goal.budget} calls per query, a line for each way."
            blocks.append(draw(recall_against_indexing, shown, title=title, alt=alt))
        blocks.append(_table(study, data, found))
    return blocks


def task(study: Study) -> list[Block]:
    """The task's measure at 100 calls, a group for each way of indexing; exact search too."""
    blocks: list[Block] = []
    for data, found in _found(study).items():
        if not found[0]["task"]:
            continue
        best = {
            way: max((r for r in found if r["way"] == way), key=lambda r: r["calls"])
            for way in dict.fromkeys(r["way"] for r in found)
        }
        bars = [
            Bar(group=measure, name=way, **_ends(r["task"][measure]))
            for measure in TASK
            for way, r in best.items()
        ]
        title = f"{data}: the task's measures at {goals(study)[0].budget} calls per query"
        options = {"title": title, "y_label": "the measure (%)"}
        blocks.append(draw(grouped_bars, bars, alt=f"{title}: bars.", **options))
    if not blocks:
        raise InputError("no matrix with vectors of a dual encoder and anchor queries has labels")
    return blocks


def cost(study: Study) -> list[Block]:
    """Minutes of indexing: the cross-encoder's calls, and the fit."""
    blocks: list[Block] = []
    for data, found in _found(study).items():
        stacks = [
            Stack(
                group=f"{r['train']} train queries",
                name=r["what"],
                parts={
                    "scores": r["calls"] * MS_PER_CALL / 60_000,
                    "fitting": r["seconds"] / 60,
                },
            )
            for r in found
            if r["way"] in (AXN, BY_ITEM, ADACUR)
        ]
        title = f"{data}: minutes of indexing"
        note = f"Scores at {MS_PER_CALL:g} ms a call (AXN B.1), on one device; fitting: measured."
        alt = f"{title}. Stacked bars, a panel for each number of train queries."
        options = {"title": title, "note": note, "y_label": "minutes"}
        blocks += [draw(stacked_bars, stacks, alt=alt, **options), _costs(data, found)]
    return blocks


def _found(study: Study) -> dict[str, list[dict[str, Any]]]:
    """By matrix: what each way of indexing cost, and what searches of it found."""
    made = {
        data.name: study.once(
            "indexing",
            data,
            partial(_rows, study, data),
            queries=study.preset.queries,
            goals=goals(study),
            sizes=anchor_sizes(study.preset, data),
            wide=study.preset.settings,
        )
        for data in study.data
        if "de" in data.vectors and data.file.n_anchors
    }
    if not made:
        raise InputError("no matrix has both anchor queries and vectors of a dual encoder")
    return made


def _rows(study: Study, data: Data) -> list[dict[str, Any]]:
    return list(_searches(study, data))


def _searches(study: Study, data: Data) -> Iterator[dict[str, Any]]:
    matrix = study.matrix(data)
    wide = study.preset.settings
    for spec in (*OWN, EXACT):
        yield _searched(study, matrix, spec, spec, what="", train=0, calls=0, seconds=0.0)
    for train in anchor_sizes(study.preset, data):
        fewer = divided(matrix, anchors=train)[0] if data.divisible else matrix
        cost = {"train": train, "seconds": 0.0, "calls": train * data.file.n_items}
        spec = "adacur(first=de, rounds=5)"
        yield _searched(study, fewer, ADACUR, spec, what="all items", **cost)
        for count in PER_QUERY if wide else PER_QUERY[:2]:
            if count < data.file.n_items:
                fitted, cost = _fit(matrix, train, count, by_item=False)
                what = f"{count} items"
                for way, spec in ((RNR, f"rnr(first={FITTED})"), (AXN, AXN_OF_FITTED)):
                    yield _searched(study, fitted, way, spec, what=what, **cost)
    train = matrix.n_anchors
    for count in PER_ITEM if wide else PER_ITEM[1:2]:
        if count <= train:
            fitted, cost = _fit(matrix, train, count, by_item=True)
            what = f"{count} per item"
            yield _searched(study, fitted, BY_ITEM, AXN_OF_FITTED, what=what, **cost)


AXN_OF_FITTED = f"axn(first=de, rounds=10, ridge=0.3, vectors={FITTED})"


def _fit(
    matrix: StoredMatrix, train: int, count: int, *, by_item: bool
) -> tuple[StoredMatrix, dict[str, Any]]:
    """The matrix with vectors fitted to a sparse G, and what they cost."""
    assert matrix.item_vectors is not None
    assert matrix.query_vectors is not None
    items, queries, n = matrix.item_vectors, matrix.query_vectors[:train], matrix.scores.shape[1]
    plan = per_item(n, train, count) if by_item else _of_queries(items, queries, count)
    names = [str(row) for row in range(train)]

    def scores(pairs: Pairs) -> Any:
        return matrix.scores[pairs.query, pairs.item]

    g = SparseScores.of(names, n, plan.pairs, scores(plan.pairs))
    products = inner_products(queries, items, plan.chance.query, plan.chance.item)
    scale = Scale.match(scores(plan.chance), products)
    made = als(Targets.of(g, items, queries, scale=scale))
    assert made.map is not None
    fitted = matrix.with_vectors(FITTED, made.items, made.map(matrix.query_vectors), made.scale)
    return fitted, {"train": train, "calls": len(g), "seconds": made.seconds}


def _of_queries(items: Any, queries: Any, count: int) -> Plan:
    """Of each train query the dual encoder's best, and a tenth at random for the scale."""
    batch = Queries([str(row) for row in range(len(queries))], {"de": queries})
    stage = VectorFirst(items, lambda part: part.vectors["de"])
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


def _row(found: Mapping[str, Any], goal: Goal) -> RecallRow:
    recall, low, high = found["recall"][str(goal.k)]
    return RecallRow(
        method=found["way"],
        k=goal.k,
        budget=goal.budget,
        recall=recall,
        ci=(low, high),
        n_queries=found["queries"],
        calls=goal.budget,
        seconds=0.0,
        seed=0,
        index_calls=found["calls"],
    )


def _table(study: Study, data: str, found: Sequence[Mapping[str, Any]]) -> TableOf:
    heads = [f"k = {goal.k} at {goal.budget}" for goal in goals(study)]
    rows = [
        [
            r["way"],
            r["train"] or None,
            r["what"] or None,
            f"{r['calls']:,}",
            *(f"{100 * r['recall'][str(goal.k)][0]:.1f}" for goal in goals(study)),
        ]
        for r in found
        if r["way"] != EXACT
    ]
    return TableOf(
        head=["way", "train queries", "scored", "offline calls", *heads],
        rows=rows,
        caption=f"{data}: recall (%). Vectors by alternating least squares; AXN in ten rounds.",
        folded=True,
    )


def _costs(data: str, found: Sequence[Mapping[str, Any]]) -> TableOf:
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
    return TableOf(
        head=["train queries", "scored", "calls", "minutes of calls", "minutes of fitting"],
        rows=rows,
        caption=f"{data}: what an index costs; `all items` are ANNCUR's and ADACUR's.",
        folded=True,
    )


def _ends(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), map(float, np.asarray(values)), strict=True))
