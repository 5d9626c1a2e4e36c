"""Late-interaction models: what holds of every head, what a model begins with, saving and loading,
what is refused. (What they compute: `test_late_references.py`.)"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_models import CONTENT, TEXTS

from crossknn.errors import InputError
from crossknn_train.export import export_model
from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn_train.models.late import (
    HEADS,
    LateInteractionConfig,
    LateInteractionModel,
)

OPTIONS = {
    "deformer": {"layers": 1},
    "poly": {"codes": 5},
    "som": {"projected": True, "dimensions": 12},
}


@pytest.fixture(params=HEADS)
def model(request, bert):
    return new(bert, request.param).eval()


def new(source, kind="cmc", **config):
    torch.manual_seed(0)
    given = {"options": OPTIONS.get(kind, {}), "query_length": 32, "item_length": 32}
    return LateInteractionModel.new(source, LateInteractionConfig(head=kind, **(given | config)))


def scores_of(model, texts=TEXTS):
    """Scores (t, t) of each text as a query with all texts as items."""
    model.eval()
    with torch.inference_mode():
        query, mask = model.outputs(model.encoding.texts(texts, queries=True), queries=True)
        items, item_mask = model.outputs(model.encoding.texts(texts, queries=False), queries=False)
        lists = (t.expand(len(texts), *t.shape) for t in (items, item_mask))
        return model.head(query, mask, *lists).numpy()


def test_scores_are_float32_where_the_model_is_not(model):
    with torch.autocast("cpu", torch.bfloat16):
        found = scores_of(model, [f"{a} {b}" for a in CONTENT[:12] for b in CONTENT[:12]])[0]
    assert found.dtype == np.float32
    # In bfloat16 hundreds of scores would fall on a few dozen values.
    assert len(np.unique(found)) > 0.99 * len(found)
    assert (found != torch.from_numpy(found).bfloat16().float().numpy()).mean() > 0.9


def test_gradients_reach_everything(model):
    model.train()
    query, mask = model.outputs(model.encoding.texts(TEXTS[:2], queries=True), queries=True)
    items, item_mask = model.outputs(model.encoding.texts(TEXTS, queries=False), queries=False)
    lists = items.expand(2, *items.shape), item_mask.expand(2, *item_mask.shape)
    found = model.head(query, mask, *lists)
    torch.nn.functional.cross_entropy(found, torch.tensor([0, 1])).backward()
    still = {
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max()
    }
    # A softmax does not see what is added to all its logits, nor a cross-entropy to all scores.
    assert all(name.endswith(("key.bias", "out.out.bias")) for name in still), still


def test_what_is_frozen_gets_no_gradient_and_no_dropout(bert):
    model = new(bert)
    for what in ("none", "items", "both"):
        model.freeze(what)
        model.train()
        learns = {"head": True, "item": what == "none", "query": what != "both"}
        for name, expected in learns.items():
            part = getattr(model, name)
            assert {p.requires_grad for p in part.parameters()} == {part.training} == {expected}
    with pytest.raises(InputError, match="one tower is shared"):
        new(bert, shared=True).freeze("items")
    with pytest.raises(InputError, match="nothing would learn"):
        new(bert, "som", options={}).freeze("both")


_MEMORY = """
import resource, sys
import numpy as np
import crossknn as ck
from crossknn.scorers.opening import LateInteraction
from crossknn.types import States

models = [LateInteraction(folder) for folder in sys.argv[1:]]
for c in (64, 64, 4096, 16384):
    values = np.random.default_rng(0).normal(size=(c, 16)).astype(np.float32)
    query, items = (States(values[:n], np.arange(n + 1)) for n in (1, c))
    kept, exported = (model.compare(query, items, np.arange(c)[None]) for model in models)
    np.testing.assert_allclose(exported, kept, rtol=1e-3, atol=1e-3)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_is_linear_in_candidates_in_torch_and_in_onnx(bert, tmp_path):
    options = {"heads": 1, "feed_forward": 16, "layers": 1}
    folder = new(bert, options=options).save_pretrained(tmp_path / "torch")
    exported = export_model(folder, tmp_path / "onnx", "late-interaction")
    command = [sys.executable, "-W", "ignore", "-c", _MEMORY, folder, exported]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    _, few, some, many = (int(line) * unit / 2**20 for line in done.stdout.split())
    # One row per pair of candidates would be 64 MiB for 4096 of them, and 1024 MiB for 16384.
    assert some - few < 40
    assert many - few < 120


# Models as a whole


def differ(model):
    """Make the towers different if they are two."""
    if not model.config.shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.5)
    return model


@pytest.mark.parametrize(
    ("kind", "shared"),
    [*((kind, False) for kind in HEADS), ("cmc", True), ("deformer", True), ("som", True)],
)
def test_a_saved_model_is_the_same_model_and_is_continued(bert, tmp_path, kind, shared):
    config = {"shared": shared, "pooling": "mean", "item_length": 8}
    model = differ(new(bert, kind, **config))
    folder = model.save_pretrained(tmp_path / "model", card="card")
    again, more = LateInteractionModel.from_pretrained(folder), new(folder, kind, **config)
    assert again.config == more.config == model.config
    assert (again.training, more.training) == (False, True)
    np.testing.assert_array_equal(scores_of(again), scores_of(model))
    np.testing.assert_array_equal(scores_of(more), scores_of(model))
    assert (again.item.encoder is again.query.encoder) == shared == (not (folder / "item").exists())
    assert (folder / "README.md").read_text() == "card"
    with pytest.raises(InputError, match=r"model with other settings: .*pooling='mean'"):
        new(folder, kind, **config | {"pooling": "cls"})


def test_a_dual_encoder_gives_towers_pooling_and_marks(bert_without_unused, tmp_path):
    config = DualEncoderConfig(pooling="mean", shared=False, normalize=False)
    source = differ(DualEncoderModel.new(bert_without_unused, config)).eval()
    model = new(source.save_pretrained(tmp_path)).eval()
    assert model.config.pooling == "mean"
    assert new(tmp_path, pooling="cls").config.pooling == "cls"
    for queries in (True, False):
        rows = model.encoding.texts(TEXTS, queries=queries)
        with torch.inference_mode():
            expected = source.encode(rows, queries=queries)
            found = model.encode(rows, queries=queries)[0][:, 0]
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="has two towers: set shared = false"):
        new(tmp_path, shared=True)
    marked = new(tmp_path, marked=True).eval()
    for text, queries in (("an old [Ms] oak [Me]", True), ("oak [ENT] a tall tree", False)):
        rows = marked.encoding.texts([text], queries=queries)
        assert max(rows[0].ids) == marked.tokenizer.marks[1 if queries else 2]
        assert torch.isfinite(marked.encode(rows, queries=queries)[0]).all()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kind": "cmd"}, "late-interaction model 'cmd' is unknown .did you mean cmc"),
        ({"pooling": "marks"}, "pooling 'marks' needs marked = true"),
        ({"options": {"variants": "paper"}}, "no option 'variants' .did you mean variant"),
        ({"options": {"layers": 0}}, "layers is 0, but its default is 2: counts are"),
        ({"kind": "deformer", "options": {"dropout": 1}}, "dropout is 1, but its default is 0.1"),
        ({"options": {"heads": 3}}, "3 heads do not divide 16 dimensions"),
        ({"query_length": 999}, "query_length or item_length is 999; the encoder has 256"),
        (
            {"kind": "deformer", "options": {"layers": 2}},
            "takes 2 of the 2 layers, so that none would",
        ),
        ({"kind": "mixencoder", "shared": True}, "set shared = false"),
        ({"source": "bundled"}, "bundled is an ONNX model"),
    ],
)
def test_configs_and_sources_that_do_not_fit_are_refused(bert, given, sentence):
    with pytest.raises(InputError, match=sentence):
        new(**({"source": bert} | given))
