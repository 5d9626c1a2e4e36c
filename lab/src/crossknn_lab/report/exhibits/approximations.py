"""Exhibits of what methods make of the scores: ranked, approximated, and by what error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate, bootstrap, recall_at
from crossknn.evaluation.replay import parts_of, truth_of
from crossknn.methods import method
from crossknn.types import FloatArray
from crossknn_lab.approximation import approximate, approximation_error
from crossknn_lab.plots import (
    Approximation,
    Curve,
    Styles,
    error_by_band,
    exact_against_approx,
    recall_at_depth,
)
from crossknn_lab.report.data import Data
from crossknn_lab.report.exhibits.sweeps import anchor_sizes, stages
from crossknn_lab.report.page import Block, draw
from crossknn_lab.report.study import Study
from crossknn_lab.splits import recall_by_split, retrieved
from crossknn_lab.sweep_data import divided

DEPTHS = (10, 20, 50, 100, 200, 500)
ANCHOR_ITEMS = (50, 100, 200)


def at_depth(study: Study, *, most: bool) -> list[Block]:
    """Top-k-Recall when all methods retrieve and rerank as many items; by number of anchors."""
    blocks: list[Block] = []
    for data in study.data:
        sizes = anchor_sizes(study.preset, data)
        for anchors in sizes[-1:] if most else sizes[:-1]:

            def found(data: Data = data, anchors: int = anchors) -> dict[str, Any]:
                return _depths(study, data, anchors)

            lines = study.once(
                "depth", data, found, anchors=anchors, queries=study.preset.queries, k=study.k
            )
            panels = {
                f"top {k}": [Curve(name=name, **of[str(k)]) for name, of in lines.items()]
                for k in study.k
            }
            title = f"{data.name}, {anchors} anchor queries: the same number retrieved and reranked"
            alt = f"{title}. Lines of recall over that number, a panel for each k."
            blocks.append(draw(recall_at_depth, panels, title=title, alt=alt))
    if not blocks:
        raise InputError("no matrix has anchor queries" + ("" if most else " enough for fewer"))
    return blocks


def _depths(study: Study, data: Data, anchors: int) -> dict[str, Any]:
    parts = parts_of(divided(study.matrix(data), anchors=anchors)[0], study.preset.queries)
    truth = truth_of(parts, max(study.k))
    depths = [depth for depth in DEPTHS if depth <= data.file.n_items // 2]
    wanted = {
        f"rerank(retriever={stage})": (f"rerank(retriever={stage})", 1)
        for stage in stages(data)
        if stage != "hybrid"
    }
    for count in ANCHOR_ITEMS:
        if count <= data.file.n_items // 2:
            wanted[f"anncur, {count} anchor items"] = ("anncur(center=none, anchors=1)", count)
    lines: dict[str, Any] = {}
    for name, (spec, calls) in wanted.items():
        ranked = retrieved(method(spec), parts, calls=calls, depth=depths[-1])
        lines[name] = {}
        for k in study.k:
            estimates = [bootstrap(values) for values in recall_at(ranked, truth[:, :k], depths)]
            lines[name][str(k)] = _line(depths, estimates)
    return lines


def papers_accounting(study: Study, data: Data) -> Mapping[str, Any]:
    """ANNCUR's best division by the paper's accounting, for each k: lines over the budgets."""

    def found() -> dict[str, Any]:
        parts = parts_of(study.matrix(data), study.preset.queries)
        truth = truth_of(parts, max(study.k))
        best: dict[str, list[Estimate]] = {str(k): [] for k in study.k}
        for budget in study.budgets:
            by_k = recall_by_split(
                lambda share: method(f"anncur(center=none, anchors={share})"),
                parts,
                truth,
                budget=budget,
                ks=study.k,
                shares=study.preset.shares,
                accounting="paper",
            )
            for k, by_share in by_k.items():
                values = max(by_share.values(), key=lambda v: float(v.mean()))
                best[str(k)].append(bootstrap(values))
        return {k: _line(study.budgets, estimates) for k, estimates in best.items()}

    preset = study.preset
    options: dict[str, Any] = {"queries": preset.queries, "shares": preset.shares}
    options |= {"k": study.k, "budgets": study.budgets}
    return dict(study.once("paper-splits", data, found, **options))


def scatter(study: Study, panels: Sequence[tuple[str, str, int]], title: str) -> list[Block]:
    """One query's approximate over its exact scores, for (title, method, calls)."""
    blocks: list[Block] = []
    for data in study.data:
        if not data.file.n_anchors:
            continue
        index, queries, scores = study.matrix(data).rows(0, 1)
        made = {}
        for name, spec, calls in panels:
            if calls <= data.file.n_items // 2:
                approx, anchors = approximate(
                    method(spec), index, queries, scores, budget=calls, seed=0
                )
                made[name] = Approximation(exact=scores[0], approx=approx[0], anchors=anchors[0])
        if made:
            said = f"{data.name}: {title}"
            alt = f"{said}. Points, one for each item, on the diagonal where it is right."
            blocks.append(draw(exact_against_approx, made, title=said, alt=alt))
    if not blocks:
        raise InputError("no matrix has anchor queries and items enough")
    return blocks


def error_by_rank(
    study: Study, methods: Mapping[str, str], calls: int, styles: Styles
) -> list[Block]:
    """Mean absolute error by exact rank, a line for each method; intervals over queries."""
    blocks: list[Block] = []
    for data in study.data:
        if not data.file.n_anchors:
            continue
        spent = min(calls, data.file.n_items // 4)

        def errors(data: Data = data, spent: int = spent) -> dict[str, Any]:
            parts = parts_of(study.matrix(data), study.preset.queries)
            found: dict[str, Any] = {}
            for name, spec in methods.items():
                bands: dict[str, list[FloatArray]] = {}
                for index, queries, scores in parts:
                    approx, _ = approximate(
                        method(spec), index, queries, scores, budget=spent, seed=0
                    )
                    for band, values in approximation_error(scores, approx).items():
                        bands.setdefault(band, []).append(values)
                found[name] = {b: astuple(bootstrap(np.concatenate(v))) for b, v in bands.items()}
            return found

        options = {"methods": dict(methods), "calls": spent, "queries": study.preset.queries}
        kept = study.once("error-by-rank", data, errors, **options)
        lines = {
            name: {band: Estimate(*values) for band, values in bands.items()}
            for name, bands in kept.items()
        }
        title = f"{data.name}: error of the approximation from {spent} anchor items"
        alt = f"{title}, by exact rank, a line for each way to choose them."
        blocks.append(draw(error_by_band, lines, title=title, alt=alt, styles=styles))
    if not blocks:
        raise InputError("no matrix has anchor queries")
    return blocks


def _line(x: Sequence[int], estimates: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "x": list(x),
        "y": [estimate.mean for estimate in estimates],
        "low": [estimate.low for estimate in estimates],
        "high": [estimate.high for estimate in estimates],
    }
