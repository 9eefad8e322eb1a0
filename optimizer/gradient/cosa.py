"""Start points of DOSA: the mappings CoSA (Huang et al., ISCA 2021) would choose, without its MILP solver.

DOSA starts from CoSA's mapping for random hardware.  The CoSA version it ships minimises
10 log2(temporal loops) - 0.1 log2(space used in every buffer); traffic and loop orders are not in the
objective.  Over divisor tiles without scratchpad loops the optimum is found by looking at all of them:
spatial factors as large as they get, then the tile that fills the buffers most.  CoSA bounds every tensor
by a share of a buffer (a logarithmic program cannot bound a sum) and counts input tiles without halo; W
and I have half the scratchpad each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.layer.candidates import divisors

TILED: tuple[Dim, ...] = ("R", "S", "P", "Q", "C", "K", "N")
"""Tiled dimensions, in DOSA's order."""


class Hardware(NamedTuple):
    """What DOSA draws at random: array side and bytes of both memories."""

    side: int
    scratchpad_bytes: int
    accumulator_bytes: int


class Start(NamedTuple):
    """A mapping without scratchpad loops: spatial factors of C and K, tile extents in the order of TILED."""

    rows: int
    columns: int
    tile: tuple[int, ...]


def hardware_of(target: Target) -> Hardware:
    """The target itself."""
    return Hardware(target.side, target.scratchpad_bytes, target.accumulator_bytes)


def random_hardware(target: Target, rng: np.random.Generator) -> Iterator[Hardware]:
    """Powers of two as DOSA draws them (side 2-128, memories 1-2048 KB), but no larger than the target."""
    while True:
        side, scratchpad, accumulator = 2 ** rng.integers((1, 0, 0), (8, 12, 12))
        yield Hardware(
            min(int(side), target.side),
            min(int(scratchpad) * 1024, target.scratchpad_bytes),
            min(int(accumulator) * 1024, target.accumulator_bytes),
        )


def cosa_start(shape: LayerShape, hardware: Hardware, target: Target) -> Start:
    """The tile that uses most of both memories; a single element per dimension if nothing fits."""
    d = shape.dims
    rows = max(x for x in divisors(d.C) if x <= hardware.side)
    columns = max(x for x in divisors(d.K) if x <= hardware.side)
    least = {"C": rows, "K": columns}
    options = [np.array([x for x in divisors(d[n]) if x % least.get(n, 1) == 0]) for n in TILED]
    r, s, p, q, c, k, n = (axis.ravel() for axis in np.meshgrid(*options, indexing="ij"))
    weights, outputs = r * s * c * k, n * p * q * k
    inputs = n * c * p * shape.height.stride * q * shape.width.stride
    # The accumulator has one bank per column of the array, used or not.
    words = outputs // columns * hardware.side * target.accumulator_bytes_per_word
    half = hardware.scratchpad_bytes / 2 / target.element_bytes
    fits = np.flatnonzero((weights <= half) & (inputs <= half) & (words <= hardware.accumulator_bytes))
    if not len(fits):
        if hardware.side == 1:
            return Start(1, 1, (1,) * len(TILED))
        return cosa_start(shape, hardware._replace(side=hardware.side // 2), target)
    use = np.log2(weights[fits]) + np.log2(inputs[fits]) + np.log2(outputs[fits])
    best = int(fits[use.argmax()])
    return Start(rows, columns, tuple(int(axis[best]) for axis in (r, s, p, q, c, k, n)))
