"""The grammar."""

from keyword import iskeyword

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import matrix, run

from crossknn.errors import SpecError
from crossknn.methods import parse_method, parse_methods
from crossknn.methods.axn import AXN
from crossknn.spec import Spec, parse, split

names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda n: not iskeyword(n))
numbers = st.integers(-99, 99) | st.floats(-1e3, 1e3, allow_nan=False).map(float)
specs = st.recursive(
    names.map(Spec),
    lambda inner: st.builds(
        Spec,
        names,
        st.lists(inner | numbers, max_size=3).map(tuple),
        st.dictionaries(names, inner | numbers, max_size=3),
    ),
    max_leaves=6,
)


@given(specs)
def test_a_printed_spec_reads_back_the_same(spec):
    assert parse(str(spec)) == spec


@given(st.lists(specs, min_size=1, max_size=4))
def test_lists_are_split_outside_parentheses(many):
    for separator in (", ", "\n"):
        assert [parse(part) for part in split(separator.join(map(str, many)))] == many


def test_options_reach_the_method():
    found = parse_method("axn(retriever=hybrid(bm25, dense), rounds=5, blend=0.5, ridge=none)")
    assert found == AXN(retriever=parse("hybrid(bm25,dense)"), rounds=5, blend=0.5)
    assert parse_method(str(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("axm", "unknown method 'axm': did you mean axn"),
        ("zzz", "unknown method 'zzz': known: acurank, adacur, anncur, auto"),
        ("axn(round=5)", "'axn' has no option 'round': did you mean rounds"),
        ("axn(rounds=many)", r"axn\(rounds=many\): expected a whole number"),
        ("axn(blend=1.5)", "blend must lie between 0 and 1"),
        ("adacur(sample=best)", "expected one of top, softmax"),
        ("adacur(anchor_share=dense)", "expected a number or none"),
        ("axn(rounds=5", "cannot read"),
        ("axn rounds", "cannot read"),
        ("axn(rounds=[1])", "expected a name or a number, found"),
        ("rerank(dense)", "takes named options only"),
        ("exact(a=1)", "it has none"),
        ("rerank(retriever=1.2.3)", "cannot read"),
        ("rerank(retriever=bm52)", "no retriever 'bm52': did you mean bm25"),
        ("rerank(retriever=bm25(k=3))", "takes no options"),
        ("7", "is a number where the name of a method"),
        ("", "no method is given"),
    ],
)
def test_what_cannot_be_read_is_answered_in_a_sentence(text, words):
    with pytest.raises(SpecError, match=words):
        run(next(iter(parse_methods(text).values())), matrix(), 10)
