"""Aligning by models that torch fits: perceptrons, free vectors, a distilled dual encoder."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from tiny_models import CONTENT, save_bert

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.fitting.fit import fit  # noqa: E402
from crossknn.index.item_index import ItemIndex  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.scorers import CallableScorer, DualEncoder  # noqa: E402
from crossknn.search.searcher import Searcher  # noqa: E402
from crossknn.types import Queries  # noqa: E402

pytestmark = pytest.mark.torch

ITEMS = [f"{a} {b} {c}" for a in CONTENT[:4] for b in CONTENT[20:24] for c in CONTENT[30:33]]
QUERIES = [f"{a} {b}" for a in CONTENT[:6] for b in CONTENT[20:25]]


def words(pairs):
    """Scores that reward common words, with a taste of their own for each pair."""
    return [
        len(set(q.split()) & set(t.split())) + zlib.crc32(f"{q}{t}".encode()) / 2**33
        for q, t in pairs
    ]


SCORER = CallableScorer(words, "words")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    bert = save_bert(tmp_path_factory.mktemp("bert"))
    torch.manual_seed(0)
    DualEncoderModel.new(bert, DualEncoderConfig(query_length=12, item_length=12)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def index(encoder, tmp_path):
    made = ItemIndex.build([{"text": t} for t in ITEMS], encoder=encoder)
    made.save(tmp_path / "index")
    return made


def test_a_distilled_encoder_serves_its_own_vectors(index, tmp_path):
    folder = tmp_path / "distilled"
    found = fit(index, SCORER, QUERIES, "distill(epochs=2)", per=12, encoder_folder=folder)
    opened = DualEncoder(folder)
    again = ItemIndex.load(index.folder)
    np.testing.assert_allclose(again.vectors["distill"], opened.encode_items(ITEMS), atol=1e-5)
    np.testing.assert_allclose(
        again.query_vectors(Queries(QUERIES[:4]), "distill"),
        opened.encode_queries(QUERIES[:4]),
        atol=1e-5,
    )
    assert not np.allclose(again.vectors["distill"], index.vectors["dense"], atol=1e-3)
    assert found.vectors.cost.calls == 12 * len(QUERIES)
    searcher = Searcher(again, SCORER, "rerank(retriever=distill)")
    assert len(searcher.search(QUERIES[0], k=5, budget=10)[0]) == 5


def test_vectors_of_no_trainable_encoder_are_refused_before_anything_is_paid(tmp_path):
    asked = []
    index = ItemIndex.build([{"text": t} for t in ITEMS], lsa=4)
    scorer = CallableScorer(lambda pairs: asked.extend(pairs) or words(pairs), "words")
    with pytest.raises(InputError, match="name one to start from"):
        fit(index, scorer, QUERIES, "distill", encoder_folder=tmp_path / "d")
    assert not asked
