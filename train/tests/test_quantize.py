"""Per-row int8 on a small graph made by hand: needs `onnx`, which the extra `torch` brings."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from crossknn_train.quantize import quantize

D, HIDDEN, WORDS = 64, 256, 300
GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
small (int64[b, t] ids) => (float[b, t, 64] out) {
    x = Gather (table, ids)
    u = MatMul (x, up)
    u1 = Div (u, root)
    u2 = Erf (u1)
    u3 = Add (u2, one)
    u4 = Mul (u, u3)
    g = Mul (u4, half)
    d = MatMul (g, down)
    out = Add (x, d)
}"""


def model(loud=1.0):
    """Embeddings -> linear -> GELU -> linear, plus the embeddings; word 7's is `loud` times more."""
    generator = np.random.default_rng(0)
    weights = {
        "table": generator.normal(size=(WORDS, D)),
        "up": generator.normal(size=(D, HIDDEN)) / 8,
        "down": generator.normal(size=(HIDDEN, D)) / 16,
        "root": np.array(np.sqrt(2.0)),
        "one": np.array(1.0),
        "half": np.array(0.5),
    }
    weights["table"][7] *= loud
    made = onnx.parser.parse_model(GRAPH)
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in weights.items()
    )
    return made


def run(model, ids):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"ids": ids})[0]


IDS = np.random.default_rng(1).integers(0, WORDS, (9, 13))


def test_close_to_float32_and_smaller() -> None:
    given = model()
    before = given.SerializeToString()
    small = quantize(given)
    exact, approximate = run(given, IDS), run(small, IDS)
    assert exact.shape == approximate.shape
    assert 0 < np.abs(exact - approximate).max() < 0.05 * exact.std()
    assert given.SerializeToString() == before
    assert small.ByteSize() < 0.35 * given.ByteSize()
    nearer = quantize(given, only_weights=True)
    kinds = [node.op_type for node in nearer.graph.node]
    assert (kinds.count("MatMul"), kinds.count("MatMulIntegerToFloat")) == (2, 0)
    assert nearer.ByteSize() < 0.35 * given.ByteSize()
    assert 0 < np.abs(exact - run(nearer, IDS)).max() < np.abs(exact - approximate).max()


def test_a_row_depends_on_no_other() -> None:
    small = quantize(model(loud=1000))
    whole = run(small, IDS)
    for row in range(len(IDS)):
        np.testing.assert_array_equal(run(small, IDS[row : row + 1])[0], whole[row])
    loud = np.concatenate([IDS, np.full((9, 4), 7)], axis=1)
    np.testing.assert_array_equal(run(small, loud)[:, :13], whole)
