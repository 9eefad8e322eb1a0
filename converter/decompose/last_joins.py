"""Concats for an output come last: what moves a joined value moves its parts before.

Detectors join boxes and scores, reshape and transpose the whole, and join that of several sizes of image
along another axis.  Parts of an output keep scales of their own where they lie along one axis of it.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import REARRANGE, Kind
from fadiff.converter.ir.operators import is_a, parts_along
from fadiff.converter.ir.program import Program


def joins_last(program: Program) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model, itself if there are none, and the outputs whose joins come last now."""
    edit, done = Editor(program.model), dict[str, None]()
    for node in program.nodes:
        end = _end(program, node.outputs[0]) if is_a(node, Kind.JOIN) else ""
        if end and program.is_float(end):
            join = edit.node(node)
            if join.graph is not None and _settle(edit, join):  # (it may be part of another one by now)
                done[end] = None
    return edit.model(), tuple(done)


def _end(program: Program, value: str) -> str:
    """The output that a value becomes by being moved and joined alone; empty if it is none, or a state."""
    while value not in program.outputs:
        reader = program.sole_consumer(value)
        if reader is None or not is_a(reader, REARRANGE | Kind.JOIN):
            return ""
        value = reader.outputs[0]
    is_state = any(value == state.output for state in program.states)
    return "" if is_state or program.consumers(value) else value


def _settle(edit: Editor, join: onnx_ir.Node) -> bool:
    """Move a Concat towards the output, as far as its parts lie along an axis; whether it moved."""
    moved = False
    while not join.outputs[0].is_graph_output():
        reader = next(iter(join.outputs[0].uses())).node
        if reader.op_type == "Concat":
            if not _swap(edit, reader):
                break
        elif (axis := _axis_behind(join, reader)) is not None:
            _move_parts(edit, join, reader, axis)
        else:
            break
        join, moved = reader, True
    return moved


def _shape(value: Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(value.shape.numpy())


def _axis(join: onnx_ir.Node) -> int:
    return join.attributes["axis"].as_int() % len(_shape(join.outputs[0]))


def _axis_behind(join: onnx_ir.Node, move: onnx_ir.Node) -> int | None:
    """The axis that the parts of a join lie along behind a move; None where they lie along none."""
    inner, outer, axis = _shape(join.outputs[0]), _shape(move.outputs[0]), _axis(join)
    if move.op_type == "Transpose":
        return _order(move, len(inner)).index(axis)
    lies = (parts_along(inner, axis, outer, along) for along in range(len(outer)))
    return next((along for along, found in enumerate(lies) if found is not None and found[1] == 1), None)


def _order(move: onnx_ir.Node, rank: int) -> list[int]:
    given = move.attributes.get("perm")
    return list(range(rank))[::-1] if given is None else list(given.as_ints())


def _move_parts(edit: Editor, join: onnx_ir.Node, move: onnx_ir.Node, axis: int) -> None:
    """parts -> join -> move becomes parts -> moves -> join along `axis`."""
    inner, outer = _shape(join.outputs[0]), _shape(move.outputs[0])
    parts = list[Value]()
    for part in join.inputs:
        assert part is not None
        name, share = f"{part.name}.moved", _shape(part)[_axis(join)] * outer[axis] // inner[_axis(join)]
        shape = [share if at == axis else size for at, size in enumerate(outer)]
        if move.op_type == "Transpose":
            (moved,) = edit.insert(join, "Transpose", [part], name, perm=_order(move, len(inner)))
        else:
            sizes = edit.constant(f"{name}.shape", np.array(shape, np.int64))
            (moved,) = edit.insert(join, "Reshape", [part, sizes], name)
        moved.shape, moved.type = onnx_ir.Shape(shape), part.type
        parts.append(moved)
    _join(edit, move, parts, axis)
    edit.remove(join)


def _swap(edit: Editor, outer: onnx_ir.Node) -> bool:
    """Joins of as many equal parts, joined along another axis, as a join of joins; whether they are such."""
    inner = [value.producer() for value in outer.inputs if value is not None]
    joins = [node for node in inner if node is not None and node.op_type == "Concat"]
    if len(joins) != len(outer.inputs) or len({_axis(join) for join in joins}) != 1:
        return False
    if any(reader is not outer for join in joins for reader, _ in join.outputs[0].uses()):
        return False
    axis, across = _axis(joins[0]), _axis(outer)
    sizes = {tuple(_shape(part)[axis] for part in join.inputs if part is not None) for join in joins}
    if axis == across or len(sizes) != 1:
        return False
    parts = list[Value]()
    for place, first in enumerate(joins[0].inputs):
        assert first is not None
        (part,) = edit.insert(
            outer, "Concat", [join.inputs[place] for join in joins], f"{first.name}.joined", axis=across
        )
        shape = [size if at == across else -1 for at, size in enumerate(_shape(outer.outputs[0]))]
        shape = [own if size < 0 else size for size, own in zip(shape, _shape(first), strict=True)]
        part.shape, part.type = onnx_ir.Shape(shape), first.type
        parts.append(part)
    _join(edit, outer, parts, axis)
    for join in dict.fromkeys(joins):
        edit.remove(join)
    return True


def _join(edit: Editor, node: onnx_ir.Node, parts: list[Value], axis: int) -> None:
    """A node becomes the Concat of these."""
    node.attributes.clear()
    edit.become(node, "Concat", parts)
    edit.set(node, axis=axis)
