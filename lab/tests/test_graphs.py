"""The item graph: what it holds, and what it is made of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import LengthEncoder, corpus

from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.types import Queries
from crossknn_lab.rivals import graphs
from crossknn_lab.rivals.graphs import (
    cosines,
    default_graph,
    item_graph,
    nearest_by_rankings,
    nearest_by_vectors,
)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 12),
    half=st.booleans(),
    rows=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_neighbours_are_the_nearest_others_by_cosine(n, k, half, rows, seed):
    vectors = (np.random.default_rng(seed).normal(size=(n, 5)) * 3).astype(np.float32)
    vectors[seed % n] = 0
    vectors = vectors.astype(np.float16) if half else vectors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "_CELLS", rows * n)
        found = nearest_by_vectors(vectors, k)
    unit = vectors / np.maximum(np.linalg.norm(vectors.astype(float), axis=1), 1e-9)[:, None]
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    width = min(k, n - 1)
    expected = np.sort(similar, axis=1)[:, ::-1][:, :width]
    nearest = np.take_along_axis(similar, found[:, :width], 1)
    np.testing.assert_allclose(nearest, expected, atol=1e-5)
    made = cosines(vectors, np.arange(n), found)[:, :width]
    np.testing.assert_allclose(made, expected, atol=1e-5)
    assert (found[:, width:] == -1).all()
    assert found.dtype == np.int32


def test_items_that_the_same_queries_rank_high_are_neighbours(monkeypatch):
    """The values are 3 2 1 of each query's first three; entries of A^T A by hand."""
    monkeypatch.setattr(graphs, "RANKED", 3)
    monkeypatch.setattr(graphs, "_CELLS", 10)  # two rows at a time
    scores = np.array([[9, 8, 7, 0, 0], [0, 9, 0, 8, 7], [0, 8, 9, 7, 0]], np.float32)
    # 0-1: 6, 0-2: 3; 1-2: 2 + 6, 1-3: 6 + 2, 1-4: 3; 2-3: 3; 3-4: 2
    found = nearest_by_rankings(scores, 3)
    assert found.tolist() == [[1, 2, -1], [2, 3, 0], [1, 0, 3], [1, 2, 4], [1, 3, -1]]
    assert nearest_by_rankings(scores[:1], 1).tolist() == [[1], [0], [0], [-1], [-1]]


@pytest.fixture
def index():
    return ItemIndex.build(corpus(30), encoder=LengthEncoder(), lsa=5)


def test_the_graph_is_of_vectors_or_words_and_made_once(index):
    graph = item_graph(index, "dense", 5)
    assert np.array_equal(graph, nearest_by_vectors(index.vectors["dense"], 5))
    assert item_graph(index, "dense", 5) is graph
    assert np.array_equal(item_graph(index, "dense", 3), graph[:, :3])
    assert item_graph(index, "lsa", 99).shape == (30, 29)
    words = item_graph(index, "bm25", 4)
    top = index.retrievers["bm25"].top(Queries([index.items.texts[7]]), 5).items[0]
    assert words[7].tolist() == [item for item in top if item != 7][:4]
    assert default_graph(index, "auto") == "dense"
    with pytest.raises(
        InputError, match=r"nothing to make an item graph 'own' of .there are: dense"
    ):
        item_graph(index, "own", 3)
