"""Every kind of picture is drawn, the same each time, and says what it was given."""

from __future__ import annotations

import re
from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.methods import METHODS
from crossknn.spec import parse
from crossknn_lab import score_figures
from crossknn_lab.analysis import cur_grid, score_density
from crossknn_lab.curves import (
    FAMILIES,
    LINES,
    Curve,
    curves,
    draw,
    highlights,
    labels_of,
    styles_of,
    write_report,
)
from crossknn_lab.page import Page, Section

LINE = {"low": [0.1, 0.2, 0.3], "high": [0.3, 0.4, 0.5]}
SCORES = np.random.default_rng(0).normal(size=(30, 60))
GRID = cur_grid(SCORES, [4, 8], [4, 20], k=5, retrieved=20, draws=1)
APPROX = SCORES[0], SCORES[1], np.arange(3)
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


def drawn(kind: str) -> str:
    shown, options, _ = KINDS[kind]
    file = BytesIO()
    getattr(score_figures, kind)(shown, file, title="The title", **options)
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


def test_a_picture_in_a_file_has_a_dark_palette_too(tmp_path):
    shown, options, _ = KINDS["curves"]
    curves(shown, tmp_path / "a.svg", title="A", **options)
    svg = (tmp_path / "a.svg").read_text()
    style, drawing = svg.split("</style>", 1)
    used = {*re.findall(r"(?:fill|stroke): #\w+", drawing)}
    dark = {*re.findall(r'style\*="((?:fill|stroke): #\w+)"', style)}
    assert "prefers-color-scheme: dark" in style
    assert used == dark


# Colours, markers and labels of methods: the same everywhere, and told apart.


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    assert METHODS.keys() <= FAMILIES.keys()
    for kind in (0, 1):
        assert len({look[kind] for look in FAMILIES.values()}) == len(FAMILIES)
    few = styles_of(["axn(rounds=5)"])
    many = styles_of(["rerank(retriever=dense)", "axn(rounds=5)", "axn(blend=0.5)", "wordnet"])
    one, other = many["axn(rounds=5)"], many["axn(blend=0.5)"]
    assert one == few["axn(rounds=5)"]
    assert (one["color"], one["marker"]) == (other["color"], other["marker"])


@given(st.lists(st.sampled_from(["axn", "rerank", "gp", ""]), max_size=LINES))
def test_the_lines_of_a_plot_differ_in_something(names):
    specs = [f"{name}(retriever=v{place})" for place, name in enumerate(names)]
    looks = [str(style) for style in styles_of(specs).values()]
    assert len(set(looks)) == len(specs)


def test_the_best_of_every_method_stands_out_and_reranking_always():
    names = [f"{m}(rounds={r})" for m in ("axn", "gp", "gar", "tour", "refit") for r in (1, 2)]
    lines = [Curve(name=n, x=[50], y=[0.5 + place / 99]) for place, n in enumerate(names)]
    rerank = (("a", 0), ("b", 0.1))
    lines += [Curve(name=f"rerank(retriever={s})", x=[50], y=[y]) for s, y in rerank]
    best = [f"{name}(rounds=2)" for name in ("refit", "tour", "gar", "gp", "axn")]
    assert highlights(lines) == ["rerank(retriever=b)", *best]


SPECS = st.builds(
    lambda name, options: f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})",
    st.sampled_from(["axn", "rerank"]),
    st.dictionaries(st.sampled_from(["retriever", "rounds"]), st.sampled_from(["a", "1", "0.5"])),
)


@given(st.lists(SPECS, unique=True))
def test_short_labels_keep_methods_apart(specs):
    labels = labels_of(specs)
    assert list(labels) == specs
    for a, b in combinations(specs, 2):
        if parse(a) != parse(b):
            assert labels[a] != labels[b]
