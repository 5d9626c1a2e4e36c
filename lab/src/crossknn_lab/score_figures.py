"""Figures and tables of the scores themselves, and of what methods make of them.

They are called as those of `figures` are; the pictures take arrays by name and where to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.measures import bootstrap, recall
from crossknn.evaluation.outcome import truth_of
from crossknn.linalg import inner, top_k
from crossknn.methods import parse_method
from crossknn.table import Cell
from crossknn.types import FloatArray, IntArray
from crossknn_lab.analysis import (
    CurCell,
    ScoreDensity,
    approximate,
    approximation_error,
    components,
    cur_grid,
    effective_rank,
    rank,
    retrieved,
    score_density,
    singular_values,
)
from crossknn_lab.cells import MatrixFile, divided
from crossknn_lab.curves import OTHERS, PAPER, QUIET, Target, curves, draw, picture
from crossknn_lab.experiment import Experiment, retrievers_of
from crossknn_lab.figures import nearest_value, point_curve, points_of
from crossknn_lab.page import Block, Table
from crossknn_lab.replay import parts_of
from crossknn_lab.stored import StoredMatrix

SIZES = (25, 50, 100, 200, 500, 1000, 2000)
"""Of grids over anchor queries and items."""

DEPTHS = (10, 20, 50, 100, 200, 500)

RAMPS = {"recall": ("#eef5fb", "#08519c"), "error": ("#fef1e6", "#a63603")}
"""Few to many, of the maps."""

LEGEND = {"frameon": False, "fontsize": 8.5}


def centred_scores(run: Experiment) -> list[Block]:
    """Scores about their query's mean, in standard deviations: cross- and dual encoders'."""
    panels: dict[str, dict[str, ScoreDensity]] = {}
    for data in run.data:
        matrix = run.matrix(data)
        kinds = {"cross-encoder": matrix.scores} | _cheap(matrix)
        panels[data.name] = {kind: score_density(scores) for kind, scores in kinds.items()}
    title = "Scores of a query with all items"
    alt = f"{title}: densities on a logarithmic axis, a line for each model."
    label = "standard deviations from the query's mean"
    shown: dict[str, Any] = {"title": title, "x_label": label, "log": True}
    return [draw(score_densities, panels, alt=alt, **shown)]


def raw_scores(run: Experiment) -> list[Block]:
    """Scores of cross- and dual encoder with all items, and with the retriever's best."""
    panels: dict[str, dict[str, ScoreDensity]] = {}
    for data in run.data:
        matrix = run.matrix(data)
        exact = matrix.scores[matrix.n_anchors :]
        for cheap in (scores[matrix.n_anchors :] for scores in _cheap(matrix).values()):
            best = top_k(cheap, nearest_value(run.budgets, 100)).items
            kinds = {data.name: exact}
            if (scale := matrix.scale("dense")) is not None:
                kinds[f"{data.name}, normalised"] = scale.beta * (exact - scale.alpha)
            for name, scores in kinds.items():
                picked = np.take_along_axis(scores, best, axis=1)
                all_of = {"cross-encoder": scores, "the same, its picks": picked}
                all_of["dual encoder"] = cheap
                panels[name] = {kind: ScoreDensity.of(v) for kind, v in all_of.items()}
    if not panels:
        raise InputError("no matrix has vectors of a dual encoder")
    title = "Scores with all items, and with the dual encoder's picks"
    alt = "Densities of the scores of cross-encoder and dual encoder, raw and normalised."
    return [draw(score_densities, panels, title=title, alt=alt)]


def _spectrum(run: Experiment, data: MatrixFile) -> list[float]:
    scores = run.matrix(data).scores
    values = singular_values(scores, center=True)
    held = [components(values, share) for share in (0.9, 0.99)]
    skewness = score_density(scores).skewness
    return [rank(scores), round(effective_rank(values), 1), *held, round(skewness, 1)]


def _grid(
    run: Experiment, data: MatrixFile, k_qs: list[int], k_is: list[int], options: dict[str, Any]
) -> list[dict[str, Any]]:
    return [asdict(cell) for cell in cur_grid(run.matrix(data).scores, k_qs, k_is, **options)]


def _cheap(matrix: StoredMatrix) -> dict[str, FloatArray]:
    """The dual encoder's scores of all queries, if the matrix has its vectors."""
    if matrix.dense_items is None or matrix.dense_queries is None:
        return {}
    return {"dual encoder": inner(matrix.dense_queries, matrix.dense_items)}


def ranks(run: Experiment) -> list[Block]:
    """Rank and spectrum of every matrix."""
    rows: list[list[Cell]] = []
    for data in run.data:
        shape = f"{data.n_anchors + data.n_tests:,} x {data.n_items:,}"
        rows.append([data.name, shape, *run.once("rank", data, partial(_spectrum, run, data))])
    caption = (
        "Rank at NumPy's tolerance in float32 of the raw scores, as in the paper; the others after "
        "each query's mean is subtracted: exponential entropy of the singular values, and how many "
        "of them hold 90% and 99% of the squared norm. Comparable between matrices of one shape "
        "only."
    )
    head = ["matrix", "queries x items", "rank", "effective rank", "90%", "99%", "skewness"]
    return [Table(head=head, rows=rows, caption=caption)]


def cur_grids(
    run: Experiment, *, what: Literal["recall", "error"], oracle: bool = False
) -> list[Block]:
    """ANNCUR over anchor queries and items: recall or error, a panel for each matrix."""
    grids: dict[str, list[CurCell]] = {}
    for data in run.data:
        k_qs = [s for s in SIZES if s <= 0.75 * (data.n_anchors + data.n_tests)][-5:]
        k_is = [s for s in SIZES if s <= 0.25 * data.n_items][:6]
        if k_qs and k_is:
            k = min(10, data.n_items // 10)
            options = {"k": k, "retrieved": min(500, data.n_items // 10), "oracle": oracle}
            options["draws"] = run.preset.draws
            compute = partial(_grid, run, data, k_qs, k_is, options)
            name = f"{data.name} (top {k} in {options['retrieved']})"
            grids[name] = [CurCell(**cell) for cell in run.once("cur", data, compute, **options)]
    if not grids:
        raise InputError("no matrix has 34 queries and 100 items, the least for a grid")
    who = "Oracle CUR" if oracle else "ANNCUR"
    shown = "recall (%)" if what == "recall" else "error |M - M~| / |M|"
    title = f"{who}: {shown} on the queries that are no anchors"
    alt = f"{title}: a map over anchor queries and anchor items for each matrix."
    return [draw(heat_map, grids, title=title, alt=alt, what=what)]


# ------------------------------------------------------------- what methods make of the scores


def recall_at_depth(run: Experiment, *, anchors: Literal["most", "fewer"]) -> list[Block]:
    """Top-k-Recall when all methods retrieve and rerank as many items; by number of anchors."""
    blocks: list[Block] = []
    for data in run.data:
        sizes = run.anchor_sizes(data)
        for size in sizes[-1:] if anchors == "most" else sizes[:-1]:
            compute = partial(_depths, run, data, size)
            options = {"anchors": size, "queries": run.preset.queries, "k": run.k}
            lines = run.once("depth", data, compute, **options)
            panels = {
                f"top {k}": [point_curve(name, found[str(k)]) for name, found in lines.items()]
                for k in run.k
            }
            title = f"{data.name}, {size} anchor queries: the same number retrieved and reranked"
            alt = f"{title}. Lines of recall over that number, a panel for each k."
            x_label = "items retrieved and reranked"
            blocks.append(draw(curves, panels, title=title, alt=alt, x_label=x_label))
    if not blocks:
        enough = "" if anchors == "most" else " enough for fewer"
        raise InputError(f"no matrix has anchor queries{enough}")
    return blocks


def _depths(run: Experiment, data: MatrixFile, anchors: int) -> dict[str, Any]:
    parts = parts_of(divided(run.matrix(data), anchors=anchors)[0], run.preset.queries)
    truth = truth_of(parts, max(run.k))
    depths = [depth for depth in DEPTHS if depth <= data.n_items // 2]
    wanted = {
        f"rerank(retriever={stage})": (f"rerank(retriever={stage})", 1)
        for stage in retrievers_of(data)
        if stage != "hybrid"
    } | {
        f"anncur, {count} anchor items": ("anncur(center=none, anchor_share=1)", count)
        for count in (50, 100, 200)
        if count <= data.n_items // 2
    }
    lines: dict[str, Any] = {}
    for name, (spec, calls) in wanted.items():
        ranked = retrieved(parse_method(spec), parts, calls=calls, depth=depths[-1])
        lines[name] = {
            str(k): points_of(
                depths, [bootstrap(recall(ranked[:, :d], truth[:, :k])) for d in depths]
            )
            for k in run.k
        }
    return lines


def scatter(
    run: Experiment, *, panels: Sequence[tuple[str, str, int]], title_of: str
) -> list[Block]:
    """One query's approximate over its exact scores, for (title, method, calls)."""
    blocks: list[Block] = []
    for data in (data for data in run.data if data.n_anchors):
        index, queries, scores = run.matrix(data).rows(0, 1)
        made = {}
        for name, spec, calls in panels:
            if calls <= data.n_items // 2:
                chosen = parse_method(spec)
                approx, anchors = approximate(chosen, index, queries, scores, budget=calls, seed=0)
                made[name] = scores[0], approx[0], anchors[0]
        if made:
            title = f"{data.name}: {title_of}"
            alt = f"{title}. Points, one for each item, on the diagonal where it is right."
            blocks.append(draw(exact_against_approx, made, title=title, alt=alt))
    if not blocks:
        raise InputError("no matrix has anchor queries and items enough")
    return blocks


SAMPLERS = {
    "anncur, random": "anncur(center=none, anchor_share=1, retriever=fixed)",
    "adacur, five rounds from random": "adacur(center=none, retriever=random, rounds=5)",
    "adacur, five rounds from dense": "adacur(center=none, retriever=dense, rounds=5)",
    **{
        f"{kind}, {what}": f"anncur(center=none, anchor_share=1, retriever={name}{options})"
        for kind, name in (("TopK", "oracle_topk"), ("SoftMax", "oracle_softmax"))
        for what, options in (
            ("none masked", ""),
            ("best 100 masked", "(masked=100)"),
            ("75% random", "(epsilon=0.75)"),
        )
    },
}
"""Ways to choose 200 anchor items: with `anncur(anchor_share=1)` nothing is reranked."""


def errors_by_rank(run: Experiment) -> list[Block]:
    """Mean absolute error by exact rank of every way to choose 200 anchor items."""
    if not all("dense" in data.vectors for data in run.data):
        raise InputError("a matrix has no vectors of a dual encoder")
    smallest = min(data.n_items for data in run.data)
    methods = {name: spec for name, spec in SAMPLERS.items() if "100" not in spec or smallest > 400}
    blocks: list[Block] = []
    for data in (data for data in run.data if data.n_anchors):
        calls = min(200, data.n_items // 4)
        compute = partial(_errors, run, data, methods, calls)
        options = {"methods": methods, "calls": calls, "queries": run.preset.queries}
        found = run.once("error-by-rank", data, compute, **options)
        lines = [point_curve(name, points) for name, points in found.items()]
        title = f"{data.name}: error of the approximation from {calls} anchor items"
        shown: dict[str, Any] = {
            "title": title,
            "x_label": "exact rank, up to",
            "y_label": "mean absolute error",
            "percent": False,
            "highlight": [name for name in found if not name.startswith("SoftMax")],
        }
        alt = f"{title}, by exact rank, a line for each way to choose them."
        blocks.append(draw(curves, {data.name: lines}, alt=alt, **shown))
    if not blocks:
        raise InputError("no matrix has anchor queries")
    return blocks


def _errors(
    run: Experiment, data: MatrixFile, methods: Mapping[str, str], calls: int
) -> dict[str, Any]:
    parts = parts_of(run.matrix(data), run.preset.queries)
    found: dict[str, Any] = {}
    for name, spec in methods.items():
        bands: dict[int, list[FloatArray]] = {}
        for part in parts:
            assert part.exact is not None
            known = part.index, part.queries, part.exact
            approx, _ = approximate(parse_method(spec), *known, budget=calls, seed=0)
            for band, values in approximation_error(part.exact, approx).items():
                if band != "all":
                    bands.setdefault(int(band.split("-")[1]), []).append(values)
        means = [bootstrap(np.concatenate(values)) for values in bands.values()]
        found[name] = points_of(list(bands), means)
    return found


# ------------------------------------------------------------------------------- pictures


def heat_map(
    grids: Mapping[str, Sequence[CurCell]],
    path: Target,
    *,
    what: Literal["recall", "error"] = "recall",
    title: str,
) -> None:
    """Save a plot of ANNCUR over k_q x k_i, a panel for each matrix (ANNCUR 6, 8 and 9).

    Darker is more, and the panels share their colours (errors above 1 look like 1).
    """
    from matplotlib.colors import LinearSegmentedColormap

    scale = 100 if what == "recall" else 1
    k_qs = sorted({cell.k_q for cells in grids.values() for cell in cells})
    k_is = sorted({cell.k_i for cells in grids.values() for cell in cells})
    colours = LinearSegmentedColormap.from_list(what, RAMPS[what])
    size = (max(3.2, 0.62 * len(k_is) + 0.9), 0.5 * len(k_qs) + 1.4)
    with picture(path, title=title, panels=len(grids), size=size) as axes:
        for panel, (name, cells) in zip(axes, grids.items(), strict=True):
            table = np.full((len(k_qs), len(k_is)), np.nan)
            for cell in cells:
                place = k_qs.index(cell.k_q), k_is.index(cell.k_i)
                table[place] = value = scale * getattr(cell, what)
                text = f"{value:.0f}" if what == "recall" else f"{value:.2g}"
                ink = "#fefefe" if value > 0.55 * scale else "black"  # on dark screens, too
                middle = {"ha": "center", "va": "center_baseline", "fontsize": 9}
                panel.text(place[1] + 0.5, place[0] + 0.5, text, color=ink, **middle)
            panel.pcolormesh(table, cmap=colours, vmin=0, vmax=scale, edgecolors=PAPER, lw=1.5)
            panel.set_title(name)
            panel.set_xticks(np.arange(len(k_is)) + 0.5, [str(k) for k in k_is])
            panel.set_yticks(np.arange(len(k_qs)) + 0.5, [str(k) for k in k_qs])
            panel.set_xlabel("anchor items")
        axes[0].set_ylabel("anchor queries")


def score_densities(
    panels: Mapping[str, Mapping[str, ScoreDensity]],
    path: Target,
    *,
    title: str,
    x_label: str = "score",
    log: bool = False,
) -> None:
    """Save a plot of how scores are distributed, a line for each kind (ANNCUR 1b, AXN 4).

    On a logarithmic axis (`log`) the few items that score high can be seen.
    """
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    with picture(path, title=title, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            for name, of in found.items():
                colour = OTHERS[names.index(name) % len(OTHERS)]
                label = f"{name}: skewness {of.skewness:z.1f}"
                panel.stairs(of.density, of.edges, color=colour, lw=1.6, label=label)
            panel.set_title(head)
            panel.set_xlabel(x_label)
            panel.legend(**LEGEND)
            if log:
                panel.set_yscale("log")
        axes[0].set_ylabel("density")


def exact_against_approx(
    panels: Mapping[str, tuple[FloatArray, FloatArray, IntArray]], path: Target, *, title: str
) -> None:
    """Save a plot of a query's approximate scores over the exact ones (ADACUR 1, 6 and 8).

    A panel is of exact scores (n,), approximate ones (n,) and anchor items (b,), which are marked.
    A point for each item, on the diagonal if the approximation is right.
    """
    ends = np.concatenate([scores for panel in panels.values() for scores in panel[:2]])
    line = [float(ends.min()), float(ends.max())]
    small: dict[str, Any] = {"s": 4, "lw": 0, "rasterized": True}
    with picture(path, title=title, panels=len(panels), size=(3.6, 3.7)) as axes:
        for panel, (head, (exact, approx, anchors)) in zip(axes, panels.items(), strict=True):
            others = np.setdiff1d(np.arange(len(exact)), anchors)
            for items, colour, label in (
                (others, "#8b97a5", "other items"),
                (anchors, OTHERS[1], "anchor items"),
            ):
                panel.scatter(exact[items], approx[items], color=colour, label=label, **small)
            panel.plot(line, line, color=QUIET, lw=0.8, ls="--")
            panel.set_title(head)
            panel.set_xlabel("exact score")
        axes[0].set_ylabel("approximate score")
        axes[0].legend(markerscale=3, **LEGEND)
