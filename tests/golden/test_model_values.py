"""Values of every kind of model, in torch and as exported, and of the bundled models.

Weights are drawn by their names, so that the values depend on what a model computes and on nothing
else.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import recorded
from tiny_models import MARKED, TEXTS, save_bert, save_bi_encoder, save_hf, scores_of

import crossknn as ck
from crossknn.scorers.opening import LateInteraction

PLAIN = (TEXTS, TEXTS[::-1])
HALVES = {"query_length": 14, "item_length": 12, "max_length": 26}
CROSS = {
    "emb": {"head": "emb", "scale": 0.5},
    "emb-marked": {"head": "emb", "marked": True, **HALVES},
    "emb-position": {"head": "emb", "marked": True, "item_position": 20, **HALVES},
    "cls": {"head": "cls"},
    "cls-plain": {"head": "cls", "pooler": False, "marked": True},
    "interaction": {"head": "interaction"},
}
DUAL = {
    "mean": {"pooling": "mean", "query_length": 9},
    "cls": {"pooling": "cls", "shared": False, "normalize": False},
    "marks": {"pooling": "marks", "marked": True},
}
PROJECTED = {"projected": True, "dimensions": 12}
LATE = {
    "cmc": {"head": "cmc", "options": {"heads": 2, "feed_forward": 24}},
    "cmc-reference": {"head": "cmc", "options": {"variant": "reference", "feed_forward": 24}},
    "cmc-none": {"head": "cmc", "options": {"variant": "none", "layers": 1}, "marked": True},
    "poly": {"head": "poly", "options": {"codes": 5}},
    "som": {"head": "som"},
    "som-projected": {"head": "som", "options": PROJECTED, "shared": True},
    "deformer": {"head": "deformer", "options": {"layers": 1}},
    "mixencoder": {"head": "mixencoder", "pooling": "mean"},
}
LISTS = np.array([[0, 1, 2, 3, -1], [3, -1, 1, 0, 2], [2, 0, 3, 1, -1], [1, 2, -1, -1, 0]])


def check(name, close=5e-5, **found):
    """Compare arrays with the recorded ones, up to `close` times the largest number."""
    arrays = {key: np.ravel(array) for key, array in found.items()}
    recorded.check("model_values.json", {name: arrays}, close=close, floor=None, whole=False)


NAMES = {
    ".tower.": ".",
    ".read.": ".in_proj.",
    ".write.": ".out_proj.",
    ".attention_norm.": ".norm1.",
    ".wide.": ".linear1.",
    ".narrow.": ".linear2.",
    ".norm.": ".norm2.",
}
"""Names of weights when the values were recorded, and what they are drawn by."""


def draw(model):
    """Weights by name; those of layer norms are near 1."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            for old, new in NAMES.items():
                name = name.replace(old, new)
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1 + 0.1 * values if is_norm else 0.3 * values)
    return model.eval()


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), hidden=64)


def check_encoders(name, folders, queries, items):
    for kind, folder in folders.items():
        encoder = ck.DualEncoder(folder, **({"device": "cpu"} if kind == "torch" else {}))
        vectors = encoder.encode_queries(queries)[:, :12], encoder.encode_items(items)[:, :12]
        check(f"{name}-{kind}", queries=vectors[0], items=vectors[1])


@pytest.mark.torch
@pytest.mark.parametrize("name", CROSS)
def test_cross_encoders(bert, tmp_path, name):
    from crossknn_train.export import export_model
    from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel

    config = CrossEncoderConfig(**{"max_length": 40, **CROSS[name]})
    model = draw(CrossEncoderModel.new(bert, config))
    texts = MARKED if config.marked else PLAIN
    given = model.save_pretrained(tmp_path / "torch")
    found = {"torch": scores_of(ck.CrossEncoder(given, device="cpu"), *texts)}
    for kind in ("float32", "int8"):
        folder = export_model(given, tmp_path / kind, precision=kind)
        found[kind] = scores_of(ck.CrossEncoder(folder), *texts)
    check(f"cross-{name}", **found)
    np.testing.assert_allclose(found["float32"], found["torch"], rtol=1e-4, atol=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize("name", DUAL)
def test_dual_encoders(bert, tmp_path, name):
    from crossknn_train.export import export_model
    from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel

    config = DualEncoderConfig(**{"query_length": 24, "item_length": 20, **DUAL[name]})
    model = draw(DualEncoderModel.new(bert, config))
    texts = MARKED if config.marked else PLAIN
    given = model.save_pretrained(tmp_path / "torch")
    folder = export_model(given, tmp_path / "onnx", "dual-encoder")
    check_encoders(f"dual-{name}", {"torch": given, "onnx": folder}, *texts)


@pytest.mark.torch
@pytest.mark.parametrize("name", LATE)
def test_late_interaction_models(bert, tmp_path, name):
    from crossknn_train.export import export_model
    from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel

    config = LateInteractionConfig(**{"query_length": 24, "item_length": 20, **LATE[name]})
    model = draw(LateInteractionModel.new(bert, config))
    queries, items = MARKED if config.marked else PLAIN
    given = model.save_pretrained(tmp_path / "torch")
    folder = export_model(given, tmp_path / "onnx", "late-interaction")
    for kind, late in (
        ("torch", LateInteraction(given, device="cpu")),
        ("onnx", LateInteraction(folder)),
    ):
        found = late.encode_queries(queries), late.encode_items(items)
        states = {
            f"{side}": s.values[:3, :8] for side, s in zip(("query", "item"), found, strict=True)
        }
        check(f"late-{name}-{kind}", scores=late.compare(*found, LISTS), **states)


@pytest.mark.torch
def test_models_of_libraries(tmp_path):
    from crossknn_train.export import export_model

    given = save_hf(tmp_path / "cross", "BertForSequenceClassification", num_labels=1)
    folder = export_model(given, tmp_path / "cross-onnx")
    found = scores_of(ck.CrossEncoder(given, device="cpu"), *PLAIN)
    check("library-cross", torch=found, onnx=scores_of(ck.CrossEncoder(folder), *PLAIN))
    given = save_bi_encoder(tmp_path / "dual", "BertModel", "cls", prompts={"query": "red "})
    folder = export_model(given, tmp_path / "dual-onnx", "dual-encoder")
    check_encoders("library-dual", {"torch": given, "onnx": folder}, TEXTS, TEXTS)


def test_the_bundled_models():
    queries = [
        "sort the items of a list",
        "read a JSON document from a string",
        "square root of a number",
        "copy a file",
        "wait until a thread ends",
    ]
    items = [
        "sorted(iterable, key=None, reverse=False)\nReturn a new list with the items in order.",
        "json.loads(s)\nDeserialize a str, bytes or bytearray with a JSON document.",
    ]
    encoder = ck.DualEncoder()
    check(
        "bundled",
        close=2e-3,  # an activation may be rounded to the next int8 value on another machine
        scores=scores_of(ck.CrossEncoder(), queries, items),
        queries=encoder.encode_queries(queries)[:, :16],
        items=encoder.encode_items(items)[:, :16],
    )
