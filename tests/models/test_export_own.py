"""Models of ours as ONNX folders give what they give in torch, marks, windows and towers too."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from crossknn.evaluation.measures import agreement  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers import OnnxCrossEncoder, OnnxDualEncoder, TorchCrossEncoder  # noqa: E402
from crossknn.scorers.torch import TorchDualEncoder  # noqa: E402

pytestmark = pytest.mark.torch
TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
QUERIES = [
    f"the {text} near [Ms] {word} [Me] in a hill" for text, word in zip(TEXTS, "abcd", strict=True)
]
ITEMS = [f"{text} [ENT] the old {text}" for text in TEXTS]


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
def test_cross_encoders(tmp_path, config, precision):
    bert = save_bert(tmp_path / "bert", hidden=64)
    model = CrossEncoderModel.new(bert, CrossEncoderConfig(max_length=40, **config)).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    queries, items = (QUERIES, ITEMS) if config.get("marked") else (TEXTS, TEXTS[::-1])
    folder = export_model(model, tmp_path / "onnx", precision=precision)
    found = agreement(TorchCrossEncoder(model), OnnxCrossEncoder(folder), queries, items)
    assert found.spread > 1e-3
    assert found.largest_difference < {"float32": 1e-4, "int8": 0.5}[precision] * max(
        1.0, found.spread
    )
    again = OnnxCrossEncoder(folder)
    assert again.max_length == 40
    assert again.fingerprint == OnnxCrossEncoder(folder).fingerprint


@pytest.mark.parametrize(
    "config",
    [
        {"pooling": "cls", "shared": False, "normalize": False},
        {"pooling": "marks", "marked": True},
        {"pooling": "mean", "query_length": 6},
    ],
    ids=lambda config: config["pooling"],
)
def test_dual_encoders(tmp_path, config):
    lengths = {"query_length": 20, "item_length": 24}
    bert = save_bert(tmp_path / "bert")
    model = DualEncoderModel.new(bert, DualEncoderConfig(**(lengths | config))).eval()
    if model.item is not model.query:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.3)
    queries, items = (QUERIES, ITEMS) if config.get("marked") else (TEXTS, TEXTS[::-1])
    folder = export_model(model, tmp_path / "onnx", "dual-encoder")
    assert (folder / "item.onnx").exists() == (model.item is not model.query)
    exported, kept = OnnxDualEncoder(folder), TorchDualEncoder(model)
    for one, other in (
        (exported.encode_queries(queries), kept.encode_queries(queries)),
        (exported.encode_items(items), kept.encode_items(items)),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert exported.dimensions == kept.dimensions
