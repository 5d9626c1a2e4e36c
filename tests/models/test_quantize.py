"""Per-row int8 on a small graph made by hand: needs `onnx`, which the extra `torch` brings."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

onnx = pytest.importorskip("onnx")

from crossknn.models.quantize import quantize, quantize_columns  # noqa: E402

pytestmark = pytest.mark.torch
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


@pytest.fixture(scope="module")
def model():
    """Embeddings -> linear -> GELU -> linear, plus the embeddings."""
    generator = np.random.default_rng(0)
    weights = {
        "table": generator.normal(size=(WORDS, D)),
        "up": generator.normal(size=(D, HIDDEN)) / 8,
        "down": generator.normal(size=(HIDDEN, D)) / 16,
        "root": np.array(np.sqrt(2.0)),
        "one": np.array(1.0),
        "half": np.array(0.5),
    }
    made = onnx.parser.parse_model(GRAPH)
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in weights.items()
    )
    return made


def run(model, ids):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # as scorers open it
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"ids": ids})[0]


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(0, WORDS, (9, 13))


def test_columns_are_recovered_to_half_a_step() -> None:
    weights = np.random.default_rng(2).normal(size=(40, 7)).astype(np.float32)
    values, scales = quantize_columns(weights)
    assert values.dtype == np.int8
    assert np.abs(values).max() == 127
    assert (np.abs(values * scales - weights) <= scales / 2 + 1e-6).all()


def test_close_to_float32(model, ids) -> None:
    exact, approximate = run(model, ids), run(quantize(model), ids)
    assert exact.shape == approximate.shape
    assert np.abs(exact - approximate).max() < 0.05 * exact.std()
    assert np.abs(exact - approximate).max() > 0


def test_the_same_in_any_batch_and_padding(model, ids) -> None:
    small = quantize(model)
    whole = run(small, ids)
    for row in range(len(ids)):
        np.testing.assert_array_equal(run(small, ids[row : row + 1])[0], whole[row])
    loud = np.concatenate([ids, np.full((9, 4), WORDS - 1)], axis=1)
    np.testing.assert_array_equal(run(small, loud)[:, :13], whole)


def test_rows_of_other_sizes_do_not_change_a_row(model) -> None:
    table = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    table[7] *= 1000
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "table"))
    alone = run(quantize(changed), np.array([[1, 2]]))
    beside = run(quantize(changed), np.array([[1, 2], [7, 7]]))
    np.testing.assert_array_equal(alone[0], beside[0])


def test_it_is_smaller_and_leaves_the_original_and_what_is_named_alone(model) -> None:
    before = model.SerializeToString()
    small = quantize(model)
    assert model.SerializeToString() == before
    assert small.ByteSize() < 0.35 * model.ByteSize()
    for keep, count in (((), 0), (("down",), 1)):
        kinds = [node.op_type for node in quantize(model, keep_float=keep).graph.node]
        assert (kinds.count("MatMul"), kinds.count("MatMulIntegerToFloat")) == (count, 2 - count)
