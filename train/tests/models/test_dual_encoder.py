"""Dual encoders against a plain forward pass of the same encoder, pooled by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from tiny_models import MARKED, TEXTS

from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "marks"])
def test_vectors_by_hand(bert, pooling, normalize):
    config = {"pooling": pooling, "normalize": normalize, "marked": pooling == "marks"}
    model = DualEncoderModel.new(bert, DualEncoderConfig(**config)).eval()
    encoder = transformers.BertModel.from_pretrained(
        bert, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    texts = MARKED if pooling == "marks" else (TEXTS, TEXTS)
    for queries, marks in ((True, (5, 6)), (False, (7,))):
        rows = model.encoding.texts(texts[0 if queries else 1], queries=queries)
        with torch.inference_mode():
            found = model.encode(rows, queries=queries).numpy()
        for row, vector in zip(rows, found, strict=True):  # one text at a time, unpadded
            with torch.inference_mode():
                states = encoder(torch.from_numpy(row.ids)[None]).last_hidden_state[0].numpy()
            places = {"mean": slice(None), "cls": [0], "marks": np.isin(row.ids, marks)}[pooling]
            expected = states[places].mean(0)
            expected /= np.linalg.norm(expected) if normalize else 1
            np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-6)
    assert model.dimensions == 16
