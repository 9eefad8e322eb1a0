"""Many mappings of one layer at once, a row each: factors of every level, order of every memory's loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.nests.machine import Operand

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

    @staticmethod
    def joined(parts: Sequence[Mappings]) -> Mappings:
        """All rows of several, which keep the same."""
        factors = np.concatenate([part.factors for part in parts])
        return Mappings(factors, np.concatenate([part.orders for part in parts]), parts[0].keeps)
