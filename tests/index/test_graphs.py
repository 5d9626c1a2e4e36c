"""The item graph: what it holds, where it is kept, and when it is stale."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import LengthEncoder, corpus
from synthetic import aligned_matrix

from crossknn.errors import InputError
from crossknn.index import graphs
from crossknn.index.graphs import (
    cosines,
    nearest_by_rankings,
    nearest_by_vectors,
    nearest_neighbours,
)
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix
from crossknn.index.vectors import ItemVectors


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


def test_graphs_are_kept_as_deep_as_they_were_asked_for(index, tmp_path):
    assert list(index.graphs) == []
    assert index.add_graph("bm25", 4) == "bm25"
    assert index.add_graph(neighbours=6) == "dense"  # the vectors that are not fitted
    index.save(tmp_path / "index")
    index.add_graph("lsa", 5)  # added in the folder
    made = []
    for name, k in (("dense", 4), ("bm25", 9)):
        index.add_graph(name, k, progress=lambda *n: made.append(n))
    assert made == [(30, 30)]
    for loaded in (ItemIndex.load(tmp_path / "index"), index):
        found = {name: graph.shape for name, graph in loaded.graphs.items()}
        assert found == {"dense": (30, 6), "lsa": (30, 5), "bm25": (30, 9)}
        for name, graph in index.graphs.items():
            assert np.array_equal(loaded.graphs[name][:, :3], graph[:, :3])
    with pytest.raises(InputError, match=r"'dense' has 6 neighbours of each item, not 10: use"):
        nearest_neighbours(index.graphs, "dense", 10)


def test_a_graph_goes_with_the_vectors_that_it_is_made_of(index, tmp_path, caplog):
    index.save(tmp_path / "index")
    moved = ItemVectors(values=index.vectors["lsa"] * 2, method="x", base="lsa")
    index.add_fitted("moved", moved)
    for name in ("moved", "bm25", "lsa", "dense"):
        index.add_graph(name, 3)
    same = ItemIndex.build(corpus(30), lsa=5, previous=index)
    assert set(same.graphs) == {"moved", "bm25", "lsa"}
    assert np.array_equal(same.graphs["moved"][:, :3], index.graphs["moved"][:, :3])
    assert "dropped graphs/dense" in caplog.text
    other = ItemIndex.build(corpus(30), lsa=4, previous=index)
    assert set(other.graphs) == {"bm25"}
    assert not ItemIndex.build(corpus(31), previous=index).graphs
    index.add_fitted("moved", replace(moved, values=-moved.values), replace=True)
    for one in (index, ItemIndex.load(tmp_path / "index")):
        with pytest.raises(InputError, match="no item graph 'moved'"):
            nearest_neighbours(one.graphs, "moved", 3)


def test_stored_matrices_compute_the_graph_of_their_vectors_once():
    data = aligned_matrix()
    index, _, _ = data.rows(0, 2)
    assert sorted(index.graphs) == ["cur", "dense", "mf"]
    graph = index.graphs["dense"][:, :5]
    assert np.array_equal(graph, nearest_by_vectors(data.dense_items, 5))
    assert np.shares_memory(graph, data.rows(2, 4)[0].graphs["dense"][:, :3])
    assert np.array_equal(index.graphs["dense"][:, :7][:, :5], graph)
    moved = replace(data, dense_items=data.dense_items[::-1].copy())
    assert not np.array_equal(moved.graphs["dense"][:, :5], graph)


def test_files_hold_graphs_by_name(tmp_path):
    graph = np.array([[1, 2], [0, -1], [3, 1], [2, 0], [5, 3], [-1, -1]])
    one = graph[:, :1].astype("u1") % 6
    np.savez(tmp_path / "m.npz", scores=np.ones((2, 6)), graph_dense=graph, graph_bm25=one)
    index, _, _ = StoredMatrix.load(tmp_path / "m.npz").rows(0, 1)
    assert sorted(index.graphs) == ["bm25", "dense"]
    assert index.graphs["dense"][:, :2].tolist() == graph.tolist()
    assert index.graphs["bm25"][:, :1].tolist() == [[1], [0], [3], [2], [5], [3]]
    with pytest.raises(InputError, match="'dense' has 2 neighbours of each item, not 3"):
        nearest_neighbours(index.graphs, "dense", 3)
