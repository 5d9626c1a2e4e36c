"""Models trained here, as scorers and encoders."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import grid, save_bert, scores_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import ScorerError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.scorers import TokenEncoder, TokenScorer  # noqa: E402
from crossknn.scorers.base import Encoder, Scorer  # noqa: E402

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QUERIES = ["the red oak", "a seal", "", "elm " * 40]
ITEMS = ["an old elm", "", "seals swam in a lake", "white gulls", "pine " * 40]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.3)


def cross_encoder(bert, **config):
    torch.manual_seed(0)
    config = {"max_length": 32, "head": "emb"} | config
    return CrossEncoderModel.new(bert, CrossEncoderConfig(**config))


def dual_encoder(bert, **config):
    torch.manual_seed(0)
    config = {"query_length": 16, "item_length": 32} | config
    return DualEncoderModel.new(bert, DualEncoderConfig(**config))


def test_a_cross_encoder_is_a_scorer_that_gives_the_models_scores(bert):
    model = cross_encoder(bert).eval()
    scorer = TokenScorer(model)
    assert isinstance(scorer, Scorer)
    found = scores_of(scorer, QUERIES, ITEMS)
    with torch.inference_mode():
        rows = model.encoding.pairs(grid(4, 5), QUERIES, ITEMS)
        expected = [float(model.encode([row])) for row in rows]
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert (scorer.max_length, scorer.truncated) == (32, 8)  # all with a long query or a long item


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


def test_a_dual_encoder_is_an_encoder_that_gives_the_models_vectors(bert):
    model = dual_encoder(bert, shared=False).train()
    with torch.no_grad():
        for parameter in model.item.parameters():
            parameter.mul_(1.5)
    encoder = TokenEncoder(model)
    assert isinstance(encoder, Encoder)
    vectors = encoder.encode_items(ITEMS)
    with torch.inference_mode():
        rows = model.eval().encoding.texts(ITEMS, queries=False)
        expected = [model.encode([row], queries=False)[0].numpy() for row in rows]
    np.testing.assert_allclose(vectors, expected, **CLOSE)
    assert (vectors.shape, vectors.dtype) == ((5, encoder.dimensions), np.float32)
    assert np.abs(encoder.encode_queries(ITEMS) - vectors).max() > 0.01
    # 40 words are longer than 16 and than 32 tokens: one of ITEMS twice, one of QUERIES once
    assert encoder.truncated == 2
    encoder.encode_queries(QUERIES)
    assert encoder.truncated == 3
