"""Several spaces of vectors in one score matrix."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError
from crossknn.indexes.base import Index, Scale
from crossknn.indexes.stages import default_vectors
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import method


def test_vectors_by_name_with_their_own_scale():
    data = aligned_matrix()
    index, queries, _ = data.rows(2, 5)
    assert isinstance(index, Index)
    assert list(index.vector_names) == ["de", "cur", "mf"]
    assert list(index.query_vector_names) == ["de", "mf"]
    assert default_vectors(index) == "mf"
    moved = data.aligned["mf"].items
    assert index.vectors("mf") is moved
    assert np.array_equal(index.vectors("de"), data.item_vectors)
    assert np.array_equal(index.query_vectors(queries, "mf"), data.query_vectors[22:25])
    known = data.scores[:20]
    assert index.scale("mf") == Scale.match(known, data.query_vectors[:20] @ moved.T)
    assert index.scale("cur") == Scale(alpha=data.scale.alpha)
    assert index.scale("de") == data.scale


def test_a_scale_that_is_not_given_only_centres_without_query_vectors_or_is_unknown():
    data = matrix()
    (index, _, _) = data.with_vectors("x", data.item_vectors).rows(0, 1)
    assert index.scale("x") == Scale(alpha=float(data.scores[:20].mean(dtype=np.float64)))
    (index, _, _) = (
        StoredMatrix(data.scores, 0, None, None, {}, data.query_ids)
        .with_vectors("x", data.item_vectors, data.query_vectors)
        .rows(0, 1)
    )
    assert index.scale("x") is None
    assert default_vectors(index) == "x"


def test_the_same_vectors_under_another_name_find_the_same():
    data = matrix()
    renamed = data.with_vectors("copy", data.item_vectors, data.query_vectors)
    for spec in ("axn(first={0}, vectors={0}, rounds=3, blend=0.3)", "rnr(first={0})"):
        de, copy = (run(method(spec.format(n)), renamed, 20).picks().items for n in ("de", "copy"))
        assert np.array_equal(de, copy)


def test_files_hold_spaces_by_name_the_latest_last(tmp_path):
    data = aligned_matrix()
    arrays = {
        "scores": data.scores,
        "n_anchors": 20,
        "item_vectors": data.item_vectors,
        "query_vectors": data.query_vectors,
        "item_vectors_cur": data.aligned["cur"].items,
        "query_vectors_mf": data.query_vectors,
        "item_vectors_mf": data.aligned["mf"].items,
    }
    np.savez(tmp_path / "m.npz", **arrays)
    loaded = StoredMatrix.load(tmp_path / "m.npz")
    assert list(loaded.aligned) == ["cur", "mf"]
    assert loaded.aligned["cur"].queries is None
    for spec in ("axn(first=de, vectors=cur, rounds=2, normalize=none)", "rnr(first=mf)"):
        found = [run(method(spec), m, 20).picks().items for m in (data, loaded)]
        assert np.array_equal(*found)
    for change, words in (
        ({"query_vectors_x": data.query_vectors}, "has 'query_vectors_x' but no such item"),
        ({"item_vectors_x": np.ones((79, 2))}, "'item_vectors_x' has 79 rows, expected 80"),
        ({"query_vectors_mf": np.ones((26, 2))}, r"'mf' have the shape \(26, 2\)"),
        ({"item_vectors_x": np.full((80, 2), np.nan)}, "'item_vectors_x' is nan"),
    ):
        np.savez(tmp_path / "m.npz", **{**arrays, **change})
        with pytest.raises(InputError, match=words):
            StoredMatrix.load(tmp_path / "m.npz")


def test_vectors_that_do_not_fit():
    data = matrix()
    with pytest.raises(InputError, match=r"'x' have the shape \(79, 12\); it must be \(80, 12\)"):
        data.with_vectors("x", data.item_vectors[1:])
    with pytest.raises(InputError, match="cannot be named 'de'"):
        data.with_vectors("de", data.item_vectors)
    index, queries, _ = data.with_vectors("x", data.item_vectors).rows(0, 1)
    with pytest.raises(InputError, match="no query vectors beside its item vectors 'x'"):
        index.query_vectors(queries, "x")
