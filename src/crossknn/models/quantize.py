"""Per-row dynamic int8 for ONNX graphs, in operators that ONNX Runtime has on every CPU (extra
`torch` brings `onnx`).

The usual dynamic quantization takes one activation scale per batch, so a score depends on its
neighbours. Here every row of activations (one token of one pair) has its own scale, so it does not.
Per linear layer y = x W + c, x (rows, k), W (k, n):

    s = max|x| / 127 per row                          (rows,)
    q = QuantizeLinear(x, s, zero point 128, axis=0)  (rows, k) uint8
    y = MatMulIntegerToFloat(q, W8, 1, w, 128) * s    (rows, n), W8 int8 with one scale w per column

After GELU, which is never under -0.17, the zero point is 16 and s = max(max x / 239, 0.171 / 16):
finer steps for the same range. Tables of embeddings become int8 with one scale per row. Heads
(matrix products on one row per pair) stay in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SIZE = 64 * 64
TABLE_ROWS = 256
_DOMAIN = "crossknn"
_OPSETS = {"": 17, "com.microsoft": 1}
_HEADER = f'<domain: "{_DOMAIN}", opset_import: ["" : 17, "com.microsoft" : 1]>\n'

# Names -> (what the largest value is taken of, the largest step, the least scale, the zero point).
_ROWS = {"Rows": ("Abs", 127.0, 1e-12, 128), "RowsAfterGelu": ("Identity", 239.0, 0.171 / 16, 16)}
_ROWS_BODY = """{name} (x) => (q, s) {{
    size = Constant <value_float = {size}> ()
    least = Constant <value_float = {least}> ()
    flat = Constant <value_ints = [-1]> ()
    value = {of} (x)
    top = ReduceMax <axes = [-1], keepdims = 1> (value)
    step = Div (top, size)
    s = Max (step, least)
    s_flat = Reshape (s, flat)
    count = Shape (s_flat)
    zero = ConstantOfShape <value = uint8[1] {{{zero}}}> (count)
    rows = Flatten <axis = -1> (x)
    q = QuantizeLinear <axis = 0> (rows, s_flat, zero)
}}"""
_LINEAR_BODY = """{name}Linear (x, q, s, weight, scale) => (y) {{
    one = Constant <value_float = 1.0> ()
    zero = Constant <value = uint8 {{{zero}}}> ()
    flat = com.microsoft.MatMulIntegerToFloat (q, weight, one, scale, zero)
    leading = Shape <end = -1> (x)
    columns = Shape (scale)
    shape = Concat <axis = 0> (leading, columns)
    unscaled = Reshape (flat, shape)
    y = Mul (unscaled, s)
}}"""
_TABLE_BODY = """Table (table, scale, ids) => (y) {
    values = Gather (table, ids)
    floats = Cast <to = 1> (values)
    scales = Gather (scale, ids)
    y = Mul (floats, scales)
}"""


def quantize_columns(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric int8 with one scale per column: (k, n) -> (k, n) int8 and (n,) scales."""
    scales = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    return np.clip(np.rint(weights / scales), -127, 127).astype(np.int8), scales.astype(np.float32)


def quantize(model: Any, keep_float: tuple[str, ...] = ()) -> Any:
    """A copy of an ONNX model with int8 linear layers and int8 embedding tables.

    Args:
        model: an `onnx.ModelProto` in float32 whose linear layers are MatMul nodes with a constant
            right side.
        keep_float: parts of weight names; MatMul nodes whose weight contains one of them stay in
            float32.

    Raises:
        ValueError: if no linear layer was found.
    """
    import onnx

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    nodes: list[Any] = []
    added: dict[str, Any] = {}
    quantized: dict[str, str] = {}

    def call(function: str, inputs: list[str], outputs: list[str]) -> None:
        nodes.append(onnx.helper.make_node(function, inputs, outputs, domain=_DOMAIN))

    def add(name: str, values: NDArray[Any], scales: NDArray[Any]) -> list[str]:
        for part, array in (("int8", values), ("scale", scales)):
            added[f"{name}/{part}"] = onnx.numpy_helper.from_array(array, f"{name}/{part}")
        return [f"{name}/int8", f"{name}/scale"]

    def array(name: str) -> NDArray[np.float32]:
        return np.asarray(onnx.numpy_helper.to_array(weights[name]), dtype=np.float32)

    for node in model.graph.node:
        if _is_linear(node, weights, keep_float):
            x, weight = node.input
            names = [f"{x}/uint8", f"{x}/row_scale"]
            if x not in quantized:
                quantized[x] = "RowsAfterGelu" if _is_after_gelu(x, producers) else "Rows"
                call(quantized[x], [x], names)
            given = add(weight, *quantize_columns(array(weight)))
            call(f"{quantized[x]}Linear", [x, *names, *given], [node.output[0]])
        elif _is_table(node, weights):
            values, scales = quantize_columns(array(node.input[0]).T)
            given = add(node.input[0], np.ascontiguousarray(values.T), scales.reshape(-1, 1))
            call("Table", [*given, node.input[1]], [node.output[0]])
        else:
            nodes.append(node)
    if not quantized:
        raise ValueError(
            "nothing to quantize: the graph has no MatMul node with a constant (k, n) weight"
        )
    used = {name for node in nodes for name in node.input}
    kept = [tensor for name, tensor in (weights | added).items() if name in used]
    return _inlined(model, nodes, kept)


def _inlined(model: Any, nodes: list[Any], weights: list[Any]) -> Any:
    """The model with other nodes and weights, and the functions above written out."""
    import onnx
    import onnx.inliner

    graph = onnx.helper.make_graph(
        nodes, model.graph.name, list(model.graph.input), list(model.graph.output)
    )
    bodies = [_TABLE_BODY]
    for name, (of, size, least, zero) in _ROWS.items():
        settings = {"name": name, "of": of, "size": size, "least": least, "zero": zero}
        bodies += [body.format(**settings) for body in (_ROWS_BODY, _LINEAR_BODY)]
    opsets = {opset.domain: opset.version for opset in model.opset_import} | _OPSETS
    result = onnx.helper.make_model(
        graph,
        functions=[onnx.parser.parse_function(_HEADER + body) for body in bodies],
        opset_imports=[
            onnx.helper.make_opsetid(*opset) for opset in (opsets | {_DOMAIN: 1}).items()
        ],
        ir_version=max(model.ir_version, 8),
    )
    # Without the weights, which may be more than a message holds.
    result = onnx.inliner.inline_local_functions(result)
    kept = [opset for opset in result.opset_import if opset.domain != _DOMAIN]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    result.graph.initializer.extend(weights)
    return result


def _is_linear(node: Any, weights: dict[str, Any], keep_float: tuple[str, ...]) -> bool:
    """A MatMul with a constant float32 weight of two dimensions and at least 64 x 64 entries."""
    weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
    if weight is None or len(weight.dims) != 2 or weight.data_type != 1:
        return False
    is_kept = any(part in name for part in keep_float for name in (node.name, weight.name))
    return not is_kept and bool(np.prod(weight.dims) >= MIN_SIZE)


def _is_table(node: Any, weights: dict[str, Any]) -> bool:
    """A Gather from a constant float32 table of many rows."""
    table = weights.get(node.input[0]) if node.op_type == "Gather" else None
    if table is None or len(table.dims) != 2 or table.data_type != 1:
        return False
    return bool(table.dims[0] >= TABLE_ROWS and table.dims[1] >= 2)


def _is_after_gelu(name: str, producers: dict[str, Any]) -> bool:
    """Whether a value is the output of GELU, fused or as exported: x * 0.5 * (1 + erf(x /
    sqrt(2)))."""
    node = producers.get(name)
    if node is None or node.op_type in ("Gelu", "BiasGelu", "FastGelu"):
        return node is not None
    level = [node] if node.op_type == "Mul" else []
    for _ in range(4):
        if any(parent.op_type == "Erf" for parent in level):
            return True
        level = [producers[i] for parent in level for i in parent.input if i in producers]
    return False
