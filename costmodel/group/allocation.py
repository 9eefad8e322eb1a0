"""Places buffers in one memory (the activation arena, the tile buffer), overlapped by lifetime.

Greedy-by-size offset allocation (Pisarchyk and Lee, "Efficient memory management for deep neural
net inference", 2020): large blocks first, each at the lowest offset where it overlaps nothing that
is alive at the same time.  Two more orders (longest-lived first, earliest first) are tried and the
smallest plan kept.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes; one Gemmini DMA request."""


def align(n: int, alignment: int = ALIGNMENT) -> int:
    """`n` rounded up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


@dataclass(frozen=True)
class Block:
    """A buffer that must keep its content from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Block) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Allocation:
    """Offset of every block.

    `nbytes` is the memory needed, `lower_bound` the largest sum of bytes (aligned) alive at one
    step: no plan can be smaller.
    """

    blocks: tuple[Block, ...]
    offsets: dict[str, int]
    nbytes: int
    lower_bound: int


def allocate(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Allocation:
    """Place all blocks.  Deterministic: ties go by name."""
    orders: tuple[Callable[[Block], tuple[int, int, str]], ...] = (
        lambda b: (-b.nbytes, b.first, b.name),
        lambda b: (b.first - b.last, -b.nbytes, b.name),
        lambda b: (b.first, -b.nbytes, b.name),
    )
    plans = [_place(sorted(blocks, key=order), alignment) for order in orders]
    offsets = min(plans, key=lambda plan: _end(blocks, plan, alignment))
    steps = {b.first for b in blocks}
    live = [sum(align(b.nbytes, alignment) for b in blocks if b.first <= step <= b.last) for step in steps]
    return Allocation(
        tuple(sorted(blocks, key=lambda b: (offsets[b.name], b.name))),
        offsets,
        _end(blocks, offsets, alignment),
        max(live, default=0),
    )


def _place(blocks: Sequence[Block], alignment: int) -> dict[str, int]:
    placed: list[tuple[int, str, Block]] = []  # by offset
    for block in blocks:
        offset = 0
        for start, _, other in placed:
            if not block.overlaps(other):
                continue
            if offset + align(block.nbytes, alignment) <= start:
                break
            offset = max(offset, start + align(other.nbytes, alignment))
        insort(placed, (offset, block.name, block))
    return {name: offset for offset, name, _ in placed}


def _end(blocks: Sequence[Block], offsets: dict[str, int], alignment: int) -> int:
    return max((offsets[b.name] + align(b.nbytes, alignment) for b in blocks), default=0)
