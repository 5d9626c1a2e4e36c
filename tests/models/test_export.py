"""Exported models give what they give in torch: ours, and sentence-transformers models of several
kinds as their authors meant them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import CAUSAL, LOCAL, ending, save_bert, save_bi_encoder, save_hf

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
onnx = pytest.importorskip("onnx")

from sentence_transformers.sentence_transformer.modules import Dense, Normalize  # noqa: E402

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers import CrossEncoder, DualEncoder, OnnxCrossEncoder, OnnxDualEncoder  # noqa: E402
from crossknn.scorers.torch import TorchCrossEncoder, TorchDualEncoder  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch

TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
MARKED = (
    [f"the {text} near [Ms] {word} [Me] in a hill" for text, word in zip(TEXTS, "abcd", strict=True)],
    [f"{text} [ENT] the old {text}" for text in TEXTS],
)  # fmt: skip
QUERIES = ["the red oak", "a tall white gull flew", "", "old " * 80]
ITEMS = ["seals swam in a lake near the old hill", "elm", "storm " * 30, "snow " * 80]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]
RAW = {"activation_fn": torch.nn.Identity()}
PROMPTS = {"query": "red of the ", "document": "a "}
ROLES = (
    "{{ 'red ' + (messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first) + "
    "' oak ' + (messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first) }}"
)


def scores_of(scorer, queries=QUERIES, items=ITEMS):
    m, n = len(queries), len(items)
    out = np.full(m * n, np.nan, dtype=np.float32)
    pairs = Pairs(np.repeat(np.arange(m), n), np.tile(np.arange(n), m))
    for positions, scores in scorer.score(pairs, queries, items):
        out[positions] = scores
    return out


# Models of ours


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(
    "config",
    [
        {"head": "emb", "marked": True, "query_length": 10, "item_length": 9},
        {"head": "emb"},
        {"head": "cls", "marked": True},
        {"head": "interaction"},
    ],
    ids=lambda config: "-".join(map(str, config.values())),
)
def test_cross_encoders_of_ours(tmp_path, config, precision):
    bert = save_bert(tmp_path / "bert", hidden=64)
    model = CrossEncoderModel.new(bert, CrossEncoderConfig(max_length=40, **config)).train()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    texts = MARKED if config.get("marked") else (TEXTS, TEXTS[::-1])
    folder = export_model(model, tmp_path / "onnx", precision=precision)
    assert model.training
    assert model.encoder.config._attn_implementation == "sdpa"
    expected = scores_of(TorchCrossEncoder(model), *texts)
    exported = OnnxCrossEncoder(folder)
    spread = max(1.0, expected.std())
    difference = np.abs(scores_of(exported, *texts) - expected).max()
    assert difference < {"float32": 1e-4, "int8": 0.5}[precision] * spread
    assert exported.max_length == 40
    assert exported.fingerprint == OnnxCrossEncoder(folder).fingerprint
    settings = json.loads((folder / "crossknn.json").read_text())
    assert (settings["precision"], settings["name"]) == (precision, "CrossEncoderModel")
    shorter = export_model(model, tmp_path / "onnx", max_length=24)
    assert OnnxCrossEncoder(shorter).max_length == 24


@pytest.mark.parametrize(
    "config",
    [
        {"pooling": "cls", "shared": False, "normalize": False},
        {"pooling": "marks", "marked": True},
        {"pooling": "mean", "query_length": 6},
    ],
    ids=lambda config: config["pooling"],
)
def test_dual_encoders_of_ours(tmp_path, config):
    lengths = {"query_length": 20, "item_length": 24}
    bert = save_bert(tmp_path / "bert")
    model = DualEncoderModel.new(bert, DualEncoderConfig(**(lengths | config))).eval()
    if model.item is not model.query:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.3)
    queries, items = MARKED if config.get("marked") else (TEXTS, TEXTS[::-1])
    folder = export_model(model, tmp_path / "onnx", "dual-encoder")
    assert (folder / "item.onnx").exists() == (model.item is not model.query)
    exported, kept = OnnxDualEncoder(folder), TorchDualEncoder(model)
    for one, other in (
        (exported.encode_queries(queries), kept.encode_queries(queries)),
        (exported.encode_items(items), kept.encode_items(items)),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert exported.dimensions == kept.dimensions


def test_int8_leaves_the_outputs_of_all_feed_forward_blocks_in_float32(tmp_path):
    source = save_hf(
        tmp_path / "hf",
        "BertForSequenceClassification",
        num_labels=1,
        hidden_size=64,
        intermediate_size=128,
    )
    sizes = []
    for keep, count in (({}, 2), ({"keep_float": ()}, 0)):
        folder = export_model(source, tmp_path / "onnx", precision="int8", **keep)
        graph = onnx.load(str(folder / "model.onnx")).graph
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        kept = [shapes.get(node.input[1]) for node in graph.node if node.op_type == "MatMul"]
        assert kept.count((128, 64)) == count  # feed-forward width 128 -> 64, of both layers
        sizes.append((folder / "model.onnx").stat().st_size)
    assert sizes[1] < sizes[0]


# Bi-encoders of sentence-transformers


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
    assert (OnnxDualEncoder(folder).encode_items(ITEMS) * expected).sum(1).min() > 0.98


def test_dense_layers_and_shortened_vectors_are_in_the_graph_of_a_loaded_model(tmp_path):
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())
    source = bi_encoder(tmp_path, "qwen3", dense)
    model = library.SentenceTransformer(str(source), device="cpu", truncate_dim=10).bfloat16()
    attention = model[0].auto_model.config._attn_implementation
    encoder = OnnxDualEncoder(export_model(model, tmp_path / "onnx", "dual-encoder"))
    assert next(model.parameters()).dtype == torch.bfloat16  # it stays as it was
    assert model[0].auto_model.config._attn_implementation == attention != "eager"
    assert encoder.dimensions == 10
    found = encoder.encode_queries(QUERIES)
    np.testing.assert_allclose(found, model.float().encode_query(QUERIES), atol=1e-4)
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)  # there is no Normalize


def test_large_weights_lie_beside_the_graph(tmp_path, monkeypatch):
    source = bi_encoder(tmp_path, "modernbert", Normalize())
    whole = OnnxDualEncoder(export_model(source, tmp_path / "whole", "dual-encoder"))
    monkeypatch.setattr("crossknn.models.export.LARGEST", 1000)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    names = ["crossknn.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    encoder, weights = OnnxDualEncoder(folder), folder / "model.onnx.data"
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


def test_given_prefixes_replace_the_models_prompts(tmp_path):
    source = bi_encoder(tmp_path, "e5", Normalize())
    prefixes = {"query_prefix": "", "item_prefix": "old "}
    folder = export_model(source, tmp_path / "onnx", "dual-encoder", **prefixes)
    model = open_library(source)
    for encoder in (OnnxDualEncoder(folder), DualEncoder(source, device="cpu", **prefixes)):
        for found, expected in (
            (encoder.encode_queries(QUERIES), model.encode(QUERIES)),
            (encoder.encode_items(ITEMS), model.encode([f"old {item}" for item in ITEMS])),
        ):
            np.testing.assert_allclose(found, expected, atol=2e-5)
    assert OnnxDualEncoder(folder).fingerprint.endswith('|prefixes=["", "old "]')


def test_a_prompt_outside_the_pooling_is_refused_only_where_there_is_one(tmp_path):
    source = bi_encoder(tmp_path, "e5", include_prompt=False)
    sentence = r"leaves its prompt out of the pooling .*only used in torch"
    with pytest.raises(InputError, match=sentence):
        export_model(source, tmp_path / "onnx", "dual-encoder")
    prefixes = {"query_prefix": "", "item_prefix": ""}
    folder = export_model(source, tmp_path / "onnx", "dual-encoder", **prefixes)
    expected = open_library(source).encode(QUERIES)
    np.testing.assert_allclose(OnnxDualEncoder(folder).encode_queries(QUERIES), expected, atol=1e-5)


def test_a_text_without_tokens_has_a_vector_of_zeros(tmp_path):
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(json.dumps(json.loads(ending().to_str()) | {"post_processor": None}))
    source = save_bi_encoder(tmp_path, "Qwen3Model", "lasttoken", made=made, **CAUSAL)
    encoder = OnnxDualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    for texts in (["", "elm"], [""]):
        np.testing.assert_array_equal(encoder.encode_items(texts)[0], 0)


# Cross-encoders of sentence-transformers


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
    plain = library.CrossEncoder(str(source), device="cpu").predict(PAIRS, **RAW)
    assert np.abs(expected - plain).max() > 0.1
    folder = export_model(tmp_path / "saved", tmp_path / "onnx")
    for scorer in (CrossEncoder(tmp_path / "saved", device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer), expected, atol=5e-5)


# What is refused


def two_labels(folder):
    source = save_hf(folder, "BertForSequenceClassification", num_labels=2)
    return library.CrossEncoder(str(source), device="cpu")


def causal(folder, kind="Qwen3ForCausalLM", **settings):
    return save_hf(folder, kind, **CAUSAL, made=ending(), chat_template=ROLES, **settings)


def apart(folder):
    model = open_library(bi_encoder(folder, "e5"))
    model[0].query_length = 16
    return model


def messages(folder):
    template = "{% for message in messages %}{{ 'red ' + message['content'] }}{% endfor %}"
    return save_hf(folder, "Qwen3Model", made=ending(), chat_template=template, **CAUSAL)


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (two_labels, "cross-encoder", "2 outputs for a pair"),
        (lambda folder: save_hf(folder, "BertModel"), "cross-encoder", "no classification head"),
        (causal, "cross-encoder", "is made of Transformer, LogitScore: .* only used in torch"),
        (lambda folder: causal(folder, "Qwen3ForSequenceClassification", num_labels=1), "cross-encoder", "reads pairs through a chat template"),
        (messages, "dual-encoder", "does not read its texts as its tokenizer.json says"),
        (apart, "dual-encoder", "limits of its own for queries and items"),
    ],
)  # fmt: skip
def test_models_that_no_graph_of_token_ids_can_be_are_refused(tmp_path, make, kind, sentence):
    with pytest.raises(InputError, match=sentence):
        export_model(make(tmp_path / "source"), tmp_path / "onnx", kind)


def test_models_and_options_of_another_kind_are_refused(bert, tmp_path):
    with pytest.raises(InputError, match="precision 'int4' is unknown"):
        export_model(bert, tmp_path / "onnx", precision="int4")
    with pytest.raises(InputError, match="leave out --precision and --max-length"):
        export_model(bert, tmp_path / "onnx", "late-interaction", max_length=9)
    DualEncoderModel.new(bert, DualEncoderConfig()).save_pretrained(tmp_path / "dual")
    with pytest.raises(InputError, match="is a dual encoder, not a cross-encoder"):
        export_model(tmp_path / "dual", tmp_path / "onnx")
