"""Objects with predict(pairs), and real sentence-transformers cross-encoders."""

import json

import numpy as np
import pytest
from scorer_helpers import collect, grid
from tiny_models import save_hf

from crossknn.errors import InputError
from crossknn.scorers import CrossEncoder, PredictScorer
from crossknn.scorers.base import Scorer
from crossknn.scores.stored import StoredScorer

QUERIES = ["the red oak", "elm"]
ITEMS = ["seal", "old crab", "gull", "", "a tall white gull sat in the dark cave", "snow " * 99]


class Model:
    """Any object that predicts."""

    def predict(self, pairs):
        return [len(q) - len(i) / 10 for q, i in pairs]


def test_any_object_that_predicts():
    scorer = PredictScorer(Model(), batch=4)
    expected = [len(q) - len(i) / 10 for q in QUERIES for i in ITEMS]
    np.testing.assert_allclose(collect(scorer, grid(2, 6), QUERIES, ITEMS), expected, rtol=1e-6)
    assert scorer.fingerprint is None
    assert PredictScorer(Model(), name="mine").fingerprint == "predict:mine"
    assert isinstance(scorer, Scorer)


def test_objects_that_cannot_score_are_refused():
    class Encoding:
        def encode(self, texts):
            return texts

    with pytest.raises(InputError, match=r"Encoding has no predict.*opened with DualEncoder"):
        PredictScorer(Encoding())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_hf(tmp_path_factory.mktemp("one"), "BertForSequenceClassification", num_labels=1)


@pytest.mark.torch
def test_the_fingerprint_follows_weights_and_length(folder, tmp_path):
    import torch
    from sentence_transformers import CrossEncoder as TorchCrossEncoder

    model = TorchCrossEncoder(str(folder), device="cpu")
    before = PredictScorer(model).fingerprint
    model.predict([("a", "b")])
    assert PredictScorer(model).fingerprint == before
    assert CrossEncoder(folder, device="cpu").fingerprint == before
    assert CrossEncoder(folder, device="cpu", max_length=20).fingerprint != before
    cached = StoredScorer(CrossEncoder(folder, device="cpu"), tmp_path / "c")
    collect(cached, grid(2, 6), QUERIES, ITEMS)
    assert len(cached.store) == 12
    with torch.no_grad():
        next(iter(model.model.parameters())).add_(0.01)
    assert PredictScorer(model).fingerprint != before


def test_a_number_of_labels_that_is_not_said_is_two(tmp_path):
    about = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="2 outputs for a pair"):
        CrossEncoder(tmp_path)
