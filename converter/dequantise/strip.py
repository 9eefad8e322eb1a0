"""Imported quantisation: take the scales out of a QDQ model and leave a float model.

Gemmini has no zero points and one scale per layer, so what a tool decided is kept where it fits
(int8 with zero point 0, uint8 with zero point 128, one scale per tensor; zero points and scales of channels
where `prescribed.py` of quantise allows them) and otherwise replaced by the nearest symmetric
scale that covers the same range; every replacement is noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import numpy as np
import onnx
import onnx_ir
from onnx_ir import DataType, Value

from fadiff.converter.dequantise.affine import (
    EIGHT_BITS,
    WIDE,
    NotNegative,
    along_axis,
    is_integer,
    is_lowest,
    leaves,
    quantised,
    reach,
)
from fadiff.converter.dequantise.qonnx import QUANT_NODES, expand_quant_nodes
from fadiff.converter.dequantise.qoperators import INTEGER_OPERATORS, expand_integer_operators
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.builder import symmetric_scale
from fadiff.converter.ir.edit import Editor, content_of, input_of
from fadiff.converter.ir.kinds import KEEPS_SCALE, Kind, named
from fadiff.converter.ir.scale import NOTHING, Prescribed, Scale
from fadiff.converter.read.fold import fold_constants
from fadiff.converter.read.inputs import Spans

_QUANTISE = "QuantizeLinear"
_GIVES = named(KEEPS_SCALE)
_DEQUANTISE = "DequantizeLinear"
_SIZES = named(Kind.SIZE)
_ON_INTEGERS = _SIZES | named(KEEPS_SCALE | Kind.JOIN | Kind.PAD | Kind.RESIZE) | {"Clip"}
"""Operators that tools put between QuantizeLinear and DequantizeLinear, on integers."""
_LARGEST_FOLD = 2**26
_Known = TypeVar("_Known")


@dataclass(frozen=True)
class Imported:
    """Scales a model came with, by float value or constant, and what was changed."""

    given: Prescribed
    notes: tuple[str, ...]
    spans: Spans = field(default_factory=dict)
    """What inputs of the model can be, by their quantisation in the file."""


_QUANTISED = {name.rpartition(".")[2] for name in INTEGER_OPERATORS} | {_QUANTISE, _DEQUANTISE}
QUANTISED = frozenset(_QUANTISED.union(QUANT_NODES))
"""Operators that quantisation tools write."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime can run what a quantisation tool wrote."""
    return any(node.op_type in _QUANTISED for node in model.graph.node)


def strip_quantisation(file: str, model: onnx.ModelProto) -> tuple[onnx.ModelProto, Imported]:
    """A quantised model as a float model; without quantisation nothing changes.

    Every QuantizeLinear and DequantizeLinear disappears (integer values in between become float),
    constants are dequantised, int8 and uint8 graph inputs become float.

    Raises:
        ModelError: a scale or zero point is computed at run time.
    """
    model = expand_quant_nodes(model)
    model, dynamic = expand_integer_operators(model)
    if not any(node.op_type in (_QUANTISE, _DEQUANTISE) for node in model.graph.node):
        notes = (f"{dynamic} dynamically quantised products became float and are calibrated",)
        return model, Imported(NOTHING, notes if dynamic else ())
    fold_constants(model, keep=(_QUANTISE, _DEQUANTISE), largest=_LARGEST_FOLD)  # scales that are computed
    edit = Editor(model)
    with np.errstate(over="ignore"):  # quantised masks: the largest number there is, times -1
        imported = _Stripper(file, edit).strip()
    return edit.model(), imported


class _Stripper:
    def __init__(self, file: str, edit: Editor) -> None:
        self.file, self.edit = file, edit
        self.stands = dict[Value, Value]()
        """The float values for what the pairs gave."""
        self.integers = dict[Value, tuple[np.ndarray, np.ndarray]]()
        """Scale and zero point of the integer tensors between a pair."""
        self.clipped = dict[Value, Value]()
        """What stands for a value after the saturation of QuantizeLinear."""
        self.weights = set[Value]()
        """Constants that have a scale."""
        self.not_negative = NotNegative()
        self.scales = dict[Value, float]()
        self.channels = dict[Value, np.ndarray]()
        self.zeros = dict[Value, Scale]()
        self.limits = dict[Value, tuple[float, float]]()
        """What activations saturate at."""
        self.wide = list[Value]()
        """Activations of 16 bits."""

    def strip(self) -> Imported:
        self.edit.forget_types()
        pairs = list[onnx_ir.Node]()
        for node in self.edit.nodes():
            if node.op_type == _QUANTISE:
                self._quantise(node)
                pairs.append(node)
            elif node.op_type != _DEQUANTISE:
                self._take_over(node)
            elif self._dequantise(node):
                pairs.append(node)
        notes = [*self._boundary_notes(), *self._settle_outputs(pairs)]
        for node in reversed(pairs):
            for value in node.outputs:
                for reader, place in tuple(value.uses()):
                    reader.replace_input_with(place, self.stands[value])
            self.edit.remove(node)
        if self.wide:
            notes.append(
                f"{len(self.wide)} activations had 16 bits (first: {self.wide[0].name}): 8 of them are kept, "
                "over the same range; not bit-exact with the file"
            )
        given = Prescribed(_by_name(self.scales), _by_name(self.zeros), _by_name(self.channels))
        spans = {value: span for value, span in self.limits.items() if value.is_graph_input()}
        return Imported(given, tuple(notes), _by_name(spans))

    def _take_over(self, node: onnx_ir.Node) -> None:
        """An operator that stays: it reads floats."""
        self._dequantise_table(node)
        self._between_pair(node)
        self._multiply_instead(node)
        for place, value in enumerate(node.inputs):
            if value in self.stands:
                node.replace_input_with(place, self._float(value))
        self._produced(node)

    def _float(self, value: Value | None) -> Value:
        """The float value that stands for what a node reads."""
        assert value is not None
        return self.stands.get(value, value)

    def _stand_in(self, output: Value, constant: Value) -> None:
        """A constant is what a pair gave, called so."""
        self.stands[output] = constant
        self.edit.replace(output, constant)

    def _refuse(self, node: onnx_ir.Node, why: str) -> NoReturn:
        raise ModelError(f"{self.file}: node {node.name or node.outputs[0].name} ({node.op_type}){why}")

    def _parameters(self, node: onnx_ir.Node) -> tuple[np.ndarray, np.ndarray]:
        scale, zero = (content_of(input_of(node, place)) for place in (1, 2))
        for value, array in zip(node.inputs[1:3], (scale, zero), strict=False):
            if value is not None and array is None:
                self._refuse(
                    node,
                    f": scale or zero point {value.name} is computed at run time; use static quantisation, "
                    "or convert the float model",
                )
        if zero is not None and not is_integer(zero.dtype):
            self._refuse(
                node,
                f": zero point {node.inputs[2].name} is not an integer; quantise to integers, or convert the "  # type: ignore[union-attr]
                "float model",
            )
        return np.asarray(scale, np.float32), np.zeros((), np.uint8) if zero is None else zero

    def _produced(self, node: onnx_ir.Node) -> None:
        """Track which values cannot be negative, and constants that are only moved."""
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in _GIVES and inputs and inputs[0] in self.weights:
            self.weights.add(node.outputs[0])  # transposed after its DequantizeLinear
            self.scales[node.outputs[0]] = self.scales[inputs[0]]
        elif node.op_type == "Transpose" and self.channels.get(inputs[0], np.ones(())).ndim:
            order = node.attributes.get_ints("perm")
            self.channels[node.outputs[0]] = self.channels[inputs[0]].transpose(order)
        self.not_negative.see(node)

    def _multiply_instead(self, node: onnx_ir.Node) -> None:
        """A division by constants as a product, which ONNX Runtime folds into the convolution before it.

        (PyTorch's quantisation-aware training divides by the factor of the batch norm that follows.)
        """
        source = input_of(node, 1) if node.op_type == "Div" else None
        divisor = content_of(source)
        if divisor is None or divisor.size < 2 or divisor.dtype != np.float32 or not np.all(divisor):
            return
        if source not in self.weights and source not in self.channels:
            node.op_type = "Mul"
            factor = self.edit.constant(f"{node.outputs[0].name}.factor", np.float32(1.0) / divisor)
            node.replace_input_with(1, factor)

    def _dequantise_table(self, node: onnx_ir.Node) -> None:
        """Rows of a table of integers, dequantised behind the Gather: the table itself becomes float."""
        source = input_of(node, 0) if node.op_type == "Gather" else None
        table = content_of(source)
        if source is None or table is None or table.dtype not in (np.int8, np.uint8):
            return
        rows = node.outputs[0]
        pair = next((reader for reader, _ in rows.uses() if reader.op_type == _DEQUANTISE), None)
        if pair is None:
            return
        if self._parameters(pair)[0].size != 1:
            self._refuse(
                pair, f": rows of {source.name} have several scales; use one, or convert the float model"
            )
        node.replace_input_with(0, self._constant(pair, source, table, f"{source.name}.{rows.name}"))
        self.integers[rows] = self._parameters(pair)

    def _between_pair(self, node: onnx_ir.Node) -> None:
        """An operator on the integers of a pair: what it picks or moves it may, also as floats."""
        read = [value for value in node.inputs if value is not None and value in self.integers]
        if not read:
            return
        same_type = node.op_type == "Cast" and node.attributes["to"].as_int() in EIGHT_BITS
        if node.op_type not in _ON_INTEGERS and not same_type:
            self._refuse(
                node,
                f" computes with integers of QuantizeLinear ({read[0].name}); put it behind "
                "DequantizeLinear, or convert the float model",
            )
        if node.op_type in _SIZES:
            return
        scale, zero = self.integers[read[0]]
        for output in node.outputs:
            self.integers[output] = (scale, zero)
            self._know(output, scale, zero)
        if same_type:  # (PyTorch casts uint8 to uint8)
            node.op_type = "Identity"
            node.attributes.clear()
        first = {"Clip": 1, "Pad": 2}.get(node.op_type)  # bounds, or the value to pad with
        if first is not None:
            for place in range(first, min(len(node.inputs), 3)):
                bound = content_of(node.inputs[place])
                if bound is not None:
                    meant = ((bound.astype(np.float32) - zero) * scale).astype(np.float32)
                    name = f"{node.outputs[0].name}.bound{place}"
                    node.replace_input_with(place, self.edit.constant(name, meant))

    def _quantise(self, node: onnx_ir.Node) -> None:
        """Forget the pair; a ReLU stays where the zero point made the lowest integer mean zero.

        Tools drop a ReLU when the saturation of QuantizeLinear does its work, and a Clip, which comes back
        where no integers of ours would saturate.  A constant becomes the integers that the model would
        compute from it.
        """
        scale, zero = self._parameters(node)
        source, output = self._float(node.inputs[0]), node.outputs[0]
        self.stands[output] = source
        data = content_of(source)
        if data is not None:
            integers = quantised(np.asarray(data, np.float32), *along_axis(node, data, scale, zero))
            self._stand_in(output, self.edit.constant(f"{output.name}.integers", integers))
            return
        self.integers[output] = (scale, zero)
        lowest = zero.size == 1 and is_lowest(zero)
        self._know(source, scale, zero)  # (also for a producer that cannot absorb the ReLU)
        saturates = self._saturates(source)
        unchanged = not lowest or source.is_graph_input() or source in self.not_negative
        if unchanged and not saturates:
            return
        if source not in self.clipped:
            op, bounds = ("Clip", self.limits[source]) if saturates else ("Relu", ())
            wanted = f"{source.name}.{op.lower()}"
            inputs = [source]
            for end, bound in zip(("low", "high"), bounds, strict=False):
                inputs.append(self.edit.constant(f"{wanted}.{end}", np.float32(bound)))
            called = f"{node.name or wanted}.{op.lower()}"
            (clipped,) = self.edit.insert(node, op, inputs, wanted, called=called)
            self.clipped[source] = clipped
            self._know(clipped, scale, zero)
            if not saturates:
                self.not_negative.add(clipped)
        self.stands[output] = self.clipped[source]

    def _saturates(self, value: Value) -> bool:
        """Whether a sum or product with one number leaves the range that it is quantised to.

        It will be part of a table, which has no integers in between.
        """
        node, limits = value.producer(), self.limits.get(value)
        if node is None or limits is None:
            return False
        spans = [None if read is None else self.limits.get(read) for read in node.inputs]
        return leaves(reach(node.op_type, spans, [content_of(read) for read in node.inputs]), limits)

    def _know(self, value: Value, scale: np.ndarray, zero: np.ndarray) -> None:
        """Remember what an activation's scale says about its symmetric scale."""
        if scale.size != 1 or zero.dtype not in (np.int8, np.uint8, *WIDE) or value in self.scales:
            return
        if not np.isfinite(scale):  # of a mask with -inf: calibrated
            return
        step, centre = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
        limits = np.iinfo(zero.dtype)
        self.limits[value] = span = (limits.min - centre) * step, (limits.max - centre) * step
        if zero.dtype not in WIDE and centre == (limits.min + limits.max + 1) // 2:
            self.scales[value] = step
            return
        self.scales[value] = symmetric_scale(*span)
        if zero.dtype in WIDE:
            self.wide.append(value)
        else:
            self.zeros[value] = Scale(step, int(centre - limits.min - 128))

    def _dequantise(self, node: onnx_ir.Node) -> bool:
        """Forget the pair; or not, where it multiplies integers by another scale than theirs: a product."""
        scale, zero = self._parameters(node)
        source, output = self._float(node.inputs[0]), node.outputs[0]
        data = content_of(source)
        if data is not None:
            self._stand_in(output, self._constant(node, source, data, f"{output.name}.float"))
            return True
        integers = None if node.inputs[0] is None else self.integers.get(node.inputs[0])
        if integers is not None and not np.array_equal(scale.reshape(-1), integers[0].reshape(-1)):
            self._rescale(node, source, scale, integers[0])
            return False
        self.stands[output] = source
        if source.is_graph_input():
            self._know(source, scale, zero)
        return True

    def _constant(self, node: onnx_ir.Node, source: Value, data: np.ndarray, wanted: str) -> Value:
        """A constant of integers as floats."""
        scale, zero = self._parameters(node)
        if not np.all(np.isfinite(scale)):
            self._refuse(
                node,
                f": the scale of constant {source.name} is infinite, so its values are lost; write -inf in "
                "masks as -1e4 before quantising, or convert the float model",
            )
        step, centre = along_axis(node, data, scale, zero)
        finite = np.finfo(np.float32)
        values = (data.astype(np.float32) - centre.astype(np.float32)) * step
        made = self.edit.constant(wanted, np.clip(values.astype(np.float32), finite.min, finite.max))
        if data.dtype == np.int32:  # a bias: its scale follows from input and weights
            return made
        shifted = data.astype(np.int32) - centre.astype(np.int32)
        if scale.size == 1 and np.array_equal(shifted, shifted.astype(np.int8)):
            self.scales[made] = float(scale.reshape(-1)[0])  # the integers stay, without their zero point
            self.weights.add(made)
        else:
            self.channels[made] = np.asarray(step, np.float32)
        return made

    def _rescale(self, node: onnx_ir.Node, source: Value, scale: np.ndarray, before: np.ndarray) -> None:
        """Dynamic quantisation reads the integers of a table without their scale, and multiplies later."""
        if scale.size > 1 or before.size > 1:
            self._refuse(
                node,
                f": its scale is not that of {source.name}, and neither is one number; use one scale, or "
                "convert the float model",
            )
        factor = (scale / before).astype(np.float32).reshape(())
        inputs = [source, self.edit.constant(f"{node.outputs[0].name}.factor", factor)]
        self.edit.become(node, "Mul", inputs)
        node.attributes.clear()
        self._produced(node)

    def _settle_outputs(self, pairs: Sequence[onnx_ir.Node]) -> list[str]:
        """Outputs of the graph that a pair gave: the float value takes the name; notes of integers."""
        notes = []
        for output in (value for node in pairs for value in node.outputs if value.is_graph_output()):
            if output.dtype in EIGHT_BITS:
                notes.append(
                    f"output {output.name} was an 8-bit integer tensor: it is now what these integers mean, "
                    "as int8"
                )
            node, source = output.producer(), self.stands[output]
            assert node is not None
            if source.is_graph_input() or source.is_graph_output():
                (source,) = self.edit.insert(
                    node, "Identity", [source], f"{output.name}.float", called="Identity"
                )
            source.type = onnx_ir.TensorType(DataType.FLOAT)
            self.edit.replace(output, source)
        return notes

    def _boundary_notes(self) -> list[str]:
        notes = []
        for value in self.edit.inputs():
            if value.dtype in EIGHT_BITS and value in self.scales:
                scale = self.zeros.get(value, Scale(self.scales[value]))
                zero = scale.zero + 128 * (value.dtype == DataType.UINT8)
                value.type = onnx_ir.TensorType(DataType.FLOAT)
                notes.append(
                    f"input {value.name} was an 8-bit integer tensor: it is now float, as is data for it: "
                    f"{scale.step:.6g} * {f'(integer - {zero})' if zero else 'integer'}"
                )
        return notes


def _by_name(known: Mapping[Value, _Known]) -> dict[str, _Known]:
    return {str(value.name): what for value, what in known.items()}
