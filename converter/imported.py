"""Imported quantisation: take the scales out of a QDQ model and leave a float model.

Gemmini has no zero points and one scale per layer, so what a tool decided is kept where it fits
(int8 with zero point 0, uint8 with zero point 128, one scale per tensor) and otherwise replaced by
the nearest symmetric scale that covers the same range; every replacement is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from converter.errors import ModelError
from converter.operators import KEEPS_SCALE
from converter.qoperators import expand_integer_operators
from converter.scales import INT8_MAX, symmetric_scale

_QUANTISE = "QuantizeLinear"
_NOT_NEGATIVE = frozenset(("Relu", "Sigmoid", "Softmax", "HardSigmoid", "Exp", "Sqrt", "Abs"))
_KEEPS_SIGN = KEEPS_SCALE | {"AveragePool", "GlobalAveragePool", "ReduceMean", "Concat", "Resize", "Upsample"}
_DEQUANTISE = "DequantizeLinear"


@dataclass(frozen=True)
class Imported:
    """Scales a model came with (by float value or constant name), and what was changed."""

    scales: Mapping[str, float]
    notes: tuple[str, ...]


def strip_quantisation(file: str, model: onnx.ModelProto) -> Imported:
    """Make a quantised model a float model, in place; without quantisation nothing changes.

    Every QuantizeLinear and DequantizeLinear disappears (integer values in between become float),
    constants are dequantised, int8 and uint8 graph inputs become float.

    Raises:
        ModelError: a scale or zero point is computed at run time.
    """
    dynamic = expand_integer_operators(model)
    if not any(node.op_type in (_QUANTISE, _DEQUANTISE) for node in model.graph.node):
        notes = (f"{len(dynamic)} dynamically quantised products became float and are calibrated",)
        return Imported({}, notes if dynamic else ())
    return _Stripper(file, model).strip()


class _Stripper:
    def __init__(self, file: str, model: onnx.ModelProto) -> None:
        self.file = file
        self.graph = model.graph
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.alias: dict[str, str] = {}
        self.not_negative: set[str] = set()
        self.scales: dict[str, float] = {}
        self.added: dict[str, np.ndarray] = {}
        self.per_channel: list[tuple[str, float]] = []
        self.asymmetric: list[str] = []

    def strip(self) -> Imported:
        kept: list[onnx.NodeProto] = []
        for node in self.graph.node:
            for i, value in enumerate(node.input):
                node.input[i] = self.alias.get(value, value)
            if node.op_type == _QUANTISE:
                rectifier = self._quantise(node)
                if rectifier is not None:
                    kept.append(rectifier)
                    self._produced(rectifier)
            elif node.op_type == _DEQUANTISE:
                self._dequantise(node)
            else:
                kept.append(node)
                self._produced(node)
        del self.graph.node[:]
        self.graph.node.extend(kept)
        self._rename_outputs()
        self.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.added.items())
        del self.graph.value_info[:]
        notes = self._input_notes()
        if self.asymmetric:
            notes.append(
                f"{len(self.asymmetric)} activations had zero points (first: {self.asymmetric[0]}): "
                "requantised symmetrically over the same range, up to 1 bit coarser; "
                "not bit-exact with the file"
            )
        if self.per_channel:
            name, worst = min(self.per_channel, key=lambda entry: entry[1])
            notes.append(
                f"{len(self.per_channel)} weights had per-channel scales or zero points: requantised "
                f"per tensor (worst weight SQNR {worst:.1f} dB, {name}); not bit-exact with the file"
            )
        return Imported(self.scales, tuple(notes))

    def _parameters(self, node: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
        for value in node.input[1:]:
            if value and value not in self.constants:
                raise ModelError(
                    f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): scale or zero point "
                    f"{value} is computed at run time; use static quantisation, or convert the float model"
                )
        scale = self.constants[node.input[1]].astype(np.float32)
        zero = (
            self.constants[node.input[2]] if len(node.input) > 2 and node.input[2] else np.zeros((), np.uint8)
        )
        return scale, zero

    def _produced(self, node: onnx.NodeProto) -> None:
        """Track which values cannot be negative."""
        inputs = [v for v in node.input[:1] if v] if node.op_type != "Concat" else list(node.input)
        inherits = node.op_type in _KEEPS_SIGN and self.not_negative.issuperset(inputs)
        if node.op_type in _NOT_NEGATIVE or inherits:
            self.not_negative.update(node.output)

    def _quantise(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Forget the pair; a ReLU stays where the zero point made the lowest integer mean zero.

        Tools drop a ReLU when the saturation of QuantizeLinear does its work.
        """
        scale, zero = self._parameters(node)
        source = node.input[0]
        lowest = zero.size == 1 and _is_lowest(zero)
        from_input = any(value.name == source for value in self.graph.input)
        if not lowest or from_input or source in self.not_negative:
            self.alias[node.output[0]] = source
            self._know(source, scale, zero)
            return None
        rectified = f"{source}.relu"
        self.alias[node.output[0]] = rectified
        self._know(rectified, scale, zero)
        self._know(source, scale, zero)  # for a producer that cannot absorb the ReLU
        return onnx.helper.make_node("Relu", [source], [rectified], name=f"{node.name or source}.relu")

    def _know(self, value: str, scale: np.ndarray, zero: np.ndarray) -> None:
        """Remember what an activation's scale says about its symmetric scale."""
        if scale.size != 1 or zero.dtype not in (np.int8, np.uint8) or value in self.scales:
            return
        step, centre = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
        symmetric = 128 if zero.dtype == np.uint8 else 0
        if centre == symmetric:
            self.scales[value] = step
            return
        low, high = (0, 255) if zero.dtype == np.uint8 else (-128, 127)
        self.scales[value] = symmetric_scale((low - centre) * step, (high - centre) * step)
        self.asymmetric.append(value)

    def _dequantise(self, node: onnx.NodeProto) -> None:
        scale, zero = self._parameters(node)
        data = self.constants.get(node.input[0])
        if data is None:
            self.alias[node.output[0]] = node.input[0]
            if any(value.name == node.input[0] for value in self.graph.input):
                self._know(node.input[0], scale, zero)
            return
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        blocks = next((a.i for a in node.attribute if a.name == "block_size"), 0)
        if scale.size > 1 and blocks:
            scale, zero = (np.repeat(v, blocks, axis) if v.ndim else v for v in (scale, zero))
        elif scale.size > 1:
            shape = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.size > 1 else zero
        values = (data.astype(np.float32) - zero.astype(np.float32)) * scale
        name = node.output[0]
        self.added[name] = values.astype(np.float32)
        if data.dtype == np.int32:  # a bias: its scale follows from input and weights
            return
        if scale.size == 1 and not zero.any() and data.dtype == np.int8:
            self.scales[name] = float(scale.reshape(-1)[0])
        elif data.dtype in (np.int8, np.uint8):
            self.per_channel.append((name, _weight_sqnr(values)))

    def _rename_outputs(self) -> None:
        """Graph outputs that were Q or DQ results: the float value takes the output's name."""
        inputs = {value.name for value in self.graph.input}
        for output in self.graph.output:
            source = self.alias.get(output.name)
            if source is None:
                continue
            output.type.tensor_type.elem_type = TensorProto.FLOAT
            if source in inputs or source in {o.name for o in self.graph.output}:
                self.graph.node.append(onnx.helper.make_node("Identity", [source], [output.name]))
                continue
            for node in self.graph.node:
                for values in (node.input, node.output):
                    for i, value in enumerate(values):
                        if value == source:
                            values[i] = output.name
            if source in self.scales:
                self.scales[output.name] = self.scales.pop(source)

    def _input_notes(self) -> list[str]:
        notes = []
        for value in self.graph.input:
            tensor_type = value.type.tensor_type
            if tensor_type.elem_type in (TensorProto.INT8, TensorProto.UINT8) and value.name in self.scales:
                tensor_type.elem_type = TensorProto.FLOAT
                notes.append(
                    f"input {value.name} was an 8-bit integer tensor: it is now float, in steps of "
                    f"{self.scales[value.name]:.6g}"
                )
        return notes


def _is_lowest(zero: np.ndarray) -> bool:
    """Whether a zero point is the smallest integer of its 8-bit type: nothing below zero exists."""
    return zero.dtype in (np.int8, np.uint8) and int(zero.reshape(-1)[0]) == np.iinfo(zero.dtype).min


def _weight_sqnr(values: np.ndarray) -> float:
    """How well one symmetric scale represents a weight tensor, in dB."""
    scale = symmetric_scale(float(values.min()), float(values.max()))
    rounded = np.clip(np.rint(values / scale), -INT8_MAX, INT8_MAX) * scale
    noise = float(((values - rounded) ** 2).sum())
    signal = float((values.astype(np.float64) ** 2).sum())
    return float("inf") if noise == 0 or signal == 0 else float(10 * np.log10(signal / noise))
