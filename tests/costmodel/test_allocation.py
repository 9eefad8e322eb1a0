"""Places of buffers: nothing alive overlaps, and little is wasted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.group.allocation import Block, align, allocate

BLOCKS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 12), st.integers(0, 6)), max_size=25)


def blocks_of(rows: list[tuple[int, int, int]]) -> list[Block]:
    return [Block(f"t{i}", size, first, first + length) for i, (size, first, length) in enumerate(rows)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(BLOCKS)
def test_blocks_alive_together_do_not_overlap(rows: list[tuple[int, int, int]]) -> None:
    blocks = blocks_of(rows)
    plan = allocate(blocks)
    for i, a in enumerate(blocks):
        for b in blocks[:i]:
            if a.overlaps(b):
                start_a, start_b = plan.offsets[a.name], plan.offsets[b.name]
                assert start_a + a.nbytes <= start_b or start_b + b.nbytes <= start_a
    assert plan.nbytes >= plan.lower_bound
    assert all(offset % 64 == 0 for offset in plan.offsets.values())


def test_chain_reaches_the_lower_bound() -> None:
    """Layer after layer, two tensors are alive at a time: ping-pong is optimal."""
    blocks = [Block(f"t{i}", 1000 - 64 * i, i, i + 1) for i in range(8)]
    plan = allocate(blocks)
    assert plan.nbytes == plan.lower_bound == align(1000) + align(936)


def test_empty() -> None:
    assert allocate([]).nbytes == 0
