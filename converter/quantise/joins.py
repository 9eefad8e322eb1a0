"""Outputs that join unlike parts: boxes in pixels beside class scores, which one scale would make zero.

Nothing computes with what a Concat makes of them, so every part keeps the scale and zero point of its own;
the program around learns which is where (`AxisScales` of the output's tensor), and nothing is rounded again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step

_MOVES = Kind.SAME | Kind.RESHAPE | Kind.TRANSPOSE


def joined_outputs(
    program: Program, steps: Sequence[Step], known: Collection[str] = ()
) -> Mapping[str, tuple[str, ...]]:
    """What a Concat joins for one output alone, and that value moved, up to the output; by the first.

    Left out: values of which a file says the scale (`known`), states, and what is both transposed and
    reshaped, so that the parts are none along an axis.
    """
    found = {}
    for step in steps:
        if (
            step.kind != "node"
            or step.head.op != "Concat"
            or step.is_float
            or not program.is_float(step.output)
        ):
            continue
        names = _way_out(program, step.output)
        if names and not set(names) & set(known):
            found[step.output] = names
    return found


def is_reshaped(program: Program, names: Sequence[str]) -> bool:
    """Whether a joined value becomes the output under another shape: then it lies in the model's order."""
    return any(is_a(program.producer[name], Kind.RESHAPE) for name in names[1:])


def _way_out(program: Program, value: str) -> tuple[str, ...]:
    """The value as it is moved on its way to an output; nothing where anything else happens to it."""
    names, ops = [value], set[str]()
    while value not in program.outputs:
        reader = program.sole_consumer(value)
        if reader is None or not is_a(reader, _MOVES):
            return ()
        ops.add("Transpose" if reader.op == "Transpose" else "Reshape")
        value = reader.outputs[0]
        names.append(value)
    is_state = any(value == state.output for state in program.states)
    alone = not program.consumers(value) and program.outputs.count(value) == 1
    return tuple(names) if alone and len(ops) <= 1 and not is_state else ()
