"""Integer operators of quantisation tools as float operators between Q/DQ pairs.

QLinearConv, QLinearMatMul and ONNX Runtime's contrib operators become DequantizeLinear, the float
operator and QuantizeLinear.  Dynamically quantised products become float products: their scales
are only known at run time, so they are calibrated like any float model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from fadiff.converter.ir.edit import FreshNames
from fadiff.converter.read.fold import constant_tensors

_MICROSOFT = "com.microsoft"


@dataclass
class _Rewriter:
    """New nodes and constants of a rewritten graph."""

    constants: dict[str, np.ndarray]
    fresh: FreshNames
    nodes: list[NodeProto] = field(default_factory=list)
    added: dict[str, np.ndarray] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    """Values that DynamicQuantizeLinear computed: floats, here."""

    def dequantised(self, node: NodeProto, value: str, scale: str, zero: str, axis: int | None = None) -> str:
        out = self.fresh.new(f"{node.name or node.output[0]}/{value}.float")
        inputs = [value, scale, zero] if zero else [value, scale]
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [out], name=out, **attributes))
        return out

    def apply(
        self, node: NodeProto, op: str, inputs: list[str], scale: str, zero: str, **more: object
    ) -> None:
        """The float operator, and the quantisation of its result."""
        out = self.fresh.new(f"{node.output[0]}.float")
        new = helper.make_node(op, inputs, [out], name=node.name or node.output[0])
        new.attribute.extend(a for a in node.attribute if a.name not in ("channels_last", "opset"))
        self.nodes.append(new)
        quantise = [out, scale, zero] if zero else [out, scale]
        self.nodes.append(helper.make_node("QuantizeLinear", quantise, [node.output[0]], name=f"{out}.Q"))

    def is_vector(self, name: str) -> bool:
        return name in self.constants and self.constants[name].size > 1

    def constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.fresh.new(wanted)
        self.added[name] = array
        return name


def _input(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _conv(rewriter: _Rewriter, node: NodeProto) -> None:
    x, xs, xz, w, ws, wz, ys, yz = node.input[:8]
    inputs = [
        rewriter.dequantised(node, x, xs, xz),
        rewriter.dequantised(node, w, ws, wz, 0 if rewriter.is_vector(ws) else None),
    ]
    if _input(node, 8):
        inputs.append(_int_bias(rewriter, node, node.input[8], xs, ws))
    rewriter.apply(node, "Conv", inputs, ys, yz)


def _int_bias(rewriter: _Rewriter, node: NodeProto, bias: str, xs: str, ws: str) -> str:
    if xs not in rewriter.constants or ws not in rewriter.constants:
        return rewriter.dequantised(node, bias, xs if ws in rewriter.constants else ws, "")  # refused by name
    scale = rewriter.constants[xs].reshape(-1) * rewriter.constants[ws].reshape(-1)
    name = rewriter.constant(f"{node.name or node.output[0]}.bias_scale", scale.astype(np.float32))
    if scale.size == 1:
        rewriter.added[name] = scale.astype(np.float32).reshape(())
    return rewriter.dequantised(node, bias, name, "", 0 if scale.size > 1 else None)


def _matmul(rewriter: _Rewriter, node: NodeProto) -> None:
    a, a_s, az, b, bs, bz, ys, yz = node.input[:8]
    axis = rewriter.constants[b].ndim - 1 if rewriter.is_vector(bs) and b in rewriter.constants else None
    inputs = [rewriter.dequantised(node, a, a_s, az), rewriter.dequantised(node, b, bs, bz, axis)]
    rewriter.apply(node, "MatMul", inputs, ys, yz)


def _gemm(rewriter: _Rewriter, node: NodeProto) -> None:
    if not _input(node, 7):
        rewriter.nodes.append(node)  # (its result is float) refused by name
        return
    a, a_s, az, b, bs, bz = node.input[:6]
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    axis = (0 if transposed else 1) if rewriter.is_vector(bs) else None
    inputs = [rewriter.dequantised(node, a, a_s, az), rewriter.dequantised(node, b, bs, bz, axis)]
    if _input(node, 6):
        inputs.append(_int_bias(rewriter, node, node.input[6], a_s, bs))
    rewriter.apply(node, "Gemm", inputs, node.input[7], _input(node, 8))


def _binary(op: str) -> Callable[[_Rewriter, NodeProto], None]:
    def rewrite(rewriter: _Rewriter, node: NodeProto) -> None:
        a, a_s, az, b, bs, bz, ys = node.input[:7]
        inputs = [rewriter.dequantised(node, a, a_s, az), rewriter.dequantised(node, b, bs, bz)]
        rewriter.apply(node, op, inputs, ys, _input(node, 7))

    return rewrite


def _unary(op: str) -> Callable[[_Rewriter, NodeProto], None]:
    def rewrite(rewriter: _Rewriter, node: NodeProto) -> None:
        if any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute):
            rewriter.nodes.append(node)  # refused by name
            return
        x, xs, xz, ys = node.input[:4]
        rewriter.apply(node, op, [rewriter.dequantised(node, x, xs, xz)], ys, _input(node, 4))

    return rewrite


def _concat(rewriter: _Rewriter, node: NodeProto) -> None:
    ys, yz, *rest = node.input
    operands = [rewriter.dequantised(node, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    rewriter.apply(node, "Concat", operands, ys, yz)


def _dynamic(rewriter: _Rewriter, node: NodeProto) -> None:
    """Scale 1, zero point 0: the 'integers' are the float values themselves."""
    value, scale, zero = node.output
    rewriter.dynamic.add(value)
    rewriter.nodes.append(helper.make_node("Identity", [node.input[0]], [value], name=node.name))
    rewriter.added |= {scale: np.asarray(1, np.float32), zero: np.asarray(0, np.float32)}


def _integer_product(op: str) -> Callable[[_Rewriter, NodeProto], None]:
    def rewrite(rewriter: _Rewriter, node: NodeProto) -> None:
        if node.input[1] not in rewriter.constants.keys() | rewriter.dynamic:
            rewriter.nodes.append(node)  # refused by name
            return
        inputs = [node.input[0]]
        if node.input[0] not in rewriter.dynamic:  # integers of a table: their scale comes later
            one = rewriter.constant(f"{node.name or node.output[0]}.one", np.asarray(1, np.float32))
            inputs = [rewriter.dequantised(node, node.input[0], one, _input(node, 2))]
        weight = node.input[1]
        if weight in rewriter.constants:
            data = rewriter.constants[weight].astype(np.float32)
            zero = rewriter.constants.get(_input(node, 3))
            if zero is not None:
                per_channel = zero.ndim and op == "Conv"
                data = data - (zero.reshape(-1, *(1,) * (data.ndim - 1)) if per_channel else zero).astype(
                    np.float32
                )
            weight = rewriter.constant(f"{weight}.float", data)
        inputs.append(weight)
        new = helper.make_node(op, inputs, list(node.output), name=node.name)
        new.attribute.extend(node.attribute)
        rewriter.nodes.append(new)

    return rewrite


def _lstm(rewriter: _Rewriter, node: NodeProto) -> None:
    """LSTM whose weights [directions, input, 4 hidden] are integers with a scale per direction or column."""
    if any(name not in rewriter.constants for name in (*node.input[1:3], *node.input[8:12])):
        rewriter.nodes.append(node)  # refused by name
        return
    inputs = list(node.input[:8])
    for at, first in ((1, 8), (2, 10)):
        data, scale, zero = (
            rewriter.constants[name].astype(np.float32)
            for name in (node.input[at], *node.input[first : first + 2])
        )
        scale, zero = (v.reshape(len(data), 1, -1) for v in (scale, zero))
        values = ((data - zero) * scale).transpose(0, 2, 1)
        inputs[at] = rewriter.constant(f"{node.input[at]}.float", np.ascontiguousarray(values))
    new = helper.make_node("LSTM", inputs, list(node.output), name=node.name)
    new.attribute.extend(node.attribute)
    rewriter.nodes.append(new)


_REWRITES: Mapping[tuple[str, str], Callable[[_Rewriter, NodeProto], None]] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("", "DynamicQuantizeLinear"): _dynamic,
    ("", "MatMulInteger"): _integer_product("MatMul"),
    ("", "ConvInteger"): _integer_product("Conv"),
    (_MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _binary("Add"),
    (_MICROSOFT, "QLinearMul"): _binary("Mul"),
    (_MICROSOFT, "QLinearConcat"): _concat,
    (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (_MICROSOFT, "QLinearSoftmax"): _unary("Softmax"),
    (_MICROSOFT, "QLinearAveragePool"): _unary("AveragePool"),
    (_MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (_MICROSOFT, "QLinearReduceMean"): _unary("ReduceMean"),
}


_DYNAMIC = ("ConvInteger", "DynamicQuantizeLSTM", "MatMulInteger")
INTEGER_OPERATORS = tuple(f"{domain}.{op}" if domain else op for domain, op in sorted(_REWRITES))
"""What `expand_integer_operators` understands, for the documentation."""


def expand_integer_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Rewrite integer operators in place; the names of those that were dynamically quantised."""
    graph = model.graph
    dynamic = tuple(node.name or node.output[0] for node in graph.node if node.op_type in _DYNAMIC)
    if not any((_domain(node), node.op_type) in _REWRITES for node in graph.node):
        return ()
    constants = {name: numpy_helper.to_array(tensor) for name, tensor in constant_tensors(graph).items()}
    rewriter = _Rewriter(constants, FreshNames(graph))
    floats = {
        o for node in graph.node if node.op_type in ("MatMulInteger", "ConvInteger") for o in node.output
    }
    for node in graph.node:
        rewrite = _REWRITES.get((_domain(node), node.op_type))
        if rewrite is not None:
            rewrite(rewriter, node)
        elif node.op_type == "Cast" and node.input[0] in floats:
            rewriter.nodes.append(
                helper.make_node("Identity", list(node.input), list(node.output), name=node.name)
            )
        else:
            if node.input and node.input[0] in rewriter.dynamic:  # moved before the product
                rewriter.dynamic.update(node.output)
            rewriter.nodes.append(node)
    nodes = list(rewriter.nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in rewriter.added.items())
    del graph.value_info[:]
    return dynamic


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain
