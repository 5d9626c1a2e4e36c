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

__all__ = ["quantize", "quantize_columns"]

MIN_SIZE = 64 * 64
TABLE_ROWS = 256


def quantize_columns(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric int8 with one scale per column: (k, n) -> (k, n) int8 and (n,) scales."""
    scales = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    return np.clip(np.rint(weights / scales), -127, 127).astype(np.int8), scales.astype(np.float32)


def quantize(model: Any, keep_float: tuple[str, ...] = ()) -> Any:
    """Return a copy of an ONNX model with int8 linear layers and int8 embedding tables.

    Args:
        model: an `onnx.ModelProto` in float32 whose linear layers are MatMul nodes with a constant
            right side. keep_float: parts of weight names; MatMul nodes whose weight contains one of
            them stay in float32.

    Raises:
        ValueError: if no linear layer was found.
    """
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = _Graph(result, onnx)
    layers = graph.linear_layers(keep_float)
    if not layers:
        raise ValueError(
            "nothing to quantize: the graph has no MatMul node with a constant (k, n) weight"
        )
    for node in layers:
        graph.replace_linear(node)
    graph.replace_tables()
    graph.finish()
    if not any(opset.domain == "com.microsoft" for opset in result.opset_import):
        result.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return result


class _Graph:
    """An ONNX graph under edit: new nodes replace old ones in place, so the order stays
    topological."""

    def __init__(self, model: Any, onnx: Any) -> None:
        self.onnx = onnx
        self.graph = model.graph
        self.weights = {tensor.name: tensor for tensor in self.graph.initializer}
        self.producer = {name: node for node in self.graph.node for name in node.output}
        self.replaced: dict[int, list[Any]] = {}
        self.added: dict[str, Any] = {}
        self.rows: dict[str, tuple[str, str, str]] = {}

    def array(self, name: str) -> NDArray[Any]:
        return np.asarray(self.onnx.numpy_helper.to_array(self.weights[name]))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self.added:
            self.added[name] = self.onnx.numpy_helper.from_array(value, name)
        return name

    def node(
        self, kind: str, inputs: list[str], output: str, domain: str = "", **attributes: Any
    ) -> Any:
        return self.onnx.helper.make_node(
            kind, inputs, [output], name=output, domain=domain, **attributes
        )

    def linear_layers(self, keep_float: tuple[str, ...]) -> list[Any]:
        """MatMul nodes with a constant float32 weight of two dimensions and at least 64 x 64
        entries."""
        found = []
        for node in self.graph.node:
            if node.op_type != "MatMul" or node.input[1] not in self.weights:
                continue
            weight = self.weights[node.input[1]]
            names = (node.name, node.input[1])
            if any(part in name for part in keep_float for name in names):
                continue
            if (
                len(weight.dims) == 2
                and weight.data_type == self.onnx.TensorProto.FLOAT
                and np.prod(weight.dims) >= MIN_SIZE
            ):
                found.append(node)
        return found

    def after_gelu(self, name: str) -> bool:
        """Whether a value is the output of GELU, fused or as exported: x * 0.5 * (1 + erf(x /
        sqrt(2)))."""
        node = self.producer.get(name)
        if node is None:
            return False
        if node.op_type in ("Gelu", "BiasGelu", "FastGelu"):
            return True
        level, depth = [node], 0
        while depth < 4 and node.op_type == "Mul":
            if any(parent.op_type == "Erf" for parent in level):
                return True
            level = [
                self.producer[i] for parent in level for i in parent.input if i in self.producer
            ]
            depth += 1
        return False

    def quantized_rows(self, name: str, nodes: list[Any]) -> tuple[str, str, str]:
        """Names of the uint8 rows, of their scales as a column, and of the zero point; made once
        per activation."""
        if name in self.rows:
            return self.rows[name]
        gelu = self.after_gelu(name)
        flat, q = f"{name}/rows", f"{name}/uint8"
        if gelu:
            top, size, floor, zero = "ReduceMax", 239.0, 0.171 / 16, 16
        else:
            top, size, floor, zero = "ReduceMax", 127.0, 1e-12, 128
        width = self.constant(f"crossknn/size_{int(size)}", np.array(size, dtype=np.float32))
        least = self.constant(f"crossknn/least_{int(size)}", np.array([floor], dtype=np.float32))
        zero_name = self.constant(f"crossknn/zero_{zero}", np.array(zero, dtype=np.uint8))
        source = name
        if not gelu:
            nodes.append(self.node("Abs", [name], f"{name}/abs"))
            source = f"{name}/abs"
        nodes += [
            self.node(top, [source], f"{name}/top", axes=[-1], keepdims=1),
            self.node("Div", [f"{name}/top", width], f"{name}/step"),
            self.node("Max", [f"{name}/step", least], f"{name}/scale"),
            self.node(
                "Reshape",
                [f"{name}/scale", self.constant("crossknn/flat", np.array([-1]))],
                f"{name}/scale_flat",
            ),
            self.node("Shape", [f"{name}/scale_flat"], f"{name}/count"),
            self.node(
                "ConstantOfShape",
                [f"{name}/count"],
                f"{name}/zero",
                value=self.onnx.helper.make_tensor(
                    "value", self.onnx.TensorProto.UINT8, [1], [zero]
                ),
            ),
            self.node("Shape", [name], f"{name}/shape"),
            self.node(
                "Slice",
                [
                    f"{name}/shape",
                    self.constant("crossknn/0", np.array([0])),
                    self.constant("crossknn/-1", np.array([-1])),
                ],
                f"{name}/leading",
            ),
        ]
        nodes.append(
            self.node("QuantizeLinear", [flat, f"{name}/scale_flat", f"{name}/zero"], q, axis=0)
        )
        self.rows[name] = (q, f"{name}/scale", zero_name)
        return self.rows[name]

    def replace_linear(self, node: Any) -> None:
        name, weight_name, output = node.input[0], node.input[1], node.output[0]
        weight = self.array(weight_name).astype(np.float32)
        nodes: list[Any] = []
        if name not in self.rows:
            width = self.constant(
                f"crossknn/rows_{weight.shape[0]}", np.array([-1, weight.shape[0]])
            )
            nodes.append(self.node("Reshape", [name, width], f"{name}/rows"))
        rows, scale, zero = self.quantized_rows(name, nodes)
        values, scales = quantize_columns(weight)
        one = self.constant("crossknn/one", np.array(1.0, dtype=np.float32))
        columns = self.constant(f"crossknn/columns_{weight.shape[1]}", np.array([weight.shape[1]]))
        nodes += [
            self.node(
                "MatMulIntegerToFloat",
                [
                    rows,
                    self.constant(f"{weight_name}/int8", values),
                    one,
                    self.constant(f"{weight_name}/scale", scales),
                    zero,
                ],
                f"{output}/flat",
                domain="com.microsoft",
            ),
            self.node("Concat", [f"{name}/leading", columns], f"{output}/shape", axis=0),
            self.node("Reshape", [f"{output}/flat", f"{output}/shape"], f"{output}/unscaled"),
            self.node("Mul", [f"{output}/unscaled", scale], output),
        ]
        self.replaced[id(node)] = nodes

    def replace_tables(self) -> None:
        """Embedding tables read by Gather: int8 rows with one scale each."""
        for node in self.graph.node:
            if (
                node.op_type != "Gather"
                or node.input[0] not in self.weights
                or id(node) in self.replaced
            ):
                continue
            table = self.weights[node.input[0]]
            if len(table.dims) != 2 or table.data_type != self.onnx.TensorProto.FLOAT:
                continue
            if table.dims[0] < TABLE_ROWS or table.dims[1] < 2:
                continue
            name, output = node.input[0], node.output[0]
            values, scales = quantize_columns(self.array(name).astype(np.float32).T)
            self.replaced[id(node)] = [
                self.node(
                    "Gather",
                    [self.constant(f"{name}/int8", np.ascontiguousarray(values.T)), node.input[1]],
                    f"{output}/table_int8",
                ),
                self.node(
                    "Cast",
                    [f"{output}/table_int8"],
                    f"{output}/table_float",
                    to=self.onnx.TensorProto.FLOAT,
                ),
                self.node(
                    "Gather",
                    [self.constant(f"{name}/scale", scales.reshape(-1, 1)), node.input[1]],
                    f"{output}/table_scale",
                ),
                self.node("Mul", [f"{output}/table_float", f"{output}/table_scale"], output),
            ]

    def finish(self) -> None:
        nodes = [new for node in self.graph.node for new in self.replaced.get(id(node), [node])]
        used = {name for node in nodes for name in node.input}
        tensors = [t for t in [*self.graph.initializer, *self.added.values()] if t.name in used]
        kept_nodes, kept_tensors = [], []
        for node in nodes:
            copy = self.onnx.NodeProto()
            copy.CopyFrom(node)
            kept_nodes.append(copy)
        for tensor in tensors:
            copy = self.onnx.TensorProto()
            copy.CopyFrom(tensor)
            kept_tensors.append(copy)
        del self.graph.node[:], self.graph.initializer[:], self.graph.value_info[:]
        self.graph.node.extend(kept_nodes)
        self.graph.initializer.extend(kept_tensors)
