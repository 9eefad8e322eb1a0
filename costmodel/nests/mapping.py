"""Many mappings of one layer at once, a row each: factors of every level, order of every memory's loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.nests.machine import Machine, Operand
from fadiff.costmodel.nests.workload import Workload

Ints = NDArray[np.int64]
Keeps = tuple[frozenset[Operand], ...]
"""What each memory keeps, outermost first."""


@dataclass(frozen=True)
class Mappings:
    """`factors` [rows, levels, active dimensions] of the loops at every level, outermost level first: loops
    in time at a memory, in space at a fan-out.  `orders` [rows, memories, active dimensions]: places of
    dimensions in `Workload.active`, innermost loop first.
    """

    factors: Ints
    orders: Ints
    keeps: Keeps

    def __len__(self) -> int:
        return len(self.factors)

    def __getitem__(self, rows: Ints | slice) -> Mappings:
        return Mappings(self.factors[rows], self.orders[rows], self.keeps)


def obstacle(machine: Machine, workload: Workload, mappings: Mappings, row: int = 0) -> str:
    """Why a row is no mapping of the layer on the machine, whatever fits; empty if it is."""
    from fadiff.costmodel.nests.machine import FanOut

    factors = mappings.factors[row]
    for at, dim in enumerate(workload.active):
        if int(np.prod(factors[:, at])) != workload.dims[dim]:
            return f"factors of {dim} multiply to {int(np.prod(factors[:, at]))}, not {workload.dims[dim]}"
    for level, own in zip(machine.levels, factors, strict=True):
        for at, dim in enumerate(workload.active):
            exact = level.limits.exact.get(dim)
            if own[at] > level.limits.largest(dim) or (exact is not None and own[at] != exact):
                return f"{level.name}: factor {own[at]} of {dim} is not allowed"
        if isinstance(level, FanOut) and own.prod() > level.size:
            return f"{level.name}: {own.prod()} parts along {level.axis}, where there are {level.size}"
    return ""
