"""Every kind of picture is drawn, as a file and as SVG, and says what it was given."""

from __future__ import annotations

import json
import re
import sys
from io import BytesIO

import numpy as np
import pytest

from crossknn import plots as base
from crossknn.errors import MissingExtraError
from crossknn.evaluation.measures import Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn.plots import OTHERS, Curve, Style, styles_of
from crossknn_lab import plots
from crossknn_lab.analysis import cur_grid, score_density, singular_values

METHODS = ("rerank(retriever=dense)", "rerank(retriever=bm25)", "adacur(retriever=dense, rounds=5)")


def row(method: str, k: int, budget: int, recall: float = 0.5, index_calls: int = 0) -> RecallRow:
    interval = (recall - 0.1, recall + 0.1)
    return RecallRow(method, k, budget, recall, interval, 9, budget, 0.01, 0, index_calls)


ROWS = [row(m, k, b, 0.2 + b / 1000) for m in METHODS for k in (1, 10) for b in (50, 200)]
CURVES = {
    "top 1": [
        Curve(
            name="50 calls",
            x=[1, 2, 5],
            y=[0.2, 0.3, 0.4],
            low=[0.1, 0.2, 0.3],
            high=[0.3, 0.4, 0.5],
        )
    ],
    "top 10": [Curve(name="50 calls", x=[1, 2, 5], y=[0.1, 0.1, 0.2])],
}
SCORES = np.random.default_rng(0).normal(size=(30, 8)) @ np.random.default_rng(1).normal(
    size=(8, 60)
)
GRID = cur_grid(SCORES, [4, 8], [4, 20], k=5, retrieved=20, draws=1)
ESTIMATES = {"1-10": Estimate(2.0, 1.5, 2.5), "11-100": Estimate(1.0, 0.8, 1.2)}
ANCHORS = np.array([0, 3, 5])
KINDS = {
    "recall_against_cost": (
        ROWS,
        {},
        ["top 1", "top 10", "rerank dense", "rerank bm25", "adacur", "50", "200"],
    ),
    "curves": (
        CURVES,
        {"x_label": "blend", "y_label": "score", "log": False, "percent": False},
        ["blend", "score"],
    ),
    "recall_against_indexing": (
        [
            *ROWS,
            row("axn(retriever=dense)", 1, 200, 0.6, 30_000),
            row("axn(retriever=dense)", 10, 200, 0.6, 30_000),
        ],
        {},
        ["recall (%) at 200 calls per query", "axn", "adacur"],
    ),
    "grouped_bars": (
        [
            plots.Bar(group=g, name=m, value=0.5, low=0.4, high=0.6)
            for g in ("scifact", "act")
            for m in METHODS
        ],
        {"sizes": {"scifact": 5183, "act": 6567.0}},
        ["scifact", "5,183 items", "6,567 items", "adacur"],
    ),
    "stacked_bars": (
        [
            plots.Stack(group="100 calls", name=str(r), parts={"solve": r, "multiply": 2.0 * r})
            for r in (1, 50)
        ],
        {},
        ["100 calls", "solve", "multiply", "150"],
    ),
    "exact_against_approx": (
        {"anncur": plots.Approximation(exact=SCORES[0], approx=SCORES[1], anchors=ANCHORS)},
        {},
        ["anncur", "exact score", "anchor items", "1", "10"],
    ),
    "error_by_band": (
        {METHODS[2]: ESTIMATES},
        {},
        ["1-10", "11-100", "rank by exact score", "adacur"],
    ),
    "score_distributions": (
        {
            "scifact": [
                plots.Scores(name="cross-encoder", values=SCORES[0], picked=SCORES[0][ANCHORS])
            ]
        },
        {},
        ["scifact", "cross-encoder", "filled: the retriever's picks"],
    ),
    "heat_map": (
        {"a": GRID, "b": GRID},
        {},
        ["a", "b", "anchor items", *(f"{100 * c.recall:.0f}" for c in GRID)],
    ),
    "score_histogram": (
        {"a": score_density(SCORES)},
        {},
        ["a: skewness", "density, all queries pooled"],
    ),
    "singular_values": (
        {"a": singular_values(SCORES)},
        {},
        ["a: 90% in", "relative to the largest"],
    ),
}


def drawn(kind: str, **more) -> str:
    given, options, _ = KINDS[kind]
    file = BytesIO()
    drawer = getattr(plots, kind, None) or getattr(base, kind)
    drawer(given, file, title="The title", **(options | more))
    return file.getvalue().decode()


def texts(svg: str) -> str:
    return "\n".join(
        re.sub("&#39;|&apos;", "'", t) for t in re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_says_what_it_shows(kind):
    said = texts(drawn(kind))
    for word in ("The title", *KINDS[kind][2]):
        assert word in said, word


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_values_give_the_same_bytes(kind):
    assert drawn(kind) == drawn(kind)


def test_files_are_what_their_suffix_says(tmp_path):
    for suffix, begins in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        base.recall_against_cost(ROWS, tmp_path / f"a{suffix}", title="t")
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(begins)


def test_a_method_is_drawn_in_its_colour_in_every_picture():
    colour = styles_of(METHODS)[METHODS[2]].colour
    for kind in (
        "recall_against_cost",
        "grouped_bars",
        "error_by_band",
    ):
        assert colour in drawn(kind), kind


def test_names_and_styles_can_be_given():
    style = Style(colour="#123456")
    made = drawn("recall_against_cost", labels={METHODS[2]: "ADACUR!"}, styles={METHODS[2]: style})
    assert "ADACUR!" in texts(made)
    assert "#123456" in made


def test_a_method_without_calls_is_a_line_without_points():
    rows = [*ROWS, row("retrieve(retriever=dense)", 1, 0), row("retrieve(retriever=dense)", 10, 0)]
    file = BytesIO()
    base.recall_against_cost(rows, file, title="t")
    assert "retrieve" in texts(file.getvalue().decode())
    assert base.curves_of(rows, 1)[-1].x == [None]


def test_names_stand_where_their_lines_end_on_a_logarithmic_axis_too():
    ends = (10, 100, 1_000)
    lines = [Curve(name=f"to {y:,}", x=[1, 2], y=[1, y]) for y in ends]
    file, options = BytesIO(), {"x_label": "x", "log_y": True, "percent": False}
    base.curves({"": lines}, file, title="t", **options)
    written = re.findall(r' y="(\S+)"[^>]*>([^<]*)<', file.getvalue().decode())
    heights = {text: float(y) for y, text in written}
    for y in ends:
        assert heights[f"to {y:,}"] == pytest.approx(heights[f"{y:,}"], abs=3)


def test_a_training_log(tmp_path):
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}, {"step": 2, "dev": {"top_1": 0.4}}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = BytesIO()
    base.training_curve(tmp_path / "log.jsonl", file)
    assert "top 1" in texts(file.getvalue().decode())
    assert OTHERS[0] in file.getvalue().decode()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"crossknn\[plots\]"):
        drawn("recall_against_cost")
