"""Artifacts: what a fit leaves in an index."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import corpus

import crossknn as ck
from crossknn.errors import InputError


def test_an_artifact_is_kept_replaced_and_dropped(tmp_path):
    index = ck.ItemIndex.build(corpus(20), lsa=3)
    index.put_artifact("early", {"a": [1, 2]}, {"x": np.arange(6.0).reshape(2, 3)})
    index.save(tmp_path / "index")
    for name, value in (("kriging", 1), ("kriging", 2), ("gone", 3)):
        index.put_artifact(name, {"value": value}, {"x": np.full(4, value), "y": np.zeros(0)})
    index.drop_artifact("gone")
    index.drop_artifact("never there")
    for found in (index, ck.ItemIndex.load(tmp_path / "index")):
        assert list(found.artifacts) == ["early", "kriging"]
        assert found.artifacts["early"].meta == {"a": [1, 2]}
        np.testing.assert_array_equal(found.artifacts["early"].arrays["x"], [[0, 1, 2], [3, 4, 5]])
        assert found.artifacts["kriging"].meta == {"value": 2}
        assert found.artifacts["kriging"].arrays["x"].tolist() == [2, 2, 2, 2]
        assert found.artifacts["kriging"].arrays["y"].shape == (0,)


def test_what_cannot_be_kept_is_refused():
    index = ck.ItemIndex.build(corpus(20), lsa=3)
    with pytest.raises(InputError, match="cannot be named 'a b'"):
        index.put_artifact("a b", {}, {})
    with pytest.raises(InputError, match="JSON"):
        index.put_artifact("a", {"x": object()}, {})
    assert not index.artifacts
