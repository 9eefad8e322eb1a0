"""shift-zeros: values that need not be symmetric get a zero point, and 255 steps instead of as few as 127.

What a rectifier, a sigmoid or an ELU leaves lies on one side of zero, or mostly: with 127 for the largest
magnitude half of the integers never occur.  Gemmini has no zero points, but sums are linear: the reader's
bias takes z times the sum of its weights, the writer's bias adds z steps of the output, and a ReLU whose
zero is -128 is saturation.  Tables hold any integers.  Values that others than products and tables touch
stay symmetric.

Padding is zero on the array.  So a value that is read with padding has a zero point only where it is stored
with its zero point around it (converter/lower/products.py): bordered.  That costs the core the border, and
the schedule the fusion of writer and reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import linear_factor, window_of
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.joins import joined_outputs
from fadiff.converter.quantise.scales import saturates_at

LOWEST = -128
_STEPS = 255
Zeros = Literal["none", "free", "bordered"]
"""Which values have zero points: none, those where it costs nothing, or also those that are then bordered."""


def can_shift(program: Program, steps: Sequence[Step], zeros: Zeros = "free") -> frozenset[str]:
    """The values that may have a zero point: one product or table writes them, and only such read them, or a
    Concat for an output."""
    if zeros == "none":
        return frozenset()
    readers, joined = _readers(program, steps), joined_outputs(program, steps)
    return frozenset(
        step.output
        for step in steps
        if (_is_table(program, step) or _is_product(program, step))
        and step.output not in program.outputs
        and readers[step.output]
        and all(
            reader.output in joined or _reads(program, reader, step.output, zeros)
            for reader in readers[step.output]
        )
    )


def _readers(program: Program, steps: Sequence[Step]) -> Mapping[str, list[Step]]:
    found: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        for name in {name for node in step.nodes for name in program.activations(node)}:
            found[name].append(step)
    return found


def zero_and_scale(low: float, high: float, *, rectified: bool) -> tuple[int, float] | None:
    """The zero point and the scale that spread a range over all integers; None where it is empty."""
    low, high = (0.0 if rectified else min(low, 0.0)), max(high, 0.0)
    scale = float(np.float32(high - low) / np.float32(_STEPS))
    if not np.isfinite(scale) or scale < np.finfo(np.float32).tiny:
        return None
    return int(np.clip(np.rint(LOWEST - low / scale), LOWEST, -LOWEST - 1)), scale


def shifted(
    program: Program, steps: Sequence[Step], ranges: Mapping[str, tuple[float, float]], zeros: Zeros
) -> dict[str, tuple[int, float]]:
    """Zero point and scale by value, of those that gain steps by one; those of one role, all or none."""
    rectified = {step.output for step in steps if step.activation == "relu"}
    found = {}
    can = can_shift(program, steps, zeros) & ranges.keys()
    apart = {role for value, role in program.roles.items() if value in ranges and value not in can}
    for value in sorted(value for value in can if program.roles.get(value) not in apart):
        pair = zero_and_scale(*ranges[value], rectified=value in rectified)
        if pair is not None:
            found[value] = pair
    return found


def prescribed(
    program: Program, steps: Sequence[Step], zeros: Zeros, given: Mapping[str, tuple[int, float]]
) -> dict[str, tuple[int, float]]:
    """Those of a quantised file's zero points (and scales) that the array can have; inputs and outputs, too.

    Saturation has to do what a ReLU or Clip in the same layer does.  What is only moved keeps its own if what
    it becomes has the same.
    """
    writers, readers = {step.output: step for step in steps}, _readers(program, steps)
    states = {end for state in program.states for end in (state.input, state.output)}
    fixed = {*program.common_scales, *program.float_inputs, *states}
    found = {value: pair for value, pair in given.items() if value not in fixed}

    def is_written(value: str) -> bool:
        step = writers.get(value)
        if step is None:
            return value in program.inputs and value not in program.byte_inputs
        if _is_move(step):
            return found.get(step.source) == found[value]
        return _is_table(program, step) or (_is_product(program, step) and _saturates(step, found[value]))

    def is_read(value: str, step: Step) -> bool:
        moved = _is_move(step) and found.get(step.output) == found[value]
        return moved or _reads(program, step, value, zeros)

    while lost := [
        value
        for value in found
        if not is_written(value) or not all(is_read(value, step) for step in readers[value])
    ]:
        for value in lost:
            del found[value]
    return found


def zero_notes(
    stored: Collection[str],
    scales: Mapping[str, float],
    given: Mapping[str, tuple[int, float]],
    kept: Mapping[str, tuple[int, float]],
) -> list[str]:
    """What became of the zero points that a file gives stored values."""
    notes = [f"{len(kept)} zero points of the file are kept"] if kept else []
    lost = [value for value in stored if value in given and value not in kept]
    if lost:
        coarsest = max(scales.get(value, 0.0) / given[value][1] for value in lost)
        notes.append(
            f"{len(lost)} activations had zero points that others than products and tables read (first: "
            f"{lost[0]}): requantised symmetrically over the same range; not bit-exact with the file: off by "
            f"at most half a step, and a step is up to {coarsest:.2f} of the file's"
        )
    return notes


def _saturates(step: Step, pair: tuple[int, float]) -> bool:
    """Whether integers with a zero point end where the ReLU or Clip of a layer does."""
    top = (INT8_MAX - pair[0]) * pair[1]
    return (step.activation != "relu" or pair[0] == LOWEST) and (
        step.ceiling is None or saturates_at(step.ceiling, top / INT8_MAX)
    )


def _is_move(step: Step) -> bool:
    return step.kind == "node" and is_a(step.head, Kind.SAME | Kind.RESHAPE | Kind.TRANSPOSE)


def _reads(program: Program, step: Step, value: str, zeros: Zeros) -> bool:
    if _is_table(program, step):
        return True
    if not _is_product(program, step) or step.head.inputs[0] != value:
        return False
    if step.head.op != "Conv" or zeros == "bordered":
        return True
    weight, shape = program.shapes[step.head.inputs[1]], program.shapes[value]
    return not any(window_of(step.head, _plane(shape), weight[2:]).pads)


def _plane(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])


def _is_table(program: Program, step: Step) -> bool:
    """Whether a step is a table of int8, and no mere change of the scale."""
    if step.kind == "input":
        return step.source in program.byte_inputs
    floats = program.is_float(step.source) and program.is_float(step.output)
    table = step.kind == "lookup" and linear_factor(program, step.nodes) is None
    return table and floats and not step.is_float


def _is_product(program: Program, step: Step) -> bool:
    """Whether a step multiplies by constants that the lowering can sum up."""
    head = step.head
    if step.kind != "node" or step.is_float or not is_a(head, Kind.PRODUCT):
        return False
    weight = program.constant(head.inputs[1])
    plain = head.op == "Conv" or (weight is not None and weight.ndim == 2)
    alpha = float(head.attributes.get("alpha", 1.0))
    return plain and weight is not None and head.inputs[0] not in program.constants and alpha > 0
