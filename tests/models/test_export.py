"""Export against torch, on tiny models with random weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnx")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers.onnx import OnnxCrossEncoder  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch
WORDS = "the a cat dog sat ran on mat far away [PAD] [UNK] [CLS] [SEP] [MASK]".split()  # noqa: SIM905
QUERIES = ["the cat", "a dog ran far away", "mat"]
ITEMS = ["the cat sat on the mat", "a dog", "the dog ran away on the mat far away"]


def save(folder, kind, **settings):
    vocabulary = sorted(WORDS, key=lambda word: word != "[PAD]")
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = transformers.BertTokenizer(vocab={w: n for n, w in enumerate(vocabulary)})
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=40,
        **settings,
    )
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return tokenizer, model


def pairs():
    return Pairs(np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3))


def scores_of(folder):
    out = np.full(9, np.nan, dtype=np.float32)
    for positions, scores in OnnxCrossEncoder(folder, threads=1).score(pairs(), QUERIES, ITEMS):
        out[positions] = scores
    return out


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("int8", 0.1)])
def test_a_cross_encoder_scores_as_in_torch(tmp_path, precision, tolerance) -> None:
    tokenizer, model = save(tmp_path / "hf", "BertForSequenceClassification", num_labels=1)
    texts = [(q, i) for q in QUERIES for i in ITEMS]
    batch = tokenizer(
        [q for q, _ in texts], [i for _, i in texts], padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = model(**batch).logits[:, 0].numpy()
    folder = export_model(tmp_path / "hf", tmp_path / "onnx", precision=precision)
    assert np.abs(scores_of(folder) - expected).max() <= tolerance * max(1.0, expected.std())
    settings = json.loads((folder / "crossknn.json").read_text())
    assert settings["precision"] == precision
    assert settings["max_length"] == 40
    assert settings["name"] == "hf"


def test_a_dual_encoder_is_pooled_in_the_graph(tmp_path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from crossknn.scorers.onnx import OnnxDualEncoder

    save(tmp_path / "hf", "BertModel")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    folder = export_model(model, tmp_path / "onnx", "dual-encoder", item_prefix="a ")
    encoder = OnnxDualEncoder(folder)
    expected = model.encode(QUERIES)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES), expected, atol=1e-5)
    expected = model.encode([f"a {item}" for item in ITEMS])
    np.testing.assert_allclose(encoder.encode_items(ITEMS), expected, atol=1e-5)


def test_int8_leaves_the_outputs_of_all_feed_forward_blocks_in_float32(tmp_path) -> None:
    import onnx

    save(tmp_path / "hf", "BertForSequenceClassification", num_labels=1)
    folder = export_model(tmp_path / "hf", tmp_path / "onnx", precision="int8")
    graph = onnx.load(str(folder / "model.onnx")).graph
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    kept = [
        weights[n.input[1]] for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights
    ]
    assert kept.count((128, 64)) == 2  # feed-forward width 128 -> 64, of both layers


def test_two_labels_are_refused(tmp_path) -> None:
    save(tmp_path / "hf", "BertForSequenceClassification", num_labels=2)
    with pytest.raises(InputError, match="2 labels"):
        export_model(tmp_path / "hf", tmp_path / "onnx")


def test_an_encoder_is_refused(tmp_path) -> None:
    save(tmp_path / "hf", "BertModel")
    with pytest.raises(InputError, match="no classification head"):
        export_model(tmp_path / "hf", tmp_path / "onnx")


def test_a_missing_head_is_refused(tmp_path) -> None:
    save(tmp_path / "hf", "BertModel", num_labels=1)
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    settings["architectures"] = ["BertForSequenceClassification"]
    settings["id2label"], settings["label2id"] = {"0": "score"}, {"score": 0}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="no trained classification head"):
        export_model(tmp_path / "hf", tmp_path / "onnx")


def test_an_unknown_precision_is_refused(tmp_path) -> None:
    save(tmp_path / "hf", "BertForSequenceClassification", num_labels=1)
    with pytest.raises(InputError, match="int4"):
        export_model(tmp_path / "hf", tmp_path / "onnx", precision="int4")
