"""Distinct layers of a network and the edges between them that may be fused: what descent works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window


@dataclass(frozen=True)
class Node:
    """One layer of the relaxed network, standing for `repeat` identical ones.

    `output_needed` says that somebody who cannot be fused reads the output.  `is_add`: a residual add
    of the shape `add_shape` gives; of its tiles only the extents of N, P and Q at L2 matter.
    """

    shape: LayerShape
    repeat: float = 1.0
    output_needed: bool = False
    is_add: bool = False


def add_shape(batch: int, channels: int, height: int, width: int) -> LayerShape:
    """Shape of a residual add: every output needs the same element of both operands."""
    dims = Dims(N=batch, K=channels, P=height, Q=width)
    return LayerShape(dims, Window(1, 1, 1, 0, height), Window(1, 1, 1, 0, width), False, False)


class Edge(NamedTuple):
    """A fusable edge: indices of nodes; the consumer reads the producer's output as its I.

    An add has up to two of them, one per operand; any other node one.
    """

    producer: int
    consumer: int
