"""Padding where 0.0 is not the integer 0: a value stored with rows and columns of its zero point around it.

The array pads with the integer 0.  A value that has a zero point is stored in a larger image instead, whose
border holds that; the convolution reads it without padding.  Who writes the value writes into that image
(write-in-place), so that only the border costs anything: copies of one number by the core.
"""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.program import Node
from fadiff.converter.ir.strided import Strided, dense
from fadiff.converter.ir.window import window_of
from fadiff.converter.lower.context import IMAGE_ORDER, Lowering

Pads = tuple[int, int, int, int]
"""Top, left, bottom, right."""


def bordered(lowering: Lowering, node: Node) -> Strided:
    """The input of a convolution where that has a zero point: the image and the border that it needs.

    All convolutions that read the value share one image, which has the widest border.
    """
    value = node.inputs[0]
    pads = _pads(lowering, node)
    readers = [reader for reader in lowering.program.consumers(value) if reader.op == "Conv"]
    top, left, bottom, right = np.max([_pads(lowering, reader) for reader in readers], axis=0).tolist()
    widest = (top, left, bottom, right)
    if value not in lowering.bordered:
        lowering.bordered[value] = _stored(lowering, value, widest)
    image = lowering.bordered[value]
    rank = len(image.axes)
    for axis, before, most, after in _spatial(rank, pads, widest):
        count = lowering.program.shapes[value][axis] + before + after
        part = image.slice(axis, most - before, 1, count)
        assert part is not None
        image = part
    return image


def _stored(lowering: Lowering, value: str, pads: Pads) -> Strided:
    """The value in the middle of a larger image, and its zero point around it."""
    inner, zero = lowering.value(value), lowering.zero(value)
    rank = len(inner.axes)
    shape = list(inner.shape)
    for axis, before, _, after in _spatial(rank, pads, pads):
        shape[axis] += before + after
    order = IMAGE_ORDER if rank == 4 else (0, 2, 1)
    tensor = lowering.graph.tensor(
        f"{inner.tensor}.bordered", tuple(shape[i] for i in order), "int8", inner.scale, zero=zero
    )
    whole = dense(tensor, tuple(shape), inner.scale, order)
    number = lowering.graph.tensor(f"{tensor}.zero", (1,), "int8", inner.scale, np.array([zero], np.int8))
    one = dense(number, (1,) * rank, inner.scale)
    middle = whole
    for axis, before, _, after in _spatial(rank, pads, pads):
        size = inner.shape[axis]
        for start, count in ((0, before), (before + size, after)):
            if count:  # the strip of this side, as wide as what the axes before have left
                strip = middle.slice(axis, start, 1, count)
                assert strip is not None
                lowering.move(one.expand(strip.shape), strip, f"border{axis}{'<' if start == 0 else '>'}")
        part = middle.slice(axis, before, 1, size)
        assert part is not None
        middle = part
    lowering.move(inner, middle, "inside")
    return whole


def _pads(lowering: Lowering, node: Node) -> Pads:
    shape = lowering.program.shapes[node.inputs[0]]
    plane = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    return window_of(node, plane, lowering.program.shapes[node.inputs[1]][2:]).pads


def _spatial(rank: int, pads: Pads, widest: Pads) -> list[tuple[int, int, int, int]]:
    """Spatial axes, of each its number, what is before it, what is before it at most, and behind it."""
    top, left, bottom, right = pads
    sides = [(top, widest[0], bottom), (left, widest[1], right)][4 - rank :]
    return [(axis + 2, *side) for axis, side in enumerate(sides)]
