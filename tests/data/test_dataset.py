"""A data set counts what does not fit together and leaves nothing out; parts of it by seed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.data.dataset import Dataset, split
from crossknn.data.items import Items
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError


def dataset(*, queries=("q1", "q2"), items=("d1", "d2"), qrels=None, candidates=None):
    ids = list(items)
    return Dataset(
        name="x",
        items=Items(ids=ids, texts=ids, titles=[""] * len(ids), extra=[{}] * len(ids)),
        queries=QuerySet(tuple(queries), tuple(f"text of {query}" for query in queries)),
        qrels={"q1": {"d1": 1}, "q2": {"d2": 1}} if qrels is None else qrels,
        candidates=candidates,
    )


@pytest.mark.parametrize(("what", "ids"), [("query", "queries"), ("item", "items")])
def test_ids_that_come_twice_are_refused(what, ids):
    with pytest.raises(InputError, match=f"the {what} id 'a' comes twice"):
        dataset(**{ids: ("a", "a")})


names = st.sampled_from("abcdef")


@given(
    st.sets(names),
    st.sets(names),
    st.dictionaries(names, st.dictionaries(names, st.integers(-1, 2), min_size=1)),
    st.dictionaries(names, st.lists(st.tuples(names, st.just(1.0)))),
)
def test_counts_agree_with_a_plain_count(queries, items, qrels, lists):
    found = dataset(queries=queries, items=items, qrels=qrels, candidates=lists)
    listed = [(q, i) for q, entries in lists.items() for i, _ in entries]
    relevant = {q for q, judged in qrels.items() if max(judged.values()) > 0}
    counts = [
        len(queries - set(qrels)),  # have no judgement
        len((queries & set(qrels)) - relevant),
        len(set(qrels) - queries),
        sum(item not in items for judged in qrels.values() for item in judged),
        len(set(lists) - queries),
        sum(item not in items for _, item in listed),
        len(listed) - len(set(listed)),
    ]
    assert [int(re.search(r": (\d+), the first", said)[1]) for said in found.findings] == [
        count for count in counts if count
    ]
    taken = found.judged()
    kept = queries & relevant
    assert set(taken.queries.ids) == kept
    assert taken.qrels == {query: qrels[query] for query in kept}
    assert taken.candidates == {query: found for query, found in lists.items() if query in kept}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 30), st.integers(0, 99))
def test_parts_are_disjoint_and_have_their_sizes(sizes, rest, seed):
    n = sum(sizes) + rest
    named = {f"part{i}": size for i, size in enumerate(sizes)}
    parts = split(n, named, seed)
    together = np.concatenate(list(parts.values()))
    assert {name: len(part) for name, part in parts.items()} == named
    assert set(together.tolist()) <= set(range(n))
    assert len(set(together.tolist())) == len(together)
    assert all(np.all(np.diff(part) > 0) for part in parts.values())
    assert all(np.array_equal(part, split(n, named, seed)[name]) for name, part in parts.items())
    larger = split(n, {"part0": sizes[0] + rest}, seed)["part0"]
    assert set(parts["part0"]) <= set(larger)


@pytest.mark.parametrize(
    ("size", "words"), [(0.8, "is 0.8"), (-1, "is -1"), (9, r"\(a 9 \+ b 2\) add up to more")]
)
def test_sizes_that_do_not_fit_are_refused(size, words):
    with pytest.raises(InputError, match=words):
        split(10, {"a": size, "b": 2})


def test_a_sample_depends_on_its_seed_and_keeps_the_order():
    names = [f"{n:02}" for n in range(40)]
    part = dataset(queries=names, items=names, qrels={name: {name: 1} for name in names})
    one, same, other = (part.sample(7, seed) for seed in (0, 0, 1))
    assert one.queries == same.queries != other.queries
    assert list(one.queries.ids) == sorted(f"{row:02}" for (row,) in one.positives)
    assert (len(one), part.sample(99, 0)) == (7, part)
