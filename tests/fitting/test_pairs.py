"""Which pairs are scored: enough of each, each once, and fairly from the beginning."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.fitting.pairs import per_item, per_query
from crossknn.retrievers.base import DenseRetriever, RandomItems
from crossknn.retrievers.lexical import BM25
from crossknn.types import Queries

QUERIES = Queries([f"query {q}" for q in range(7)])


def vectors(m, d=5, seed=0):
    return np.random.default_rng(seed).standard_normal((m, d)).astype(np.float32)


def dense(m):
    """A dense retriever of 600 items, their vectors, and m queries that have some."""
    items = vectors(600, seed=1)
    queries = Queries([f"query {q}" for q in range(m)], {"dense": vectors(m)})
    return DenseRetriever(items, lambda batch: batch.vectors["dense"]), items, queries


def rows(pairs, count):
    return pairs.query.reshape(-1, count), pairs.item.reshape(-1, count)


def test_per_query_takes_the_top_of_the_stage_query_by_query():
    stage, items, queries = dense(300)
    pairs = per_query(stage, queries, 9, n=600).pairs
    query, item = rows(pairs, 9)
    assert (query == query[:, :1]).all()
    assert sorted(query[:, 0]) == list(range(300))
    assert query[:, 0].tolist() != list(range(300))
    exact = np.argsort(-(queries.vectors["dense"] @ items.T), axis=1)[:, :9]
    assert np.array_equal(item, exact[query[:, 0]])


def test_a_part_of_a_querys_items_is_drawn_from_all_of_them():
    stage, items, queries = dense(40)
    plan = per_query(stage, queries, 120, n=600, random=60)
    query, item = rows(plan.pairs, 120)
    assert all(len(set(row)) == 120 for row in item.tolist())
    near = np.argsort(-(queries.vectors["dense"] @ items.T), axis=1)[query[:, 0]]
    rank = np.argmax(near[:, None, :] == item[:, :, None], axis=2)
    assert (np.diff(rank[:, 60:]) > 0).all()  # the best of the others, in their order
    assert (rank[:, 60:].max(axis=1) < 100).all()
    assert np.array_equal(plan.random.item.reshape(-1, 60), item[:, :60])
    assert 280 < rank[:, :60].mean() < 320  # of all ranks alike, the best included
    assert (rank[:, :60] < 60).sum() > 150


def test_a_smaller_plan_draws_what_a_larger_one_does():
    stage, _, queries = dense(9)
    sets = []
    for count in (20, 40, 80):
        query, item = rows(per_query(stage, queries, count, n=600, random=count // 10).pairs, count)
        sets.append({q: set(row) for q, row in zip(query[:, 0], item.tolist(), strict=True)})
    for smaller, larger in pairwise(sets):
        assert all(smaller[q] <= larger[q] for q in range(9))


def test_per_query_fills_what_the_stage_does_not_find_with_random_items():
    texts = [f"word{i % 40} filler" if i % 40 else "seldom" for i in range(200)]
    stage = BM25.fit(texts)
    queries = Queries(["seldom", "nothing of this", "word3"])
    pairs = per_query(stage, queries, 50, n=200).pairs
    query, item = rows(pairs, 50)
    assert all(len(set(row)) == 50 for row in item.tolist())
    found = item[query[:, 0] == 0][0]
    assert set(found[:5]) == {0, 40, 80, 120, 160}
    other = rows(per_query(stage, queries, 50, n=200, seed=1).pairs, 50)
    assert set(other[1][other[0][:, 0] == 0][0]) != set(found)


def test_per_query_depends_on_the_seed_alone_and_reports_progress():
    seen = []
    stage = RandomItems(20, 0)
    retriever = per_query(stage, QUERIES, 4, n=20, progress=lambda *step: seen.append(step)).pairs
    again = per_query(stage, QUERIES, 4, n=20).pairs
    other = per_query(stage, QUERIES, 4, n=20, seed=1).pairs
    assert np.array_equal(retriever.query, again.query)
    assert np.array_equal(retriever.item, again.item)
    assert not np.array_equal(retriever.query, other.query)
    assert seen == [(7, 7)]


def test_per_query_asks_for_no_more_items_than_there_are():
    pairs = per_query(RandomItems(3, 0), QUERIES, 10, n=3).pairs
    assert sorted(zip(pairs.query, pairs.item, strict=True)) == [
        (q, i) for q in range(7) for i in range(3)
    ]


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_per_item_gives_each_item_different_queries_in_rounds(n, q, data):
    count = data.draw(st.integers(1, q))
    pairs = per_item(n, q, count, seed=data.draw(st.integers(0, 99))).pairs
    assert len(set(zip(pairs.query, pairs.item, strict=True))) == len(pairs) == n * count
    assert pairs.query.min() >= 0
    assert pairs.query.max() < q
    for one in pairs.item.reshape(count, n):
        assert sorted(one) == list(range(n))


def test_per_item_draws_every_pair_alike():
    pairs = per_item(40_000, 5, 2).pairs
    table = np.zeros((5, 5), int)
    retriever = np.empty(40_000, int)
    retriever[pairs.item[:40_000]] = pairs.query[:40_000]
    np.add.at(table, (retriever[pairs.item[40_000:]], pairs.query[40_000:]), 1)
    off = table[~np.eye(5, dtype=bool)]
    assert np.trace(table) == 0
    assert np.allclose(off, 2000, atol=250)  # about 5.6 standard deviations


def test_bad_counts_are_refused():
    with pytest.raises(InputError, match="items per query is 0"):
        per_query(RandomItems(5, 0), QUERIES, 0, n=5)
    with pytest.raises(InputError, match="no train queries"):
        per_query(RandomItems(5, 0), Queries([]), 1, n=5)
    with pytest.raises(InputError, match=r"8 queries per item .* only 7"):
        per_item(5, 7, 8)
    with pytest.raises(InputError, match="queries per item is -1"):
        per_item(5, 7, -1)
