"""The item graph: what it holds, where it is kept, and when it is stale."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import LengthEncoder, corpus
from synthetic import aligned_matrix, matrix

from crossknn.errors import InputError
from crossknn.index.fitted import FittedVectors
from crossknn.index.graphs import cosines, nearest_by_vectors
from crossknn.index.item_index import ItemIndex
from crossknn.index.rebuild import keep_parts
from crossknn.index.stored import StoredMatrix


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 12),
    half=st.booleans(),
    rows=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_neighbours_are_the_nearest_others_by_cosine(n, k, half, rows, seed):
    from crossknn.index import graphs

    vectors = np.random.default_rng(seed).normal(size=(n, 5)) * 3
    vectors[seed % n] = 0
    vectors = vectors.astype(np.float16 if half else np.float32)
    before, graphs._CELLS = graphs._CELLS, rows * n
    try:
        found = nearest_by_vectors(vectors, k)
    finally:
        graphs._CELLS = before
    single = vectors.astype(np.float64)
    unit = single / np.maximum(np.linalg.norm(single, axis=1, keepdims=True), 1e-9)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    width = min(k, n - 1)
    expected = np.sort(similar, axis=1)[:, ::-1][:, :width]
    np.testing.assert_allclose(
        np.take_along_axis(similar, found[:, :width], 1), expected, atol=1e-5
    )
    assert (found[:, width:] == -1).all()
    assert (found != np.arange(n)[:, None]).all()
    assert found.dtype == np.int32
    sources = np.arange(n)
    made = cosines(vectors, sources, found)[:, :width]
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_items_are_queries_of_the_words():
    texts = ["red cat", "red dog", "blue bird", "red cat cat", "x"]
    index = ItemIndex.build(texts, lsa=2)
    done = []
    assert index.add_graph("bm25", 3, progress=lambda *n: done.append(n)) == "bm25"
    assert done == [(5, 5)]
    assert index.graph("bm25", 3).tolist() == [
        [3, 1, -1],
        [0, 3, -1],
        [-1, -1, -1],
        [0, 1, -1],
        [-1, -1, -1],
    ]
    assert index.graph("bm25", 1).tolist() == [[3], [0], [-1], [0], [-1]]


@pytest.fixture
def index():
    return ItemIndex.build(corpus(30), encoder=LengthEncoder(), lsa=5)


def test_a_graph_is_kept_on_the_disk_and_mapped(index, tmp_path):
    assert list(index.graphs) == []
    assert index.add_graph("bm25", 4) == "bm25"
    assert index.add_graph(neighbours=6) == "dense"  # the vectors that are not fitted
    index.save(tmp_path / "index")
    index.add_graph("lsa", 5)  # added in the folder
    for loaded in (ItemIndex.load(tmp_path / "index"), index):
        assert sorted(loaded.graphs) == ["bm25", "dense", "lsa"]
        for name, k in (("bm25", 4), ("dense", 6), ("lsa", 5)):
            graph = loaded.graph(name, k)
            assert graph.shape == (30, k)
            assert np.array_equal(graph, index.graph(name, k))
        said = json.loads(json.dumps(loaded.description()))["graphs"]
        assert {name: graph["neighbours"] for name, graph in said.items()} == {
            "bm25": 4,
            "dense": 6,
            "lsa": 5,
        }
    mapped = ItemIndex.load(tmp_path / "index")
    assert isinstance(mapped.graph("dense", 6).base.base, np.memmap)
    mapped.save(tmp_path / "copy")
    assert sorted(ItemIndex.load(tmp_path / "copy").graphs) == ["bm25", "dense", "lsa"]


def test_a_graph_that_is_as_deep_stays_and_a_deeper_one_replaces_it(index, tmp_path):
    index.save(tmp_path / "index")
    index.add_graph("dense", 6)
    made = []
    index.add_graph("dense", 4, progress=lambda *n: made.append(n))
    assert not made
    index.add_graph("dense", 9, progress=lambda *n: made.append(n))
    assert made
    assert ItemIndex.load(tmp_path / "index").graph("dense", 9).shape == (30, 9)
    with pytest.raises(
        InputError, match=r"'dense' has 9 neighbours of each item, not 10: use neigh"
    ):
        index.graph("dense", 10)


def test_what_no_graph_can_be_made_of(index):
    with pytest.raises(InputError, match=r"cannot be made of 'lsb' \(did you mean lsa"):
        index.add_graph("lsb")
    with pytest.raises(InputError, match="neighbours is 0; it must be 1 or more"):
        index.add_graph("dense", 0)
    with pytest.raises(InputError, match=r"no item graph 'bm25' here .there are: none.*--graph 16"):
        index.graph("bm25", 4)
    bare = ItemIndex.build(["x", "y"], lsa=0, bm25=False)
    with pytest.raises(InputError, match="cannot be made of 'bm25'"):
        bare.add_graph()


def test_a_graph_of_vectors_that_were_replaced_is_not_used(index, tmp_path):
    index.save(tmp_path / "index")

    def align(factor):
        values = (index.vectors["lsa"] * factor).astype(np.float32)
        index.add_fitted(
            "moved", FittedVectors(values=values, method="x", base="lsa"), replace=True
        )

    align(2)
    index.add_graph("moved", 3)
    assert list(ItemIndex.load(tmp_path / "index").graphs) == ["moved"]
    align(-3)
    for one in (index, ItemIndex.load(tmp_path / "index")):
        assert list(one.graphs) == []
        with pytest.raises(InputError, match="no item graph 'moved'"):
            one.graph("moved", 3)
    index.save(tmp_path / "index")
    assert not list((tmp_path / "index").rglob("graph-*"))


def test_an_index_that_is_built_again_keeps_the_graphs_of_what_stayed(index, caplog):
    for name in ("bm25", "dense", "lsa"):
        index.add_graph(name, 4)
    same = ItemIndex.build(corpus(30), lsa=4)
    keep_parts(same, index)
    assert list(same.graphs) == ["bm25"]
    assert np.array_equal(same.graph("bm25", 4), index.graph("bm25", 4))
    assert "dropped the item graph dense" in caplog.text
    assert "dropped the item graph lsa" in caplog.text
    more = ItemIndex.build(corpus(31))
    keep_parts(more, index)
    assert list(more.graphs) == []


def test_stored_matrices_compute_the_graph_of_their_vectors_once():
    data = aligned_matrix()
    index, _, _ = data.rows(0, 2)
    assert sorted(index.graphs) == ["cur", "dense", "mf"]
    graph = index.graph("dense", 5)
    assert np.array_equal(graph, nearest_by_vectors(data.item_vectors, 5))
    assert np.shares_memory(graph, data.rows(2, 4)[0].graph("dense", 3))
    assert np.array_equal(index.graph("dense", 7)[:, :5], graph)
    with pytest.raises(InputError, match="no item graph 'bm25'"):
        index.graph("bm25", 2)
    moved = replace(data, item_vectors=data.item_vectors[::-1].copy())
    assert not np.array_equal(moved.rows(0, 1)[0].graph("dense", 5), graph)


def test_files_hold_graphs_by_name(tmp_path):
    made = matrix(n=6, anchors=1, tests=2, d=2)
    graph = np.array([[1, 2], [0, -1], [3, 1], [2, 0], [5, 3], [-1, -1]])
    arrays = {
        "scores": made.scores,
        "item_vectors": made.item_vectors,
        "query_vectors": made.query_vectors,
    }
    np.savez(
        tmp_path / "m.npz", **arrays, graph_dense=graph, graph_bm25=graph[:, :1].astype("u1") % 6
    )
    index, _, _ = StoredMatrix.load(tmp_path / "m.npz").rows(0, 1)
    assert sorted(index.graphs) == ["bm25", "dense"]
    assert index.graph("dense", 2).tolist() == graph.tolist()
    assert index.graph("bm25", 1).tolist() == [[1], [0], [3], [2], [5], [3]]
    with pytest.raises(InputError, match="'dense' has 2 neighbours of each item, not 3"):
        index.graph("dense", 3)
    for place, value, words in (
        ((0, 0), 6, "must hold positions of items, 0 to 5"),
        ((0, 0), -2, "must hold positions of items, 0 to 5"),
        ((3, 1), 3, "has item 3 among its own neighbours"),
        ((2, 1), 3, "has an item twice in a row"),
        ((0, 0), -1, "has -1 before a neighbour"),
    ):
        wrong = graph.copy()
        wrong[place] = value
        np.savez(tmp_path / "m.npz", **arrays, graph_x=wrong)
        with pytest.raises(InputError, match=f"'graph_x' {words}"):
            StoredMatrix.load(tmp_path / "m.npz")
    for wrong in (graph[1:], graph.astype(float), graph[:, 0]):
        np.savez(tmp_path / "m.npz", **arrays, graph_x=wrong)
        with pytest.raises(InputError, match=r"'graph_x' is an array of .* \(6, neighbours\)"):
            StoredMatrix.load(tmp_path / "m.npz")
