"""Places buffers in one memory (the activation arena, the tile buffer), overlapped by lifetime.

Buffers of equal steps (`Graph.step_roles`) are placed as one, so that every step finds its own where the
others do.

Greedy-by-size offset allocation (Pisarchyk and Lee, "Efficient memory management for deep neural
net inference", 2020): large blocks first, each at the lowest offset where it overlaps nothing that
is alive at the same time.  Two more orders (longest-lived first, earliest first) are tried and the
smallest plan kept.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    role: str = ""
    """Blocks of one role are put in one place, as many as are not alive at once."""

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
    orders: tuple[Callable[[_Shared], tuple[int, int, str]], ...] = (
        lambda s: (-s.nbytes, s.first.first, s.first.name),
        lambda s: (s.first.first - s.first.last, -s.nbytes, s.first.name),
        lambda s: (s.first.first, -s.nbytes, s.first.name),
    )
    shared = _shared(blocks)
    plans = [_place(sorted(shared, key=order), alignment) for order in orders]
    offsets = min(plans, key=lambda plan: _end(blocks, plan, alignment))
    return Allocation(
        tuple(sorted(blocks, key=lambda b: (offsets[b.name], b.name))),
        offsets,
        _end(blocks, offsets, alignment),
        _most_alive(blocks, alignment),
    )


def _most_alive(blocks: Sequence[Block], alignment: int) -> int:
    """The largest sum of bytes at one step."""
    changes: list[tuple[int, int]] = []
    for block in blocks:
        nbytes = align(block.nbytes, alignment)
        changes += [(block.first, nbytes), (block.last + 1, -nbytes)]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


class _Shared:
    """Blocks in one place, one after the other."""

    def __init__(self, block: Block) -> None:
        self.blocks = [block]

    @property
    def first(self) -> Block:
        """The earliest."""
        return self.blocks[0]

    @property
    def nbytes(self) -> int:
        """Of the largest."""
        return max(block.nbytes for block in self.blocks)

    def overlaps(self, other: _Shared) -> bool:
        """Whether two blocks are alive at some step."""
        ours, theirs = iter(self.blocks), iter(other.blocks)
        a, b = next(ours, None), next(theirs, None)
        while a is not None and b is not None:
            if a.overlaps(b):
                return True
            if a.last < b.first:
                a = next(ours, None)
            else:
                b = next(theirs, None)
        return False


def _shared(blocks: Sequence[Block]) -> list[_Shared]:
    """Blocks of one role together, in as few places as their lifetimes allow."""
    found: list[_Shared] = []
    by_role: dict[str, list[_Shared]] = {}
    for block in sorted(blocks, key=lambda block: (block.first, block.name)):
        alike = by_role.setdefault(block.role, []) if block.role else []
        place = next((shared for shared in alike if shared.blocks[-1].last < block.first), None)
        if place is None:
            place = _Shared(block)
            alike.append(place)
            found.append(place)
        else:
            place.blocks.append(block)
    return found


def _place(shared: Sequence[_Shared], alignment: int) -> dict[str, int]:
    placed: list[tuple[int, str, int, int, int, _Shared]] = []  # by offset
    for blocks in shared:
        offset, begin, end = 0, blocks.first.first, blocks.blocks[-1].last
        nbytes = align(blocks.nbytes, alignment)
        for start, _, behind, first, last, other in placed:
            if last < begin or end < first or behind <= offset or not blocks.overlaps(other):
                continue
            if offset + nbytes <= start:
                break
            offset = behind
        insort(placed, (offset, blocks.first.name, offset + nbytes, begin, end, blocks))
    return {block.name: offset for offset, *_, blocks in placed for block in blocks.blocks}


def _end(blocks: Sequence[Block], offsets: dict[str, int], alignment: int) -> int:
    return max((offsets[b.name] + align(b.nbytes, alignment) for b in blocks), default=0)
