"""Quant nodes of QONNX and Brevitas as QuantizeLinear / DequantizeLinear pairs.

Quant(x, scale, zero_point, bit_width) = (clip(round(x / scale + zero_point), min, max) - zero_point) scale
with min and max from the attributes signed and narrow (QONNX, Quant).  Constants of up to 8 bits become
int8, wider ones the float numbers they stand for.  Values of up to 8 bits become a pair, behind a Clip
where the range is narrower than the integers'.  What is none of these stays, and is refused by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from fadiff.converter.read.fold import constant_tensors, fold_constants
from fadiff.converter.read.opsets import opset_of

_QUANT = ("BipolarQuant", "Quant")
_DOMAINS = frozenset(("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"))


def expand_quant_nodes(model: onnx.ModelProto) -> bool:
    """Rewrite Quant nodes in place; True if there was one that could be."""
    graph = model.graph
    if not any(node.op_type in _QUANT and node.domain in _DOMAINS for node in graph.node):
        return False
    fold_constants(model)  # scales and bit widths that are computed
    constants = {name: numpy_helper.to_array(tensor) for name, tensor in constant_tensors(graph).items()}
    expansion = _Expansion(constants, opset_of(model))
    for node in graph.node:
        if node.op_type not in _QUANT or node.domain not in _DOMAINS or not expansion.expand(node):
            expansion.nodes.append(node)
    changed = len(expansion.added) > 0
    nodes = list(expansion.nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in expansion.added.items())
    return changed


@dataclass
class _Expansion:
    constants: dict[str, np.ndarray]
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    added: dict[str, np.ndarray] = field(default_factory=dict)

    def expand(self, node: NodeProto) -> bool:
        """Append what a Quant node means; False where it cannot be said."""
        if node.op_type == "BipolarQuant":
            return self._bipolar(node)
        parameters = [self.constants.get(name) for name in node.input[1:4]]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        rounding = attributes.get("rounding_mode", b"ROUND").upper()
        if any(p is None for p in parameters) or rounding not in (b"ROUND", b"ROUND_HALF_EVEN"):
            return False
        scale, zero, bits = (np.asarray(p, np.float32) for p in parameters)
        if zero.size != 1 or bits.size != 1 or not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            return False
        signed, narrow = bool(attributes.get("signed", 1)), bool(attributes.get("narrow", 0))
        low, high = _range(int(bits.reshape(-1)[0]), signed, narrow)
        centre = int(zero.reshape(-1)[0])
        source = self.constants.get(node.input[0])
        if source is not None:
            self._constant(node, source, scale, centre, (low, high))
            return True
        if scale.size != 1 or high - low > 255:
            return False
        self._activation(node, float(scale.reshape(-1)[0]), centre, (low, high))
        return True

    def _bipolar(self, node: NodeProto) -> bool:
        """The scale with the sign of the value, 0 counting as positive."""
        source, scale = (self.constants.get(name) for name in node.input[:2])
        if scale is None or scale.size != 1:
            return False
        step = np.asarray(scale, np.float32).reshape(())
        if source is not None:
            name = f"{node.output[0]}.integers"
            self.added[name] = np.where(source >= 0, 1, -1).astype(np.int8)
            self.added[f"{name}.scale"] = step
            self._add("DequantizeLinear", [name, f"{name}.scale"], node.output[0])
            return True
        self.added[f"{node.output[0]}.origin"] = np.asarray(0, np.float32)
        self.added[f"{node.output[0]}.twice"] = 2 * step
        self.added[f"{node.output[0]}.step"] = step
        self._add("Less", [node.input[0], f"{node.output[0]}.origin"], f"{node.output[0]}.below")
        self._add("Cast", [f"{node.output[0]}.below"], f"{node.output[0]}.one", to=onnx.TensorProto.FLOAT)
        self._add("Mul", [f"{node.output[0]}.one", f"{node.output[0]}.twice"], f"{node.output[0]}.fall")
        self._add("Sub", [f"{node.output[0]}.step", f"{node.output[0]}.fall"], node.output[0])
        return True

    def _constant(
        self, node: NodeProto, values: np.ndarray, scale: np.ndarray, centre: int, limits: tuple[int, int]
    ) -> None:
        steps = np.clip(np.rint(values.astype(np.float32) / scale + centre), *limits) - centre
        axes = [i for i, size in enumerate(scale.shape) if size > 1]
        fits = steps.min(initial=0) >= -128 and steps.max(initial=0) <= 127 and len(axes) <= 1
        if not fits:  # a bias, or scales along several axes
            self.added[node.output[0]] = (steps * scale).astype(np.float32)
            return
        name = f"{node.output[0]}.integers"
        self.added[name] = steps.astype(np.int8)
        self.added[f"{name}.scale"] = scale.reshape(-1 if axes else ())
        axis = {"axis": values.ndim - scale.ndim + axes[0]} if axes else {}
        self._add("DequantizeLinear", [name, f"{name}.scale"], node.output[0], **axis)

    def _activation(self, node: NodeProto, scale: float, centre: int, limits: tuple[int, int]) -> None:
        low, high = limits
        output, source = node.output[0], node.input[0]
        signed = low - centre >= -128 and high - centre <= 127
        if signed and (low - centre > -127 or high - centre < 127):
            self._clip(source, f"{output}.clipped", (low - centre) * scale, (high - centre) * scale)
            source = f"{output}.clipped"
        kind = np.int8 if signed or low < 0 else np.uint8
        self.added[f"{output}.scale"] = np.asarray(scale, np.float32)
        self.added[f"{output}.zero"] = np.asarray(0 if signed else centre, kind)
        parameters = [f"{output}.scale", f"{output}.zero"]
        self._add("QuantizeLinear", [source, *parameters], f"{output}.q")
        self._add("DequantizeLinear", [f"{output}.q", *parameters], output)

    def _clip(self, source: str, output: str, low: float, high: float) -> None:
        if self.opset < 11:
            self._add("Clip", [source], output, min=low, max=high)
            return
        self.added[f"{output}.low"] = np.asarray(low, np.float32)
        self.added[f"{output}.high"] = np.asarray(high, np.float32)
        self._add("Clip", [source, f"{output}.low", f"{output}.high"], output)

    def _add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}.{op}", **attributes))


def _range(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """Smallest and largest integer."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow
