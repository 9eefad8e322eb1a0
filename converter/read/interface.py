"""What the program around hands over for inputs: integers of our making, bytes, whole numbers, floats.

Bytes are pixels as a camera gives them: value = scale * (byte - zero), with the scale that makes 0 to 255 the
numbers that the model expects.  Whole numbers are positions or time steps that the file declares as floats.
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
from fadiff.converter.ir.program import FLOATS, Program
from fadiff.converter.names import did_you_mean, printable
from fadiff.converter.read.dimensions import graph_inputs
from fadiff.converter.read.inputs import Samples, Spans

USUAL_SPANS = ((0.0, 255.0), (0.0, 1.0), (-1.0, 1.0))
"""Pixels, and pixels that somebody scaled."""

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
    program: Program, types: Mapping[str, InputType], samples: Samples, spans: Spans
) -> tuple[onnx.ModelProto, dict[str, Byte]]:
    """The model, and what its inputs that come as bytes mean; each float one among them is read through an
    Identity then.

    An input that the file declares as uint8 is one where a Cast alone reads it.
    """
    edit = Editor(program.model)
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
        low, high = spans.get(name, USUAL_SPANS[0])
    fitting = [span for span in USUAL_SPANS if span[0] <= low and high <= span[1]]
    low, high = min(fitting, key=lambda span: span[1] - span[0], default=(min(low, 0.0), max(high, 0.0)))
    if low == high:  # (nothing but zeros was seen)
        low, high = USUAL_SPANS[0]
    return float(np.float32((high - low) / _LEVELS)), round(-low * _LEVELS / (high - low))
