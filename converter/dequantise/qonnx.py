"""Quant nodes of QONNX and Brevitas as QuantizeLinear / DequantizeLinear pairs.

Quant(x, scale, zero_point, bit_width) = (clip(round(x / scale + zero_point), min, max) - zero_point) scale
with min and max from the attributes signed and narrow (QONNX, Quant).  Constants of up to 8 bits become
int8, wider ones the float numbers they stand for.  Values of up to 8 bits become a pair, behind a Clip
where the range is narrower than the integers'.  What is none of these stays, and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx import NodeProto, helper, numpy_helper
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor
from fadiff.converter.read.fold import constant_tensors, fold_constants
from fadiff.converter.read.opsets import opset_of

QUANT_NODES = ("BipolarQuant", "Quant")
_DOMAINS = frozenset(("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"))


def expand_quant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its Quant nodes rewritten, as far as they can be."""
    graph = model.graph
    found = [node for node in graph.node if node.op_type in QUANT_NODES and node.domain in _DOMAINS]
    if not found:
        return model
    fold_constants(model)  # scales and bit widths that are computed
    constants = {name: numpy_helper.to_array(tensor) for name, tensor in constant_tensors(graph).items()}
    edit, opset = Editor(model), opset_of(model)
    for node in found:
        place = edit.writer(node.output[0])
        meant = _Quant(edit, place, node, constants, opset).meant()
        if meant is not None:
            edit.replace(edit.value(node.output[0]), meant)
            edit.remove(place)
    return edit.model()


@dataclass
class _Quant:
    """A node, and where what it means is written."""

    edit: Editor
    place: onnx_ir.Node
    node: NodeProto
    constants: Mapping[str, np.ndarray]
    opset: int

    def meant(self) -> Value | None:
        """What it gives, written by other operators; None where it cannot be said."""
        parameters = [self.constants.get(name) for name in self.node.input[1:4]]
        if self.node.op_type == "BipolarQuant":
            return self._bipolar(parameters[0])
        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        rounding = attributes.get("rounding_mode", b"ROUND").upper()
        if any(p is None for p in parameters) or rounding not in (b"ROUND", b"ROUND_HALF_EVEN"):
            return None
        scale, zero, bits = (np.asarray(p, np.float32) for p in parameters)
        if zero.size != 1 or bits.size != 1 or not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            return None
        signed, narrow = bool(attributes.get("signed", 1)), bool(attributes.get("narrow", 0))
        low, high = _range(int(bits.reshape(-1)[0]), signed, narrow)
        centre = int(zero.reshape(-1)[0])
        source = self.constants.get(self.node.input[0])
        if source is not None:
            return self._constant(source, scale, centre, (low, high))
        if scale.size != 1 or high - low > 255 or not low <= centre <= high:
            return None
        return self._activation(float(scale.reshape(-1)[0]), centre, (low, high))

    def _bipolar(self, scale: np.ndarray | None) -> Value | None:
        """The scale with the sign of the value, 0 counting as positive."""
        source = self.constants.get(self.node.input[0])
        if scale is None or scale.size != 1:
            return None
        step = np.asarray(scale, np.float32).reshape(())
        if source is not None:
            return self._integers(np.where(source >= 0, 1, -1).astype(np.int8), step)
        below = self._op("Less", self._source, self._number(0))
        fall = self._op("Mul", self._op("Cast", below, to=onnx.TensorProto.FLOAT), self._number(2 * step))
        return self._op("Sub", self._number(step), fall)

    def _constant(self, values: np.ndarray, scale: np.ndarray, centre: int, limits: tuple[int, int]) -> Value:
        steps = np.clip(np.rint(values.astype(np.float32) / scale + centre), *limits) - centre
        axes = [i for i, size in enumerate(scale.shape) if size > 1]
        is_wide = np.any(steps != np.clip(steps, -128, 127))  # a bias
        if is_wide or len(axes) > 1:
            return self.edit.constant(f"{self.node.output[0]}.values", (steps * scale).astype(np.float32))
        axis = {"axis": values.ndim - scale.ndim + axes[0]} if axes else {}
        return self._integers(steps.astype(np.int8), scale.reshape(-1 if axes else ()), **axis)

    def _integers(self, integers: np.ndarray, scale: np.ndarray, **axis: int) -> Value:
        name = f"{self.node.output[0]}.integers"
        return self._op("DequantizeLinear", self.edit.constant(name, integers), self._number(scale), **axis)

    def _activation(self, scale: float, centre: int, limits: tuple[int, int]) -> Value:
        low, high = limits
        source = self._source
        signed = low - centre >= -128 and high - centre <= 127
        if signed and (low - centre > -127 or high - centre < 127):
            source = self._clip(source, (low - centre) * scale, (high - centre) * scale)
        kind = np.int8 if signed or low < 0 else np.uint8
        zero = self.edit.constant(f"{self.node.output[0]}.zero", np.asarray(0 if signed else centre, kind))
        step = self._number(scale)
        return self._op("DequantizeLinear", self._op("QuantizeLinear", source, step, zero), step, zero)

    def _clip(self, source: Value, low: float, high: float) -> Value:
        if self.opset < 11:
            return self._op("Clip", source, min=low, max=high)
        return self._op("Clip", source, self._number(low), self._number(high))

    @property
    def _source(self) -> Value:
        return self.edit.value(self.node.input[0])

    def _number(self, number: np.ndarray | float) -> Value:
        return self.edit.constant(f"{self.node.output[0]}.number", np.asarray(number, np.float32))

    def _op(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        wanted = f"{self.node.output[0]}.{op}"
        return self.edit.insert(self.place, op, inputs, wanted, **attributes)[0]


def _range(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """Smallest and largest integer."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow
