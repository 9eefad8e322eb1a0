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
import onnx_ir
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor, content_of, input_of

_MICROSOFT = "com.microsoft"


@dataclass
class _Rewriter:
    """A graph, and what is known of values that have been rewritten in it."""

    edit: Editor
    dynamic: set[Value] = field(default_factory=set)
    """Those that DynamicQuantizeLinear computed: floats, here."""
    products: set[Value] = field(default_factory=set)
    """Results of integer products: floats, too."""

    def dequantised(self, node: onnx_ir.Node, place: int, axis: int | None = None) -> Value:
        """What the integers of an input mean, whose scale and zero point are the next two."""
        return self.meant(
            node, input_of(node, place), input_of(node, place + 1), input_of(node, place + 2), axis
        )

    def meant(
        self,
        node: onnx_ir.Node,
        value: Value | None,
        scale: Value | None,
        zero: Value | None = None,
        axis: int | None = None,
    ) -> Value:
        assert value is not None
        wanted = f"{_label(node)}/{value.name}.float"
        along: dict[str, Any] = {} if axis is None else {"axis": axis}
        inputs = [value, scale] if zero is None else [value, scale, zero]
        return self.edit.insert(node, "DequantizeLinear", inputs, wanted, **along)[0]

    def quantised(self, node: onnx_ir.Node, op: str, inputs: list[Value], place: int) -> None:
        """The float operator, and the quantisation of its result: scale and zero point from `place` on."""
        parameters = [
            value for value in (input_of(node, place), input_of(node, place + 1)) if value is not None
        ]
        self.edit.become(node, op, inputs)
        for unknown in ("channels_last", "opset"):
            node.attributes.pop(unknown, None)
        result, name = node.outputs[0], f"{node.outputs[0].name}.float"
        node.name = node.name or result.name
        quantised = self.edit.insert(
            node, "QuantizeLinear", [result, *parameters], name, called=f"{name}.Q", behind=True
        )
        self.edit.replace(result, quantised[0])


def _label(node: onnx_ir.Node) -> str:
    return str(node.name or node.outputs[0].name)


def _is_vector(value: Value | None) -> bool:
    array = content_of(value)
    return array is not None and array.size > 1


def _with_bias(rewriter: _Rewriter, node: onnx_ir.Node, place: int, axis: int | None) -> list[Value]:
    """Data and weights of a product as floats, and its bias, if there is one at `place`: with both scales."""
    operands = [rewriter.dequantised(node, 0), rewriter.dequantised(node, 3, axis)]
    bias = input_of(node, place)
    if bias is None:
        return operands
    scales = [content_of(input_of(node, i)) for i in (1, 4)]
    if scales[0] is None or scales[1] is None:  # refused by name
        return [*operands, rewriter.meant(node, bias, input_of(node, 1))]
    both = (scales[0].reshape(-1) * scales[1].reshape(-1)).astype(np.float32)
    of_channels = both.size > 1
    scale = rewriter.edit.constant(f"{_label(node)}.bias_scale", both if of_channels else both.reshape(()))
    return [*operands, rewriter.meant(node, bias, scale, axis=0 if of_channels else None)]


def _conv(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    axis = 0 if _is_vector(input_of(node, 4)) else None
    rewriter.quantised(node, "Conv", _with_bias(rewriter, node, 8, axis), 6)


def _matmul(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    weights = content_of(input_of(node, 3))
    axis = weights.ndim - 1 if weights is not None and _is_vector(input_of(node, 4)) else None
    inputs = [rewriter.dequantised(node, 0), rewriter.dequantised(node, 3, axis)]
    rewriter.quantised(node, "MatMul", inputs, 6)


def _gemm(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    if input_of(node, 7) is None:  # (its result is float) refused by name
        return
    transposed = node.attributes.get_int("transB", 0)
    axis = (0 if transposed else 1) if _is_vector(input_of(node, 4)) else None
    rewriter.quantised(node, "Gemm", _with_bias(rewriter, node, 6, axis), 7)


def _elementwise(op: str, count: int = 1) -> Callable[[_Rewriter, onnx_ir.Node], None]:
    """An operator of one or two inputs."""

    def rewrite(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
        if node.attributes.get_int("channels_last", 0):  # refused by name
            return
        inputs = [rewriter.dequantised(node, 3 * i) for i in range(count)]
        rewriter.quantised(node, op, inputs, 3 * count)

    return rewrite


def _concat(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    inputs = [rewriter.dequantised(node, i) for i in range(2, len(node.inputs), 3)]
    rewriter.quantised(node, "Concat", inputs, 0)


def _dynamic(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    """Scale 1, zero point 0: the 'integers' are the float values themselves."""
    edit, name = rewriter.edit, f"{_label(node)}.float"
    (value,) = edit.insert(node, "Identity", [node.inputs[0]], name)
    for before, after in zip(
        node.outputs,
        (value, edit.constant(name, np.float32(1)), edit.constant(name, np.float32(0))),
        strict=False,
    ):
        edit.replace(before, after)
    rewriter.dynamic.add(value)
    edit.take_over(node, value)


def _integer_product(op: str) -> Callable[[_Rewriter, onnx_ir.Node], None]:
    def rewrite(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
        value, weight = node.inputs[:2]
        data = content_of(weight)
        if data is None and weight not in rewriter.dynamic:  # refused by name
            return
        if value not in rewriter.dynamic:  # integers of a table: their scale comes later
            one = rewriter.edit.constant(f"{_label(node)}.one", np.float32(1))
            value = rewriter.meant(node, value, one, input_of(node, 2))
        if data is not None and weight is not None:
            zero = content_of(input_of(node, 3))
            if zero is not None and zero.ndim and op == "Conv":
                zero = zero.reshape(-1, *(1,) * (data.ndim - 1))
            floats = data.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))
            weight = rewriter.edit.constant(f"{weight.name}.float", floats)
        rewriter.edit.become(node, op, [value, weight])
        rewriter.products.update(node.outputs)

    return rewrite


def _lstm(rewriter: _Rewriter, node: onnx_ir.Node) -> None:
    """LSTM whose weights [directions, input, 4 hidden] are integers with a scale per direction or column."""
    inputs = list(node.inputs[:8])
    for at, first in ((1, 8), (2, 10)):
        arrays = [content_of(input_of(node, i)) for i in (at, first, first + 1)]
        if any(array is None for array in arrays):  # refused by name
            return
        data, scale, zero = (np.asarray(array, np.float32) for array in arrays)
        scale, zero = (v.reshape(len(data), 1, -1) for v in (scale, zero))
        values = ((data - zero) * scale).transpose(0, 2, 1)
        inputs[at] = rewriter.edit.constant(f"{node.inputs[at].name}.float", values)  # type: ignore[union-attr]
    rewriter.edit.become(node, "LSTM", inputs)


_REWRITES: Mapping[tuple[str, str], Callable[[_Rewriter, onnx_ir.Node], None]] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("", "DynamicQuantizeLinear"): _dynamic,
    ("", "MatMulInteger"): _integer_product("MatMul"),
    ("", "ConvInteger"): _integer_product("Conv"),
    (_MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _elementwise("Add", 2),
    (_MICROSOFT, "QLinearMul"): _elementwise("Mul", 2),
    (_MICROSOFT, "QLinearConcat"): _concat,
    **{
        (_MICROSOFT, f"QLinear{op}"): _elementwise(op)
        for op in ["AveragePool", "GlobalAveragePool", "LeakyRelu", "ReduceMean", "Sigmoid", "Softmax"]
    },
}


_DYNAMIC = ("ConvInteger", "DynamicQuantizeLSTM", "MatMulInteger")
INTEGER_OPERATORS = tuple(f"{domain}.{op}" if domain else op for domain, op in sorted(_REWRITES))
"""What `expand_integer_operators` understands, for the documentation."""


def expand_integer_operators(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model with integer operators rewritten, and how many of them were dynamically quantised."""
    if not {node.op_type for node in model.graph.node} & {op for _, op in _REWRITES}:
        return model, 0
    dynamic = sum(node.op_type in _DYNAMIC for node in model.graph.node)
    rewriter = _Rewriter(Editor(model))
    for node in rewriter.edit.nodes():
        source, rewrite = input_of(node, 0), _REWRITES.get((node.domain, node.op_type))
        if rewrite is not None:
            rewrite(rewriter, node)
        elif node.op_type == "Cast" and source in rewriter.products:
            node.op_type = "Identity"
            node.attributes.clear()
        elif source in rewriter.dynamic:  # moved before the product
            rewriter.dynamic.update(node.outputs)
    rewriter.edit.forget_types()
    return rewriter.edit.model(), dynamic
