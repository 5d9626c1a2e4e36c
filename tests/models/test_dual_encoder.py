"""Dual encoders against a plain forward pass of the same encoder, pooled by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import MARKED, TEXTS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def new(folder, **config):
    torch.manual_seed(0)
    lengths = {"query_length": 64, "item_length": 64}
    return DualEncoderModel.new(folder, DualEncoderConfig(**(lengths | config))).eval()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "marks"])
def test_vectors_by_hand(bert, pooling, normalize):
    model = new(bert, pooling=pooling, normalize=normalize, marked=pooling == "marks")
    encoder = transformers.BertModel.from_pretrained(
        bert, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    texts = MARKED if pooling == "marks" else (TEXTS, TEXTS)
    for queries, marks in ((True, (5, 6)), (False, (7,))):
        rows = model.encoding.texts(texts[0 if queries else 1], queries=queries)
        with torch.inference_mode():
            found = model(rows, queries=queries).numpy()
        for row, vector in zip(rows, found, strict=True):  # one text at a time, unpadded
            with torch.inference_mode():
                states = encoder(torch.from_numpy(row.ids)[None]).last_hidden_state[0].numpy()
            places = {"mean": slice(None), "cls": [0], "marks": np.isin(row.ids, marks)}[pooling]
            expected = states[places].mean(0)
            expected /= np.linalg.norm(expected) if normalize else 1
            np.testing.assert_allclose(vector, expected, **CLOSE)
    assert model.dimensions == 16


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
