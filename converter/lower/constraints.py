"""Operator: the record of one that is lowered, and the constraints that it must satisfy.

A constraint returns None, or the reason for a refusal.  Its docstring is the rule as users read it
in docs/SUPPORTED_OPS.md, so it is written as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx

from fadiff.converter.ir.kinds import ARITHMETIC, named
from fadiff.converter.ir.operators import reduction_axes, window_of, written_positions
from fadiff.converter.ir.program import NARROW_INTEGERS, Node, Program
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step

_MOST_PHASES = 4096
_FARTHEST_TAP = 65536
Constraint = Callable[[Program, Node], str | None]
Lower = Callable[[Lowering, Step], None]
Where = Literal["array", "core", "gone", "store"]
"""Where an operator runs: systolic array, RISC-V core, nowhere (it became an access pattern), or the core or
the stores of the layer before."""


@dataclass(frozen=True)
class Operator:
    """One operator of ONNX."""

    op: str
    where: Where
    lower: Lower
    constraints: tuple[Constraint, ...] = ()


def constant_weight(program: Program, node: Node) -> str | None:
    """The weights (second input) are constant."""
    return None if node.input(1) in program.constants else f"weights {node.input(1)} are computed at run time"


def constant_bias(program: Program, node: Node) -> str | None:
    """The bias (third input), if any, is constant and has one value per output channel."""
    name = node.input(2)
    if not name:
        return None
    array = program.constant(name)
    if array is None:
        return f"bias {name} is computed at run time"
    channels = program.shapes[node.outputs[0]][1]
    return (
        None
        if array.size in (1, channels) and array.shape[-1:] in ((), (1,), (channels,))
        else (f"bias {name} has shape {list(array.shape)}, expected {channels} values")
    )


def image(program: Program, node: Node) -> str | None:
    """The input is N C W or N C H W (one or two spatial axes), and so is the output."""
    shape, result = (program.shapes[name] for name in (node.inputs[0], node.outputs[0]))
    if len(shape) not in (3, 4):
        found = f"input {node.inputs[0]} has shape {list(shape)}, neither N C W nor N C H W"
        return f"{found}; replace it by operators of one or two spatial axes"
    return None if len(result) == len(shape) else f"output {node.outputs[0]} has shape {list(result)}"


def float_values(program: Program, node: Node) -> str | None:
    """Inputs and output are floating point (they become int8)."""
    values = (*program.activations(node), *node.outputs)
    bad = next((v for v in values if v and v in program.types and not program.is_float(v)), None)
    return None if bad is None else f"{bad} is not floating point; cast it to float before"


def one_output(program: Program, node: Node) -> str | None:
    """Only the first output is used."""
    used = [v for v in node.outputs[1:] if v and (program.consumers(v) or v in program.outputs)]
    return f"output {used[0]} is used" if used else None


def windows_begin_inside(program: Program, node: Node) -> str | None:
    """With ceil_mode, where the last window would begin behind the image: ONNX infers the input's shape."""
    *_, height, width = (1, *program.shapes[node.inputs[0]][2:])
    kernel = node.attributes["kernel_shape"]
    if not node.attributes.get("ceil_mode", 0) or len(kernel) > 2:
        return None
    output = window_of(node, (height, width), kernel).output
    if output[2 - len(kernel) :] == tuple(program.shapes[node.outputs[0]][2:]):
        return None
    return (
        f"the shape of {node.outputs[0]} counts windows that begin behind the image, which ONNX "
        f"Runtime drops, and the shape of {node.inputs[0]} is computed (onnxsim can make it constant)"
    )


def row_major_indices(program: Program, node: Node) -> str | None:
    """storage_order is 0."""
    return "storage_order=1" if node.attributes.get("storage_order", 0) else None


def spatial_mean(program: Program, node: Node) -> str | None:
    """The mean is taken over all spatial axes of an N C H W (or N C W) value."""
    rank = len(program.shapes[node.inputs[0]])
    axes = reduction_axes(program, node)
    if axes is None:
        return "axes are computed at run time"
    return None if rank in (3, 4) and axes == tuple(range(2, rank)) else f"axes {list(axes)} of rank {rank}"


def static_shape(program: Program, node: Node) -> str | None:
    """All shapes are known after the input dimensions are bound."""
    for value in (*node.inputs, *node.outputs):
        if value and value not in program.shapes:
            return f"the shape of {value} is not static"
    return None


def same_elements(program: Program, node: Node) -> str | None:
    """The result has as many elements as the value (also where only the file says its shape)."""
    before, after = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    return None if math.prod(before) == math.prod(after) else f"{list(before)} cannot become {list(after)}"


def few_phases(program: Program, node: Node) -> str | None:
    """Strides multiply to at most 4096 (each phase is a convolution); windows reach 65536 pixels at most."""
    strides = node.attributes.get("strides", (1,))
    if math.prod(strides) > _MOST_PHASES:
        return f"strides {list(strides)}"
    kernel = program.shapes[node.inputs[1]][2:]
    dilations = node.attributes.get("dilations", (1,) * len(kernel))
    reach = max((k - 1) * d for k, d in zip(kernel, dilations, strict=False))
    return f"windows over {reach + 1} pixels" if reach >= _FARTHEST_TAP else None


def channels_of_groups(program: Program, node: Node) -> str | None:
    """Weights have as many channels as the groups of the input."""
    weight, channels = program.shapes[node.inputs[1]], program.shapes[node.inputs[0]][1]
    groups = int(node.attributes.get("group", 1))
    fits = weight[0] and not weight[0] % groups and weight[1] * groups == channels
    return None if fits else f"weights {list(weight)} in {groups} groups do not fit {channels} channels"


def parts_of_all(program: Program, node: Node) -> str | None:
    """The parts are as long as the value."""
    whole = program.shapes[node.inputs[0]]
    parts = [program.shapes[value] for value in node.outputs if value]
    axis = int(node.attributes.get("axis", 0)) % max(1, len(whole))
    fits = all(len(part) == len(whole) for part in parts) and sum(part[axis] for part in parts) <= whole[axis]
    return None if fits else f"{list(whole)} does not fall into {[list(part) for part in parts]}"


def slopes(program: Program, node: Node) -> str | None:
    """The slopes broadcast to the value."""
    value, slope = (program.shapes[v] for v in node.inputs[:2])
    pairs = zip(reversed(value), reversed(slope), strict=False)
    fits = len(slope) <= len(value) and all(n in (1, m) for m, n in pairs)
    return None if fits else f"slopes {list(slope)} do not broadcast to {list(value)}"


def constant_inputs(program: Program, node: Node) -> str | None:
    """All inputs but the first are constant."""
    bad = [v for v in node.inputs[1:] if v and v not in program.constants]
    return f"{bad[0]} is computed at run time" if bad else None


def bare_matrices(program: Program, node: Node) -> str | None:
    """At least one operand is computed (two constants are folded)."""
    computed = any(v not in program.constants for v in node.inputs)
    return None if computed else "both operands are constant"


def known_resize(program: Program, node: Node) -> str | None:
    """mode is nearest, or linear over the two last axes of an N C H W value; no antialias, cropping or
    keep_aspect_ratio_policy."""
    mode = node.attributes.get("mode", "nearest")
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    if node.attributes.get("antialias", 0) or mode not in ("nearest", "linear", "bilinear"):
        return f"mode {mode}{' with antialias' if node.attributes.get('antialias', 0) else ''}"
    if node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return "coordinate_transformation_mode tf_crop_and_resize"
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return f"keep_aspect_ratio_policy {policy} (give the sizes that it comes to)"
    if mode != "nearest" and (len(shape) != 4 or shape[:2] != out[:2]):
        return f"linear from {list(shape)} to {list(out)}"
    return None


def inference_mode(program: Program, node: Node) -> str | None:
    """Inference mode (training_mode 0, one output)."""
    if node.attributes.get("training_mode", 0) or len([v for v in node.outputs if v]) > 1:
        return "training mode; export the model for inference (in PyTorch after .eval())"
    return None


def not_empty(program: Program, node: Node) -> str | None:
    """No computed input or used output has a dimension of size zero, or a window larger than its image."""
    used = [v for v in node.outputs if program.consumers(v) or v in program.outputs]
    for value in (*program.activations(node), *used):
        if value and min(program.shapes.get(value, ()), default=1) < 1:
            return f"{value} has shape {list(program.shapes[value])}: give larger --dim sizes"
    return None


def known_axes(program: Program, node: Node) -> str | None:
    """The reduced axes are constant."""
    return "axes are computed at run time" if reduction_axes(program, node) is None else None


def rows_of_gemm(program: Program, node: Node) -> str | None:
    """Both matrices are two-dimensional."""
    return None if len(program.shapes[node.inputs[0]]) == 2 else "input is not a matrix"


_MAY_OVERFLOW = (named(ARITHMETIC) - {"Div"}) | {"Sum", "BitShift"}


def numbers(program: Program, node: Node) -> str | None:
    """All floating point (they become int8), or all integers: of 32 or 64 bits, kept in 32, or where no
    result can overflow also of 8 or 16; a divisor is constant and not zero, a shift constant."""
    values = [v for v in (*node.inputs, *node.outputs) if v]
    if all(program.is_float(v) for v in values):
        return None
    return integers(program, node)


def integers(program: Program, node: Node) -> str | None:
    """Integers of 32 or 64 bits, kept in 32, or where no result can overflow also of 8 or 16; a divisor is
    constant and not zero, a shift constant."""
    for value in (*node.inputs, node.outputs[0]):
        if not program.is_integer(value) and not (value == node.outputs[0] and program.is_bool(value)):
            return f"{value} is no integer"
    narrow = node.op in _MAY_OVERFLOW and program.types[node.outputs[0]] in NARROW_INTEGERS
    if narrow and node.attributes.get("direction") != "RIGHT":
        return f"{node.outputs[0]} has 8 or 16 bits and may overflow"
    if node.op in ("Div", "Mod", "BitShift"):
        second = program.constant(node.inputs[1])
        if second is None:
            return f"{node.inputs[1]} is computed at run time"
        if node.op == "BitShift" and np.any((second < 0) | (second > 31)):
            return f"{node.inputs[1]} shifts by more than 31"
        if node.op != "BitShift" and np.any(second == 0):
            return f"{node.inputs[1]} has a zero"
    return None


def booleans(program: Program, node: Node) -> str | None:
    """Operands are boolean."""
    bad = next((v for v in node.inputs if v and not program.is_bool(v)), None)
    return None if bad is None else f"{bad} is not boolean"


def comparable(program: Program, node: Node) -> str | None:
    """Operands (of Where: the second and third) are floating point, boolean, or integers kept in 32 bits."""
    operands = [v for v in (node.inputs[1:] if node.op == "Where" else node.inputs) if v]
    for alike in (program.is_float, program.is_integer, program.is_bool):
        if all(alike(value) for value in operands):
            return None
    return f"{operands[0]} and {operands[-1]} are not of one kind"


def of_integers(program: Program, node: Node) -> str | None:
    """From integers, booleans or floating point to any of these."""
    for value in (node.inputs[0], node.outputs[0]):
        if not (program.is_integer(value) or program.is_float(value) or program.is_bool(value)):
            return f"{value} has an element type of less than 8 bits, or no numbers"
    if not program.is_integer(node.inputs[0]):
        return f"{node.outputs[0]} is not a function of one value alone"
    return None


def int32_indices(program: Program, node: Node) -> str | None:
    """Indices are constant, or an integer input of the graph."""
    name = node.inputs[1]
    if name in program.constants:
        return None
    kind = program.types.get(name)
    return None if kind in (onnx.TensorProto.INT32, onnx.TensorProto.INT64) else f"{name} is no integer"


def slices_along_one_axis(program: Program, node: Node) -> str | None:
    """Computed indices are positions along one axis, where whole slices are written (new rows of a cache)."""
    if node.attributes.get("reduction", "none") != "none":
        return f"reduction {node.attributes['reduction']}"
    data, indices, updates = node.inputs[:3]
    for alike in (program.is_float, program.is_integer, program.is_bool):
        if alike(data) != alike(updates):
            return f"{data} and {updates} are not of one kind"
    if written_positions(program, node) is None:
        return (
            f"indices {indices} are computed at run time and no positions along one axis; write a cache with "
            "index_copy or scatter and export it with torch.onnx.export(..., dynamo=True)"
        )
    return None
