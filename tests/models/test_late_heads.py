"""What holds of every head: order, padding, batches, gradients, tracing; and what CMC's layers are."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.models.late.heads import Layer  # noqa: E402
from crossknn.models.late.model import HEADS, LateInteractionConfig, LateInteractionModel  # noqa: E402

pytestmark = pytest.mark.torch

OPTIONS = {
    "deformer": {"layers": 1},
    "poly": {"codes": 5},
    "som": {"projected": True, "dimensions": 12},
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]


@pytest.fixture(params=HEADS)
def model(request, bert):
    return new(bert, request.param)


def new(bert, kind, **config):
    torch.manual_seed(0)
    given = {"options": OPTIONS.get(kind, {}), "query_length": 32, "item_length": 32}
    return LateInteractionModel.new(
        bert, LateInteractionConfig(head=kind, **(given | config))
    ).eval()


def compared(model, b=3, c=6, seed=0):
    """Random states as a head compares them, some items and tokens masked and zero."""
    rng = np.random.default_rng(seed)
    d = model.query.encoder.config.hidden_size
    t_q, t_i = (
        1 if reads == "vector" else 5 for reads in (model.head.query_reads, model.head.item_reads)
    )
    query = torch.from_numpy(rng.standard_normal((b, t_q, d)).astype(np.float32))
    query_mask = torch.from_numpy(np.arange(t_q) < rng.integers(1, t_q + 1, (b, 1)))
    query, query_mask = model.head.of_queries(query * query_mask[..., None], query_mask)
    items = rng.standard_normal((b, c, t_i, model.dimensions)).astype(np.float32)
    item_mask = np.arange(t_i) < rng.integers(1, t_i + 1, (b, c, 1))
    item_mask[0, 2] = False
    items = torch.from_numpy(items * item_mask[..., None])
    return query.detach(), query_mask, items, torch.from_numpy(item_mask)


def scores(model, *given):
    with torch.inference_mode():
        return model.head(*given).numpy()


def test_scores_are_float32_where_the_model_is_not(model):
    query, query_mask, items, item_mask = compared(model, c=200)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = model.head(query, query_mask, items, item_mask)
    there = found[torch.isfinite(found)]
    assert found.dtype == torch.float32
    # In bfloat16 hundreds of scores would fall on a few dozen values.
    assert len(there.unique()) > 0.99 * len(there)
    assert (there != there.bfloat16().float()).float().mean() > 0.9


def test_the_order_of_candidates_does_not_matter(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items, item_mask)
    order = np.random.default_rng(1).permutation(items.shape[1])
    after = scores(model, query, query_mask, items[:, order], item_mask[:, order])
    assert np.ptp(before[1]) > 1e-2
    np.testing.assert_allclose(after, before[:, order], **CLOSE)


def test_padding_changes_nothing(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items, item_mask)
    assert np.isneginf(before[0, 2])
    assert np.isfinite(np.delete(before.ravel(), 2)).all()
    wider = torch.nn.functional.pad
    if model.head.item_reads == "tokens":
        items, item_mask = wider(items, (0, 0, 0, 4), value=7.0), wider(item_mask, (0, 4))
    if model.head.query_reads == "tokens" and model.config.head != "poly":
        query, query_mask = wider(query, (0, 0, 0, 3), value=7.0), wider(query_mask, (0, 3))
    more, none = torch.full_like(items[:, :3], 7.0), torch.zeros_like(item_mask[:, :3])
    lists = torch.cat([more, items], 1), torch.cat([none, item_mask], 1)
    after = scores(model, query, query_mask, *lists)
    np.testing.assert_allclose(after[:, 3:], before, **CLOSE)
    assert np.isneginf(after[:, :3]).all()


def test_what_a_query_hands_over_does_not_depend_on_its_padding(model):
    rows = model.encoding.texts(TEXTS, queries=True)
    with torch.inference_mode():
        values, mask = model.states(rows, queries=True)
        for row, value, own in zip(rows, values, mask, strict=True):
            alone, one = model.states([row], queries=True)
            np.testing.assert_allclose(value[own], alone[0][one[0]], **CLOSE)


def test_queries_do_not_see_one_another_and_candidates_only_in_a_joint_head(model):
    given = compared(model)
    together = scores(model, *given)
    alone = np.concatenate([scores(model, *(t[b : b + 1] for t in given)) for b in range(3)])
    np.testing.assert_allclose(together, alone, **CLOSE)
    fewer = scores(model, *given[:2], *(t[:, :4] for t in given[2:]))
    difference = np.abs(together[1:, :4] - fewer[1:]).max()
    assert difference > 1e-2 if model.head.joint else difference < 1e-4
    assert model.head.joint == (model.config.head == "cmc")


def test_lists_of_nothing_and_of_one(model):
    query, query_mask, items, item_mask = compared(model)
    nothing = scores(model, query, query_mask, items, torch.zeros_like(item_mask))
    assert np.isneginf(nothing).all()
    one = scores(model, query, query_mask, items[:, :1], item_mask[:, :1])
    assert one.shape == (3, 1)
    assert np.isfinite(one).all()
    assert scores(model, query, query_mask, items[:, :0], item_mask[:, :0]).shape == (3, 0)


def test_a_traced_head_takes_any_number_of_candidates(model):
    with torch.inference_mode():
        traced = torch.jit.trace(model.head, compared(model, b=2, c=3), check_trace=False)
        for b, c in ((3, 6), (1, 300)):
            given = compared(model, b=b, c=c, seed=c)
            np.testing.assert_allclose(traced(*given).numpy(), scores(model, *given), **CLOSE)


def test_gradients_reach_everything(model):
    model.train()
    query, mask = model.states(model.encoding.texts(TEXTS[:2], queries=True), queries=True)
    items, item_mask = model.states(model.encoding.texts(TEXTS, queries=False), queries=False)
    lists = items.expand(2, *items.shape), item_mask.expand(2, *item_mask.shape)
    found = model.head(query, mask, *lists)
    torch.nn.functional.cross_entropy(found, torch.tensor([0, 1])).backward()
    still = {
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max()
    }
    # A softmax does not see what is added to all its logits, nor a cross-entropy to all scores.
    assert all(name.endswith(("key.bias", "out.out.bias")) for name in still), still


@pytest.mark.parametrize("what", ["none", "items", "both"])
def test_what_is_frozen_gets_no_gradient_and_no_dropout(model, what):
    model.freeze(what)
    model.train()
    moving = {
        part: {p.requires_grad for p in getattr(model, part).parameters()}
        for part in ("query", "item", "head")
    }
    assert moving["head"] == {True}
    assert moving["item"] == {what == "none"}
    assert moving["query"] == {what != "both"}
    assert model.head.training
    assert (model.query.training, model.item.training) == (what != "both", what == "none")
    model.freeze("none")
    assert all(p.requires_grad for p in model.parameters())
    assert model.item.training


# CMC


def test_a_layer_of_cmc_is_that_of_torch():
    torch.manual_seed(0)
    own = Layer(8, heads=2, feed_forward=12, dropout=0.1).eval()
    torchs = torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
    weights = own.state_dict()
    for kind in ("weight", "bias"):
        weights[f"self_attn.in_proj_{kind}"] = weights.pop(f"in_proj.{kind}")
        weights[f"self_attn.out_proj.{kind}"] = weights.pop(f"out_proj.{kind}")
    torchs.load_state_dict(weights)
    x = torch.randn(2, 7, 8)
    with torch.no_grad():
        np.testing.assert_allclose(own(x, torch.zeros(2, 1, 1, 7)), torchs(x), **CLOSE)


def test_dropout_is_of_training_only(bert):
    model = new(bert, "cmc", options={"dropout": 0.5})
    given = compared(model)
    again = [scores(model.train(), *given) for _ in range(2)]
    assert np.abs(again[0][1:] - again[1][1:]).max() > 1e-3
    np.testing.assert_array_equal(*(scores(model.eval(), *given) for _ in range(2)))


_MEMORY = """
import resource, sys
import torch
from crossknn.models.late.heads import CMC

class Encoder:
    class config:
        hidden_size = 8

def given(c):
    states = torch.randn(1, 1, 8), torch.randn(1, c, 1, 8)
    return states[0], torch.ones(1, 1).bool(), states[1], torch.rand(1, c, 1) > 0.1

def exported(head, path):
    import onnxruntime
    names = ["query", "query_mask", "items", "item_mask"]
    free = {"items": {1: "c"}, "item_mask": {1: "c"}, "scores": {1: "c"}}
    torch.onnx.export(
        head, given(3), path, input_names=names, output_names=["scores"], dynamic_axes=free,
        opset_version=17, dynamo=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda *arrays: torch.from_numpy(
        session.run(None, {n: a.numpy() for n, a in zip(names, arrays)})[0]
    )

torch.set_num_threads(1)
head = CMC(Encoder, heads=1, feed_forward=16, layers=1).eval()
with torch.inference_mode():
    run = exported(head, sys.argv[1]) if len(sys.argv) > 1 else head
    for c in (64, 64, 4096, 16384):
        some = given(c)
        torch.testing.assert_close(run(*some), head(*some), atol=1e-4, rtol=1e-4)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("onnx", [False, True], ids=["torch", "onnx"])
def test_memory_is_linear_in_candidates(onnx, tmp_path):
    pytest.importorskip("onnx")
    command = [sys.executable, "-W", "ignore", "-c", _MEMORY, str(tmp_path / "cmc.onnx")]
    done = subprocess.run(command[: 6 if onnx else 5], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    _, few, some, many = (int(line) * unit / 2**20 for line in done.stdout.split())
    # One row per pair of candidates would be 64 MiB for 4096 of them, and 1024 MiB for 16384.
    assert some - few < 40
    assert many - few < 120
