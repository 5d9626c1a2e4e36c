"""Encoders: the bundled dual encoder. (Those of others: `test_authors_models.py`.)"""

import json

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.scorers import DualEncoder, Encoder, OnnxDualEncoder, SentenceTransformerEncoder
from crossknn.scorers.opening import bundled_folder

FOLDER = bundled_folder("dual-encoder")
TEXTS = [
    "open a file",
    "",
    "sort " * 200 + "file " * 200,
    "naïve 東京",
    "json.loads",
    "a b c d e f g h",
]


@pytest.fixture(scope="module")
def encoder():
    return DualEncoder()


def test_vectors_are_the_models_own(encoder):
    import onnxruntime
    import tokenizers

    limit = json.loads((FOLDER / "crossknn.json").read_text())["max_length"]
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    session = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"))
    expected = []
    for text in TEXTS:
        encoding = tokenizer.encode(text)
        feeds = {
            "input_ids": np.array([encoding.ids]),
            "attention_mask": np.array([encoding.attention_mask]),
            "token_type_ids": np.array([encoding.type_ids]),
        }
        expected.append(session.run(["vectors"], feeds)[0][0])
    small = OnnxDualEncoder(FOLDER, tokens_per_run=1).encode_items(TEXTS)
    for found in (encoder.encode_items(TEXTS), encoder.encode_queries(TEXTS), small):
        assert found.shape == (len(TEXTS), encoder.dimensions)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert isinstance(encoder, Encoder)


def test_progress_and_truncation_are_told(caplog):
    encoder = OnnxDualEncoder(FOLDER, max_length=8)
    told = []
    encoder.encode_items(TEXTS, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (6, 6)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert encoder.truncated == 2
    assert "cut 2 of 6 texts to 8 tokens" in caplog.text


def test_no_texts_no_rows(encoder):
    assert encoder.encode_queries([]).shape == (0, encoder.dimensions)


def test_what_is_not_a_text_is_named(encoder):
    with pytest.raises(InputError, match="item 1: a text is not a valid string"):
        encoder.encode_items(["fine", "\ud800"])


def test_an_object_that_cannot_encode_is_refused():
    with pytest.raises(InputError, match="is not a bi-encoder"):
        SentenceTransformerEncoder(object())
