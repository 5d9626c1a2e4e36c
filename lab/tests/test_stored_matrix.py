"""A stored score matrix: several spaces of vectors, and what is wrong with a file."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.methods import parse_method
from crossknn.retrievers.specs import default_vectors
from crossknn.types import Scale
from crossknn_lab.stored import StoredMatrix


def test_vectors_by_name_with_their_own_scale():
    data = aligned_matrix()
    index, queries, _ = data.rows(2, 5)
    assert isinstance(index, Index)
    assert list(index.vectors) == ["dense", "cur", "mf"]
    assert [n for n in index.vectors if index.has_query_vectors(n)] == ["dense", "mf"]
    assert default_vectors(index) == "mf"
    moved = data.fitted["mf"].items
    assert index.vectors["mf"] is moved
    assert np.array_equal(index.vectors["dense"], data.dense_items)
    assert np.array_equal(index.query_vectors(queries, "mf"), data.dense_queries[22:25])
    known = data.scores[:20]
    assert index.scale("mf") == Scale.match(known, data.dense_queries[:20] @ moved.T)
    assert index.scale("cur") == Scale(alpha=data.anchors.center)
    assert index.scale("dense") == Scale.match(known, data.dense_queries[:20] @ data.dense_items.T)


def test_a_scale_that_is_not_given_only_centres_without_query_vectors_or_is_unknown():
    data = matrix()
    index, queries, _ = data.with_vectors("x", data.dense_items).rows(0, 1)
    assert index.scale("x") == Scale(alpha=float(data.scores[:20].mean(dtype=np.float64)))
    with pytest.raises(InputError, match="no query vectors beside its item vectors 'x'"):
        index.query_vectors(queries, "x")
    bare = StoredMatrix(data.scores, 0, None, None, {}, data.query_ids)
    index, _, _ = bare.with_vectors("x", data.dense_items, data.dense_queries).rows(0, 1)
    assert index.scale("x") is None
    assert default_vectors(index) == "x"


def test_files_hold_spaces_by_name_the_latest_last(tmp_path):
    data = aligned_matrix()
    arrays = {f"item_vectors_{name}": space.items for name, space in data.fitted.items()}
    arrays |= {"item_vectors": data.dense_items, "query_vectors": data.dense_queries}
    arrays |= {"scores": data.scores, "query_vectors_mf": data.dense_queries}
    np.savez(tmp_path / "m.npz", n_anchors=20, **arrays)
    loaded = StoredMatrix.load(tmp_path / "m.npz")
    assert list(loaded.fitted) == ["cur", "mf"]
    assert loaded.fitted["cur"].queries is None
    for spec in (
        "axn(retriever=dense, vectors=cur, rounds=2, normalize=none)",
        "rerank(retriever=mf)",
    ):
        found = [run(parse_method(spec), m, 20).picks().items for m in (data, loaded)]
        assert np.array_equal(*found)


GOOD = {
    "scores": np.linspace(0, 1, 24).reshape(4, 6),
    "n_anchors": 1,
    "item_vectors": np.ones((6, 2)),
    "query_vectors": np.ones((4, 2)),
    "first_bm25": np.ones((4, 6)),
    "labels": [0, 1, 2, -1],
    "qrels": [[1, 5, 2], [1, -1, 1], [1, -1, 1], [3, 0, 0]],
    "item_score_items": [1, 3],
    "item_scores": np.ones((2, 6)),
}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("first_bm25", np.ones((4, 5)), "(4, 5) of float64; it must be (4, 6)"),
        ("query_vectors", np.ones((4, 3)), "it must be (4, 2) of numbers"),
        ("labels", [0.6, 1, 2, -1], "it must be (4) of whole numbers"),
        ("labels", [0, 1, 2, 6], "must hold positions of items, -1 to 5"),
        ("item_score_items", [1.0, 3.0], "of float64; it must be"),
        ("item_score_items", [3, 3], "must hold positions of items, 0 to 5, each once"),
        ("qrels", [[1, 5]], "(1, 2) of int64; it must be (j, 3) of whole numbers"),
        ("qrels", [[4, 5, 1]], "the position of a query, 0 to 3"),
        ("qrels", [[1, 6, 1]], "an item, -1 to 5"),
        ("qrels", [[1, 5, 10**9]], "a grade, 100000 at most"),
        ("qrels", [[1, 5, 1], [1, 5, 2]], "each pair once"),
        ("scores", np.ones(4), "has no matrix 'scores'"),
        ("n_anchors", 1.5, "must be one whole number, from 0 to 3"),
        ("query_vectors_x", np.ones((4, 2)), "but no such item vectors"),
        ("item_vectors_x", np.full((6, 2), np.nan), "is nan at (0, 0)"),
        ("item_vectors", None, "needs both"),
    ],
)
def test_a_key_that_is_missing_or_of_another_shape_or_kind_is_refused(tmp_path, key, value, said):
    path = tmp_path / "m.npz"
    np.savez(path, **GOOD)
    StoredMatrix.load(path)
    wrong = GOOD | {key: value}
    np.savez(path, **{name: array for name, array in wrong.items() if array is not None})
    with pytest.raises(InputError) as caught:
        StoredMatrix.load(path)
    assert str(path) in str(caught.value)
    assert f"'{key}'" in str(caught.value)
    assert said in str(caught.value)


def test_what_may_not_be_named():
    with pytest.raises(InputError, match="cannot be named 'dense'"):
        matrix().with_vectors("dense", np.ones((80, 2)))
