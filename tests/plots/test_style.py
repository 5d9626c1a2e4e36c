"""Colours, markers and labels of methods: the same everywhere, and told apart by all readers."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.methods import METHODS
from crossknn.plots import FAMILIES, OTHERS, PAPER, family, labels_of, spread, styles_of
from crossknn_lab.page import DARK

SEEN_TOGETHER = ("rerank", "axn", "adacur", "anncur", "gp", "gar")
BLIND = {  # Machado, Oliveira & Fernandes 2009, severity 1, on linear RGB
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    light, dark = sorted(
        (float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (a, b)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    assert METHODS.keys() <= FAMILIES.keys()
    for kind in (0, 1):
        assert len({look[kind] for look in FAMILIES.values()}) == len(FAMILIES)


@pytest.mark.parametrize("kind", [*BLIND, None])
@pytest.mark.parametrize("dark", [False, True])
def test_methods_often_seen_together_are_told_apart_by_colour_blind_eyes(kind, dark):
    seen = np.eye(3) if kind is None else np.array(BLIND[kind])
    colours = {name: FAMILIES[name][0] for name in SEEN_TOGETHER}
    if dark:
        colours = {name: DARK[colour] for name, colour in colours.items()}
    places = {name: lab(seen @ linear(colour)) for name, colour in colours.items()}
    for a, b in combinations(places, 2):
        assert np.linalg.norm(places[a] - places[b]) > 10, (a, b)


@pytest.mark.parametrize("colour", [*(look[0] for look in FAMILIES.values()), *OTHERS])
def test_lines_stand_out_from_light_and_dark_pages(colour):
    assert contrast(colour, PAPER) >= 3
    assert contrast(DARK[colour], DARK[PAPER]) >= 4.5


def test_a_method_has_one_colour_whatever_its_options_and_its_company():
    few = styles_of(["axn(retriever=dense, rounds=5)"])
    many = styles_of(
        ["rerank(retriever=dense)", "axn(retriever=dense, rounds=5)", "axn(blend=0.5)", "wordnet"]
    )
    assert few["axn(retriever=dense, rounds=5)"] == many["axn(retriever=dense, rounds=5)"]
    one, other = many["axn(retriever=dense, rounds=5)"], many["axn(blend=0.5)"]
    assert (one.colour, one.marker) == (other.colour, other.marker)
    assert one.dash != other.dash


@given(st.lists(st.sampled_from(["axn", "rerank", "gp"]), max_size=10))
def test_ten_variants_of_a_method_differ_in_something(names):
    specs = [f"{name}(retriever=v{place})" for place, name in enumerate(names)]
    looks = [str(style) for style in styles_of(specs).values()]
    assert len(set(looks)) == len(specs)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("axn(retriever=dense)", "axn"),
        ("AXN with ridge", "axn"),
        ("cmc(depth=64)", "retrieve"),
        ("axnx", ""),
        ("50 calls", ""),
    ],
)
def test_families_of_specs_and_of_names_for_readers(name, found):
    assert family(name) == found


@given(
    st.lists(
        st.builds(
            lambda name, options: f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})",
            st.sampled_from(["axn", "rerank"]),
            st.dictionaries(
                st.sampled_from(["retriever", "rounds", "blend"]),
                st.sampled_from(["a", "1", "0.5"]),
            ),
        ),
        unique=True,
    )
)
def test_short_labels_keep_methods_apart(specs):
    labels = labels_of(specs)
    assert list(labels) == specs
    same = {spec: dict(sorted(_options(spec))) for spec in specs}
    for a, b in combinations(specs, 2):
        if a.split("(")[0] != b.split("(")[0] or same[a] != same[b]:
            assert labels[a] != labels[b]


def _options(spec):
    inside = spec[spec.index("(") + 1 : -1]
    return [tuple(part.split("=")) for part in inside.split(", ") if part]


def test_settings_that_were_chosen_have_labels_too():
    found = labels_of(["axn(retriever=dense, blend={blend})", "axn(retriever=dense, blend=0.5)"])
    assert list(found.values()) == ["axn blend=chosen", "axn blend=0.5"]


@given(
    st.lists(st.floats(0, 1), max_size=12).map(sorted),
    st.floats(0.01, 0.2),
)
def test_labels_are_spread_no_further_than_they_must_be(heights, gap):
    places = spread(heights, gap)
    assert len(places) == len(heights)
    assert all(b - a >= gap - 1e-9 for a, b in pairwise(places))
    if all(b - a >= gap for a, b in pairwise(heights)):
        assert places == pytest.approx(heights)
    assert sum(places) == pytest.approx(sum(heights), abs=1e-6)
