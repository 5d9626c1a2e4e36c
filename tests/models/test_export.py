"""Exported models give what they give in torch: ours, and sentence-transformers models of several
kinds as their authors meant them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import CAUSAL, LOCAL, ending, save_bert, save_bi_encoder, save_hf, scores_of

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
onnx = pytest.importorskip("onnx")

from sentence_transformers.sentence_transformer.modules import Dense, Normalize  # noqa: E402

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers import CrossEncoder, DualEncoder  # noqa: E402

pytestmark = pytest.mark.torch

QUERIES = ["the red oak", "a tall white gull flew", "", "old " * 80]
ITEMS = ["seals swam in a lake near the old hill", "elm", "storm " * 30, "snow " * 80]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]
RAW = {"activation_fn": torch.nn.Identity()}
PROMPTS = {"query": "red of the ", "document": "a "}
ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 80}
ROLES = (
    "{{ 'red ' + (messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first) + "
    "' oak ' + (messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first) }}"
)

# Models of ours (their values: golden/test_model_values.py)


def test_a_shorter_limit_and_what_the_manifest_says(tmp_path):
    config = CrossEncoderConfig(max_length=40, head="emb")
    CrossEncoderModel.new(save_bert(tmp_path / "bert"), config).save_pretrained(tmp_path / "model")
    for limit, expected in ((None, 40), (24, 24), (90, 40)):
        folder = export_model(
            tmp_path / "model", tmp_path / "onnx", max_length=limit, license="MIT"
        )
        assert CrossEncoder(folder).max_length == expected
    settings = json.loads((folder / "crossknn.json").read_text())
    assert (settings["license"], settings["name"], settings["marked"]) == ("MIT", "model", False)


def test_int8_leaves_the_outputs_of_all_feed_forward_blocks_in_float32(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    source = save_hf(tmp_path / "hf", "BertForSequenceClassification", num_labels=1, **sizes)
    written = []
    for keep, count in (({}, 2), ({"keep_float": ()}, 0)):
        folder = export_model(source, tmp_path / "onnx", precision="int8", **keep)
        graph = onnx.load(str(folder / "model.onnx")).graph
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        kept = [shapes.get(node.input[1]) for node in graph.node if node.op_type == "MatMul"]
        assert kept.count((128, 64)) == count  # feed-forward width 128 -> 64, of both layers
        written.append((folder / "model.onnx").stat().st_size)
    assert written[1] < written[0]


# Bi-encoders of sentence-transformers

KINDS = {
    "bge": (("BertModel", "cls"), {}),
    "e5": (("BertModel", "mean"), {}),
    "max": (("BertModel", "max"), {}),
    "several": (("BertModel", ("cls", "lasttoken")), {}),
    "xlm-roberta": (("XLMRobertaModel", "cls"), ROBERTA),
    "modernbert": (("ModernBertModel", "cls"), LOCAL),
    "qwen3": (("Qwen3Model", "lasttoken"), {**CAUSAL, "made": ending, "padding_side": "left"}),
    "gpt2": (
        ("GPT2Model", "lasttoken"),
        {"n_positions": 64, "made": ending, "padding_side": "left"},
    ),
    "qwen3-local": (
        ("Qwen3Model", "lasttoken"),
        {**CAUSAL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
}


def bi_encoder(folder, kind, *modules, **options):
    (model, pooling), settings = KINDS[kind]
    settings = {key: value() if callable(value) else value for key, value in settings.items()}
    given = {"prompts": PROMPTS, "seed": 1, **settings, **options}
    torch.manual_seed(1)
    return save_bi_encoder(folder, model, pooling, *modules, **given)


def open_library(folder):
    return library.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_librarys_whatever_the_batch(tmp_path, kind):
    source = bi_encoder(tmp_path, kind, Normalize())
    model = open_library(source)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    about = json.loads((folder / "crossknn.json").read_text())
    assert (about["query_prefix"], about["item_prefix"]) == ("red of the ", "a ")
    encoders = [
        DualEncoder(source, device="cpu"),
        DualEncoder(source, device="cpu", batch=1),
        DualEncoder(folder),
        DualEncoder(folder, tokens_per_run=1),
    ]
    queries = np.concatenate([model.encode_query([text]) for text in QUERIES])
    items = np.concatenate([model.encode_document([text]) for text in ITEMS])
    assert np.abs(queries - model.encode(QUERIES)).max() > 0.1  # prompts matter
    for encoder in encoders:
        np.testing.assert_allclose(encoder.encode_queries(QUERIES), queries, atol=2e-5)
        np.testing.assert_allclose(encoder.encode_items(ITEMS), items, atol=2e-5)
    assert encoders[2].truncated == 2


def test_dense_layers_are_in_the_graph(tmp_path):
    source = bi_encoder(tmp_path, "qwen3", Dense(32, 24, activation_function=torch.nn.Tanh()))
    encoder = DualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    assert encoder.dimensions == 24
    found = encoder.encode_queries(QUERIES)
    np.testing.assert_allclose(found, open_library(source).encode_query(QUERIES), atol=1e-4)
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)  # there is no Normalize


def test_large_weights_lie_beside_the_graph(tmp_path, monkeypatch):
    source = bi_encoder(tmp_path, "modernbert", Normalize())
    whole = DualEncoder(export_model(source, tmp_path / "whole", "dual-encoder"))
    monkeypatch.setattr("crossknn.models.export.LARGEST", 1000)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    names = ["crossknn.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    encoder, weights = DualEncoder(folder), folder / "model.onnx.data"
    np.testing.assert_array_equal(encoder.encode_items(ITEMS), whole.encode_items(ITEMS))
    before = encoder.fingerprint
    del encoder
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert DualEncoder(folder).fingerprint != before
    monkeypatch.undo()
    export_model(source, tmp_path / "onnx", "dual-encoder")
    assert not weights.exists()


@pytest.mark.parametrize("include", [True, False])
def test_given_prefixes_replace_the_models_prompts(tmp_path, include):
    source = bi_encoder(tmp_path, "e5", Normalize(), include_prompt=include)
    if not include:  # as long as there is a prompt, a graph cannot leave it out
        with pytest.raises(InputError, match=r"only used in torch: .*a prompt outside the pooling"):
            export_model(source, tmp_path / "onnx", "dual-encoder")
    prefixes = {"query_prefix": "", "item_prefix": "old " * include}
    folder = export_model(source, tmp_path / "onnx", "dual-encoder", **prefixes)
    model = open_library(source)
    items = [prefixes["item_prefix"] + item for item in ITEMS]
    for encoder in (DualEncoder(folder), DualEncoder(source, device="cpu", **prefixes)):
        np.testing.assert_allclose(
            encoder.encode_queries(QUERIES), model.encode(QUERIES), atol=2e-5
        )
        np.testing.assert_allclose(encoder.encode_items(ITEMS), model.encode(items), atol=2e-5)
    assert DualEncoder(folder).fingerprint.endswith('|prefixes=["", "old "]') == include


def test_a_text_without_tokens_has_a_vector_of_zeros(tmp_path):
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(json.dumps(json.loads(ending().to_str()) | {"post_processor": None}))
    source = save_bi_encoder(tmp_path, "Qwen3Model", "lasttoken", made=made, **CAUSAL)
    encoder = DualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    for texts in (["", "elm"], [""]):
        np.testing.assert_array_equal(encoder.encode_items(texts)[0], 0)


# Cross-encoders of sentence-transformers


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ModernBertForSequenceClassification", {**LOCAL, "classifier_pooling": "cls"}),
        ("ModernBertForSequenceClassification", {**LOCAL, "classifier_pooling": "mean"}),
        ("XLMRobertaForSequenceClassification", ROBERTA),
        ("Qwen3ForSequenceClassification", CAUSAL),
        ("BertForSequenceClassification", {}),
    ],
    ids=["modernbert-cls", "modernbert-mean", "xlm-roberta", "qwen3", "bert"],
)
def test_cross_encoders(tmp_path, kind, settings):
    source = save_hf(tmp_path / "hf", kind, num_labels=1, **settings)
    model = library.CrossEncoder(str(source), device="cpu")
    expected = np.concatenate([model.predict([pair], **RAW) for pair in PAIRS])
    assert expected.std() > 0.1
    folder = export_model(source, tmp_path / "onnx")
    for scorer in (CrossEncoder(source, device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer, QUERIES, ITEMS), expected, atol=5e-5)
        assert scorer.truncated == 7


def test_a_cross_encoders_own_prompt_goes_along(tmp_path):
    # The tokenizer gives no token types, so that the library gives none either.
    source = save_hf(tmp_path / "hf", "BertForSequenceClassification", num_labels=1)
    prompts = {"prompts": {"search": "red "}, "default_prompt_name": "search"}
    model = library.CrossEncoder(str(source), device="cpu", **prompts)
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.predict(PAIRS, **RAW)
    plain = library.CrossEncoder(str(source), device="cpu").predict(PAIRS, **RAW)
    assert np.abs(expected - plain).max() > 0.1
    folder = export_model(tmp_path / "saved", tmp_path / "onnx")
    for scorer in (CrossEncoder(tmp_path / "saved", device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer, QUERIES, ITEMS), expected, atol=5e-5)


# What is refused


def chat(folder, kind, template=ROLES, **settings):
    return save_hf(folder, kind, **CAUSAL, made=ending(), chat_template=template, **settings)


def apart(folder):
    source = bi_encoder(folder, "e5")
    path = source / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"query_length": 16}))
    return source


def static(folder):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tiny_models import tokenizer

    module = StaticEmbedding(tokenizer(), embedding_dim=8)
    library.SentenceTransformer(modules=[module], device="cpu").save(str(folder))
    return folder


MESSAGES = "{% for message in messages %}{{ 'red ' + message['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda folder: save_hf(folder, "BertForSequenceClassification", num_labels=2), "cross-encoder", "2 outputs for a pair"),
        (lambda folder: save_hf(folder, "BertModel"), "cross-encoder", "no classification head"),
        (lambda folder: chat(folder, "Qwen3ForCausalLM"), "cross-encoder", "only used in torch: the graph's answers differ"),
        (lambda folder: chat(folder, "Qwen3Model", MESSAGES), "dual-encoder", "the graph's answers differ"),
        (apart, "dual-encoder", "answers differ .* limits of its own for queries"),
        (static, "dual-encoder", "it has no fast tokenizer"),
    ],
)  # fmt: skip
def test_models_that_no_graph_of_token_ids_can_be_are_refused(tmp_path, make, kind, sentence):
    with pytest.raises(InputError, match=sentence):
        export_model(make(tmp_path / "source"), tmp_path / "onnx", kind)


def test_options_that_a_model_cannot_have_are_refused(tmp_path):
    (tmp_path / "dual_encoder.json").touch()
    with pytest.raises(InputError, match="is a dual encoder, and not to be exported as a cross-"):
        export_model(tmp_path, tmp_path / "onnx")
    with pytest.raises(InputError, match="precision 'int4' is unknown"):
        export_model(tmp_path, tmp_path / "onnx", precision="int4")
    with pytest.raises(InputError, match="leave out --precision and --max-length"):
        export_model(tmp_path, tmp_path / "onnx", "late-interaction", max_length=9)
