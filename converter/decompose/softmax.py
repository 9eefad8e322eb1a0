"""Softmax and what blanks its scores: masks computed from inputs, exponentials over their sum.

Exporters turn a padding mask into 0 and a huge negative number and add that to the scores.  In int8
the sum would have the huge number's scale; blanking the positions inside the softmax is exact.  A mask
that is an input of floats is known by the calibration data: 0 or a huge negative number everywhere.
A softmax or log-softmax that an exporter spelled out would, operator by operator in int8, lose all that is
small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import extremes_taken, is_a, reduction_axes
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import run_part

_MOST_NODES = 100
_TRIALS = 3
_NEGATIVE = -1.0
_FAINT = -64.0
"""Added to a score, this and less leaves nothing of it in a softmax: exp(-64) is 1e-28."""


@dataclass(frozen=True)
class Mask:
    """Input of a softmax: scores, and where to blank them.

    `values` are numbers to add, blank from -1e4 down; with `keeps` booleans, false where to blank.
    `fill` is what the model has in their place (infinity makes a row without scores NaN, other numbers not).
    """

    scores: str
    values: str
    fill: float
    keeps: bool = False
    threshold: float = BLANK / 2
    """Blank is what lies below, and nothing lies between.  In int8 -inf may be as little as -128."""
    moves: tuple[Node, ...] = ()
    """Nodes that move the sum of scores and mask before the softmax reads it."""


def find_masks(program: Program, samples: Samples) -> dict[str, Mask]:
    """Masks by the name of the softmax that they are for."""
    found = {}
    for node in program.nodes:
        if node.op == "Softmax" and node.domain == "" and _is_along_last(program, node):
            moves = _moves(program, node.inputs[0])
            joined = program.producer.get(moves[0].inputs[0] if moves else node.inputs[0])
            mask = _mask(program, samples, joined, bool(moves)) if joined is not None else None
            if mask is not None:
                found[node.name] = replace(mask, moves=moves)
    return found


def blank(nodes: Nodes, program: Program, node: Node, mask: Mask) -> None:
    """The softmax of Where(blank, -max, scores), which planning makes one layer."""
    condition = mask.values
    if mask.keeps:  # (Not would be folded back into the Where)
        condition = nodes.op("Xor", condition, nodes.constant(np.asarray(True)))
    else:
        condition = nodes.op("Less", condition, nodes.number(mask.threshold))
    scores = mask.scores
    if mask.moves:
        shape = nodes.ints(program.shapes[scores])
        condition = nodes.op("Expand", condition, shape)
    for move in mask.moves:
        scores, condition = (
            nodes.op(move.op, value, *move.inputs[1:], **move.attributes) for value in (scores, condition)
        )
    blanked = nodes.op("Where", condition, nodes.number(min(mask.fill, BLANK)), scores)
    nodes.give(nodes.op("Softmax", blanked, **node.attributes), node.outputs[0])


def _moves(program: Program, value: str) -> tuple[Node, ...]:
    """The nodes that only move the elements of a value before it is read, in order."""
    found: list[Node] = []
    node = program.producer.get(value)
    while node is not None and is_a(node, Kind.RESHAPE | Kind.TRANSPOSE):
        found.insert(0, node)
        node = program.producer.get(node.inputs[0])
    return tuple(found)


def find_blanks(program: Program, samples: Samples, masks: Mapping[str, Mask]) -> dict[str, Mask]:
    """Other masks that are added to what only maxima are taken of, by the name of the Add."""
    found = {}
    for node in program.nodes:
        if node.op != "Add" or node.domain or not program.is_float(node.outputs[0]):
            continue
        readers = extremes_taken(program, node.outputs[0])
        reader = program.sole_consumer(node.outputs[0])
        if not readers or is_a(readers[0], Kind.MINIMUM) or (reader and reader.name in masks):
            continue
        for scores, values in (node.inputs, node.inputs[::-1]):
            if program.shapes.get(scores) != program.shapes.get(node.outputs[0]):
                continue
            constant = program.constant(values)
            faint = _FAINT if all(is_a(reader, Kind.SOFTMAX) for reader in readers) else BLANK
            known = _as_mask([constant], False, faint) if constant is not None else None
            known = known or _lowest(program, samples, values)
            if known is not None:
                found[node.name] = Mask(scores, values, *known)
                break
    return found


def blank_out(nodes: Nodes, node: Node, mask: Mask) -> None:
    """The sum of scores and mask: the fill where it blanks, else the scores."""
    condition = nodes.op("Less", mask.values, nodes.number(mask.threshold))
    nodes.give(nodes.op("Where", condition, nodes.number(mask.fill), mask.scores), node.outputs[0])


def find_guards(program: Program, masks: Mapping[str, Mask]) -> dict[str, Mask]:
    """Where nodes that make rows zero whose positions are all blank, with the mask.

    So Attention defines it: where the largest number of a row is minus infinity, probabilities are 0.
    """
    softmaxes = {node.outputs[0]: masks[node.name] for node in program.nodes if node.name in masks}
    found = {}
    for node in program.nodes:
        mask = softmaxes.get(node.input(2)) if node.op == "Where" else None
        equal = program.producer.get(node.inputs[0]) if mask is not None else None
        if mask is None or equal is None or equal.op != "Equal" or mask.keeps:
            continue
        zero, lowest = program.constant(node.inputs[1]), program.constant(equal.input(1))
        largest = program.producer.get(equal.inputs[0])
        if (
            zero is not None
            and lowest is not None
            and not zero.any()
            and np.all(lowest <= BLANK)
            and largest is not None
            and largest.op == "ReduceMax"
            and largest.inputs[0] == mask.values
            and program.shapes[largest.outputs[0]] == (*program.shapes[mask.values][:-1], 1)
        ):
            found[node.name] = mask
    return found


def guard(nodes: Nodes, program: Program, node: Node, mask: Mask) -> None:
    """The same of 0 and 1: int8 has no infinity."""
    seen = nodes.op("GreaterOrEqual", mask.values, nodes.number(mask.threshold))
    seen = nodes.op("Cast", seen, to=TensorProto.FLOAT)
    most = nodes.reduce("ReduceMax", seen, [len(program.shapes[mask.values]) - 1])
    none = nodes.op("Less", most, nodes.number(0.5))
    nodes.give(nodes.op("Where", none, *node.inputs[1:]), node.outputs[0])


def _is_along_last(program: Program, node: Node) -> bool:
    rank = len(program.shapes.get(node.inputs[0], ()))
    axis = int(node.attributes.get("axis", -1 if node.version >= 13 else 1))
    return rank > 0 and axis % rank == rank - 1


def _mask(program: Program, samples: Samples, joined: Node, moved: bool) -> Mask | None:
    shape = program.shapes.get(joined.outputs[0])
    if not moved and program.sole_consumer(joined.outputs[0]) is None:
        return None
    if joined.op == "Add":
        for scores, values in (joined.inputs, joined.inputs[::-1]):
            if program.shapes.get(scores) != shape:
                continue
            constant = program.constant(values)
            if constant is None:
                known = _lowest(program, samples, values)
            elif moved or constant.min() > BLANK:  # (planning itself finds the others)
                known = _as_mask([constant], False, _FAINT)
                known = known if np.all(np.any(constant == 0, axis=-1)) else None
            else:
                known = None
            if known is not None:
                return Mask(scores, values, *known)
    if joined.op == "Where" and joined.inputs[0] not in program.constants and not moved:
        # (planning itself finds the fill in the other place)
        condition, scores, fill = joined.inputs
        constant = program.constant(fill)
        if program.shapes.get(scores) == shape and constant is not None and np.all(constant <= BLANK):
            return Mask(scores, condition, float(constant.min()), keeps=True)
    return None


def _lowest(program: Program, samples: Samples, value: str) -> tuple[float, bool, float] | None:
    """Fill, `keeps` and threshold of a value that is 0 or at most -1e4: on trial inputs, if it follows from
    integers and booleans alone, else in the calibration data.  None for others."""
    nodes, inputs = _ancestors(program, value)
    floats = any(program.is_float(v) for v in inputs)
    if value in program.constants or not inputs or (floats and not samples):
        return None
    trials = [{v: sample[v] for v in inputs} for sample in samples] if floats else _trials(program, inputs)
    if not nodes:  # an input itself
        return _as_mask([trial[value] for trial in trials], floats)
    try:
        results = run_part(program, nodes, trials, value)
    except Exception:  # an ancestor that needs other inputs: no mask then
        return None
    return _as_mask(results, floats)


def _as_mask(
    results: Sequence[np.ndarray], floats: bool, blank: float = BLANK
) -> tuple[float, bool, float] | None:
    values = np.concatenate([result.reshape(-1) for result in results])
    if not np.all((values == 0) | (values <= blank)) or not np.any(values != 0):
        return None
    lowest = float(values.min())
    return lowest, False, _NEGATIVE if floats or np.isinf(lowest) else blank / 2


def _trials(program: Program, inputs: list[str]) -> list[dict[str, np.ndarray]]:
    """Inputs of zeros and ones, as padding masks are."""
    generator = np.random.default_rng(0)
    return [
        {v: generator.integers(0, 2, program.shapes[v]).astype(program.numpy_type(v)) for v in inputs}
        for _ in range(_TRIALS)
    ]


def _ancestors(program: Program, value: str) -> tuple[list[Node], list[str]]:
    """Nodes that a value depends on, in order, and the graph inputs among their inputs."""
    order: dict[str, Node] = {}
    inputs: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or not name or name in program.constants or len(order) > _MOST_NODES:
            return
        seen.add(name)
        node = program.producer.get(name)
        if node is None:
            inputs.append(name)
            return
        for read in node.inputs:
            visit(read)
        order[node.name] = node

    visit(value)
    return (list(order.values()), inputs) if len(order) <= _MOST_NODES else ([], [])


_MOVES = Kind.RESHAPE | Kind.SAME
_BY_AXIS = 13
"""From this opset on a softmax has one axis; before, all from `axis` on."""


def over_their_sum(program: Program, node: Node) -> bool:
    """Exponentials are divided by their sum (or multiplied by its reciprocal): a softmax."""
    return _softmax(program, node) is not None


def less_their_logarithm(program: Program, node: Node) -> bool:
    """The logarithm of the sum of their exponentials is taken from values: a log-softmax."""
    return _log_softmax(program, node) is not None


def softmax(nodes: Nodes, program: Program, node: Node) -> None:
    """One Softmax of what the exponentials are of."""
    found = _softmax(program, node)
    assert found is not None
    nodes.give(nodes.op("Softmax", found[0], axis=found[1]), node.outputs[0])


def log_softmax(nodes: Nodes, program: Program, node: Node) -> None:
    """One LogSoftmax."""
    found = _log_softmax(program, node)
    assert found is not None
    nodes.give(nodes.op("LogSoftmax", found[0], axis=found[1]), node.outputs[0])


def _softmax(program: Program, node: Node) -> tuple[str, int] | None:
    """The value and axis of a softmax whose last node is this Div or Mul."""
    pairs = [node.inputs] if node.op == "Div" else [node.inputs, node.inputs[::-1]]
    for exponentials, divisor in pairs:
        exponential = program.producer.get(exponentials)
        if exponential is None or exponential.op != "Exp":
            continue
        last = program.producer.get(divisor)
        if node.op == "Mul":
            if last is None or last.op != "Reciprocal":
                continue
            divisor = last.inputs[0]
        shape = program.shapes[exponentials]
        axis = _summed_axis(program, divisor, exponentials)
        if axis is not None and _is_row(program, divisor, shape, axis):
            return _without_shift(program, exponential.inputs[0], axis), axis
    return None


def _log_softmax(program: Program, node: Node) -> tuple[str, int] | None:
    value, subtrahend = node.inputs
    logarithm = _behind_moves(program, subtrahend)
    if logarithm is None or logarithm.op != "Log":
        return None
    total = _behind_moves(program, logarithm.inputs[0])
    exponential = program.producer.get(total.inputs[0]) if total is not None else None
    if exponential is None or exponential.op != "Exp" or exponential.inputs[0] != value:
        return None
    axis = _summed_axis(program, logarithm.inputs[0], exponential.outputs[0])
    if axis is None or not _is_row(program, subtrahend, program.shapes[value], axis):
        return None
    return _without_shift(program, value, axis), axis


def _summed_axis(program: Program, total: str, value: str) -> int | None:
    """The one axis that `total`, moved or not, is the sum of `value` along."""
    node = _behind_moves(program, total)
    if node is None or node.op != "ReduceSum" or node.inputs[0] != value:
        return None
    axes = reduction_axes(program, node)
    shape = program.shapes[value]
    if axes is None or len(axes) != 1 or (node.version < _BY_AXIS and axes[0] != len(shape) - 1):
        return None
    return axes[0]


def _behind_moves(program: Program, value: str) -> Node | None:
    node = program.producer.get(value)
    while node is not None and (is_a(node, _MOVES) or node.op == "Expand"):
        node = program.producer.get(node.inputs[0])
    return node


def _is_row(program: Program, value: str, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a value has one element for each row of `shape` along `axis`, aligned with it."""
    node = program.producer.get(value)
    while node is not None and node.op == "Expand":
        value = node.inputs[0]
        node = program.producer.get(value)
    own = program.shapes.get(value, ())
    rows = tuple(1 if i == axis else size for i, size in enumerate(shape))
    return (1,) * (len(shape) - len(own)) + own == rows


def _without_shift(program: Program, value: str, axis: int) -> str:
    """x for x - c, where c is one number for each row: a softmax does not see it."""
    node = program.producer.get(value)
    if node is not None and node.op == "Sub" and node.inputs[1] not in program.constants:
        shape = program.shapes[value]
        if program.shapes[node.inputs[0]] == shape and _is_row(program, node.inputs[1], shape, axis):
            return node.inputs[0]
    return value


DECOMPOSITIONS = (
    Decomposition("Div", softmax, applies=over_their_sum),
    Decomposition("Mul", softmax, applies=over_their_sum),
    Decomposition("Sub", log_softmax, applies=less_their_logarithm),
)
