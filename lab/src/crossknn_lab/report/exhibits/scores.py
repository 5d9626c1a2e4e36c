"""Exhibits that need the scores themselves: their distribution, their rank, how CUR errs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np

from crossknn.errors import InputError
from crossknn.index.stored import StoredMatrix
from crossknn.linalg import inner, top_k
from crossknn.types import FloatArray, IntArray
from crossknn_lab.plots import (
    Scores,
    heat_map,
    score_distributions,
    score_histogram,
)
from crossknn_lab.report.data import Data
from crossknn_lab.report.exhibits.found import nearest
from crossknn_lab.report.page import Block, Cell, TableOf, draw
from crossknn_lab.report.study import Study
from crossknn_lab.score_matrix import (
    CurCell,
    ScoreDensity,
    cur_grid,
    score_density,
    summarize,
)

SIZES = (25, 50, 100, 200, 500, 1000, 2000)
"""Of grids over anchor queries and items."""


def histogram(study: Study) -> list[Block]:
    """Scores about their query's mean, in standard deviations: cross- and dual encoders'."""
    found: dict[str, ScoreDensity] = {}
    for data in study.data:

        def densities(data: Data = data) -> dict[str, Any]:
            matrix = study.matrix(data)
            kinds = {"cross-encoder": matrix.scores}
            if matrix.item_vectors is not None and matrix.query_vectors is not None:
                kinds["dual encoder"] = inner(matrix.query_vectors, matrix.item_vectors)
            return {kind: _density(score_density(s, standardize=True)) for kind, s in kinds.items()}

        for kind, values in study.once("density", data, densities).items():
            arrays = {name: np.array(values[name]) for name in ("edges", "density")}
            found[f"{data.name}, {kind}"] = ScoreDensity(
                **arrays, skewness=values["skewness"], unit=values["unit"]
            )
    title = "Scores of a query with all items"
    alt = f"{title}: densities on a logarithmic axis, a line for each model and matrix."
    return [draw(score_histogram, found, title=title, alt=alt)]


def ranks(study: Study) -> list[Block]:
    """Rank and spectrum of every matrix."""
    rows = []
    for data in study.data:

        def summary(data: Data = data) -> dict[str, Any]:
            found = summarize(study.matrix(data).scores)
            return {
                "rank": found.rank,
                "effective": found.effective_rank,
                "components": list(found.components.values()),
                "mean": found.mean,
                "std": found.std,
                "skewness": found.density.skewness,
            }

        s = study.once("rank", data, summary)
        shape = f"{data.file.n_anchors + data.file.n_tests:,} x {data.file.n_items:,}"
        rows.append(
            [
                data.name,
                shape,
                s["rank"],
                round(s["effective"], 1),
                *s["components"],
                round(s["skewness"], 1),
            ]
        )
    return [
        TableOf(
            head=["matrix", "queries x items", "rank", "effective rank", "90%", "99%", "skewness"],
            rows=rows,
            caption="Rank at NumPy's tolerance in float32 of the raw scores, as in the paper; the "
            "others after each query's mean is subtracted: exponential entropy of the singular "
            "values, and how many of them hold 90% and 99% of the squared norm. Comparable between "
            "matrices of one shape only.",
        )
    ]


def grid(study: Study, what: Literal["recall", "error"], *, oracle: bool = False) -> list[Block]:
    """ANNCUR over anchor queries and items: recall or error, a panel for each matrix."""
    grids: dict[str, list[CurCell]] = {}
    depth = 0
    for data in study.data:
        m, n = data.file.n_anchors + data.file.n_tests, data.file.n_items
        k_qs = [size for size in SIZES if size <= 0.75 * m][-5:]
        k_is = [size for size in SIZES if size <= 0.25 * n][:6]
        k = min(10, n // 10)
        depth = min(500, max(k, n // 10))
        if not k_qs or not k_is:
            continue

        def cells(
            data: Data = data,
            k_qs: list[int] = k_qs,
            k_is: list[int] = k_is,
            k: int = k,
            depth: int = depth,
        ) -> list[dict[str, Any]]:
            scores, draws = study.matrix(data).scores, study.preset.draws
            found = cur_grid(scores, k_qs, k_is, k=k, retrieved=depth, oracle=oracle, draws=draws)
            return [asdict(cell) for cell in found]

        options = {"oracle": oracle, "draws": study.preset.draws}
        found = study.once("cur", data, cells, **options)
        grids[f"{data.name} (top {k} in {depth})" if what == "recall" else data.name] = [
            CurCell(**cell) for cell in found
        ]
    if not grids:
        raise InputError("no matrix has 34 queries and 100 items, the least for a grid")
    who = "Oracle CUR" if oracle else "ANNCUR"
    shown = "recall (%)" if what == "recall" else "error |M - M~| / |M|"
    title = f"{who}: {shown} on the queries that are no anchors"
    alt = f"{title}: a map over anchor queries and anchor items for each matrix."
    return [draw(partial(heat_map, what=what), grids, title=title, alt=alt)]


def distributions(study: Study) -> list[Block]:
    """Scores of cross- and dual encoder with all items, and with the retriever's best."""
    panels: dict[str, list[Scores]] = {}
    for data in study.data:
        matrix = study.matrix(data)
        if matrix.item_vectors is None or matrix.query_vectors is None:
            continue
        tests = slice(matrix.n_anchors, None)
        exact = matrix.scores[tests]
        cheap = inner(matrix.query_vectors[tests], matrix.item_vectors)
        best = top_k(cheap, nearest(study.budgets, 100)).items
        kinds = {"cross-encoder": exact, "dual encoder": cheap}
        panels[data.name] = _kinds(kinds, best)
        if matrix.scale is not None:
            alpha, beta = matrix.scale.alpha, matrix.scale.beta
            kinds = {"cross-encoder": beta * (exact - alpha), "dual encoder": cheap}
            panels[f"{data.name}, normalised"] = _kinds(kinds, best)
    if not panels:
        raise InputError("no matrix has vectors of a dual encoder")
    title = "Scores with all items; filled: with the dual encoder's best"
    alt = "Densities of the scores of cross-encoder and dual encoder, raw and normalised."
    return [draw(score_distributions, panels, title=title, alt=alt)]


def _kinds(kinds: Mapping[str, FloatArray], best: IntArray) -> list[Scores]:
    return [
        Scores(
            name=name,
            values=values.ravel(),
            picked=np.take_along_axis(values, best, axis=1).ravel(),
        )
        for name, values in kinds.items()
    ]


def _density(found: ScoreDensity) -> dict[str, Any]:
    return {
        "edges": found.edges.tolist(),
        "density": found.density.tolist(),
        "skewness": found.skewness,
        "unit": found.unit,
    }


def statistics(study: Study) -> list[Block]:
    """Items, queries and labels of every matrix."""
    rows: list[list[Cell]] = []
    for data in study.data:
        matrix: StoredMatrix = study.matrix(data)
        labels = 0 if matrix.labels is None else int((matrix.labels[matrix.n_anchors :] >= 0).sum())
        rows.append(
            [
                data.name,
                f"{data.file.n_items:,}",
                data.file.n_anchors,
                data.file.n_tests,
                labels,
                ", ".join((*data.firsts, *data.vectors)) or "none",
            ]
        )
    head = ["matrix", "items", "anchor queries", "test queries", "with a label", "retrievers"]
    return [TableOf(head=head, rows=rows, caption="The matrices of this report.")]
