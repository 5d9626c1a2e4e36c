"""Sentence-transformers models of several kinds, exported as their authors meant them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import CAUSAL, LOCAL, ending, save_bi_encoder, save_hf

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
pytest.importorskip("onnx")

from sentence_transformers.sentence_transformer.modules import Dense, Normalize  # noqa: E402

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers import CrossEncoder, DualEncoder, OnnxDualEncoder  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch

QUERIES = ["the red oak", "a tall white gull flew", "", "old " * 80]
ITEMS = ["seals swam in a lake near the old hill", "elm", "storm " * 30, "snow " * 80]
PROMPTS = {"query": "red of the ", "document": "a "}
ROLES = (
    "{{ 'red ' + (messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first) + "
    "' oak ' + (messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first) }}"
)
KINDS = {
    "e5": (("BertModel", "mean"), {}),
    "bge": (("BertModel", "cls"), {}),
    "xlm-roberta": (
        ("XLMRobertaModel", "cls"),
        {"type_vocab_size": 1, "max_position_embeddings": 80},
    ),
    "modernbert": (("ModernBertModel", "cls"), LOCAL),
    "modernbert-mean": (("ModernBertModel", "mean"), LOCAL),
    "qwen3": (("Qwen3Model", "lasttoken"), {**CAUSAL, "made": ending, "padding_side": "left"}),
    "gpt2": (
        ("GPT2Model", "lasttoken"),
        {"n_positions": 64, "made": ending, "padding_side": "left"},
    ),
    "qwen3-right": (("Qwen3Model", "lasttoken"), {**CAUSAL, "made": ending}),
    "qwen3-local": (
        ("Qwen3Model", "lasttoken"),
        {**CAUSAL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
}


def bi_encoder(folder, kind, *modules, **options):
    (model, pooling), settings = KINDS[kind]
    settings = {key: value() if callable(value) else value for key, value in settings.items()}
    torch.manual_seed(1)
    return save_bi_encoder(
        folder, model, pooling, *modules, **{"prompts": PROMPTS, **settings, **options}
    )


def open_library(folder):
    return library.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("kind", list(KINDS))
def test_vectors_are_the_librarys_whatever_the_batch(tmp_path, kind):
    source = bi_encoder(tmp_path, kind, Normalize())
    model = open_library(source)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    about = json.loads((folder / "crossknn.json").read_text())
    assert (about["query_prefix"], about["item_prefix"]) == ("red of the ", "a ")
    encoders = [
        DualEncoder(source, device="cpu"),
        DualEncoder(source, device="cpu", batch=1),
        OnnxDualEncoder(folder),
        OnnxDualEncoder(folder, tokens_per_run=1),
    ]
    queries = np.concatenate([model.encode_query([text]) for text in QUERIES])
    items = np.concatenate([model.encode_document([text]) for text in ITEMS])
    assert np.abs(queries - model.encode(QUERIES)).max() > 0.1  # prompts matter
    for encoder in encoders:
        np.testing.assert_allclose(encoder.encode_queries(QUERIES), queries, atol=2e-5)
        np.testing.assert_allclose(encoder.encode_items(ITEMS), items, atol=2e-5)
    assert np.abs(np.linalg.norm(items, axis=1) - 1).max() < 1e-5
    assert encoders[2].truncated == 2


@pytest.mark.parametrize(
    "pooling", ["max", "weightedmean", "mean_sqrt_len_tokens", ("cls", "lasttoken")], ids=str
)
def test_every_pooling_of_the_library(tmp_path, pooling):
    source = save_bi_encoder(tmp_path, "BertModel", pooling, prompts=PROMPTS)
    expected = open_library(source).encode_query(QUERIES)
    encoder = OnnxDualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    np.testing.assert_allclose(encoder.encode_queries(QUERIES), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["bge", "modernbert", "qwen3"])
def test_int8_is_near(tmp_path, kind):
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    source = bi_encoder(tmp_path, kind, Normalize(), **sizes)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder", precision="int8")
    expected = open_library(source).encode_document(ITEMS)
    found = OnnxDualEncoder(folder).encode_items(ITEMS)
    assert (found * expected).sum(1).min() > 0.98


def test_dense_layers_and_shortened_vectors_are_in_the_graph(tmp_path):
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())
    source = bi_encoder(tmp_path, "e5", dense)
    model = library.SentenceTransformer(str(source), device="cpu", truncate_dim=10)
    encoder = OnnxDualEncoder(export_model(model, tmp_path / "onnx", "dual-encoder"))
    assert encoder.dimensions == 10
    found = encoder.encode_queries(QUERIES)
    np.testing.assert_allclose(found, model.encode_query(QUERIES), atol=1e-5)
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)  # there is no Normalize


def test_large_weights_lie_beside_the_graph(tmp_path, monkeypatch):
    source = bi_encoder(tmp_path, "modernbert", Normalize())
    whole = OnnxDualEncoder(export_model(source, tmp_path / "whole", "dual-encoder"))
    monkeypatch.setattr("crossknn.models.export.LARGEST", 1000)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    weights = folder / "model.onnx.data"
    assert weights.stat().st_size > (folder / "model.onnx").stat().st_size
    assert sorted(path.name for path in folder.iterdir()) == [
        "crossknn.json",
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
    ]
    encoder = OnnxDualEncoder(folder)
    np.testing.assert_array_equal(encoder.encode_items(ITEMS), whole.encode_items(ITEMS))
    before = encoder.fingerprint
    del encoder
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert OnnxDualEncoder(folder).fingerprint != before
    monkeypatch.undo()
    export_model(source, tmp_path / "onnx", "dual-encoder")
    assert not weights.exists()


def test_a_loaded_model_stays_as_it_is(tmp_path):
    model = open_library(bi_encoder(tmp_path, "qwen3")).bfloat16()
    attention = model[0].auto_model.config._attn_implementation
    folder = export_model(model, tmp_path / "onnx", "dual-encoder")
    assert next(model.parameters()).dtype == torch.bfloat16
    assert model[0].auto_model.config._attn_implementation == attention != "eager"
    expected = model.float().encode_query(QUERIES)
    np.testing.assert_allclose(OnnxDualEncoder(folder).encode_queries(QUERIES), expected, atol=1e-4)


def test_given_prefixes_replace_the_models_prompts(tmp_path):
    source = bi_encoder(tmp_path, "e5", Normalize())
    folder = export_model(
        source, tmp_path / "onnx", "dual-encoder", query_prefix="", item_prefix="old "
    )
    about = json.loads((folder / "crossknn.json").read_text())
    assert "query_prefix" not in about
    assert about["item_prefix"] == "old "
    for encoder in (
        OnnxDualEncoder(folder),
        DualEncoder(source, device="cpu", query_prefix="", item_prefix="old "),
    ):
        model = open_library(source)
        for found, expected in (
            (encoder.encode_queries(QUERIES), model.encode(QUERIES)),
            (encoder.encode_items(ITEMS), model.encode([f"old {item}" for item in ITEMS])),
        ):
            np.testing.assert_allclose(found, expected, atol=2e-5)
    assert OnnxDualEncoder(folder).fingerprint.endswith('|prefixes=["", "old "]')


def test_a_prompt_outside_the_pooling_is_refused_only_where_there_is_one(tmp_path):
    source = bi_encoder(tmp_path, "e5", include_prompt=False)
    encoder = DualEncoder(source, device="cpu")
    expected = open_library(source).encode_query(QUERIES)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES), expected, atol=1e-5)
    with pytest.raises(
        InputError, match=r"leaves its prompt out of the pooling .*only used in torch"
    ):
        export_model(source, tmp_path / "onnx", "dual-encoder")
    folder = export_model(
        source, tmp_path / "onnx", "dual-encoder", query_prefix="", item_prefix=""
    )
    expected = open_library(source).encode(QUERIES)
    np.testing.assert_allclose(OnnxDualEncoder(folder).encode_queries(QUERIES), expected, atol=1e-5)


def test_texts_that_go_through_a_chat_template_are_refused(tmp_path):
    template = "{% for message in messages %}{{ 'red ' + message['content'] }}{% endfor %}"
    source = save_hf(tmp_path / "hf", "Qwen3Model", made=ending(), chat_template=template, **CAUSAL)
    assert "message" in open_library(source)[0].modality_config
    with pytest.raises(InputError, match=r"does not read its texts as its tokenizer.json says"):
        export_model(source, tmp_path / "onnx", "dual-encoder")


def test_lengths_of_queries_and_items_apart_are_refused(tmp_path):
    model = open_library(bi_encoder(tmp_path, "e5"))
    model[0].query_length = 16
    with pytest.raises(InputError, match=r"limits of its own for queries and items"):
        export_model(model, tmp_path / "onnx", "dual-encoder")


def test_a_text_without_tokens_has_a_vector_of_zeros(tmp_path):
    from tokenizers import Tokenizer

    bare = json.loads(ending().to_str()) | {"post_processor": None}
    made = Tokenizer.from_str(json.dumps(bare))
    source = save_bi_encoder(tmp_path, "Qwen3Model", "lasttoken", made=made, **CAUSAL)
    encoder = OnnxDualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    for texts in (["", "elm"], [""]):
        np.testing.assert_array_equal(encoder.encode_items(texts)[0], 0)


def scores_of(scorer):
    pairs = Pairs(np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4))
    out = np.full(16, np.nan, dtype=np.float32)
    for positions, scores in scorer.score(pairs, QUERIES, ITEMS):
        out[positions] = scores
    return out


PAIRS = [(query, item) for query in QUERIES for item in ITEMS]
RAW = {"activation_fn": torch.nn.Identity()}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ModernBertForSequenceClassification", {**LOCAL, "classifier_pooling": "cls"}),
        ("ModernBertForSequenceClassification", {**LOCAL, "classifier_pooling": "mean"}),
        (
            "XLMRobertaForSequenceClassification",
            {"type_vocab_size": 1, "max_position_embeddings": 80},
        ),
        ("Qwen3ForSequenceClassification", CAUSAL),
    ],
    ids=["modernbert-cls", "modernbert-mean", "xlm-roberta", "qwen3"],
)
def test_cross_encoders(tmp_path, kind, settings):
    source = save_hf(tmp_path / "hf", kind, num_labels=1, **settings)
    model = library.CrossEncoder(str(source), device="cpu")
    expected = np.concatenate([model.predict([pair], **RAW) for pair in PAIRS])
    assert expected.std() > 0.1
    folder = export_model(source, tmp_path / "onnx")
    for scorer in (CrossEncoder(source, device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer), expected, atol=5e-5)
        assert scorer.truncated == 7


def test_a_cross_encoders_own_prompt_goes_along(tmp_path):
    # The tokenizer gives no token types, so that the library gives none either.
    source = save_hf(tmp_path / "hf", "BertForSequenceClassification", num_labels=1)
    model = library.CrossEncoder(
        str(source), device="cpu", prompts={"search": "red "}, default_prompt_name="search"
    )
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.predict(PAIRS, **RAW)
    assert (
        np.abs(
            expected - library.CrossEncoder(str(source), device="cpu").predict(PAIRS, **RAW)
        ).max()
        > 0.1
    )
    folder = export_model(tmp_path / "saved", tmp_path / "onnx")
    for scorer in (CrossEncoder(tmp_path / "saved", device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer), expected, atol=5e-5)


def test_cross_encoders_that_no_graph_of_token_ids_can_be_are_refused(tmp_path):
    settings = {**CAUSAL, "made": ending(), "chat_template": ROLES}
    causal = save_hf(tmp_path / "causal", "Qwen3ForCausalLM", **settings)
    wrapped = save_hf(
        tmp_path / "wrapped", "Qwen3ForSequenceClassification", num_labels=1, **settings
    )
    for model, message in (
        (
            causal,
            r"is a Qwen3ForCausalLM, scored by the logits of two words: .* only used in torch",
        ),
        (library.CrossEncoder(str(causal), device="cpu"), "is made of Transformer, LogitScore: "),
        (wrapped, r"reads pairs through a chat template: .* only used in torch"),
    ):
        with pytest.raises(InputError, match=message):
            export_model(model, tmp_path / "onnx")
