"""Weights of dense products with a scale for each block of output channels, where these differ in size.

A store of the array takes a block of channels and has one scale: one for each block costs next to nothing
(emitters/gemmini/runtime/core_products.h).  Channels of one block are alike where they are sorted by their
largest weight, and in what order they stand only the next products' weights say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import ELEMENTWISE, WEIGHTED, Kind
from fadiff.converter.ir.operators import are_owned, is_a, output_axis, outputs_first
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.factors import largest_of_outputs, multiplies
from fadiff.converter.quantise.prescribed import kept_channels
from fadiff.converter.quantise.seen import Vectors

CHANNEL_BLOCK = 16
"""Channels that share a scale: those of one store of the default array."""
_WORTH_DB = 1.0
"""By which the noise of a product's results has to fall that rounding its inputs and weights makes: such a
layer runs alone, and the core issues its tiles."""
_WORTH_ALL_DB = 0.5
"""By which that of the model's results has to fall, if all its products make as much noise as one another."""
_MOST_RATIO = 2.0**8
"""Of the largest scale to the least: beyond, a bias in steps of the least would be too large for int32."""


def sort_channels(program: Program) -> onnx.ModelProto | None:
    """The model with the output channels of dense products in the order of their largest weights, where
    scales of blocks gain by that; None where there are none."""
    edit, found = Editor(program.model), False
    for product in program.nodes:
        if not _is_dense(program, product) or not are_owned(program, product):
            continue
        sizes = largest_of_outputs(product, program.constants[product.inputs[1]])
        order = np.argsort(sizes, kind="stable")
        if np.all(np.diff(sizes) >= 0) or _gain_db(sizes[order]) < _WORTH_DB:
            continue
        if (reach := _reach_of(program, product)) is None:
            continue
        found = True
        edit.change_constant(product, 1, partial(np.take, indices=order, axis=output_axis(product)))
        if product.input(2):
            edit.change_constant(product, 2, partial(np.take, indices=order, axis=0))
        for node, place in reach.added:
            edit.change_constant(node, place, partial(np.take, indices=order, axis=-1))
        for reader in reach.readers:
            edit.change_constant(reader, 1, partial(np.take, indices=order, axis=1 - output_axis(reader)))
    return edit.model() if found else None


def could_have_blocks(program: Program, steps: Sequence[Step]) -> Sequence[Step]:
    """The products whose weights differ enough from block to block."""
    dense = [s for s in steps if s.kind == "node" and not s.is_float and _is_dense(program, s.head)]
    weights = ((step, program.constants[step.head.inputs[1]]) for step in dense)
    return [s for s, weight in weights if _gain_db(largest_of_outputs(s.head, weight)) >= _WORTH_DB]


def block_scales(
    program: Program, steps: Sequence[Step], able: Sequence[Step], vectors: Mapping[str, Vectors]
) -> dict[str, np.ndarray]:
    """Scales by constant, which broadcast to it, where the rounding noise of results falls by so much.

    Args:
        program: the float program.
        steps: its plan.
        able: those of `could_have_blocks`.
        vectors: what these multiply, by value.
    """
    found, gained = {}, 0.0
    for step in able:
        weight, seen = program.constants[step.head.inputs[1]], vectors[step.source]
        sizes = largest_of_outputs(step.head, weight)
        blocks, energy = _of_blocks(sizes), float(seen.energy.mean())
        squares = outputs_first(step.head, weight.astype(np.float64) ** 2).sum(0)
        rounded = seen.used.mean(0)  # (zeros are exact)
        of_inputs = float(seen.largest.max()) ** 2 * float((squares * rounded).sum())
        before = of_inputs + energy * len(sizes) * float(sizes.max()) ** 2
        after = of_inputs + energy * float((blocks**2).sum())
        if before >= after * 10 ** (_WORTH_DB / 10):
            along = [-1 if i == output_axis(step.head) else 1 for i in range(2)]
            found[step.head.inputs[1]] = (blocks / np.float32(INT8_MAX)).reshape(along)
            gained += 1 - float(after / before)
    products = sum(step.kind == "node" and is_a(step.head, WEIGHTED) for step in steps)
    enough = gained >= products * (1 - 10 ** (-_WORTH_ALL_DB / 10))
    return kept_channels(program, steps, found) if enough else {}


def _of_blocks(sizes: np.ndarray) -> np.ndarray:
    """The largest of each block of channels, for each channel: just above, so that no integer passes 127."""
    starts = np.arange(0, len(sizes), CHANNEL_BLOCK)
    largest = np.maximum(np.maximum.reduceat(sizes, starts), sizes.max() / _MOST_RATIO)
    return np.repeat(largest * np.float32(1 + 2.0**-20), CHANNEL_BLOCK)[: len(sizes)].astype(np.float32)


def _gain_db(sizes: np.ndarray) -> float:
    """By how much what rounding weights makes of it falls: it goes with the square of the scale."""
    if len(sizes) <= CHANNEL_BLOCK or not sizes.all() or not np.all(np.isfinite(sizes)):
        return 0.0
    return float(10 * np.log10(sizes.max() ** 2 / np.mean(_of_blocks(sizes) ** 2)))


@dataclass(frozen=True)
class _Reach:
    """What meets the output channels of a product."""

    readers: tuple[Node, ...]
    """Products that sum over them."""
    added: tuple[tuple[Node, int], ...]
    """Operands with a number for each channel: the node, and which of its inputs."""


def _reach_of(program: Program, product: Node) -> _Reach | None:
    """None where others than functions of single elements and dense products see the channels."""
    channels = program.shapes[product.outputs[0]][-1]
    values, inside, readers = [product.outputs[0]], list[Node](), list[Node]()
    for value in values:  # (which grows)
        if value in program.outputs:
            return None
        for node in program.consumers(value):
            if is_a(node, ELEMENTWISE):
                values += [] if node in inside else node.outputs
                inside += [] if node in inside else [node]
            elif _is_dense(program, node) and multiplies(program, node, value):
                if not are_owned(program, node, bias=False):
                    return None
                readers.append(node)
            else:
                return None
    others = [
        (node, i, program.constant(name))
        for node in inside
        for i, name in enumerate(node.inputs)
        if name and name not in values
    ]
    if not readers or any(a is None or (a.size > 1 and a.size != a.shape[-1]) for _, _, a in others):
        return None
    added = [(node, i) for node, i, a in others if a is not None and a.size == channels]
    return _Reach(tuple(readers), tuple(added))


def _is_dense(program: Program, node: Node) -> bool:
    """A product of vectors with constant weights, the output channels of which are the last axis."""
    weight = program.constant(node.input(1)) if is_a(node, Kind.MATRIX) else None
    return weight is not None and weight.ndim == 2 and weight.dtype == np.float32
