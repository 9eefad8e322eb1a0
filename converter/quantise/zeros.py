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
from collections.abc import Mapping, Sequence

import numpy as np

from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a, linear_factor, pads_of
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Scale
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.scales import joined_outputs

LOWEST = -128
_STEPS = 255


def can_shift(program: Program, steps: Sequence[Step]) -> frozenset[str]:
    """The values that may have a zero point at no cost: one product or table writes them, and only such read
    them, or a Concat for an output."""
    readers, joined = readers_of(program, steps), joined_outputs(program, steps)
    return frozenset(
        step.output
        for step in steps
        if (is_table(program, step) or is_product(program, step))
        and step.output not in program.outputs
        and readers[step.output]
        and all(
            reader.output in joined or is_read_shifted(program, reader, step.output)
            for reader in readers[step.output]
        )
    )


def readers_of(program: Program, steps: Sequence[Step]) -> Mapping[str, list[Step]]:
    """The steps that read a value."""
    found: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        for name in {name for node in step.nodes for name in program.activations(node)}:
            found[name].append(step)
    return found


def scale_of_all(low: float, high: float, *, rectified: bool) -> Scale | None:
    """The scale that spreads a range over all integers; None where it is empty."""
    low, high = (0.0 if rectified else min(low, 0.0)), max(high, 0.0)
    step = float(np.float32(high - low) / np.float32(_STEPS))
    if not np.isfinite(step) or step < np.finfo(np.float32).tiny:
        return None
    return Scale(step, int(np.clip(np.rint(LOWEST - low / step), LOWEST, -LOWEST - 1)))


def shifted(
    program: Program, steps: Sequence[Step], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Scale]:
    """Scales by value, of those that gain steps by a zero point; those of one role, all or none."""
    rectified = {step.output for step in steps if step.activation == "relu"}
    found = {}
    can = can_shift(program, steps) & ranges.keys()
    apart = {role for value, role in program.roles.items() if value in ranges and value not in can}
    for value in sorted(value for value in can if program.roles.get(value) not in apart):
        scale = scale_of_all(*ranges[value], rectified=value in rectified)
        if scale is not None:
            found[value] = scale
    return found


def is_read_shifted(program: Program, step: Step, value: str, *, bordered: bool = False) -> bool:
    """Whether a step may read a value with a zero point; `bordered`: where it pads, too."""
    if is_table(program, step):
        return True
    if not is_product(program, step) or step.head.inputs[0] != value:
        return False
    if step.head.op != "Conv" or bordered:
        return True
    weight, shape = program.shapes[step.head.inputs[1]], program.shapes[value]
    return not any(pads_of(step.head, shape[2:], weight[2:]))


def is_table(program: Program, step: Step) -> bool:
    """Whether a step is a table of int8, and no mere change of the scale."""
    if step.kind == "input":
        return step.source in program.byte_inputs
    floats = program.is_float(step.source) and program.is_float(step.output)
    table = step.kind == "lookup" and linear_factor(program, step.nodes) is None
    return table and floats and not step.is_float


def is_product(program: Program, step: Step) -> bool:
    """Whether a step multiplies by constants that the lowering can sum up."""
    head = step.head
    if step.kind != "node" or step.is_float or not is_a(head, Kind.PRODUCT):
        return False
    weight = program.constant(head.inputs[1])
    plain = head.op == "Conv" or (weight is not None and weight.ndim == 2)
    alpha = float(head.attributes.get("alpha", 1.0))
    return plain and weight is not None and head.inputs[0] not in program.constants and alpha > 0
