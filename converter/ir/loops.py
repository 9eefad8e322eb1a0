"""Loops: the eight of a product, N K C P Q R S and G, and any nest over several operands.

N batch, K output channel, C input channel, P output height, Q output width, R kernel height,
S kernel width (the paper's Table 1).  G counts independent problems that share nothing: the
groups of a grouped or depthwise convolution (then K and C are *per group*) and the batch of a
batched matrix product (attention heads).  A GEMM of M x C by C x K has P = M, Q = R = S = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Dim = Literal["G", "N", "K", "C", "P", "Q", "R", "S"]
DIMS: tuple[Dim, ...] = ("G", "N", "K", "C", "P", "Q", "R", "S")
G, N, K, C, P, Q, R, S = range(8)
"""Place of each dimension in DIMS, for sequences and arrays in that order."""

RELEVANT: dict[str, frozenset[Dim]] = {
    "W": frozenset(("G", "K", "C", "R", "S")),
    "I": frozenset(("G", "N", "C", "P", "Q", "R", "S")),
    "O": frozenset(("G", "N", "K", "P", "Q")),
}
"""Dimensions each operand of the product depends on (I through its sliding window)."""
REDUCTION: frozenset[Dim] = frozenset(("C", "R", "S"))
"""Dimensions summed over: their products accumulate into one output element."""


@dataclass(frozen=True)
class Dims:
    """One positive integer per dimension: a layer's bounds, a tile's extents, or trip counts."""

    G: int = 1
    N: int = 1
    K: int = 1
    C: int = 1
    P: int = 1
    Q: int = 1
    R: int = 1
    S: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: a dimension is a positive integer")

    def __getitem__(self, dim: Dim) -> int:
        return int(getattr(self, dim))

    def __iter__(self) -> Iterator[int]:
        return iter((self.G, self.N, self.K, self.C, self.P, self.Q, self.R, self.S))

    @property
    def product(self) -> int:
        """Number of points of the iteration space."""
        return math.prod(self)

    def as_dict(self) -> dict[Dim, int]:
        """All eight dimensions, in order."""
        return {d: self[d] for d in DIMS}

    def replace(self, changes: Mapping[Dim, int]) -> Dims:
        """A copy with some dimensions changed."""
        return Dims(**{**self.as_dict(), **changes})

    def __str__(self) -> str:
        return " ".join(f"{d}{self[d]}" for d in DIMS if self[d] > 1) or "1"


@dataclass(frozen=True)
class Access:
    """Where loops find a value: element `offset` + sum of index * stride."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Loops:
    """A loop nest over several values at once, outermost first; what it writes is the last of them.

    Raises:
        ValueError: another number of strides than loops.
    """

    shape: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access

    def __post_init__(self) -> None:
        if any(len(access.strides) != len(self.shape) for access in self.accesses):
            raise ValueError(f"{len(self.shape)} loops need as many strides for each operand")

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Accesses of all values."""
        return (*self.inputs, self.output)

    @property
    def anywhere(self) -> Loops:
        """The same wherever the values begin."""
        *inputs, output = (replace(access, offset=0) for access in self.accesses)
        return replace(self, inputs=tuple(inputs), output=output)
