"""CMC against its equations in NumPy, and the memory of long lists."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.models.late.heads import CMC, CMCOptions  # noqa: E402

pytestmark = pytest.mark.torch

D, HEADS = 8, 2


class Encoder:
    class config:  # noqa: N801
        hidden_size = D


def cmc(**options):
    torch.manual_seed(0)
    given = {"heads": HEADS, "feed_forward": 12, "layers": 1}
    head = CMC(Encoder, CMCOptions(**(given | options))).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head


def layer_by_hand(weights, x):
    """F of one list x (s, d), one row, one head and one key at a time."""
    w = {name: value.numpy() for name, value in weights.items()}
    read = x @ w["in_proj.weight"].T + w["in_proj.bias"]
    query, key, value = np.split(read, 3, axis=1)
    seen = np.zeros_like(x)
    for head in np.split(np.arange(D), HEADS):
        for row in range(len(x)):
            logits = np.array([query[row, head] @ k[head] for k in key]) / np.sqrt(len(head))
            share = np.exp(logits - logits.max())
            seen[row, head] = (share / share.sum()) @ value[:, head]
    y = norm(x + seen @ w["out_proj.weight"].T + w["out_proj.bias"], w, "norm1")
    wide = np.maximum(y @ w["linear1.weight"].T + w["linear1.bias"], 0)
    return norm(y + wide @ w["linear2.weight"].T + w["linear2.bias"], w, "norm2")


def norm(x, w, name):
    centred = x - x.mean(1, keepdims=True)
    unit = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5)
    return unit * w[f"{name}.weight"] + w[f"{name}.bias"]


def lists(c=5, seed=0):
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((1, 1, D)).astype(np.float32)
    items = rng.standard_normal((1, c, 1, D)).astype(np.float32)
    return query, items


def run(head, query, items, mask=None):
    mask = np.ones(items.shape[:3], bool) if mask is None else mask
    given = query, np.ones(query.shape[:2], bool), items, mask
    with torch.inference_mode():
        return head(*(torch.from_numpy(array) for array in given)).numpy()


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize(
    ("variant", "given"),
    [
        ("paper", lambda x, out: x + out),
        ("reference", lambda x, out: out / 2 + x / 2),
        ("none", lambda x, out: out),
    ],
)
def test_scores_by_hand(variant, given, n_layers):
    head = cmc(variant=variant, layers=n_layers)
    query, items = lists()
    x = np.concatenate([query[0], items[0, :, 0]]).astype(np.float64)
    for layer in head.layers:
        x = given(x, layer_by_hand(layer.state_dict(), x))
    np.testing.assert_allclose(run(head, query, items)[0], x[1:] @ x[0], rtol=1e-4, atol=1e-4)


def test_a_layer_is_that_of_torch():
    head = cmc()
    own, torchs = head.layers[0], torch.nn.TransformerEncoderLayer(D, HEADS, 12, batch_first=True)
    weights = own.state_dict()
    for kind in ("weight", "bias"):
        weights[f"self_attn.in_proj_{kind}"] = weights.pop(f"in_proj.{kind}")
        weights[f"self_attn.out_proj.{kind}"] = weights.pop(f"out_proj.{kind}")
    torchs.load_state_dict(weights)
    x = torch.randn(2, 7, D)
    with torch.no_grad():
        expected = torchs.eval()(x)
        np.testing.assert_allclose(own(x, torch.zeros(2, 1, 1, 7)), expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_of_training_only():
    head, (query, items) = cmc(dropout=0.5), lists()
    again = [run(head.train(), query, items) for _ in range(2)]
    assert np.abs(again[0] - again[1]).max() > 1e-3
    np.testing.assert_array_equal(*(run(head.eval(), query, items) for _ in range(2)))


def test_a_duplicate_has_the_score_of_its_like():
    query, items = lists()
    found = run(cmc(), query, items[:, [0, 1, 1, 2]])[0]
    assert found[1] == pytest.approx(found[2], abs=1e-5)


_MEMORY = """
import resource, sys
import torch
from crossknn.models.late.heads import CMC, CMCOptions

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
head = CMC(Encoder, CMCOptions(heads=1, feed_forward=16, layers=1)).eval()
with torch.inference_mode():
    run = exported(head, sys.argv[1]) if len(sys.argv) > 1 else head
    for c in (64, 64, 4096, 16384):
        some = given(c)
        torch.testing.assert_close(run(*some), head(*some), atol=1e-4, rtol=1e-4)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


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
