"""Colours, markers and labels of methods: the same everywhere, and told apart."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from crossknn.methods import METHODS
from crossknn.spec import parse
from crossknn_lab.curves import (
    FAMILIES,
    LINES,
    Curve,
    curves,
    highlights,
    labels_of,
    styles_of,
)


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    assert METHODS.keys() <= FAMILIES.keys()
    for kind in (0, 1):
        assert len({look[kind] for look in FAMILIES.values()}) == len(FAMILIES)


def test_a_method_has_one_colour_whatever_its_options_and_its_company():
    few = styles_of(["axn(rounds=5)"])
    many = styles_of(["rerank(retriever=dense)", "axn(rounds=5)", "axn(blend=0.5)", "wordnet"])
    one, other = many["axn(rounds=5)"], many["axn(blend=0.5)"]
    assert one == few["axn(rounds=5)"]
    assert (one["color"], one["marker"]) == (other["color"], other["marker"])
    assert one["ls"] != other["ls"]


@given(st.lists(st.sampled_from(["axn", "rerank", "gp", ""]), max_size=LINES))
def test_the_lines_of_a_plot_differ_in_something(names):
    specs = [f"{name}(retriever=v{place})" for place, name in enumerate(names)]
    looks = [str(style) for style in styles_of(specs).values()]
    assert len(set(looks)) == len(specs)


# Linear sRGB as it is seen with no cones for green or for red (Machado et al. 2009, severity 1),
# and to XYZ (IEC 61966-2-1).
SEEN = {
    "all": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}
XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
OFTEN = ("rerank", "kriging", "axn", "adacur", "gp", "anncur", "retrieve", "gar")


def lab(colour: str, seen: str) -> np.ndarray:
    """CIELAB of a colour; a distance of 10 is plain, the first value is its grey."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    x, y, z = np.cbrt(XYZ @ np.clip(SEEN[seen] @ linear, 0.01, 1) / XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN)
def test_what_is_compared_most_often_is_told_apart_by_any_eyes_and_in_grey(seen):
    colours = [FAMILIES[name][0] for name in OFTEN]
    assert (
        min(np.linalg.norm(lab(a, seen) - lab(b, seen)) for a, b in combinations(colours, 2)) > 15
    )
    greys = sorted(lab(colour, "all")[0] for colour in colours[:6])
    assert min(np.diff(greys)) > 5
    assert all(lab(colour, "all")[0] < 64 for colour, _ in FAMILIES.values())  # text on white


NAME = st.text("abc fghij", min_size=1, max_size=30).filter(str.strip)
LINE = st.tuples(NAME, st.floats(0, 1), st.booleans())


@settings(max_examples=8, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=9, unique_by=lambda line: line[0].strip()))
def test_no_more_than_six_lines_have_names_and_no_name_is_over_another(lines):
    panel = drawn(
        [Curve(name=n, x=[None] if a else [50, 90], y=[y] * (2 - a)) for n, y, a in lines]
    )
    boxes = sorted((Text.get_window_extent(text) for text in panel.texts), key=lambda box: box.y0)
    assert len(panel.get_lines()) == len(lines)
    assert len(boxes) == min(len(lines), LINES)
    assert all(below.y1 <= above.y0 + 1e-6 for below, above in pairwise(boxes))
    assert all(box.x0 >= panel.bbox.x1 for box in boxes)
    assert all(box.x1 <= panel.get_figure().bbox.x1 + 1 for box in boxes)


def drawn(found, **options):
    """The panel of a plot."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
        curves({"top 10": found}, "x.png", title="The title", x_label="calls", **options)
    return kept[0].axes[0]


def test_the_best_of_every_method_stands_out_and_reranking_always():
    names = [
        f"{name}(rounds={r})" for name in ("axn", "gp", "gar", "tour", "refit") for r in (1, 2)
    ]
    found = [Curve(name=n, x=[50], y=[0.5 + place / 99]) for place, n in enumerate(names)]
    found += [
        Curve(name=f"rerank(retriever={s})", x=[50], y=[y]) for s, y in (("a", 0), ("b", 0.1))
    ]
    best = [
        "rerank(retriever=b)",
        *(f"{n}(rounds=2)" for n in ("refit", "tour", "gar", "gp", "axn")),
    ]
    assert highlights(found) == best
    named = drawn(found, highlight=["gp(rounds=1)"]).texts
    assert [text.get_text() for text in named] == ["gp"]


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
