"""One scale per stored value: calibrated ranges, and values that must share a scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX, symmetric_scale
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a, keeps_scale, linear_factor, parts_along
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.floats import only_in_float, outputs_of
from fadiff.converter.plan.plan import Step

_TOLERATED_RATIO = 2.0
_SLACK = 1 + 0.5 / INT8_MAX  # half a step rounds to the bound itself


def int8_steps(steps: Sequence[Step]) -> list[Step]:
    """Those that are not kept in float."""
    return [step for step in steps if not step.is_float]


def stored_values(program: Program, steps: Sequence[Step]) -> tuple[str, ...]:
    """Float activations that a layer writes or the graph takes in, and that are int8 somewhere."""
    folded = {step.source for step in steps if step.kind == "input"}
    values = [v for v in program.inputs if program.is_float(v) and v not in folded]
    for step in steps:
        if step.kind == "output":
            continue
        values.extend(v for v in outputs_of(step) if program.is_float(v))
    floats = only_in_float(program, steps)
    return tuple(value for value in dict.fromkeys(values) if value not in floats)


def saturates_at(ceiling: float, scale: float) -> bool:
    """Whether int8 of this scale saturates no later than at the upper bound of a Clip."""
    return scale <= ceiling / INT8_MAX * _SLACK


def unknown_scales(program: Program, steps: Sequence[Step], known: Mapping[str, float]) -> tuple[str, ...]:
    """Stored values whose scale neither `known` nor another value prescribes: to be calibrated."""
    derived = set(known)
    for step in int8_steps(steps):
        follows = step.kind == "node" and keeps_scale(step.head)
        if follows or (step.kind == "lookup" and linear_factor(program, step.nodes) is not None):
            derived.update(step.head.outputs)
    return tuple(value for value in stored_values(program, steps) if value not in derived)


def assign_scales(
    program: Program,
    steps: Sequence[Step],
    ranges: Mapping[str, tuple[float, float]],
    known: Mapping[str, float],
) -> dict[str, float]:
    """Scales of all stored values.

    Values that only move elements share one scale.  The two operands of a residual add do too
    (the larger of both): then their sum is exact in int32 and only the result is rounded, as in
    ONNX Runtime, while Gemmini would round each operand first.  An operand that others read as
    well, perhaps another slice of it, keeps its own scale if sharing would make it more than 2
    times coarser.
    Operands of a concatenation share its scale under the same condition, so that they can be
    written in place (those of an output only where all are alike: `joined_outputs`); so do new rows of a
    cache, while the cache before and after has one scale.
    Values that are the same in the steps of a recurrence (`Program.roles`) share a scale, so that the
    steps are equal.  The two ends of a state share a scale where nothing prescribes it; else a table
    changes it, and the input is wide enough for what the output holds.
    What other programs have, too, has the scale of `Program.common_scales`.
    Scales that an imported model prescribes (`known`) never change; rows of a constant table and
    multiples of a value have scales that follow from others, and share none.
    """
    fixed = dict(known)
    scales: dict[str, float] = {}
    for value in stored_values(program, steps):
        low, high = ranges.get(value, (0.0, 0.0))
        calibrated = symmetric_scale(low, high) if low or high else 0.0  # zeros fit any scale
        scales[value] = float(np.float32(known.get(value, calibrated)))
    steps = int8_steps(steps)
    for step in steps:
        if (derived := _derived_scale(program, step, scales, known)) is not None:
            scales[step.output] = fixed[step.output] = derived
    ceilings = {step.output: step.ceiling / INT8_MAX * _SLACK for step in steps if step.ceiling is not None}
    groups = _Groups(scales, fixed, ceilings)
    for step in steps:
        if step.kind == "node" and keeps_scale(step.head):
            for output in step.head.outputs:
                if output in scales and step.source in scales:
                    groups.follow(output, step.source)
    joined = joined_outputs(program, steps, fixed)
    for step in steps:
        operands = list(program.activations(step.head))
        if step.kind == "node" and step.head.op == "Add" and not step.mask and len(operands) == 2:
            a, b = operands
            if a in scales and b in scales and not {a, b} & fixed.keys():
                coarse, fine = (a, b) if groups.scale(a) >= groups.scale(b) else (b, a)
                ratio = groups.scale(coarse) / (groups.scale(fine) or np.inf)  # zeros fit any scale
                cheap = ratio <= _TOLERATED_RATIO
                if cheap or _reads_alone(program, step.head, groups.members(fine)):
                    groups.join(a, b)
        scatters = step.kind == "node" and is_a(step.head, Kind.SCATTER)
        if scatters and {step.source, step.output} <= scales.keys():
            groups.join(step.output, step.source)
        together = is_a(step.head, Kind.JOIN | Kind.SCATTER)
        if step.kind == "node" and together and step.output not in fixed:
            for value in operands:
                if value not in scales or value in fixed:
                    continue
                ratio = groups.scale(value) / (groups.scale(step.output) or 1.0)
                tolerable = 1 / _TOLERATED_RATIO <= ratio <= _TOLERATED_RATIO
                forced = step.output not in joined
                if tolerable or (
                    forced and ratio < 1 and _reads_alone(program, step.head, groups.members(value))
                ):
                    groups.join(step.output, value)
    for value, role in program.roles.items():
        if value in scales and role in scales:
            groups.join(role, value)
    for state in program.states:
        if state.output in scales and state.input in scales:
            groups.join(state.input, state.output)
            groups.prescribe(state.input, max(groups.scale(state.input), groups.scale(state.output)))
    for value, scale in sorted(program.common_scales.items(), key=itemgetter(1)):
        if value in scales:  # (the largest is last: values of one group may have several)
            groups.prescribe(value, scale)
    for value in scales:
        scales[value] = groups.scale(value) or 1.0
    for step in steps:
        if (derived := _derived_scale(program, step, scales, known)) is not None:
            scales[step.output] = derived
        elif step.kind == "node" and keeps_scale(step.head) and step.source in scales:
            for output in step.head.outputs:
                if output in scales:
                    scales[output] = scales[step.source]
    return scales


def _reads_alone(program: Program, reader: Node, values: Collection[str]) -> bool:
    """Whether `reader` alone reads values of one scale, moved or as they are."""
    readers = [node for value in values for node in program.consumers(value)]
    return not set(values) & set(program.outputs) and all(
        node == reader or set(node.outputs) <= set(values) for node in readers
    )


def _derived_scale(
    program: Program, step: Step, scales: Mapping[str, float], known: Mapping[str, float]
) -> float | None:
    """Scale of a multiple of a value, or of rows of a constant table; None for anything else."""
    if step.output not in scales:
        return None
    if step.kind == "lookup" and step.source in scales:
        factor = linear_factor(program, step.nodes)
        return None if factor is None else float(np.float32(scales[step.source]) * np.float32(factor))
    if step.head.op == "Gather" and (name := step.head.inputs[0]) in program.constants:
        table = program.constants[name]
        return known.get(name) or symmetric_scale(float(table.min()), float(table.max()))
    return None


class _Groups:
    """Disjoint sets of values with one scale each."""

    def __init__(
        self, scales: Mapping[str, float], known: Mapping[str, float], ceilings: Mapping[str, float]
    ) -> None:
        self._ceiling = dict(ceilings)
        """By root: the largest scale at which saturation still stands for a Clip."""
        self._parent = {value: value for value in scales}
        self._members = {value: [value] for value in scales}
        """By root."""
        self._scale = dict(scales)
        self._fixed = set(known)

    def _root(self, value: str) -> str:
        while self._parent[value] != value:
            value = self._parent[value]
        return value

    def scale(self, value: str) -> float:
        """Scale of the set that holds a value."""
        return self._scale[self._root(value)]

    def members(self, value: str) -> frozenset[str]:
        """All values of the set that holds a value."""
        return frozenset(self._members[self._root(value)])

    def follow(self, value: str, leader: str) -> None:
        """`value` takes the scale of `leader`, and of whatever that is joined with later."""
        root = self._root(value)
        if root != self._root(leader):
            self._merge(self._root(leader), root)

    def join(self, a: str, b: str) -> None:
        """One scale for both, the larger, unless a Clip forbids it."""
        first, second = self._root(a), self._root(b)
        scale = max(self._scale[first], self._scale[second])
        if (
            first == second
            or {first, second} & self._fixed
            or scale > min(self._limit(first), self._limit(second))
        ):
            return
        self._scale[first] = scale
        self._merge(first, second)

    def prescribe(self, value: str, scale: float) -> None:
        """This scale, unless another is prescribed or a Clip forbids it."""
        root = self._root(value)
        if root not in self._fixed and scale <= self._limit(root):
            self._scale[root] = scale

    def _limit(self, root: str) -> float:
        return self._ceiling.get(root, float("inf"))

    def _merge(self, root: str, other: str) -> None:
        """A set becomes part of another; its ceilings hold for all of it."""
        self._parent[other] = root
        self._members[root] += self._members.pop(other)
        if other in self._ceiling:
            self._ceiling[root] = min(self._limit(root), self._ceiling[other])


def joined_outputs(
    program: Program, steps: Sequence[Step], known: Collection[str] = ()
) -> Mapping[str, tuple[str, ...]]:
    """What a Concat joins for one output alone, and that value moved or joined, up to the output; by value.

    Boxes in pixels beside class scores, which one scale would make zero: nothing computes with them, so every
    part keeps the scale and zero point of its own, and the program around learns which is where (`AxisScales`
    of the output's tensor).  Left out: values of which a file says the scale (`known`), states, and parts
    that lie along no axis of the output (converter/decompose/last_joins.py).
    """
    found = dict[str, tuple[str, ...]]()
    for step in reversed(steps):
        if (
            step.kind != "node"
            or step.head.op != "Concat"
            or step.is_float
            or not program.is_float(step.output)
        ):
            continue
        names = way_out(program, step.output)
        if names and not set(names) & set(known) and found.keys() >= set(_joins_behind(program, names)):
            found[step.output] = names
    return found


def _joins_behind(program: Program, names: Sequence[str]) -> list[str]:
    return [name for name in names[1:] if program.producer[name].op == "Concat"]


def in_models_order(program: Program, names: Sequence[str]) -> bool:
    """Whether a joined value is stored so: another shape of it, or a join of it, becomes the output."""
    return any(is_a(program.producer[name], Kind.RESHAPE | Kind.JOIN) for name in names[1:])


def join_axis(program: Program, value: str) -> int:
    """The axis of the Concat that writes a value."""
    return int(program.producer[value].attributes.get("axis", 1)) % len(program.shapes[value])


def way_out(program: Program, value: str) -> tuple[str, ...]:
    """The value under other shapes on its way to an output, or joined with others so that its parts lie along
    one axis; nothing where anything else happens to it."""
    names = [value]
    while value not in program.outputs:
        reader = program.sole_consumer(value)
        if reader is not None and reader.op == "Concat":
            behind = way_out(program, reader.outputs[0])
            along = join_axis(program, reader.outputs[0])
            inner, outer = program.shapes[names[0]], program.shapes[value]
            lies = parts_along(inner, join_axis(program, names[0]), outer, along)
            return (*names, *behind) if behind and lies else ()
        if reader is None or not is_a(reader, Kind.SAME | Kind.RESHAPE):
            return ()
        value = reader.outputs[0]
        names.append(value)
    is_state = any(value == state.output for state in program.states)
    alone = not program.consumers(value) and program.outputs.count(value) == 1
    return tuple(names) if alone and not is_state else ()
