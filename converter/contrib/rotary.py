"""Rotary position embeddings."""

from __future__ import annotations

import math

import numpy as np

from fadiff.converter.contrib.call import Call
from fadiff.converter.decompose.nodes import Nodes


def rotary_embedding(nodes: Nodes, call: Call) -> None:
    """Pairs of every head's first numbers, turned by the angles of their position."""
    shape, half = call.sizes(0), call.sizes(2)[1]
    x = call.input(0)
    if len(shape) == 3:
        heads = int(call.attribute("num_heads", 0))
        width = shape[2] // heads if call.attribute("rotary_embedding_dim", 0) else 2 * half
        x = nodes.transpose(nodes.reshape(x, (*shape[:2], shape[2] // width, width)), (0, 2, 1, 3))
    else:
        width = shape[3]
    batch, length = shape[0], shape[-2]
    places = call.input(1)
    if len(call.sizes(1)) < 2 and length > 1:  # where the sequences begin
        first = nodes.reshape(places, (1, 1))
        places = nodes.op("Add", first, nodes.constant(np.arange(length, dtype=np.int64)[None]))
    elif len(call.sizes(1)) < 2:
        places = nodes.reshape(places, (1, 1))
    cos, sin = angles(nodes, call.input(2), call.input(3), places)
    turned = rotate(nodes, x, cos, sin, half, width, bool(call.attribute("interleaved", 0)))
    if len(shape) == 3:
        turned = nodes.reshape(nodes.transpose(turned, (0, 2, 1, 3)), (batch, length, shape[2]))
    nodes.give(turned, call.output(0))


def known_angles(call: Call) -> str | None:
    """Shapes are static; with rotary_embedding_dim, num_heads is given."""
    if unshaped := call.unshaped(0, 1, 2):
        return unshaped
    headless = call.attribute("rotary_embedding_dim", 0) and not call.attribute("num_heads", 0)
    return "rotary_embedding_dim without num_heads" if headless and len(call.sizes(0)) == 3 else None


def angles(nodes: Nodes, cos_cache: str, sin_cache: str, places: str) -> tuple[str, str]:
    """Cosines and sines [batch, 1, length, half] of positions [batch, length] (`places`)."""
    rows = (nodes.op("Gather", cache, places) for cache in (cos_cache, sin_cache))
    cos, sin = (_over_heads(nodes, row) for row in rows)
    return cos, sin


def _over_heads(nodes: Nodes, row: str) -> str:
    """[batch, length, half] as [batch, 1, length, half]."""
    if nodes.opset >= 13:
        return nodes.op("Unsqueeze", row, nodes.ints([1]))
    return nodes.op("Unsqueeze", row, axes=[1])


def rotate(nodes: Nodes, x: str, cos: str, sin: str, half: int, width: int, interleaved: bool) -> str:
    """x [batch, heads, length, width]: its first 2 * half numbers turned, the rest as it is.

    Pairs are neighbours (`interleaved`), or a number and the one `half` behind it.
    """
    turning = x if 2 * half == width else nodes.slice(x, 3, 0, 2 * half)
    if interleaved:
        turning = _swapped(nodes, turning, (half, 2))
    first, second = (nodes.slice(turning, 3, i * half, (i + 1) * half) for i in (0, 1))
    real = nodes.op("Sub", nodes.op("Mul", first, cos), nodes.op("Mul", second, sin))
    other = nodes.op("Add", nodes.op("Mul", second, cos), nodes.op("Mul", first, sin))
    turned = nodes.op("Concat", real, other, axis=3)
    if interleaved:
        turned = _swapped(nodes, turned, (2, half))
    if 2 * half == width:
        return turned
    return nodes.op("Concat", turned, nodes.slice(x, 3, 2 * half, width), axis=3)


def _swapped(nodes: Nodes, x: str, matrix: tuple[int, int]) -> str:
    """The last axis read as a matrix of this shape, transposed."""
    matrices = nodes.op("Reshape", x, nodes.ints([0, 0, -1, *matrix]))
    swapped = nodes.transpose(matrices, (0, 1, 2, 4, 3))
    return nodes.op("Reshape", swapped, nodes.ints([0, 0, -1, math.prod(matrix)]))
