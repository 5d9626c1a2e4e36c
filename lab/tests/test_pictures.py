"""Every kind of picture is drawn, the same each time, and says what it was given."""

from __future__ import annotations

import re
import sys
from io import BytesIO

import numpy as np
import pytest

from crossknn import plots as base
from crossknn.errors import MissingExtraError
from crossknn.evaluation.outcome import RecallRow
from crossknn.plots import Curve
from crossknn_lab import plots
from crossknn_lab.analysis import cur_grid, score_density

METHODS = ("rerank(retriever=dense)", "rerank(retriever=bm25)", "adacur(retriever=dense, rounds=5)")


def row(method: str, budget: int, k: int, index_calls: int = 0) -> RecallRow:
    return RecallRow(method, k, budget, 0.5, (0.4, 0.6), 9, budget, 0.01, 0, index_calls)


ROWS = [row(m, budget, k) for m in METHODS for k in (1, 10) for budget in (50, 200)]
FREE = [row("retrieve(retriever=dense)", 0, k) for k in (1, 10)]
LINE = {"low": [0.1, 0.2, 0.3], "high": [0.3, 0.4, 0.5]}
SCORES = np.random.default_rng(0).normal(size=(30, 60))
GRID = cur_grid(SCORES, [4, 8], [4, 20], k=5, retrieved=20, draws=1)
APPROX = plots.Approximation(exact=SCORES[0], approx=SCORES[1], anchors=np.arange(3))
KINDS = {
    "recall_against_cost": ([*ROWS, *FREE], {}, ["top 1", "rerank bm25", "adacur", "200"]),
    "curves": (
        {"top 1": [Curve(name="50 calls", x=[1, 2, 5], y=[0.2, 0.3, 0.4], **LINE)]},
        {"x_label": "blend", "y_label": "score", "log": False, "percent": False},
        ["blend", "score", "50 calls"],
    ),
    "exact_against_approx": ({"anncur": APPROX}, {}, ["anncur", "exact score", "anchor items"]),
    "heat_map": ({"a": GRID, "b": GRID}, {}, ["b", *(f"{100 * c.recall:.0f}" for c in GRID)]),
    "score_densities": ({"scifact": {"a": score_density(SCORES)}}, {"log": True}, ["a: skewness"]),
}


def drawn(kind: str, **more) -> str:
    given, options, _ = KINDS[kind]
    file = BytesIO()
    drawer = getattr(plots, kind, None) or getattr(base, kind)
    drawer(given, file, title="The title", **(options | more))
    return file.getvalue().decode()


def texts(svg: str) -> str:
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_says_what_it_shows_and_is_the_same_each_time(kind):
    made = drawn(kind)
    for word in ("The title", *KINDS[kind][2]):
        assert word in texts(made), word
    assert drawn(kind) == made


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"crossknn\[plots\]"):
        drawn("recall_against_cost")
