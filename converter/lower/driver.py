"""Walk the plan and lower each step; what comes in and goes out, and what its integers mean."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fadiff.converter.errors import Unsupported
from fadiff.converter.ir.graph import ElementType, Graph
from fadiff.converter.ir.kinds import ELEMENTWISE, STRIDED, Kind
from fadiff.converter.ir.operators import is_a, written_positions
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.converter.ir.strided import StridedView, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.float_layers import FloatLayers
from fadiff.converter.lower.functions import lower_bytes, lower_formula, lower_lookup
from fadiff.converter.lower.movement import merged_parts
from fadiff.converter.lower.rows import lower_norm
from fadiff.converter.lower.table import find, problem
from fadiff.converter.plan.inputs import UNCHANGED, Affine, affine_of
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.rewrites import ABSORB_MOVEMENT

_MOVEMENT = Kind.RESHAPE | Kind.TRANSPOSE | Kind.SHUFFLE | STRIDED
"""What only changes the access to a value."""


def unsupported(
    program: Program, steps: Sequence[Step], element: ElementType = "int8"
) -> tuple[Unsupported, ...]:
    """Every step that cannot be lowered for an array of `element`s, with its reason.

    A known operator whose shape only a refused one before it could tell is not another reason.
    """
    found: list[Unsupported] = []
    unshaped: set[str] = set()
    for step in steps:
        broken = problem(program, step, element)
        if broken is None:
            continue
        if find(step.head) is None or not unshaped & set(step.head.inputs):
            found.append(broken)
        unshaped.update(v for node in step.nodes for v in node.outputs if v not in program.shapes)
    for name in program.outputs:
        if 0 in program.shapes.get(name, ()):
            found.append(Unsupported(name, "output", "", "has no elements", "remove it before exporting"))
    return tuple(found)


def lower(
    name: str,
    program: Program,
    steps: Sequence[Step],
    quantisation: Quantisation,
    sha256: str = "",
    without: Collection[str] = (),
) -> Graph:
    """The Graph of a program all of whose steps are supported; `without` as in `fadiff.convert`."""
    lowering = Lowering(name, program, quantisation)
    floats = FloatLayers(lowering, steps)
    folded = {step.source: step for step in steps if step.kind == "input"}
    for value in program.inputs:
        if value in program.byte_inputs:
            lower_bytes(lowering, folded[value], _input_order(program, value))
        elif value in folded:
            _lower_folded(lowering, folded[value])
        else:
            floats.lower_input(value, _lower_input)
    for step in steps:
        if step.kind == "input":
            continue
        if step.kind == "output":
            lowering.values[step.output] = lowering.values[step.source]
            continue
        if step.is_float:
            floats.lower(step, _lower_step)
            continue
        _lower_step(lowering, step)
        if ABSORB_MOVEMENT in without and is_a(step.head, _MOVEMENT):
            for value in step.head.outputs:
                if value not in quantisation.joined:  # (a copy would not know of its parts)
                    lowering.values[value] = lowering.copy(lowering.values[value], name=step.name)
    floats.finish()
    outputs = finish_outputs(lowering, {step.output: step for step in steps if step.kind == "output"})
    graph = lowering.graph.build(outputs, sha256)
    stored = dict(zip(program.outputs, outputs, strict=True))
    states = tuple(
        State(stored[state.output], lowering.values[state.input].tensor) for state in program.states
    )
    return replace(graph, states=states)


def _lower_step(lowering: Lowering, step: Step) -> None:
    if step.kind == "lookup":
        (lower_formula if lowering.is_float else lower_lookup)(lowering, step)
    elif step.norm is not None:
        lower_norm(lowering, step, step.norm)
    else:
        operator = find(step.head)
        assert operator is not None
        operator.lower(lowering, step)


def _lower_input(lowering: Lowering, value: str, stored: str = "", along: AxisScales | None = None) -> None:
    """An input of the graph; where `stored` is given, it holds that function of it, as `along` says."""
    program = lowering.program
    shape = program.shapes[value]
    scale = lowering.scale(stored or value)
    order, zero = _input_order(program, value), lowering.zero(value)
    sizes = _stored_sizes(program, value, order)
    if zero and along is None and scale is not None:
        along = meaning_along(UNCHANGED, scale, zero, sizes, len(sizes) - 1)
    tensor = lowering.graph.input(
        value,
        sizes,
        lowering.dtype(value),
        zero=zero,
        scale=scale,
        onnx_name=value,
        onnx_axes=None if order == tuple(range(len(shape))) else order,
        along=along,
    )
    lowering.values[stored or value] = dense(tensor, shape, scale, order)


def _lower_folded(lowering: Lowering, step: Step) -> None:
    """An input of which the first operators are what its integers mean: x = (scale * q - shift) / factor."""
    program, value = lowering.program, step.source
    affine, scale = affine_of(program, step.nodes), lowering.scale(step.output)
    assert scale is not None
    inverse = Affine(1 / affine.factor, -affine.shift / affine.factor, affine.axis)
    order = _input_order(program, value)
    stored = _stored_sizes(program, value, order)
    axis = len(stored) - 1 if affine.axis is None else order.index(affine.axis)
    _lower_input(lowering, value, step.output, meaning_along(inverse, scale, 0, stored, axis))


def _stored_sizes(program: Program, value: str, order: Sequence[int]) -> tuple[int, ...]:
    """Of an input; a number that has no axes is stored along one."""
    return tuple(program.shapes[value][axis] for axis in order) or (1,)


def _input_order(program: Program, value: str) -> tuple[int, ...]:
    """The axes of an input in storage order.

    Rows of a cache are outermost: new ones adjoin, and the first of them are the beginning of its memory.
    """
    rank = len(program.shapes[value])
    rows = _rows_axis(program, value) if any(state.input == value for state in program.states) else None
    if rows is not None:
        return (rows, *(axis for axis in range(rank) if axis != rows))
    is_image = rank in (3, 4) and _is_image(program, value)
    return (0, *range(2, rank), 1) if is_image else tuple(range(rank))


def _rows_axis(program: Program, value: str) -> int | None:
    """The axis of a value along which rows are written at positions, if any are."""
    for node in program.consumers(value):
        if is_a(node, Kind.TRANSPOSE):
            turned = _rows_axis(program, node.outputs[0])
            if turned is not None:
                return int(node.attributes.get("perm", range(len(program.shapes[value]))[::-1])[turned])
        elif is_a(node, Kind.SCATTER) and node.inputs[0] == value:
            written = written_positions(program, node)
            return None if written is None else written[1]
    return None


def _is_image(program: Program, value: str) -> bool:
    """Whether a value reaches an operator on images through element-wise operators only."""
    pending, seen = [value], set()
    while pending:
        for node in program.consumers(pending.pop()):
            if is_a(node, Kind.IMAGE):
                return True
            if is_a(node, ELEMENTWISE | Kind.JOIN | Kind.PAD | Kind.PART) and node.name not in seen:
                seen.add(node.name)
                pending.extend(node.outputs)
    return False


def meaning_along(affine: Affine, scale: float, zero: int, stored: Sequence[int], axis: int) -> AxisScales:
    """What integers of a scale and zero point mean after an affine function that varies along an axis of the
    stored shape, if at all."""
    factor, shift = (array.reshape(-1) for array in np.broadcast_arrays(affine.factor, affine.shift))
    count = stored[axis] if factor.size == 1 else 1
    parts = [
        Part(count, float(np.float32(scale * f)), float(np.float32(s - zero * scale * f)))
        for f, s in zip(factor.tolist(), shift.tolist(), strict=True)
    ]
    return AxisScales(axis, merged_parts(parts))


def finish_outputs(lowering: Lowering, ends: Mapping[str, Step]) -> tuple[str, ...]:
    """Names of the graph outputs: each a whole tensor that stores exactly one ONNX output.

    An output that is a view, shuffles an axis, has another scale than its tensor, or is a graph input
    is copied; one that is a state, too, where it is stored otherwise than the input that it becomes.
    `ends` are steps of kind output, by what they give: what the integers mean.
    """
    names: list[str] = []
    inputs = {state.output: lowering.values[state.input] for state in lowering.program.states}
    for value in lowering.program.outputs:
        stored = lowering.value(value)
        tensor = lowering.graph.tensors[stored.tensor]
        whole = lowering.is_whole(stored) and tensor.scale == stored.scale
        sizes = ([n for n in of if n > 1] for of in (tensor.shape, lowering.program.shapes[value]))
        if value in ends and len({tuple(sorted(some)) for some in sizes}) > 1:
            whole = False  # (its axes are not those that the meaning is along)
        row_major = stored.is_row_major
        shuffled = not row_major and stored.storage_order() is None
        again = inputs.get(value)
        unlike = again is not None and (stored.scale != again.scale or not _ordered_alike(stored, again))
        if (
            not whole
            or shuffled
            or unlike
            or stored.tensor in (*lowering.graph.inputs, *names)
            or tensor.data is not None
        ):
            stored = (
                lowering.copy(stored, name="out") if again is None else _stored_like(lowering, stored, again)
            )
            row_major = stored.is_row_major
        lowering.rename(stored, value, row_major)
        if value in ends or lowering.zero(value):
            _give_meaning(lowering, stored.tensor, value, ends.get(value))
        names.append(stored.tensor)
    return tuple(names)


def _give_meaning(lowering: Lowering, name: str, value: str, step: Step | None) -> None:
    """Of the integers of an output that has a zero point, or that a step of kind output ends."""
    tensor, shape = lowering.graph.tensors[name], lowering.program.shapes[value]
    affine = UNCHANGED if step is None else affine_of(lowering.program, step.nodes)
    axis, source = len(tensor.shape) - 1, value if step is None else step.source
    order = tensor.onnx_axes or tuple(range(len(shape)))
    if affine.axis is not None and shape[affine.axis] > 1:
        sizes = [shape[i] for i in order]  # (as stored, but for axes of size 1)
        inner = math.prod(sizes[order.index(affine.axis) + 1 :])
        places = enumerate(tensor.shape)
        axis = next(i for i, n in places if n > 1 and math.prod(tensor.shape[i + 1 :]) == inner)
    assert tensor.scale is not None
    along = meaning_along(affine, tensor.scale, lowering.zero(source), tensor.shape, axis)
    lowering.graph.tensors[name] = replace(tensor, along=along)


def _ordered_alike(a: StridedView, b: StridedView) -> bool:
    return (a.is_row_major and b.is_row_major) or (
        a.storage_order() is not None and a.storage_order() == b.storage_order()
    )


def _stored_like(lowering: Lowering, value: StridedView, like: StridedView) -> StridedView:
    """The value in a tensor of its own with the scale and the order of axes of another one."""
    model = lowering.graph.tensors[like.tensor]
    tensor = lowering.graph.tensor(f"{value.tensor}.state", model.shape, model.dtype, model.scale)
    target = replace(like, tensor=tensor)
    lowering.rescale(value, target, f"{tensor}.copy")
    return target
