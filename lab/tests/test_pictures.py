"""Every kind of picture is drawn, the same each time, and says what it was given."""

from __future__ import annotations

import re
from io import BytesIO

import numpy as np
import pytest

from crossknn.page import Page, Section
from crossknn_lab import plots
from crossknn_lab.analysis import cur_grid, score_density
from crossknn_lab.curves import Curve, curves, draw, write_report

LINE = {"low": [0.1, 0.2, 0.3], "high": [0.3, 0.4, 0.5]}
SCORES = np.random.default_rng(0).normal(size=(30, 60))
GRID = cur_grid(SCORES, [4, 8], [4, 20], k=5, retrieved=20, draws=1)
APPROX = plots.Approximation(exact=SCORES[0], approx=SCORES[1], anchors=np.arange(3))
KINDS = {
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
    drawer = getattr(plots, kind, None) or curves
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


def test_a_report_has_its_pictures_inside_and_beside_it(tmp_path):
    _, options, _ = KINDS["curves"]
    how = {"title": "Both <this> & that", "alt": 'a line "axn"', "caption": "with `code`"}
    figure = draw(curves, KINDS["curves"][0], **how, **options)
    page = Page(title="A", sections=[Section(title="One", blocks=[figure, figure])])
    write_report(page, tmp_path)
    html = (tmp_path / "index.html").read_text()
    assert not re.search(r"<(script|link|iframe|img)\b", html)
    ids = re.findall(r' id="([^"]+)"', html)
    clips = set(re.findall(r"url\(#([^)]+)\)", html))
    assert len(ids) == len(set(ids))
    assert clips
    assert clips <= set(ids)
    svg = re.search("<svg.*?</svg>", html, re.DOTALL)[0]
    assert 'aria-label="a line &quot;axn&quot;"' in svg
    assert not re.search("#1476ba|#1f2328", svg)
    assert "var(--c1476ba)" in svg
    assert html.count("--c1476ba: ") == 2  # light and dark
    [image] = (tmp_path / "images").iterdir()
    assert 'height="100%" fill="#ffffff"/>' in image.read_text()
    assert f"](images/{image.name})\n\nwith `code`" in (tmp_path / "page.md").read_text()
