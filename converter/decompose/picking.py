"""Operators that pick or overwrite elements: one Gather each.

GatherElements, GatherND, ScatterElements, ScatterND (slice assignment of exporters), Compress,
ReverseSequence: with constant indices, every element of the result is a known element of the
data (or of the updates behind it).  Computed indices of a gather become flat numbers first.  Trilu keeps what
a constant mask says; a Where whose constant mask says the same everywhere is one of its values.  TopK takes
out one extreme after the other; so a scatter to few places writes them.
"""

from __future__ import annotations

import math

import numpy as np

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.operators import written_positions
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.runtime import run_operator

_MOST_PICKS = 32
"""Most values that a TopK picks: each takes one pass over all."""
_CUT = "cut the model before its post-processing"
_GONE = 1e9
"""Marks what was taken out; no range counts it."""


def constant_indices(program: Program, node: Node) -> str | None:
    """The second input (indices, condition, lengths) is constant."""
    return None if node.input(1) in program.constants else f"indices {node.input(1)} are computed at run time"


def at_constant_places(program: Program, node: Node) -> bool:
    """With constant indices."""
    return node.input(1) in program.constants


def no_reduction(program: Program, node: Node) -> str | None:
    """reduction is none."""
    reduction = node.attributes.get("reduction", "none")
    return None if reduction == "none" else f"reduction {reduction}"


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    """The flat number of every element."""
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


def _moved(program: Program, node: Node) -> np.ndarray:
    """The flat number of the element that each of the result is, of update i: -1 - i.  Whatever the operator
    says, that is what it makes of numbers in the place of elements."""
    data, *updates = (_numbers(program.shapes[name]) for name in (node.inputs[0], *node.inputs[2:3]))
    operands = (data, program.constants[node.inputs[1]], *(-1 - number for number in updates))
    return run_operator(node.op, node.version, operands, node.attributes)


def _picked(nodes: Nodes, value: str, numbers: np.ndarray, output: str) -> None:
    """Elements (or rows, where all of them are runs) of a value by flat number."""
    flat = nodes.reshape(value, (-1,))
    picked = nodes.op("Gather", flat, nodes.constant(numbers.reshape(-1), "indices"), axis=0)
    nodes.give(nodes.reshape(picked, numbers.shape), output)


def picked(nodes: Nodes, program: Program, node: Node) -> None:
    """GatherElements, GatherND, ReverseSequence: elements by flat number."""
    _picked(nodes, node.inputs[0], _moved(program, node), node.outputs[0])


def gather_computed_elements(nodes: Nodes, program: Program, node: Node) -> None:
    """GatherElements with computed indices: flat numbers are computed, too."""
    shape, places = (program.shapes[name] for name in node.inputs[:2])
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    others = [i for i in range(len(shape)) if i != axis]
    steps = _steps(shape)
    grid = np.indices(places)
    first = sum((grid[i] * steps[i] for i in others), np.zeros(places, np.int64))
    numbers = _numbered(nodes, program, node, [(node.inputs[1], shape[axis], steps[axis])], first)
    flat = nodes.reshape(node.inputs[0], (-1,))
    nodes.give(nodes.reshape(nodes.op("Gather", flat, numbers, axis=0), places), node.outputs[0])


def gather_computed_nd(nodes: Nodes, program: Program, node: Node) -> None:
    """GatherND with computed indices: rows of a table, their numbers computed, too."""
    shape, places = (program.shapes[name] for name in node.inputs[:2])
    batch, depth = int(node.attributes.get("batch_dims", 0)), places[-1]
    inner = shape[batch + depth :]
    steps = _steps(shape[: batch + depth])
    grid = np.indices(places[:-1])
    first = sum((grid[i] * steps[i] for i in range(batch)), np.zeros(places[:-1], np.int64))
    columns = [
        (nodes.pick(node.inputs[1], len(places) - 1, i), shape[batch + i], steps[batch + i])
        for i in range(depth)
    ]
    numbers = _numbered(nodes, program, node, columns, first)
    rows = nodes.reshape(node.inputs[0], (-1, math.prod(inner)))
    picked = nodes.op("Gather", rows, numbers, axis=0)
    nodes.give(nodes.reshape(picked, (*places[:-1], *inner)), node.outputs[0])


def _steps(shape: tuple[int, ...]) -> list[int]:
    """By how much a flat number grows along each axis."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _numbered(
    nodes: Nodes, program: Program, node: Node, columns: list[tuple[str, int, int]], first: np.ndarray
) -> str:
    """A vector of flat numbers: `first`, and indices (from the end where negative) of a size times steps."""
    dtype = program.numpy_type(node.inputs[1])
    total = nodes.constant(first.astype(dtype))
    for value, size, step in columns:
        wrapped = nodes.op("Mod", value, nodes.constant(dtype.type(size)))
        total = nodes.op("Add", total, nodes.op("Mul", wrapped, nodes.constant(dtype.type(step))))
    return nodes.reshape(total, (-1,))


def few_picks(program: Program, node: Node) -> str | None:
    """k is constant and at most 32, of floating-point values."""
    k = program.constant(node.input(1))
    if k is None:
        return f"{node.input(1)} is computed at run time; {_CUT}"
    if not program.is_float(node.inputs[0]):
        return f"{node.inputs[0]} is not floating point"
    return None if k.reshape(-1)[0] <= _MOST_PICKS else f"sorts {k.reshape(-1)[0]} values; {_CUT}"


def top_k(nodes: Nodes, program: Program, node: Node) -> None:
    """TopK: the largest (smallest) of what is left, k times."""
    x, shape = node.inputs[0], program.shapes[node.inputs[0]]
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    name, gone = ("Max", -_GONE) if node.attributes.get("largest", 1) else ("Min", _GONE)
    positions = nodes.constant(np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - 1 - axis)))
    values, places, taken, left = list[str](), list[str](), "", x
    for _ in range(int(program.constants[node.inputs[1]].reshape(-1)[0])):
        if places:
            last = nodes.op("Equal", places[-1], positions)
            taken = nodes.op("Or", taken, last) if taken else last
            left = nodes.op("Where", taken, nodes.number(gone), x)
        values.append(nodes.reduce(f"Reduce{name}", left, [axis]))
        places.append(nodes.op(f"Arg{name}", left, axis=axis, keepdims=1))
    for found, output in zip((values, places), node.outputs, strict=False):
        nodes.give(nodes.op("Concat", *found, axis=axis), output)


def overwritten(nodes: Nodes, program: Program, node: Node) -> None:
    """Scatter, ScatterElements, ScatterND: the data (whole rows where it can be), updates in some places."""
    numbers, run = _moved(program, node), 1
    slab = _slab(numbers)
    if slab is not None:
        _joined(nodes, node, numbers.shape, *slab)
        return
    for size in reversed(numbers.shape):
        wider = numbers.reshape(-1, run * size)
        steps = np.diff(wider, axis=1)
        expected = np.where(wider[:, :1] < 0, -1, 1)
        if not np.all(steps == expected) or np.any(
            np.where(wider[:, 0] < 0, -1 - wider[:, 0], wider[:, 0]) % (run * size)
        ):
            break
        run *= size
    first = numbers.reshape(-1, run)[:, 0]
    rows = math.prod(numbers.shape) // run
    index = np.where(first < 0, rows + (-1 - first) // run, first // run)
    data = nodes.reshape(node.inputs[0], (-1, run))
    updates = nodes.reshape(node.inputs[2], (-1, run))
    both = nodes.op("Concat", data, updates, axis=0)
    picked = nodes.op("Gather", both, nodes.constant(index, "indices"), axis=0)
    nodes.give(nodes.reshape(picked, numbers.shape), node.outputs[0])


def _slab(numbers: np.ndarray) -> tuple[int, int, int] | None:
    """The axis, the first index and the end of what updates fill in order; None where it is no such slab."""
    written = numbers < 0
    for axis in range(numbers.ndim):
        along = np.moveaxis(written, axis, 0).reshape(numbers.shape[axis], -1)
        places = np.flatnonzero(along[:, 0])
        if not places.size or np.any(along != along[:, :1]) or places[-1] - places[0] >= places.size:
            continue
        found = np.take(numbers, places, axis).reshape(-1)
        if np.array_equal(found, -1 - np.arange(found.size)):
            return axis, int(places[0]), int(places[-1]) + 1
    return None


def _joined(nodes: Nodes, node: Node, shape: tuple[int, ...], axis: int, start: int, end: int) -> None:
    """The data before and behind a slab, updates between (y[..., :2] = of exporters): parts of a Concat keep
    scales of their own."""
    filled = nodes.reshape(node.inputs[2], (*shape[:axis], end - start, *shape[axis + 1 :]))
    before = [nodes.slice(node.inputs[0], axis, 0, start)] if start else []
    behind = [nodes.slice(node.inputs[0], axis, end, shape[axis])] if end < shape[axis] else []
    nodes.give(nodes.op("Concat", *before, filled, *behind, axis=axis), node.outputs[0])


def few_along_an_axis(program: Program, node: Node) -> bool:
    """At up to 32 computed places along an axis, other ones for every index of the other axes."""
    data, places, updates = (program.shapes[name] for name in node.inputs[:3])
    axis = int(node.attributes.get("axis", 0)) % len(data)
    covers = places == updates == (*data[:axis], places[axis], *data[axis + 1 :])
    return covers and places[axis] <= _MOST_PICKS and written_positions(program, node) is None


def overwritten_at_computed_places(nodes: Nodes, program: Program, node: Node) -> None:
    """ScatterElements, one place after the other: the update where the index is that of the place."""
    shape, count = program.shapes[node.inputs[0]], program.shapes[node.inputs[1]]
    axis, dtype = int(node.attributes.get("axis", 0)) % len(shape), program.numpy_type(node.inputs[1])
    there = np.arange(shape[axis], dtype=dtype).reshape(-1, *(1,) * (len(shape) - 1 - axis))
    places = nodes.op("Mod", node.inputs[1], nodes.constant(dtype.type(shape[axis])))
    data = node.inputs[0]
    for i in range(count[axis]):
        here = nodes.op("Equal", nodes.slice(places, axis, i, i + 1), nodes.constant(there))
        data = nodes.op("Where", here, nodes.slice(node.inputs[2], axis, i, i + 1), data)
    nodes.give(data, node.outputs[0])


def one_sequence(program: Program, node: Node) -> str | None:
    """One sequence, or write_indices that are left out."""
    sequences = program.shapes[node.inputs[0]][0]
    return (
        None if sequences == 1 or not node.input(2) else f"{sequences} sequences have positions of their own"
    )


def tensor_scatter(nodes: Nodes, program: Program, node: Node) -> None:
    """TensorScatter: ScatterND along the axis of positions, brought to the front."""
    shape, count = (program.shapes[name] for name in node.inputs[:2])
    rank = len(shape)
    axis = int(node.attributes.get("axis", -2)) % rank
    positions = nodes.constant(np.arange(count[axis], dtype=np.int64))
    if node.input(2):
        positions = nodes.op("Add", node.inputs[2], positions)
    if node.attributes.get("mode", "linear") == "circular":
        positions = nodes.op("Mod", positions, nodes.constant(np.array([shape[axis]], np.int64)))
    order = [axis, *(i for i in range(rank) if i != axis)]
    data, updates = (nodes.op("Transpose", value, perm=order) for value in node.inputs[:2])
    written = nodes.op("ScatterND", data, nodes.reshape(positions, (-1, 1)), updates)
    nodes.give(nodes.op("Transpose", written, perm=np.argsort(order).tolist()), node.outputs[0])


def compress(nodes: Nodes, program: Program, node: Node) -> None:
    """Compress: Gather where the condition is true."""
    kept = np.flatnonzero(program.constants[node.inputs[1]])
    axis = node.attributes.get("axis")
    value = nodes.reshape(node.inputs[0], (-1,)) if axis is None else node.inputs[0]
    picked = nodes.op("Gather", value, nodes.ints(kept.tolist()), axis=0 if axis is None else axis)
    nodes.give(picked, node.outputs[0])


def constant_diagonal(program: Program, node: Node) -> str | None:
    """The diagonal (second input) is constant."""
    return None if not node.input(1) or node.input(1) in program.constants else "k is computed at run time"


def triangle(nodes: Nodes, program: Program, node: Node) -> None:
    """Trilu: zero outside of a triangle, by picking from the data and one zero behind it."""
    shape = program.shapes[node.inputs[0]]
    k = int(program.constants[node.input(1)].reshape(-1)[0]) if node.input(1) else 0
    cut = np.triu if node.attributes.get("upper", 1) else np.tril
    mask = cut(np.ones(shape[-2:], np.bool_), k)
    if program.is_float(node.inputs[0]):
        kept = nodes.op("Where", nodes.constant(mask), node.inputs[0], nodes.number(0))
        nodes.give(kept, node.outputs[0])
        return
    numbers = np.where(mask, _numbers(shape), math.prod(shape))
    dtype = program.numpy_type(node.inputs[0])
    flat = nodes.reshape(node.inputs[0], (-1,))
    both = nodes.op("Concat", flat, nodes.constant(np.zeros(1, dtype)), axis=0)
    _picked(nodes, both, numbers, node.outputs[0])


def of_one_choice(program: Program, node: Node) -> bool:
    """The condition is a constant of equal elements."""
    condition = program.constant(node.inputs[0])
    return condition is not None and condition.size > 0 and bool(np.all(condition == condition.flat[0]))


def chosen(nodes: Nodes, program: Program, node: Node) -> None:
    """Where: the value that is chosen everywhere, in the shape of the result."""
    value = node.inputs[1 if program.constants[node.inputs[0]].flat[0] else 2]
    shape = np.broadcast_shapes(*(program.shapes[name] for name in node.inputs))
    nodes.give(nodes.op("Expand", value, nodes.ints(shape)), node.outputs[0])


_AT_PLACES = (constant_indices, no_reduction)
DECOMPOSITIONS = (
    Decomposition("Compress", compress, (constant_indices,)),
    Decomposition("GatherElements", picked, applies=at_constant_places),
    Decomposition("GatherElements", gather_computed_elements),
    Decomposition("GatherND", picked, applies=at_constant_places),
    Decomposition("GatherND", gather_computed_nd),
    Decomposition("ReverseSequence", picked, (constant_indices,)),
    Decomposition("Scatter", overwritten, _AT_PLACES),
    Decomposition("ScatterElements", overwritten, _AT_PLACES, applies=at_constant_places),
    Decomposition(
        "ScatterElements", overwritten_at_computed_places, (no_reduction,), applies=few_along_an_axis
    ),
    Decomposition("ScatterND", overwritten, _AT_PLACES, applies=at_constant_places),
    Decomposition("TensorScatter", tensor_scatter, (one_sequence,)),
    Decomposition("TopK", top_k, (few_picks,)),
    Decomposition("Trilu", triangle, (constant_diagonal,)),
    Decomposition("Where", chosen, applies=of_one_choice),
)
