"""Integer host layers as ONNX: arithmetic in int32, choices, and the way to int8."""

from __future__ import annotations

from fadiff.converter.check.reference.emit import Emit
from fadiff.converter.check.reference.strided import operand, store
from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import Integer, Quantise, Select

_BITWISE = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
COMPARISONS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_or_equal": "GreaterOrEqual",
    "less": "Less",
    "less_or_equal": "LessOrEqual",
}


def integer(emit: Emit, layer: HostLayer, operator: Integer) -> None:
    """The functions of two integers of docs/host-ops.md."""
    function = operator.function
    a, b = operand(emit, layer, 0), operand(emit, layer, 1)
    if function in ("modulo", "remainder"):
        result = emit.op("Mod", a, b, fmod=int(function == "remainder"))
    elif function.startswith("shift"):
        pair = (emit.cast(v, "uint32") for v in (a, b))
        direction = function.removeprefix("shift_").upper()
        result = emit.cast(emit.op("BitShift", *pair, direction=direction), "int32")
    elif function == "not_equal":
        result = emit.op("Not", emit.op("Equal", a, b))
    else:
        result = emit.op({**_BITWISE, **COMPARISONS}.get(function, function.capitalize()), a, b)
    store(emit, layer, emit.cast(result, emit.tensors[layer.outputs[0]].dtype))


def select(emit: Emit, layer: HostLayer, operator: Select) -> None:
    """condition != 0 ? a : b."""
    condition = emit.cast(operand(emit, layer, 0), "bool")
    store(emit, layer, emit.op("Where", condition, operand(emit, layer, 1), operand(emit, layer, 2)))


def quantise(emit: Emit, layer: HostLayer, operator: Quantise) -> None:
    """An element: sat8(rne(f32(a) * scale))."""
    value = emit.cast(operand(emit, layer, 0), "float32")
    store(emit, layer, emit.element(emit.scaled(value, operator.scale)))
