"""Colours, markers and labels of methods: the same everywhere, and told apart."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from crossknn.methods import METHODS
from crossknn.spec import parse
from crossknn_lab.curves import FAMILIES, LINES, Curve, highlights, labels_of, styles_of


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
