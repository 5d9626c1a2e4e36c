"""Colours, markers and labels of methods: the same everywhere, and told apart."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.methods import METHODS
from crossknn.plots import FAMILIES, family, labels_of, styles_of


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    assert METHODS.keys() <= FAMILIES.keys()
    for kind in (0, 1):
        assert len({look[kind] for look in FAMILIES.values()}) == len(FAMILIES)


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
