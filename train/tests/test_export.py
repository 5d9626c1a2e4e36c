"""Exported models give what they give in torch: ours, and sentence-transformers models of several
kinds as their authors meant them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import sentence_transformers as library
import torch
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    StaticEmbedding,
)
from tiny_models import (
    CAUSAL,
    CHAT,
    LOCAL,
    ending,
    save_bert,
    save_bi_encoder,
    save_hf,
    scores_of,
    tokenizer,
)

from crossknn import CrossEncoder, DualEncoder
from crossknn.errors import InputError
from crossknn_train.export import export_model
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel

QUERIES = ["the red oak", "a tall white gull flew", "", "old " * 80]
ITEMS = ["seals swam in a lake near the old hill", "elm", "storm " * 30, "snow " * 80]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]
RAW = {"activation_fn": torch.nn.Identity()}
PROMPTS = {"query": "red of the ", "document": "a "}
ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 80}

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


# Bi-encoders of sentence-transformers

ENDING = {**CAUSAL, "made": ending}
LOCAL_CAUSAL = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
KINDS = {
    "e5": ("BertModel", "mean", {}),
    "several": ("BertModel", ("cls", "lasttoken"), {}),
    "xlm-roberta": ("XLMRobertaModel", "cls", ROBERTA),
    "modernbert": ("ModernBertModel", "cls", LOCAL),
    "qwen3": ("Qwen3Model", "lasttoken", {**ENDING, "padding_side": "left"}),
    "qwen3-local": ("Qwen3Model", "lasttoken", {**CAUSAL, **LOCAL_CAUSAL}),
}


def bi_encoder(folder, kind, *modules, **options):
    model, pooling, settings = KINDS[kind]
    settings = {key: value() if callable(value) else value for key, value in settings.items()}
    given = {"prompts": PROMPTS, "seed": 1, **settings, **options}
    torch.manual_seed(1)
    return save_bi_encoder(folder, model, pooling, *modules, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_librarys_whatever_the_batch(tmp_path, kind):
    last = Dense(32, 24) if kind == "qwen3" else Normalize()
    source = bi_encoder(tmp_path, kind, last)
    model = library.SentenceTransformer(str(source), device="cpu")
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    queries = np.concatenate([model.encode_query([text]) for text in QUERIES])
    items = np.concatenate([model.encode_document([text]) for text in ITEMS])
    assert np.abs(queries - model.encode(QUERIES)).max() > 0.1  # prompts matter
    for encoder in (
        DualEncoder(source, device="cpu"),
        DualEncoder(folder),
    ):
        np.testing.assert_allclose(encoder.encode_queries(QUERIES), queries, atol=5e-5)
        np.testing.assert_allclose(encoder.encode_items(ITEMS), items, atol=5e-5)
        assert encoder.dimensions == items.shape[1]
    assert encoder.truncated == 2


def test_large_weights_lie_beside_the_graph(tmp_path, monkeypatch):
    source = bi_encoder(tmp_path, "modernbert", Normalize())
    whole = DualEncoder(export_model(source, tmp_path / "whole", "dual-encoder"))
    monkeypatch.setattr("crossknn_train.export.LARGEST", 1000)
    folder = export_model(source, tmp_path / "onnx", "dual-encoder")
    names = ["crossknn.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    found = DualEncoder(folder).encode_items(ITEMS)
    np.testing.assert_array_equal(found, whole.encode_items(ITEMS))
    monkeypatch.undo()
    export_model(source, tmp_path / "onnx", "dual-encoder")
    assert not (folder / "model.onnx.data").exists()


def test_a_prompt_that_pooling_leaves_out_is_refused(tmp_path):
    source = bi_encoder(tmp_path, "e5", Normalize(), include_prompt=False)
    with pytest.raises(InputError, match=r"only used in torch: .*keep a prompt out of pooling"):
        export_model(source, tmp_path / "onnx", "dual-encoder")


def test_a_text_without_tokens_has_a_vector_of_zeros(tmp_path):
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(json.dumps(json.loads(ending().to_str()) | {"post_processor": None}))
    source = save_bi_encoder(tmp_path, "Qwen3Model", "lasttoken", made=made, **CAUSAL)
    encoder = DualEncoder(export_model(source, tmp_path / "onnx", "dual-encoder"))
    for texts in (["", "elm"], [""]):
        np.testing.assert_array_equal(encoder.encode_items(texts)[0], 0)


# Cross-encoders of sentence-transformers


@pytest.mark.parametrize(
    ("kind", "settings", "prompts"),
    [
        ("ModernBert", {**LOCAL, "classifier_pooling": "mean"}, {}),
        ("XLMRoberta", ROBERTA, {}),
        ("Qwen3", CAUSAL, {}),
        # The tokenizer gives no token types, so that the library gives none either.
        ("Bert", {}, {"prompts": {"search": "red "}, "default_prompt_name": "search"}),
    ],
)
def test_cross_encoders_and_their_prompts(tmp_path, kind, settings, prompts):
    plain = save_hf(tmp_path / "hf", f"{kind}ForSequenceClassification", num_labels=1, **settings)
    model = library.CrossEncoder(str(plain), device="cpu", **prompts)
    model.save_pretrained(str(tmp_path / "saved"))
    expected = np.concatenate([model.predict([pair], **RAW) for pair in PAIRS])
    assert expected.std() > 0.1
    unprompted = scores_of(CrossEncoder(plain, device="cpu"), QUERIES, ITEMS)
    assert (np.abs(expected - unprompted).max() > 0.1) == bool(prompts)
    folder = export_model(tmp_path / "saved", tmp_path / "onnx")
    for scorer in (CrossEncoder(tmp_path / "saved", device="cpu"), CrossEncoder(folder)):
        np.testing.assert_allclose(scores_of(scorer, QUERIES, ITEMS), expected, atol=5e-5)


# What is refused


def chat(folder, template=CHAT, kind="Qwen3ForCausalLM"):
    return save_hf(folder, kind, **CAUSAL, made=ending(), chat_template=template)


def messages(folder):
    template = "{% for message in messages %}{{ 'red ' + message['content'] }}{% endfor %}"
    return chat(folder, template, "Qwen3Model")


def apart(folder):
    source = bi_encoder(folder, "e5")
    path = source / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"query_length": 16}))
    return source


def static(folder):
    module = StaticEmbedding(tokenizer(), embedding_dim=8)
    library.SentenceTransformer(modules=[module], device="cpu").save(str(folder))
    return folder


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (chat, "cross-encoder", "only used in torch: the graph's outputs differ"),
        (messages, "dual-encoder", "the graph's outputs differ"),
        (apart, "dual-encoder", "outputs differ .* own length limit for queries"),
        (static, "dual-encoder", "it has no fast tokenizer"),
    ],
)
def test_models_that_no_graph_of_token_ids_can_be_are_refused(tmp_path, make, kind, sentence):
    with pytest.raises(InputError, match=sentence):
        export_model(make(tmp_path / "source"), tmp_path / "onnx", kind)


def test_options_that_a_model_cannot_have_are_refused(tmp_path):
    (tmp_path / "dual_encoder.json").touch()
    with pytest.raises(InputError, match="is a dual encoder and cannot be exported as a cross-"):
        export_model(tmp_path, tmp_path / "onnx")
    with pytest.raises(InputError, match="precision 'int4' is unknown"):
        export_model(tmp_path, tmp_path / "onnx", precision="int4")
    with pytest.raises(InputError, match="--precision and --max-length do not apply"):
        export_model(tmp_path, tmp_path / "onnx", "late-interaction", max_length=9)


def test_a_head_that_reads_the_first_token_leaves_the_others_of_the_last_layer_out(tmp_path):
    model = CrossEncoderModel.new(
        save_bert(tmp_path / "bert"), CrossEncoderConfig(head="cls", max_length=60)
    )
    model.save_pretrained(tmp_path / "own")
    save_hf(tmp_path / "hf", "XLMRobertaForSequenceClassification", num_labels=1, **ROBERTA)
    for source in ("own", "hf"):
        graph = onnx.load(export_model(tmp_path / source, tmp_path / "onnx") / "model.onnx")
        inner = [node.output[0] for node in graph.graph.node if node.op_type == "Erf"]
        graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in inner)
        session = onnxruntime.InferenceSession(graph.SerializeToString())
        tokens = {given.name: np.ones((2, 7), np.int64) for given in session.get_inputs()}
        *whole, last = (array.shape[1] for array in session.run(inner, tokens))
        assert (set(whole), last) == ({7}, 1)
