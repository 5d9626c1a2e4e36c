"""Late-interaction models in torch and as ONNX folders: one interface, the same answers."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_models import save_bert

import crossknn as ck
from crossknn.errors import InputError, ScorerError
from crossknn.retrievers.base import KINDS, LateEncoder
from crossknn.scorers.opening import LateInteraction, bundled_folder
from crossknn.types import NO_ITEM, States
from crossknn_train.export import export_model
from crossknn_train.models.late import (
    LateInteractionConfig,
    LateInteractionModel,
)

ITEMS = [
    "the red oak",
    "seals swam in a lake near the old hill",
    "elm",
    "a tall white gull flew over the stone cave",
    "old crab on the sand",
    "storm",
    "blue whale and the otter",
]
QUERIES = ["the oak", "a gull sat in the dark cave near the river", "whale"]
LISTS = np.array([[0, 1, 2, 3, 4], [6, 5, 0, NO_ITEM, NO_ITEM], [3, 6, NO_ITEM, NO_ITEM, NO_ITEM]])


def make(folder, kind, **changes):
    """An untrained model whose towers differ."""
    bert = save_bert(folder / "bert", positions=128)
    options = {"layers": 1} if kind == "deformer" else {}
    config = {"query_length": 12, "item_length": 14, "options": options} | changes
    model = LateInteractionModel.new(bert, LateInteractionConfig(head=kind, **config)).eval()
    if not model.config.shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.2)
    return model


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    """The folder of a model of each kind: torch, onnx."""
    folder = tmp_path_factory.mktemp(request.param)
    make(folder, request.param).save_pretrained(folder / "torch")
    export_model(folder / "torch", folder / "onnx", "late-interaction")
    return folder


@pytest.fixture
def served(folder):
    return LateInteraction(folder / "torch"), LateInteraction(folder / "onnx")


def compared(model, lists=LISTS):
    return model.compare(
        model.encode_queries(QUERIES[: len(lists)]), model.encode_items(ITEMS), lists
    )


def close(found, expected):
    there = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), there)
    scale = np.abs(expected[there]).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * scale)


def test_torch_and_onnx_are_one_model(served, folder):
    """What they compute: tests/golden/test_model_values.py."""
    kept, exported = served
    for model in served:
        assert isinstance(model, LateEncoder)
        assert folder.name.startswith(model.kind)
        assert model.joint == (model.kind == "cmc")
    assert (kept.dimensions, kept.fingerprint) == (exported.dimensions, exported.fingerprint)
    queries, items = exported.encode_queries(QUERIES), exported.encode_items(ITEMS)
    assert (queries.values.dtype, items.values.dtype) == (np.float32, np.float16)
    close(*(model.compare(queries, items, LISTS) for model in served))


def test_neither_order_nor_padding_nor_other_queries_nor_batches_matter(served, monkeypatch):
    order = np.array([4, 2, 0, 3, 1])
    wide = np.full((3, 9), NO_ITEM)
    wide[:, [1, 2, 4, 7, 8]] = LISTS[:, order]
    for model in served:
        plain = compared(model)
        moved = compared(model, wide)
        assert (moved[wide == NO_ITEM] == -np.inf).all()
        close(moved[:, [1, 2, 4, 7, 8]], plain[:, order])
        close(compared(model, LISTS[:1]), plain[:1])
        monkeypatch.setattr(type(model.runtime), "bytes_at_once", 1)
        close(compared(model), plain)


@pytest.mark.parametrize("folder", ["cmc"], indirect=True)
def test_what_cannot_be_compared(served, monkeypatch):
    model = served[1]
    items = States(np.ones((3, model.dimensions), np.float16), np.arange(4))
    queries = States(np.full((1, model.dimensions), np.nan, np.float32), np.arange(2))
    with pytest.raises(ScorerError, match="gave item 2 the score nan for query 0"):
        model.compare(queries, items, np.array([[2, 0]]))

    class Full:
        def run(self, *_):
            raise RuntimeError("failed to allocate memory for requested buffer")

    monkeypatch.setattr(model.runtime, "_compare", Full())
    with pytest.raises(
        InputError, match=r"\(cmc\) has not enough memory to compare 5 candidates .* smaller depth"
    ):
        compared(model)


@pytest.mark.parametrize("folder", ["cmc"], indirect=True)
def test_the_export_keeps_the_fingerprint_until_a_file_changes(served, folder, tmp_path):
    kept = served[0]
    source = make(tmp_path, "cmc", shared=True).save_pretrained(tmp_path / "shared")
    shared = export_model(source, tmp_path / "one", "late-interaction")
    assert not (shared / "item.onnx").exists()
    assert LateInteraction(shared).fingerprint != kept.fingerprint
    for path in (folder / "onnx").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert LateInteraction(tmp_path).fingerprint == kept.fingerprint
    assert LateInteraction(tmp_path, max_length=9).fingerprint != kept.fingerprint
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + " ")
    assert LateInteraction(tmp_path).fingerprint != kept.fingerprint
    (tmp_path / "compare.onnx").write_bytes(b"\x00")
    with pytest.raises(InputError, match=r"compare.onnx is not a model that ONNX Runtime can load"):
        LateInteraction(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["cmc"], indirect=True)
def test_the_base_install_serves_the_export(served, folder):
    code = f"""
import sys
for name in ("torch", "transformers", "sentence_transformers", "onnx", "huggingface_hub"):
    sys.modules[name] = None
import numpy as np
from crossknn.scorers.opening import LateInteraction
model = LateInteraction({str(folder / "onnx")!r})
states = model.encode_queries({QUERIES!r}), model.encode_items({ITEMS!r})
print(model.compare(*states, np.array({LISTS.tolist()!r})).argmax(axis=1).tolist())
"""
    asked = [sys.executable, "-c", code]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == compared(served[0]).argmax(axis=1).tolist()


@pytest.mark.parametrize("folder", ["cmc"], indirect=True)
def test_what_is_no_late_interaction_model(folder, tmp_path):
    late, dual = "late-interaction", bundled_folder("dual-encoder")
    incomplete, absent = tmp_path / "incomplete", tmp_path / "absent"
    incomplete.mkdir()
    about = {"format": 1, "kind": late, "precision": "float32"}
    (incomplete / "crossknn.json").write_text(json.dumps(about))
    for opened, path, message in (
        (ck.CrossEncoder, folder / "torch", f"is a {late} model, but a cross-encoder is"),
        (ck.CrossEncoder, folder / "onnx", f"holds a {late}, but a cross-encoder"),
        (LateInteraction, dual, f"holds a dual-encoder, but a {late}"),
        (LateInteraction, tmp_path, f"is not a {late} model: it has neither"),
        (LateInteraction, absent, "there is no model folder"),
        (LateInteraction, incomplete, "is incomplete: query.onnx is missing"),
    ):
        with pytest.raises(InputError, match=message):
            opened(path)
