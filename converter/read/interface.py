"""What the program around hands over for inputs: integers of our making, bytes, whole numbers, floats.

Bytes are pixels as a camera gives them: value = scale * (byte - zero), with the scale that makes 0 to 255 the
numbers that the model expects.  Whole numbers are positions or time steps that the file declares as floats.

Which range is expected the first operators tell: exporters often leave the normalisation of images in the
graph, (x - mean) / std, x / 255, a batch normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import onnx
import onnx_ir
from onnx import TensorProto

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import MOVE, Kind, is_a
from fadiff.converter.ir.operators import norm_affine
from fadiff.converter.ir.program import FLOATS, Node, Program
from fadiff.converter.names import did_you_mean, printable
from fadiff.converter.read.dimensions import graph_inputs
from fadiff.converter.read.inputs import Samples, Spans

_USUAL = ((0.0, 255.0), (0.0, 1.0), (-1.0, 1.0))
"""Pixels, and pixels that somebody scaled."""
_DEVIATIONS = 3.0
_LEAST, _MOST = 0.9, 6.0
"""How wide a normalised range is at least, and how far it reaches: one to a few deviations."""


def suggested_spans(program: Program) -> Spans:
    """Smallest and largest number of inputs whose first operators normalise them.

    Inputs of other numbers are left out: bytes that become floats are 0 to 255.
    """
    spans = {}
    for name in program.inputs:
        if program.types[name] == onnx.TensorProto.UINT8:
            node = program.sole_consumer(name)
            if node is not None and node.op == "Cast":
                spans[name] = (0.0, 255.0)
        elif program.is_float(name):
            span = _span(program, name)
            if span is not None:
                spans[name] = span
    return spans


def _span(program: Program, value: str) -> tuple[float, float] | None:
    gain, shift = np.ones(1), np.zeros(1)
    found = False
    while (node := program.sole_consumer(value)) is not None and node.inputs[0] in (value, *node.inputs[1:]):
        if is_a(node, Kind.ARITHMETIC) or node.op == "BatchNormalization":
            step = _affine(program, node, value)
            if step is None:
                break
            try:
                gain, shift = gain * step[0], shift * step[0] + step[1]
            except ValueError:  # per channel, along different axes
                break
            found = True
        elif not is_a(node, MOVE) and node.op != "Cast":
            break
        value = node.outputs[0]
    if not found or not np.all(np.isfinite(gain)) or not np.all(gain) or np.all(gain == 1):
        return None  # what is only moved is a sum like any other
    moved = bool(np.any(shift))
    for low, high in _USUAL if moved else _USUAL[:1]:
        reach = np.maximum(np.abs(gain * low + shift), np.abs(gain * high + shift))
        width = np.abs(gain) * (high - low)
        if float(width.min()) >= _LEAST and float(reach.max()) <= _MOST:
            return low, high
    if not moved:  # a factor alone that makes no pixels small, as attention has on its queries
        return None
    ends = np.stack([(side - shift) / gain for side in (-_DEVIATIONS, _DEVIATIONS)])
    return float(ends.min()), float(ends.max())


def _affine(program: Program, node: Node, value: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and summand (per channel, or one) that an operator applies to a value."""
    if node.op == "BatchNormalization":
        return norm_affine(program, node) if node.inputs[0] == value else None
    first = node.inputs[0] == value
    other = program.constant(node.inputs[1] if first else node.inputs[0])
    if other is None or (node.op == "Div" and not first):
        return None
    numbers = other.reshape(-1).astype(np.float64)
    one, none = np.ones(1), np.zeros(1)
    with np.errstate(divide="ignore"):
        return {
            "Add": (one, numbers),
            "Sub": (one, -numbers) if first else (-one, numbers),
            "Mul": (numbers, none),
            "Div": (1 / numbers, none),
        }[node.op]


InputType = Literal["int8", "uint8", "int32", "float32"]
InputTypes: TypeAlias = InputType | Mapping[str, InputType]
"""Of all float inputs, or by name (int8 where none is given)."""

Byte: TypeAlias = tuple[float, int]
"""Scale and zero point of an input that comes as bytes."""

_LEVELS = 255


def input_types(file: str, model: onnx.ModelProto, wanted: InputTypes) -> dict[str, InputType]:
    """The type of each float input of a model.

    Raises:
        ModelError: there is no such float input; or all of several are to be whole numbers.
    """
    floats = [value.name for value in graph_inputs(model) if value.type.tensor_type.elem_type in FLOATS]
    if isinstance(wanted, str):
        if wanted == "int32" and len(floats) > 1:
            names = ", ".join(map(printable, floats))
            raise ModelError(
                f"{file}: --input-type int32: say which of {names} holds whole numbers: NAME=int32"
            )
        return dict.fromkeys(floats, wanted)
    for name in wanted:
        if name not in floats:
            advice = did_you_mean(name, floats)
            raise ModelError(
                f"{file}: --input-type: {printable(name)} is no float input of the model; {advice}"
                f"{' ' if advice else ''}it has {', '.join(map(printable, floats)) or 'none'}"
            )
    return {name: wanted.get(name, "int8") for name in floats}


def take_whole_numbers(model: onnx.ModelProto, types: Mapping[str, InputType]) -> onnx.ModelProto:
    """The model with such inputs as int32, and a Cast behind them."""
    edit = Editor(model)
    for value in model.graph.input:
        if types.get(value.name) == "int32":
            edit.put_behind_input(value.name, "Cast", to=value.type.tensor_type.elem_type)
            edit.value(value.name).type = onnx_ir.TensorType(onnx_ir.DataType.INT32)
    return edit.model()


def take_bytes(
    model: onnx.ModelProto, program: Program, types: Mapping[str, InputType], samples: Samples, spans: Spans
) -> tuple[onnx.ModelProto, dict[str, Byte]]:
    """The model, and what its inputs that come as bytes mean; each float one among them is read through an
    Identity then.

    An input that the file declares as uint8 is one where a Cast alone reads it.
    """
    edit = Editor(model)
    found: dict[str, Byte] = {}
    states = {state.input for state in program.states}
    for name in program.inputs:
        if types.get(name) == "uint8" and name not in states and name not in program.outputs:
            found[name] = _meaning(name, samples, spans)
            edit.put_behind_input(name, "Identity")
        elif program.types[name] == TensorProto.UINT8:
            reader = program.sole_consumer(name)
            if reader is not None and reader.op == "Cast" and program.is_float(reader.outputs[0]):
                found[name] = (1.0, 0)
    return edit.model(), found


def _meaning(name: str, samples: Samples, spans: Spans) -> Byte:
    """By what the samples hold, else by what the first operators expect, else a pixel as it is."""
    seen = [np.asarray(sample[name]) for sample in samples if name in sample]
    if seen:
        low, high = float(min(a.min() for a in seen)), float(max(a.max() for a in seen))
    else:
        low, high = spans.get(name, _USUAL[0])
    fitting = [span for span in _USUAL if span[0] <= low and high <= span[1]]
    low, high = min(fitting, key=lambda span: span[1] - span[0], default=(min(low, 0.0), max(high, 0.0)))
    if low == high:  # (nothing but zeros was seen)
        low, high = _USUAL[0]
    return float(np.float32((high - low) / _LEVELS)), round(-low * _LEVELS / (high - low))
