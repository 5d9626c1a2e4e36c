"""Encoders: the bundled dual encoder, and sentence-transformers bi-encoders."""

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
    for found in (encoder.encode_items(TEXTS), encoder.encode_queries(TEXTS)):
        assert found.shape == (len(TEXTS), encoder.dimensions)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert isinstance(encoder, Encoder)


def test_a_vector_does_not_depend_on_its_batch(encoder):
    together = encoder.encode_items(TEXTS)
    alone = np.concatenate([encoder.encode_items([text]) for text in TEXTS])
    small = OnnxDualEncoder(FOLDER, tokens_per_run=1).encode_items(TEXTS)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, small, atol=1e-5)


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


@pytest.fixture(scope="module")
def bi_encoder_folder(tmp_path_factory, tiny_bert):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as st_models

    folder = tmp_path_factory.mktemp("bi-encoder")
    config, tokenizer = tiny_bert
    from transformers import BertModel

    BertModel(config).save_pretrained(folder / "bare")
    tokenizer.save_pretrained(folder / "bare")
    word = st_models.Transformer(str(folder / "bare"), max_seq_length=32)
    pooling = st_models.Pooling(16, "mean")
    SentenceTransformer(modules=[word, pooling], device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.torch
def test_sentence_transformers(bi_encoder_folder):
    encoder = DualEncoder(bi_encoder_folder, device="cpu", query_prefix="query: ")
    assert isinstance(encoder, SentenceTransformerEncoder)
    assert isinstance(encoder, Encoder)
    assert encoder.dimensions == 16
    texts = ["open a file", "sort a list"]
    items = encoder.encode_items([f"query: {text}" for text in texts])
    np.testing.assert_allclose(encoder.encode_queries(texts), items, atol=1e-5)
    assert items.dtype == np.float32
    assert not np.allclose(items, encoder.encode_items(texts), atol=1e-3)
    before = encoder.fingerprint
    assert before == DualEncoder(bi_encoder_folder, query_prefix="query: ").fingerprint
    assert before != DualEncoder(bi_encoder_folder).fingerprint


def test_an_object_that_cannot_encode_is_refused():
    with pytest.raises(InputError, match="is not a bi-encoder"):
        SentenceTransformerEncoder(object())
