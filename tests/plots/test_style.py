"""Colours, markers and labels of methods: the same everywhere, and told apart."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from crossknn.methods import METHODS
from crossknn.plots import FAMILIES, family, labels_of, styles_of
from crossknn.spec import parse


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


@given(st.lists(st.sampled_from(["axn", "rerank", "gp"]), max_size=10))
def test_ten_variants_of_a_method_differ_in_something(names):
    specs = [f"{name}(retriever=v{place})" for place, name in enumerate(names)]
    looks = [str(style) for style in styles_of(specs).values()]
    assert len(set(looks)) == len(specs)


def test_families_of_specs_and_of_names_for_readers():
    names = ["axn(retriever=dense)", "AXN with ridge", "cmc(depth=64)", "axnx", "50 calls"]
    assert [family(name) for name in names] == ["axn", "axn", "retrieve", "", ""]


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


def test_settings_that_were_chosen_have_labels_too():
    found = labels_of(["axn(retriever=dense, blend={blend})", "axn(retriever=dense, blend=0.5)"])
    assert list(found.values()) == ["axn blend=chosen", "axn blend=0.5"]
