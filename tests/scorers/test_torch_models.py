"""Cross-encoders trained here, as scorers (values: golden/test_model_values.py)."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import grid, save_bert, scores_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import ScorerError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.scorers import TokenScorer  # noqa: E402

pytestmark = pytest.mark.torch

QUERIES = ["the red oak", "a seal", "", "elm " * 40]
ITEMS = ["an old elm", "", "seals swam in a lake", "white gulls", "pine " * 40]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.3)


def cross_encoder(bert, **config):
    torch.manual_seed(0)
    config = {"max_length": 32, "head": "emb"} | config
    return CrossEncoderModel.new(bert, CrossEncoderConfig(**config))


def test_scoring_has_no_dropout_and_no_gradients_and_leaves_the_mode(bert):
    model = cross_encoder(bert, head="cls").train()
    rows = model.encoding.pairs(grid(2, 2), QUERIES, ITEMS)
    assert not torch.equal(model.encode(rows), model.encode(rows))  # it drops out itself
    scorer = TokenScorer(model)
    first, second = (scores_of(scorer, QUERIES, ITEMS) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ScorerError):
        scores_of(scorer, QUERIES, ITEMS)
    assert model.training
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fingerprint_names_everything_a_score_depends_on(bert):
    def print_of(model):
        return TokenScorer(model).fingerprint

    model = cross_encoder(bert)
    assert print_of(cross_encoder(bert)) == print_of(model)
    changes = ({}, {"max_length": 31}, {"scale": 2.0}, {"marked": True}, {"head": "cls"})
    prints = [print_of(cross_encoder(bert, **change)) for change in changes]
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[7, 3] += 1e-3
    assert len({*prints, print_of(model)}) == len(prints) + 1
