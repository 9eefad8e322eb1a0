"""Imported quantisation: take the scales out of a QDQ model and leave a float model.

Gemmini has no zero points and one scale per layer, so what a tool decided is kept where it fits
(int8 with zero point 0, uint8 with zero point 128, one scale per tensor; zero points and scales of channels
where `prescribed.py` of quantise allows them) and otherwise replaced by the nearest symmetric
scale that covers the same range; every replacement is noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from fadiff.converter.dequantise.affine import (
    EIGHT_BITS,
    WIDE,
    along_axis,
    is_integer,
    is_lowest,
    leaves,
    quantised,
    reach,
)
from fadiff.converter.dequantise.qonnx import expand_quant_nodes
from fadiff.converter.dequantise.qoperators import INTEGER_OPERATORS, expand_integer_operators
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.builder import symmetric_scale
from fadiff.converter.ir.edit import FreshNames
from fadiff.converter.ir.operators import KEEPS_SCALE, Kind, named
from fadiff.converter.ir.scale import NOTHING, Prescribed, Scale
from fadiff.converter.read.fold import constant_tensors, fold_constants
from fadiff.converter.read.inputs import Spans

_QUANTISE = "QuantizeLinear"
_NOT_NEGATIVE = named(Kind.NOT_NEGATIVE)
_SUMS = frozenset(("Add", "Mul", "Div", "Sum"))
_GIVES = named(KEEPS_SCALE)
_KEEPS_SIGN = _GIVES | {"AveragePool", "GlobalAveragePool", "ReduceMean", "Concat", "Resize", "Upsample"}
_DEQUANTISE = "DequantizeLinear"
_ON_INTEGERS = _GIVES | {"Clip", "Concat", "Pad", "Resize", "Shape", "Size", "Upsample"}
"""Operators that tools put between QuantizeLinear and DequantizeLinear, on integers."""
_LARGEST_FOLD = 2**26


@dataclass(frozen=True)
class Imported:
    """Scales a model came with, by float value or constant, and what was changed."""

    given: Prescribed
    notes: tuple[str, ...]
    spans: Spans = field(default_factory=dict)
    """What inputs of the model can be, by their quantisation in the file."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a quantisation tool wrote the model."""
    names = {name.rpartition(".")[2] for name in INTEGER_OPERATORS} | {_QUANTISE, _DEQUANTISE}
    return any(node.op_type in names for node in model.graph.node)


def strip_quantisation(file: str, model: onnx.ModelProto) -> tuple[onnx.ModelProto, Imported]:
    """A quantised model as a float model; without quantisation nothing changes.

    Every QuantizeLinear and DequantizeLinear disappears (integer values in between become float),
    constants are dequantised, int8 and uint8 graph inputs become float.

    Raises:
        ModelError: a scale or zero point is computed at run time.
    """
    model = expand_quant_nodes(model)
    dynamic = expand_integer_operators(model)
    if not any(node.op_type in (_QUANTISE, _DEQUANTISE) for node in model.graph.node):
        notes = (f"{len(dynamic)} dynamically quantised products became float and are calibrated",)
        return model, Imported(NOTHING, notes if dynamic else ())
    fold_constants(model, keep=(_QUANTISE, _DEQUANTISE), largest=_LARGEST_FOLD)  # scales that are computed
    with np.errstate(over="ignore"):  # quantised masks: the largest number there is, times -1
        return model, _Stripper(file, model).strip()


class _Stripper:
    def __init__(self, file: str, model: onnx.ModelProto) -> None:
        self.file = file
        self.graph, self.fresh = model.graph, FreshNames(model.graph)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for value in node.input:
                self.readers.setdefault(value, []).append(node)
        tensors = constant_tensors(self.graph).items()
        self.constants = {name: numpy_helper.to_array(tensor) for name, tensor in tensors}
        self.alias: dict[str, str] = {}
        self.integers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """Scale and zero point of the integer tensors between a pair."""
        self.clipped: dict[str, str] = {}
        """What stands for a value after the saturation of QuantizeLinear."""
        self.weights: set[str] = set()
        """Constants that have a scale."""
        self.not_negative: set[str] = set()
        self.scales: dict[str, float] = {}
        self.channels: dict[str, np.ndarray] = {}
        self.zeros: dict[str, Scale] = {}
        self.inputs = {value.name for value in self.graph.input}
        self.spans: dict[str, tuple[float, float]] = {}
        self.added: dict[str, np.ndarray] = {}
        self.wide: list[str] = []
        """Activations of 16 bits."""
        self.limits: dict[str, tuple[float, float]] = {}
        """What 8-bit activations saturate at."""
        self.writers: dict[str, onnx.NodeProto] = {}
        self.integer_outputs: list[str] = []

    def strip(self) -> Imported:
        kept: list[onnx.NodeProto] = []
        for node in self.graph.node:
            if node.op_type not in (_QUANTISE, _DEQUANTISE):
                self._dequantise_table(node)
                self._between_pair(node)
            integers = self.integers.get(node.input[0]) if node.input else None
            for i, value in enumerate(node.input):
                node.input[i] = self.alias.get(value, value)
            if node.op_type == _QUANTISE:
                rectifier = self._quantise(node)
                if rectifier is not None:
                    kept.append(rectifier)
                    self._produced(rectifier)
            elif node.op_type == _DEQUANTISE:
                factor = self._dequantise(node, integers)
                if factor is not None:
                    kept.append(factor)
            else:
                self._multiply_instead(node)
                kept.append(node)
                self._produced(node)
        del self.graph.node[:]
        self.graph.node.extend(kept)
        self._rename_outputs()
        self.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.added.items())
        del self.graph.value_info[:]
        notes = self._boundary_notes()
        if self.wide:
            notes.append(
                f"{len(self.wide)} activations had 16 bits (first: {self.wide[0]}): 8 of them are kept, over "
                "the same range; not bit-exact with the file"
            )
        return Imported(Prescribed(self.scales, self.zeros, self.channels), tuple(notes), self.spans)

    def _parameters(self, node: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
        for value in node.input[1:]:
            if value and value not in self.constants:
                raise ModelError(
                    f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): scale or zero point "
                    f"{value} is computed at run time; use static quantisation, or convert the float model"
                )
        if any(not is_integer(self.constants[v].dtype) for v in node.input[2:3] if v):
            raise ModelError(
                f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): zero point "
                f"{node.input[2]} is not an integer; quantise to integers, or convert the float model"
            )
        scale = self.constants[node.input[1]].astype(np.float32)
        zero = (
            self.constants[node.input[2]] if len(node.input) > 2 and node.input[2] else np.zeros((), np.uint8)
        )
        return scale, zero

    def _produced(self, node: onnx.NodeProto) -> None:
        """Track which values cannot be negative, and constants that are only moved."""
        self.writers.update(dict.fromkeys(node.output, node))
        inputs = [v for v in node.input if v]
        if node.op_type in _GIVES and inputs and inputs[0] in self.weights:
            self.weights.add(node.output[0])  # transposed after its DequantizeLinear
            self.scales[node.output[0]] = self.scales[inputs[0]]
        elif node.op_type == "Transpose" and self.channels.get(inputs[0], np.ones(())).ndim:
            order = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), None)
            self.channels[node.output[0]] = self.channels[inputs[0]].transpose(order)
        read = inputs if node.op_type in ("Concat", *_SUMS) else inputs[:1]
        inherits = node.op_type in _KEEPS_SIGN | _SUMS and all(self._is_not_negative(v) for v in read)
        if node.op_type in _NOT_NEGATIVE or inherits or self._is_even_power(node):
            self.not_negative.update(node.output)

    def _multiply_instead(self, node: onnx.NodeProto) -> None:
        """A division by constants as a product, which ONNX Runtime folds into the convolution before it.

        (PyTorch's quantisation-aware training divides by the factor of the batch norm that follows.)
        """
        divisor = self.constants.get(node.input[1]) if node.op_type == "Div" else None
        if divisor is None or divisor.size < 2 or divisor.dtype != np.float32 or not np.all(divisor):
            return
        name = self.fresh.new(f"{node.output[0]}.factor")
        self.added[name] = np.float32(1.0) / divisor
        node.op_type, node.input[1] = "Mul", name

    def _is_not_negative(self, value: str) -> bool:
        array = self.added.get(value, self.constants.get(value))
        return value in self.not_negative or (array is not None and bool(np.all(array >= 0)))

    def _is_even_power(self, node: onnx.NodeProto) -> bool:
        if node.op_type == "Mul":
            return bool(node.input[0] == node.input[1])
        if node.op_type != "Pow":
            return False
        exponent = self.added.get(node.input[1], self.constants.get(node.input[1]))
        return exponent is not None and bool(np.all(np.rint(exponent) % 2 == 0))

    def _dequantise_table(self, node: onnx.NodeProto) -> None:
        """Rows of a table of integers, dequantised behind the Gather: the table itself becomes float."""
        name = node.input[0] if node.op_type == "Gather" else ""
        readers = self.readers.get(node.output[0], [])
        table = self.constants.get(name)
        if table is None or table.dtype not in (np.int8, np.uint8):
            return
        pair = next((reader for reader in readers if reader.op_type == _DEQUANTISE), None)
        if pair is None or self._parameters(pair)[0].size != 1:
            return
        node.input[0] = self.fresh.new(f"{name}.{node.output[0]}")
        inputs = [name, *pair.input[1:]]
        self._dequantise(onnx.helper.make_node(_DEQUANTISE, inputs, [node.input[0]], name=pair.name))
        self.integers[node.output[0]] = self._parameters(pair)

    def _between_pair(self, node: onnx.NodeProto) -> None:
        """An operator on the integers of a pair: what it picks or moves it may, also as floats."""
        read = [value for value in node.input if value in self.integers]
        if not read:
            return
        same_type = node.op_type == "Cast" and node.attribute[0].i in EIGHT_BITS
        if node.op_type not in _ON_INTEGERS and not same_type:
            raise ModelError(
                f"{self.file}: node {node.name or node.output[0]} ({node.op_type}) computes with integers of "
                f"QuantizeLinear ({read[0]}); put it behind DequantizeLinear, or convert the float model"
            )
        if node.op_type in ("Shape", "Size"):
            return
        scale, zero = self.integers[read[0]]
        for output in node.output:
            self.integers[output] = (scale, zero)
            self._know(output, scale, zero)
        if same_type:  # (PyTorch casts uint8 to uint8)
            node.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output, name=node.name))
        if node.op_type in ("Clip", "Pad"):  # bounds, and the value to pad with
            for i in range(1 if node.op_type == "Clip" else 2, min(len(node.input), 3)):
                bound = self.constants.get(node.input[i])
                if bound is not None:
                    name = self.fresh.new(f"{node.output[0]}.bound{i}")
                    self.added[name] = ((bound.astype(np.float32) - zero) * scale).astype(np.float32)
                    node.input[i] = name

    def _quantise(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Forget the pair; a ReLU stays where the zero point made the lowest integer mean zero.

        Tools drop a ReLU when the saturation of QuantizeLinear does its work, and a Clip, which comes back
        where no integers of ours would saturate.  A constant becomes the integers that the model would
        compute from it.
        """
        scale, zero = self._parameters(node)
        source, output = node.input[0], node.output[0]
        if source in self.constants:
            data = self.constants[source].astype(np.float32)
            self.constants[output] = quantised(data, *along_axis(node, data, scale, zero))
            return None
        self.integers[output] = (scale, zero)
        lowest = zero.size == 1 and is_lowest(zero)
        self._know(source, scale, zero)  # (also for a producer that cannot absorb the ReLU)
        saturates = self._saturates(source)
        unchanged = not lowest or source in self.inputs or source in self.not_negative
        if unchanged and not saturates:
            self.alias[output] = source
            return None
        if source in self.clipped:
            self.alias[output] = self.clipped[source]
            return None
        clipped = self.fresh.new(f"{source}.{'clip' if saturates else 'relu'}")
        self.alias[output] = self.clipped[source] = clipped
        self._know(clipped, scale, zero)
        name = f"{node.name or clipped}.{'clip' if saturates else 'relu'}"
        if not saturates:
            return onnx.helper.make_node("Relu", [source], [clipped], name=name)
        bounds = [self.fresh.new(f"{clipped}.{end}") for end in ("low", "high")]
        for bound, number in zip(bounds, self.limits[source], strict=True):
            self.added[bound] = np.asarray(number, np.float32)
        return onnx.helper.make_node("Clip", [source, *bounds], [clipped], name=name)

    def _saturates(self, value: str) -> bool:
        """Whether a sum or product with one number leaves the range that it is quantised to.

        It will be part of a table, which has no integers in between.
        """
        writer, limits = self.writers.get(value), self.limits.get(value)
        return writer is not None and limits is not None and leaves(self._reach(writer), limits)

    def _reach(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """What an operator with a constant number makes of the range of its other input."""
        numbers = [self.added.get(value, self.constants.get(value)) for value in node.input]
        return reach(node.op_type, [self.limits.get(value) for value in node.input], numbers)

    def _know(self, value: str, scale: np.ndarray, zero: np.ndarray) -> None:
        """Remember what an activation's scale says about its symmetric scale."""
        if scale.size != 1 or zero.dtype not in (np.int8, np.uint8, *WIDE) or value in self.scales:
            return
        if not np.isfinite(scale):  # of a mask with -inf: calibrated
            return
        step, centre = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
        limits = np.iinfo(zero.dtype)
        span = (limits.min - centre) * step, (limits.max - centre) * step
        self.limits[value] = span
        if value in self.inputs:
            self.spans[value] = span
        if zero.dtype not in WIDE and centre == (limits.min + limits.max + 1) // 2:
            self.scales[value] = step
            return
        self.scales[value] = symmetric_scale(*span)
        if zero.dtype in WIDE:
            self.wide.append(value)
        else:
            self.zeros[value] = Scale(step, int(centre - limits.min - 128))

    def _dequantise(
        self, node: onnx.NodeProto, integers: tuple[np.ndarray, np.ndarray] | None = None
    ) -> onnx.NodeProto | None:
        """Forget the pair; a product where it multiplies `integers` by another scale than theirs."""
        scale, zero = self._parameters(node)
        data = self.constants.get(node.input[0])
        if data is None:
            if integers is not None and not np.array_equal(scale.reshape(-1), integers[0].reshape(-1)):
                return self._rescale(node, scale, integers[0])
            self.alias[node.output[0]] = node.input[0]
            if node.input[0] in self.inputs:
                self._know(node.input[0], scale, zero)
            return None
        self._check_finite(node, scale)
        step, centre = along_axis(node, data, scale, zero)
        finite = np.finfo(np.float32)
        values = (data.astype(np.float32) - centre.astype(np.float32)) * step
        values = np.clip(values.astype(np.float32), finite.min, finite.max)
        name = node.output[0]
        self.added[name] = values
        if data.dtype == np.int32:  # a bias: its scale follows from input and weights
            return None
        shifted = data.astype(np.int32) - centre.astype(np.int32)
        fits = shifted.min(initial=0) >= -128 and shifted.max(initial=0) <= 127
        if fits and scale.size == 1:
            self.scales[name] = float(scale.reshape(-1)[0])  # the integers stay, without their zero point
            self.weights.add(name)
        else:
            self.channels[name] = np.asarray(step, np.float32)
        return None

    def _rescale(self, node: onnx.NodeProto, scale: np.ndarray, before: np.ndarray) -> onnx.NodeProto:
        """Dynamic quantisation reads the integers of a table without their scale, and multiplies later."""
        if scale.size > 1 or before.size > 1:
            raise ModelError(
                f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): its scale is not that of "
                f"{node.input[0]}, and neither is one number; use one scale, or convert the float model"
            )
        name = self.fresh.new(f"{node.output[0]}.factor")
        self.added[name] = (scale / before).astype(np.float32).reshape(())
        return onnx.helper.make_node("Mul", [node.input[0], name], node.output, name=node.name)

    def _check_finite(self, node: onnx.NodeProto, scale: np.ndarray) -> None:
        if not np.all(np.isfinite(scale)):
            raise ModelError(
                f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): the scale of constant "
                f"{node.input[0]} is infinite, so its values are lost; write -inf in masks as -1e4 before "
                "quantising, or convert the float model"
            )

    def _rename_outputs(self) -> None:
        """Graph outputs that were Q or DQ results: the float value takes the output's name."""
        renamed: dict[str, str] = {}
        for output in self.graph.output:
            source = self.alias.get(output.name)
            if source is None:
                continue
            source = renamed.get(source, source)
            if output.type.tensor_type.elem_type in EIGHT_BITS:
                self.integer_outputs.append(output.name)
            output.type.tensor_type.elem_type = TensorProto.FLOAT
            if source in self.inputs or source in {o.name for o in self.graph.output}:
                self.graph.node.append(onnx.helper.make_node("Identity", [source], [output.name]))
                continue
            for node in self.graph.node:
                for values in (node.input, node.output):
                    for i, value in enumerate(values):
                        if value == source:
                            values[i] = output.name
            renamed[source] = output.name
            if source in self.scales:
                self.scales[output.name] = self.scales.pop(source)
            if source in self.zeros:
                self.zeros[output.name] = self.zeros.pop(source)

    def _boundary_notes(self) -> list[str]:
        notes = []
        for value in self.graph.input:
            tensor_type = value.type.tensor_type
            if tensor_type.elem_type in EIGHT_BITS and value.name in self.scales:
                tensor_type.elem_type = TensorProto.FLOAT
                notes.append(
                    f"input {value.name} was an 8-bit integer tensor: it is now float, in steps of "
                    f"{self.scales[value.name]:.6g}"
                )
        for name in self.integer_outputs:
            notes.append(
                f"output {name} was an 8-bit integer tensor: it is now what these integers mean, as int8"
            )
        return notes
