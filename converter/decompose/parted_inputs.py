"""Affine functions of parts of an input, put in front of what takes the parts: functions of its columns.

Tables whose features are normalised one by one: Split or Gather, (x - mean) / std of each, Concat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.decompose.unused import Pick, pick_of
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.inputs import UNCHANGED, Affine, as_affine


@dataclass(frozen=True)
class _Parted:
    """An input that only parts are taken of, what they are functions of by index, and these functions."""

    picks: tuple[Pick, ...]
    factor: np.ndarray
    shift: np.ndarray
    chains: dict[str, tuple[Node, ...]]
    """By the part that they begin at."""


def functions_before_parts(
    model: onnx.ModelProto, program: Program
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A normalised model, itself if there are none, and the inputs that have some."""
    edit, done = Editor(model), list[str]()
    for name in program.inputs:
        parted = _parted(program, name)
        if parted is not None:
            _move(edit, program, name, parted)
            done.append(name)
    return edit.model(), tuple(done)


def _parted(program: Program, name: str) -> _Parted | None:
    picks = [pick_of(program, node, name) for node in program.consumers(name)]
    found = tuple(pick for pick in picks if pick is not None)
    if not program.is_float(name) or len(found) != len(picks) or len({pick.axis for pick in found}) != 1:
        return None
    chains = dict[str, tuple[Node, ...]]()
    numbers = np.full((2, program.shapes[name][found[0].axis]), np.nan)
    for pick in found:
        for part, indices in pick.indices:
            chains[part], known = _chain(program, part, None if pick.drops_axis else pick.axis)
            for place, at in enumerate(indices):
                own = [
                    array.reshape(-1)[place if array.size > 1 else 0] for array in (known.factor, known.shift)
                ]
                if not np.isnan(numbers[0, at]) and not np.array_equal(numbers[:, at], own):
                    return None
                numbers[:, at] = own
    factor, shift = np.where(np.isnan(numbers[0]), [[1.0], [0.0]], numbers)
    whole = Affine(factor, shift, found[0].axis)
    return _Parted(found, factor, shift, chains) if any(chains.values()) and whole.is_meaning else None


def _chain(program: Program, value: str, axis: int | None) -> tuple[tuple[Node, ...], Affine]:
    """The longest affine chain that alone reads a part, and its function along the axis."""
    nodes, known = list[Node](), UNCHANGED
    while (node := program.sole_consumer(value)) is not None:
        one = as_affine(program, node)
        if one is None or one.axis not in (None, axis):
            break
        following = known.then(one.factor, one.shift, one.axis)
        assert following is not None
        known, value = following, node.outputs[0]
        nodes.append(node)
    return tuple(nodes), known


def _move(edit: Editor, program: Program, name: str, parted: _Parted) -> None:
    """x -> part -> function becomes x -> function of all columns -> part."""
    axis, rank = parted.picks[0].axis, len(program.shapes[name])
    shape = [-1 if at == axis else 1 for at in range(rank)]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(program.types[name])
    moved, first = edit.value(name), edit.nodes()[0]
    for op, numbers in (("Add", parted.shift / parted.factor), ("Mul", parted.factor)):
        constant = edit.constant(f"{name}.{op}", numbers.astype(dtype).reshape(shape))
        moved = edit.elementwise(first, op, [moved, constant], f"{name}.columns")
    for pick in parted.picks:
        edit.node(pick.node).replace_input_with(0, moved)
    for part, nodes in parted.chains.items():
        if nodes:
            edit.replace(edit.value(nodes[-1].outputs[0]), edit.value(part))
        for node in reversed(nodes):
            edit.remove(edit.writer(node.outputs[0]))
