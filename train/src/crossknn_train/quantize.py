"""Dynamic int8 quantization of ONNX graphs per row, with operators that ONNX Runtime has on every
CPU.

The usual dynamic quantization uses one activation scale per batch, so a score depends on the other
pairs of its batch. Here each row of activations (a token of a pair) has its own scale, so scores do
not depend on the batch. Per linear layer y = x W + c, x (rows, k), W (k, n):

    s = max|x| / 127 per row                          (rows,)
    q = QuantizeLinear(x, s, zero point 128, axis=0)  (rows, k) uint8
    y = MatMulIntegerToFloat(q, W8, 1, w, 128) * s    (rows, n), W8 int8 with one scale w per column

After GELU, whose output is never below -0.17, the zero point is 16 and s = max(max x / 239, 0.171 /
16), which makes the steps finer. With `only_weights` layers compute in float32, with W8 * w, which
ONNX Runtime computes once, when it opens the model; then w has a scale for every 32 rows of a
column. Embedding tables become int8 with one scale per row. Heads (matrix products on one row per
pair) stay in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.inliner

MIN_SIZE = 64 * 64
TABLE_ROWS, GROUP = 256, 32
_DOMAIN = "crossknn"
_OPSETS = {"": 17, "com.microsoft": 1, _DOMAIN: 1}
_HEADER = f'<domain: "{_DOMAIN}", opset_import: ["" : 17, "com.microsoft" : 1]>\n'

# Names -> (the value whose maximum is taken, the largest step, the smallest scale, the zero point).
_ROWS = {"Rows": ("Abs", 127.0, 1e-12, 128), "RowsAfterGelu": ("Identity", 239.0, 0.171 / 16, 16)}
_ROWS_BODY = """{name} (x) => (q, s) {{
    size = Constant <value_float = {size}> ()
    floor = Constant <value_float = {floor}> ()
    flat = Constant <value_ints = [-1]> ()
    value = {of} (x)
    top = ReduceMax <axes = [-1], keepdims = 1> (value)
    step = Div (top, size)
    s = Max (step, floor)
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
_WEIGHT_BODY = """Weight (weight, scale) => (y) {
    floats = Cast <to = 1> (weight)
    groups = Mul (floats, scale)
    columns = Shape <start = -1> (weight)
    all = Constant <value_ints = [-1]> ()
    shape = Concat <axis = 0> (all, columns)
    y = Reshape (groups, shape)
}"""
_TABLE_BODY = """Table (table, scale, ids) => (y) {
    values = Gather (table, ids)
    floats = Cast <to = 1> (values)
    scales = Gather (scale, ids)
    y = Mul (floats, scales)
}"""


def quantize(model: onnx.ModelProto, *, only_weights: bool = False) -> onnx.ModelProto:
    """Copy an ONNX model in float32, with linear layers (MatMul nodes with a constant right side)
    and embedding tables in int8; with `only_weights` activations stay in float32."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    matrices = {
        name: tensor
        for name, tensor in weights.items()
        if len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT
    }
    tables = {name for name, tensor in matrices.items() if tensor.dims[0] >= TABLE_ROWS}
    large = {name for name, tensor in matrices.items() if np.prod(tensor.dims) >= MIN_SIZE}
    producers = {name: node for node in model.graph.node for name in node.output}
    nodes: list[Any] = []
    functions: dict[str, str] = {}

    def call(function: str, inputs: list[str], outputs: list[str]) -> None:
        nodes.append(onnx.helper.make_node(function, inputs, outputs, domain=_DOMAIN))

    def add(name: str, axis: int, group: int = 0) -> list[str]:
        """Add a symmetric int8 copy of a matrix, with one scale per row or column, or per `group`
        rows of a column: (groups, rows, columns)."""
        array = onnx.numpy_helper.to_array(matrices[name])
        if group:
            array = array.reshape(-1, group, array.shape[1])
        scales = np.maximum(np.abs(array).max(axis, keepdims=True), 1e-12) / 127
        values = np.clip(np.rint(array / scales), -127, 127).astype(np.int8)
        for suffix, stored in (("int8", values), ("scale", scales[0] if axis == 0 else scales)):
            weights[f"{name}/{suffix}"] = onnx.numpy_helper.from_array(stored, f"{name}/{suffix}")
        return [f"{name}/int8", f"{name}/scale"]

    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in large and only_weights:
            x, weight = node.input
            rows = matrices[weight].dims[0]
            group = GROUP if rows % GROUP == 0 else rows
            call("Weight", add(weight, axis=1, group=group), [f"{weight}/float"])
            nodes.append(onnx.helper.make_node("MatMul", [x, f"{weight}/float"], node.output))
        elif node.op_type == "MatMul" and node.input[1] in large:
            x, weight = node.input
            names = [f"{x}/uint8", f"{x}/row_scale"]
            if x not in functions:
                functions[x] = "RowsAfterGelu" if _is_after_gelu(x, producers) else "Rows"
                call(functions[x], [x], names)
            given = [x, *names, *add(weight, axis=0)]
            call(f"{functions[x]}Linear", given, [node.output[0]])
        elif node.op_type == "Gather" and node.input[0] in tables:
            table, ids = node.input
            call("Table", [*add(table, axis=1), ids], [node.output[0]])
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    return _inlined(model, nodes, [tensor for name, tensor in weights.items() if name in used])


def _is_after_gelu(name: str, producers: dict[str, Any]) -> bool:
    """Whether a value is the output of GELU as exported: x * 0.5 * (1 + erf(x / sqrt(2)))."""
    node = producers.get(name)
    level = [node] if node is not None and node.op_type == "Mul" else []
    for _ in range(4):
        if any(parent.op_type == "Erf" for parent in level):
            return True
        level = [producers[i] for parent in level for i in parent.input if i in producers]
    return False


def _inlined(model: Any, nodes: list[Any], weights: list[Any]) -> Any:
    """Return the model with these nodes and weights, and the quantization functions inlined."""
    bodies = [_TABLE_BODY, _WEIGHT_BODY]
    for name, (of, size, floor, zero) in _ROWS.items():
        settings = {"name": name, "of": of, "size": size, "floor": floor, "zero": zero}
        bodies += [body.format(**settings) for body in (_ROWS_BODY, _LINEAR_BODY)]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, model.graph.name, model.graph.input, model.graph.output),
        functions=[onnx.parser.parse_function(_HEADER + body) for body in bodies],
        opset_imports=[onnx.helper.make_opsetid(*opset) for opset in _OPSETS.items()],
        ir_version=8,
    )
    # Inline without the weights, which may exceed the size limit of a protobuf message.
    result = onnx.inliner.inline_local_functions(made)
    own = next(opset for opset in result.opset_import if opset.domain == _DOMAIN)
    result.opset_import.remove(own)
    result.graph.initializer.extend(weights)
    return result
