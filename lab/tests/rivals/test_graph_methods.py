"""Methods that walk the item graph: by hand, and the figures that a right implementation gives.

Their recipes are in `references`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import corpus
from synthetic import matrix, run

from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.methods import parse_method
from crossknn.types import NO_ITEM
from crossknn_lab.rivals.graphs import item_graph
from crossknn_lab.stored import StoredMatrix

EXACT = [1, 5, 0, 2, 9, 3, 8, 7]
GRAPH = [[3, 2], [4, 5], [0, 1], [0, 7], [6, 1], [1, 0], [7, 4], [6, 3]]


def by_hand(exact=EXACT, graph=GRAPH) -> StoredMatrix:
    """One query; the retriever `words` ranks items by position."""
    n = len(exact)
    data = StoredMatrix(
        scores=np.array([exact], np.float32),
        n_anchors=0,
        dense_items=None,
        dense_queries=None,
        firsts={"words": -np.arange(n, dtype=np.float32)[None]},
        query_ids=("query",),
    )
    return with_graph(data, np.array(graph, np.int32))


def with_graph(data: StoredMatrix, graph: np.ndarray) -> StoredMatrix:
    """The matrix with vectors `near`, whose item graph is the given one, with any width."""
    made = data.with_vectors("near", np.zeros((len(graph), 1)))
    for k in range(1, graph.shape[1] + 1):
        made.cache.get(
            ("graph", "near", k), (made.vectors["near"],), partial(np.take, graph, range(k), 1)
        )
    return made


def drawn(seed, n=50, k=3) -> StoredMatrix:
    """One query over a graph drawn by chance, some of whose neighbours are missing."""
    rng = np.random.default_rng(seed)
    graph = np.stack([rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)])
    graph[rng.random(n) < 0.2, -1] = NO_ITEM
    cheap = rng.normal(size=(1, n)).astype(np.float32)
    data = replace(by_hand(rng.normal(size=n), graph), firsts={"words": cheap})
    return with_graph(data, graph)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(2, 25),
    spec=st.sampled_from(["gar()", "greedy(batch=1)", "ladr(batch=1)", "ladr(depth=4, batch=1)"]),
)
def test_a_filter_is_a_graph_without_the_other_items(seed, budget, spec):
    data, allowed = drawn(seed), np.random.default_rng(seed).random(50) < 0.6
    allowed[:2] = True
    graph = item_graph(data, "near", 3)
    restricted = np.where(allowed[graph], graph, np.int32(NO_ITEM))
    spec = spec.replace("(", "(retriever=words, graph=near, neighbours=3, ", 1).replace(", )", ")")
    found, expected = (
        run(spec, one, budget, allowed=allowed).picks().items.tolist()
        for one in (data, with_graph(data, restricted))
    )
    assert found == expected


@pytest.mark.parametrize("name", ["gar", "greedy", "ladr"])
def test_a_first_stage_that_runs_short_leaves_the_rest_to_the_graph(name):
    few = np.where(np.arange(8) < 2, 1.0, -np.inf).astype(np.float32)
    data = with_graph(replace(by_hand(), firsts={"words": few[None]}), np.array(GRAPH, np.int32))
    seeds = "" if name == "gar" else ", retriever_share=0.25"
    spec = f"{name}(retriever=words, graph=near, neighbours=2, batch=2{seeds})"
    search = run(spec, data, 8)
    assert search.picks().items[0, :4].tolist() == [0, 1, 4, 5]
    assert not np.isnan(search.picks().approx).any()  # none in item order


def test_the_graph_is_that_of_the_vectors_by_default():
    data = matrix()
    named, auto = (
        run(f"gar(retriever=dense, graph={graph}, neighbours=5)", data, 30).picks().items.tolist()
        for graph in ("dense", "auto")
    )
    assert named == auto
    with pytest.raises(InputError, match=r"nothing to make an item graph .* of .there are: none"):
        run("gar(retriever=bm25)", replace(data, dense_items=None), 10)
    with pytest.raises(InputError, match="nothing to make an item graph 'other' of"):
        run("ladr(retriever=bm25, graph=other)", data, 10)
    with pytest.raises(InputError, match="needs scores of anchor queries"):
        run("gar(retriever=words, graph=scores)", by_hand(), 4)
    index = ItemIndex.build(corpus(9), lsa=0)
    with pytest.raises(InputError, match="affinity=set needs item vectors"):
        parse_method("gar(retriever=bm25, graph=bm25, affinity=set)").plan(index, 4, 0)
