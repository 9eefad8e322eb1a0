"""Affine functions of an input behind moves of its elements, put in front of them.

x -> Unsqueeze -> (x - mean) / std is x -> (x - mean) / std -> Unsqueeze with constants of another shape: what
the input's integers mean then, and no layer.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.program import Node, Program, program_of
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.plan.inputs import vector_of


def moves_behind(
    model: onnx.ModelProto, program: Program, weights: StoredWeights
) -> tuple[onnx.ModelProto, Program]:
    """A normalised model, with moves of an input behind affine functions of it."""
    while (found := _first(program)) is not None:
        edit = Editor(model)
        _swap(edit, program, *found)
        model = edit.model()
        program = program_of(model, weights)
    return model, program


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


def _is_function(program: Program, node: Node) -> bool:
    """A Cast to floats, or arithmetic with one constant that varies along one axis at most."""
    if node.domain or len(node.outputs) != 1 or len(list(program.activations(node))) != 1:
        return False
    if node.op == "Cast":
        return program.is_float(node.outputs[0])
    value = next(program.activations(node))
    shape = program.shapes.get(value)
    if not is_a(node, Kind.ARITHMETIC) or shape is None or program.shapes.get(node.outputs[0]) != shape:
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
