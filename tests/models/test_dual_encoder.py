"""Dual encoders against a plain forward pass of the same encoder, pooled by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.base import weights_hash  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402

pytestmark = pytest.mark.torch

TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
QUERIES = [f"red [Ms] {text} [Me] elm" for text in TEXTS]
ITEMS = [f"{text} [ENT] elm" for text in TEXTS]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def new(folder, **config):
    """A model whose towers differ if they are two."""
    torch.manual_seed(0)
    lengths = {"query_length": 64, "item_length": 64}
    model = DualEncoderModel.new(folder, DualEncoderConfig(**(lengths | config))).eval()
    if not model.config.shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.5)
    return model


def vectors(model, texts, *, queries):
    with torch.inference_mode():
        return model(model.encoding.texts(texts, queries=queries), queries=queries).numpy()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "marks"])
def test_vectors_by_hand(bert, pooling, normalize):
    model = new(bert, pooling=pooling, normalize=normalize, marked=pooling == "marks")
    encoder = transformers.BertModel.from_pretrained(
        bert, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    texts = (QUERIES, ITEMS) if pooling == "marks" else (TEXTS, TEXTS)
    for queries, marks in ((True, (5, 6)), (False, (7,))):
        rows = model.encoding.texts(texts[0 if queries else 1], queries=queries)
        found = vectors(model, texts[0 if queries else 1], queries=queries)
        for row, vector in zip(rows, found, strict=True):  # one text at a time, unpadded
            with torch.inference_mode():
                states = encoder(torch.from_numpy(row.ids)[None]).last_hidden_state[0].numpy()
            places = {"mean": slice(None), "cls": [0], "marks": np.isin(row.ids, marks)}[pooling]
            expected = states[places].mean(0)
            expected /= np.linalg.norm(expected) if normalize else 1
            np.testing.assert_allclose(vector, expected, **CLOSE)
    assert model.dimensions == 16


@pytest.mark.parametrize(
    ("shared", "source", "marked"),
    [(True, "bert_without_unused", True), (False, "bert", True), (False, "bert", False)],
)
def test_a_saved_model_is_the_same_model(request, tmp_path, shared, source, marked):
    bert = request.getfixturevalue(source)
    model = new(bert, shared=shared, marked=marked, query_length=12, pooling="cls")
    new(save_bert(tmp_path / "other", positions=256), shared=False).save_pretrained(
        tmp_path / "model"
    )
    folder = model.save_pretrained(tmp_path / "model", card="card")  # over another
    again = DualEncoderModel.from_pretrained(folder)
    assert again.config == model.config
    assert (again.item is again.query) == shared
    names = {name.split(".")[0] for name, _ in again.named_parameters()}
    assert names == ({"query"} if shared else {"query", "item"})
    texts = (QUERIES, ITEMS) if marked else (TEXTS, TEXTS)
    for part, queries in zip(texts, (True, False), strict=True):
        found = vectors(again, part, queries=queries)
        np.testing.assert_array_equal(found, vectors(model, part, queries=queries))
    assert weights_hash(again) == weights_hash(model)
    assert (folder / "README.md").read_text() == "card"
    if marked:
        (row,) = again.encoding.texts(["no mention"], queries=True)
        assert isinstance(row, InputError)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pooling": "marks"}, "pooling 'marks' needs marked = true"),
        ({"pooling": "max"}, "pooling is 'max'; it must be 'mean', 'cls' or 'marks'"),
        ({"item_length": 999}, "query_length or item_length is 999; the encoder has 256 positions"),
        ({"shared": False}, "cannot load an encoder from .*item"),
    ],
)
def test_settings_that_do_not_fit_are_refused(bert, tmp_path, changes, sentence):
    path = new(bert).save_pretrained(tmp_path) / "dual_encoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=sentence):
        DualEncoderModel.from_pretrained(tmp_path)
