"""Affine functions of an input alone, as (x - mean) / std, and at the end of an output: what integers mean.

The program around stores what such a chain would give: value = scale * integer + offset, with numbers of
their own along one axis.  Features in their own units (Pa, degrees, shares) then lose nothing at the input,
and the core does nothing.  An output that ends in std * h + mean is stored as h.

Which range an input has its first operators tell, too: exporters often leave the normalisation of images in
the graph, (x - mean) / std, x / 255, a batch normalisation.

Behind moves of an input's elements such functions are put in front of them: x -> Unsqueeze -> (x - mean) /
std is x -> (x - mean) / std -> Unsqueeze with constants of another shape.  Behind a Concat of inputs each of
these gets its part of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import ARITHMETIC, MOVE, WEIGHTED, Kind
from fadiff.converter.ir.operators import is_a, norm_affine
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.inputs import Spans
from fadiff.converter.read.interface import USUAL_SPANS


@dataclass(frozen=True)
class Affine:
    """factor * x + shift; both are numbers, or vectors along an axis of x."""

    factor: np.ndarray
    shift: np.ndarray
    axis: int | None = None

    def then(self, factor: np.ndarray, shift: np.ndarray, axis: int | None) -> Affine | None:
        """Another after this one; None where they vary along different axes."""
        if None not in (self.axis, axis) and self.axis != axis:
            return None
        along = self.axis if axis is None else axis
        return Affine(np.asarray(self.factor * factor), np.asarray(self.shift * factor + shift), along)

    @property
    def functions(self) -> int:
        """How many neighbours along the axis differ from the one before, and the first."""
        factor, shift = np.broadcast_arrays(self.factor.reshape(-1), self.shift.reshape(-1))
        return 1 + int(np.count_nonzero((np.diff(factor) != 0) | (np.diff(shift) != 0)))

    @property
    def is_usable(self) -> bool:
        """Whether it is more than a positive factor for all, and can be taken back."""
        return self.is_meaning and bool(np.all(self.factor > 0))

    @property
    def is_meaning(self) -> bool:
        """Whether it is more than a factor for all, and loses nothing."""
        finite = bool(np.all(np.isfinite(self.factor)) and np.all(np.isfinite(self.shift)))
        moves = bool(np.any(self.shift != 0)) or np.unique(self.factor).size > 1
        return finite and moves and bool(np.all(self.factor != 0))


def input_chains(program: Program, but: Collection[str] = ()) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Float inputs, but for some, that only an affine chain reads, and the longest such chain; of every input
    that comes as bytes one of at least the node that reads it."""
    for value in program.inputs:
        states = {end for state in program.states for end in (state.input, state.output)}
        is_byte = value in program.byte_inputs
        if not is_byte and (value in but or value in states or not program.is_float(value)):
            continue
        nodes, reader, known = list[Node](), program.sole_consumer(value), UNCHANGED
        while reader is not None and ((is_byte and not nodes) or not set(reader.outputs) & set(but)):
            step = as_affine(program, reader)
            following = None if step is None else known.then(step.factor, step.shift, step.axis)
            if following is None or (is_byte and following.functions > _MOST_TABLES):
                break
            known = following
            nodes.append(reader)
            reader = program.sole_consumer(reader.outputs[0])
        if is_byte or known.is_usable:
            yield value, tuple(nodes)


def output_chains(program: Program, but: Collection[str] = ()) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Float outputs that end in an affine function of a value which nothing else reads, and that function.

    What a product takes as its bias is no part of it, nor a mere factor.
    """
    states = {end for state in program.states for end in (state.input, state.output)}
    for value in program.outputs:
        source, nodes = value, list[Node]()
        if value in states or program.consumers(value) or program.outputs.count(value) > 1:
            continue
        while (node := program.producer.get(source)) is not None and as_affine(program, node) is not None:
            before = next(program.activations(node))
            if source in but or program.sole_consumer(before) is None or before not in program.producer:
                break
            nodes.insert(0, node)
            source = before
        if nodes and is_a(nodes[0], Kind.ADDITIVE) and is_a(program.producer[source], WEIGHTED):
            del nodes[0]
        known = _combined(program, nodes)
        if nodes and known is not None and known.is_meaning:
            yield value, tuple(nodes)


def affine_of(program: Program, nodes: Collection[Node]) -> Affine:
    """The affine map of a chain, in double precision."""
    known = _combined(program, nodes)
    assert known is not None
    return known


def _combined(program: Program, nodes: Collection[Node]) -> Affine | None:
    known: Affine | None = UNCHANGED
    for node in nodes:
        step = as_affine(program, node)
        known = None if step is None or known is None else known.then(step.factor, step.shift, step.axis)
    return known


UNCHANGED = Affine(np.ones(()), np.zeros(()))
_MOST_TABLES = 8
"""Of 256 bytes, for channels of their own; colours have three."""


def as_affine(program: Program, node: Node) -> Affine | None:
    """One node, None for any other function."""
    shape = program.shapes.get(node.inputs[0]) if node.inputs else None
    if (
        node.domain
        or shape is None
        or program.shapes.get(node.outputs[0]) != program.shapes.get(next(program.activations(node), ""))
    ):
        return None
    if node.op == "Identity" or (node.op == "Cast" and node.inputs[0] in program.byte_inputs):
        return UNCHANGED
    if node.op == "BatchNormalization":
        known = norm_affine(program, node) if len([v for v in node.outputs if v]) == 1 else None
        return None if known is None else Affine(*known, 1)
    constants = [program.constants[v] for v in node.inputs if v in program.constants]
    if not is_a(node, ARITHMETIC) or len(constants) != 1 or len(node.inputs) != 2:
        return None
    if node.op in ("Sub", "Div") and node.inputs[0] in program.constants:
        return None
    vector = vector_of(constants[0].astype(np.float64), len(program.shapes[node.outputs[0]]))
    if vector is None:
        return None
    array, axis = vector
    with np.errstate(divide="ignore"):
        return {
            "Add": lambda: Affine(np.ones(()), array, axis),
            "Sub": lambda: Affine(np.ones(()), -array, axis),
            "Mul": lambda: Affine(array, np.zeros(()), axis),
            "Div": lambda: Affine(1 / array, np.zeros(()), axis),
        }[node.op]()


def vector_of(array: np.ndarray, rank: int) -> tuple[np.ndarray, int | None] | None:
    """A constant operand as a number or a vector, and the axis of the result that it varies along."""
    if array.ndim > rank:
        return None
    axes = [rank - array.ndim + axis for axis, size in enumerate(array.shape) if size > 1]
    if len(axes) > 1:
        return None
    return (array.reshape(-1), axes[0]) if axes else (array.reshape(()), None)


def moves_behind(program: Program) -> Program:
    """The program, with moves and joins of inputs behind affine functions of them."""
    while True:
        edit = Editor(program.model)
        if (found := _first(program)) is not None:
            _swap(edit, program, *found)
        elif (joined := _first_joined(program)) is not None:
            _part(edit, program, *joined)
        else:
            return program
        program = program.changed(edit.model())


def is_move(program: Program, node: Node, value: str) -> bool:
    """Whether a node gives all elements of the value on, in another order or under another shape."""
    known = value in program.shapes and node.outputs[0] in program.shapes
    moves = is_a(node, Kind.RESHAPE | Kind.TRANSPOSE)
    return known and moves and node.inputs[0] == value


def axis_before(program: Program, move: Node, axis: int) -> int | None:
    """The axis of what a move reads that an axis of what it gives is; None where it is no axis there."""
    before, after = program.shapes[move.inputs[0]], program.shapes[move.outputs[0]]
    if move.op == "Transpose":
        perm = move.attributes.get("perm", tuple(range(len(before)))[::-1])
        return int(perm[axis])
    inner = math.prod(after[axis + 1 :])
    fits = (i for i, size in enumerate(before) if size == after[axis] and math.prod(before[i + 1 :]) == inner)
    return next(fits, None)


def _first(program: Program) -> tuple[Node, Node, int | None] | None:
    """A move of an input, the function behind it, and the axis before the move that it varies along.

    Inputs of floats or bytes: what a function makes of other integers (of a mask, say) is a table.
    """
    for value in program.inputs:
        if not program.is_float(value) and program.types[value] != onnx.TensorProto.UINT8:
            continue
        reader = program.sole_consumer(value)
        while reader is not None and (is_move(program, reader, value) or _is_function(program, reader)):
            following = program.sole_consumer(reader.outputs[0])
            moved = reader.outputs[0]
            if is_move(program, reader, value) and following is not None and _is_function(program, following):
                axis = _axis(program, following, len(program.shapes[moved]))
                before = None if axis is None else axis_before(program, reader, axis)
                if axis is None or before is not None:
                    return reader, following, before
            value, reader = moved, following
    return None


def _first_joined(program: Program) -> tuple[Node, Node, int] | None:
    """A Concat of inputs, or of functions of them, the affine one behind it, and the axis."""
    for node in program.nodes:
        function = program.sole_consumer(node.outputs[0]) if node.op == "Concat" else None
        step = as_affine(program, function) if function and _is_function(program, function) else None
        if function is None or step is None:
            continue
        along = int(node.attributes["axis"]) % len(program.shapes[node.outputs[0]])
        if step.axis in (None, along) and all(_is_of_input(program, value) for value in node.inputs):
            return node, function, along
    return None


def _is_of_input(program: Program, value: str) -> bool:
    """Whether a value is a float input, moved or a function of it, which nothing else reads."""
    states = {state.input for state in program.states}
    while program.sole_consumer(value) is not None and value in program.producer:
        node = program.producer[value]
        if not _is_function(program, node) and not is_move(program, node, node.inputs[0]):
            return False
        value = next(program.activations(node))
    is_input = value in program.inputs and value not in states and program.is_float(value)
    return is_input and program.sole_consumer(value) is not None


def _is_function(program: Program, node: Node) -> bool:
    """A Cast to floats, or arithmetic with one constant that varies along one axis at most."""
    if node.domain or len(node.outputs) != 1 or len(list(program.activations(node))) != 1:
        return False
    if node.op == "Cast":
        return program.is_float(node.outputs[0])
    value = next(program.activations(node))
    shape = program.shapes.get(value)
    if not is_a(node, ARITHMETIC) or shape is None or program.shapes.get(node.outputs[0]) != shape:
        return False
    return vector_of(_constant(program, node), len(shape)) is not None


def _constant(program: Program, node: Node) -> np.ndarray:
    return next(program.constants[name] for name in node.inputs if name in program.constants)


def _axis(program: Program, node: Node, rank: int) -> int | None:
    vector = None if node.op == "Cast" else vector_of(_constant(program, node), rank)
    return None if vector is None else vector[1]


def _swap(edit: Editor, program: Program, move: Node, function: Node, axis: int | None) -> None:
    """a -> move -> b -> function -> c becomes a -> function -> b' -> move -> c."""
    moving, computing = edit.node(move), edit.node(function)
    source, rank = edit.value(move.inputs[0]), len(program.shapes[move.inputs[0]])
    for place, name in enumerate(function.inputs):
        value = source
        if name in program.constants:
            shape = [] if axis is None else [-1 if at == axis else 1 for at in range(rank)]
            value = edit.constant(name, program.constants[name].reshape(shape))
        computing.replace_input_with(place, value)
    result, moved = computing.outputs[0], moving.outputs[0]
    moving.replace_input_with(0, result)
    edit.move(computing, moving)
    edit.replace(result, moved)
    result.shape, moved.type = source.shape, result.type


def _part(edit: Editor, program: Program, join: Node, function: Node, along: int) -> None:
    """a, b -> join -> function -> c becomes a -> function, b -> function -> join -> c."""
    joining, computing = edit.node(join), edit.node(function)
    rank, start = len(program.shapes[join.outputs[0]]), 0
    for place, name in enumerate(join.inputs):
        end = start + program.shapes[name][along]
        operands = []
        for operand in function.inputs:
            if operand not in program.constants:
                operands.append(edit.value(name))
                continue
            array = program.constants[operand]
            if array.size > 1:
                array = array.reshape([-1 if at == along else 1 for at in range(rank)])
                array = np.take(array, range(start, end), along)
            operands.append(edit.constant(operand, array))
        (part,) = edit.insert(joining, function.op, operands, f"{name}.{function.op}")
        part.shape, part.type = edit.value(name).shape, edit.value(name).type
        joining.replace_input_with(place, part)
        start = end
    edit.replace(computing.outputs[0], joining.outputs[0])
    edit.remove(computing)


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
        elif program.is_float(name) and (span := _span(program, name)) is not None:
            spans[name] = span
    return spans


def _span(program: Program, value: str) -> tuple[float, float] | None:
    known = UNCHANGED
    while (node := program.sole_consumer(value)) is not None and node.inputs[0] == value:
        step = as_affine(program, node)
        following = known if step is None else known.then(step.factor, step.shift, step.axis)
        if following is None or (step is None and not is_a(node, MOVE) and node.op != "Cast"):
            break
        known, value = following, node.outputs[0]
    gain, shift = known.factor, known.shift
    if not np.all(np.isfinite(gain)) or not np.all(gain) or np.all(gain == 1):
        return None  # what is only moved is a sum like any other
    moved = bool(np.any(shift))
    for low, high in USUAL_SPANS if moved else USUAL_SPANS[:1]:
        reach = np.maximum(np.abs(gain * low + shift), np.abs(gain * high + shift))
        width = np.abs(gain) * (high - low)
        if float(width.min()) >= _LEAST and float(reach.max()) <= _MOST:
            return low, high
    if not moved:  # a factor alone that makes no pixels small, as attention has on its queries
        return None
    ends = np.stack([(side - shift) / gain for side in (-_DEVIATIONS, _DEVIATIONS)])
    return float(ends.min()), float(ends.max())
