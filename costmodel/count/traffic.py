"""Bytes that one layer moves at every level of the memory hierarchy.

The counting rules are docs/execution-contract.md (profile hw) and Timeloop's (profile dosa); in
the paper's words: fill, inter-memory read, PE-supplying read, accumulation write-back,
inter-memory write-back and the fusion-aware boundary, of W, I and O.

One set of formulas (`count_moves`) serves the exact model (Python integers), the batched model
(numpy integers) and the differentiable model (torch tensors): they differ only in how they come
by the `Quantities` of a mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fadiff.converter.ir.loops import C, G, K, N, P, Q, R, S
from fadiff.costmodel.mapping.counting import COUNTING, Profile
from fadiff.costmodel.target.target import Target

Role = Literal["W", "I", "O", "bias", "psum"]
Direction = Literal["read", "write"]
Memory = Literal["dram", "tile-buffer", "scratchpad", "accumulator", "register", "host"]
Number = Any
"""int, numpy int64 array or torch tensor."""


class Move(NamedTuple):
    """Bytes of one operand through one memory in one direction; role `psum` is an unfinished output."""

    level: str
    role: Role
    direction: Direction
    bytes: Number
    memory: Memory


class Pooled(NamedTuple):
    """What a max pool in the store path makes of a layer's output (costmodel.group.pooling), in elements."""

    outputs: Number
    """Pooled elements stored, those of overlapping regions several times."""
    distinct: Number
    """Of the whole pooled tensor."""
    taps: int
    """Accumulator words read for each of them."""
    steps: tuple[int, int]
    """What tiles must be multiples of along P and Q; 0: no tile may cut a region there."""


class Placement(NamedTuple):
    """Where a layer's operands live: DRAM, unless it is a member of a fusion group."""

    input_is_fused: bool = False
    output_is_fused: bool = False
    output_to_dram: bool = True
    weights_are_resident: bool = False
    is_paper: bool = False
    """Fused by the paper's Eq. 13-15: whole layers, no group tiles."""
    weights_on_chip: bool = False
    """The stationary operand is a tensor that is resident in the tile buffer (profile hw)."""
    pooled: Pooled | None = None
    """Set if the output leaves the accumulator pooled; all about the output then is about the pooled one."""
    stores_sums: bool = False
    """The output is the sums themselves, in accumulator words (profile hw)."""
    has_row_scale: bool = False
    """Every row leaves the accumulator with a scale of its own, which the core reads (profile hw)."""


ALONE = Placement()


class Quantities(NamedTuple):
    """What a mapping makes a layer do, in elements, over all runs of its nest.

    Fetch rule behind the fills: a tile is fetched in the body of the innermost loop above it that
    is relevant and has more than one trip, so every loop from there outward multiplies its traffic
    and irrelevant loops inside it are free.
    """

    macs: Number
    compute_cycles: Number
    """Temporal steps of the array, ragged passes included."""
    outputs: Number
    """Outputs computed, those of overlapping regions several times."""
    stored: Number
    """Distinct outputs."""
    updates: Number
    """Results leaving the array: one per output and reduction pass."""
    spills: Number
    """Outputs that leave the accumulator unfinished (and come back)."""
    weight_fills: Number
    """Weights entering the scratchpad."""
    weight_loads: Number
    """Weights entering the array."""
    input_fills: Number
    """Input elements entering the scratchpad."""
    input_reads: Number
    """Input elements entering the array: broadcast over the columns."""
    bias_words: Number
    """Accumulator words read from DRAM to initialise outputs."""
    stored_again: Number = 0
    """Elements stored beside `outputs` that later stores overwrite: channels have scales of their own."""


class Fetches(NamedTuple):
    """How often an element of an operand enters the memory that a quantity is named after."""

    weight_fills: Number
    weight_loads: Number
    input_fills: Number
    outputs: Number
    """The accumulator: once, and once more for every spill."""


def quantities_of(
    total: Sequence[Number],
    steps: Sequence[Number],
    fetches: Fetches,
    *,
    stored: Number,
    inputs: Number,
    weights: Number | None = None,
    bias_words: Number = 0,
    stored_again: Number = 0,
) -> Quantities:
    """What follows from a nest's counts, by dimension.

    Args:
        total: Indices computed, those of overlapping regions several times.
        steps: Temporal steps of the array.
        fetches: Of every operand.
        stored: Distinct outputs.
        inputs: Input elements of one pass over all scratchpad tiles.
        weights: Elements that move, if not all there are: the zeros of block-diagonal tiles come along.
        bias_words: Accumulator words read from DRAM.
        stored_again: Elements that later stores overwrite.
    """
    pixels, passes = total[N] * total[P] * total[Q], steps[C] * steps[R] * steps[S]
    dense = total[G] * total[K] * total[C] * total[R] * total[S]
    outputs = total[G] * total[K] * pixels
    weights = dense if weights is None else weights
    return Quantities(
        macs=dense * pixels,
        compute_cycles=steps[G] * steps[K] * passes * (steps[N] * steps[P] * steps[Q]),
        outputs=outputs,
        stored=stored,
        updates=outputs * passes,
        spills=outputs * (fetches.outputs - 1),
        weight_fills=weights * fetches.weight_fills,
        weight_loads=weights * fetches.weight_loads,
        input_fills=inputs * fetches.input_fills,
        input_reads=total[G] * total[C] * total[R] * total[S] * pixels * steps[K],
        bias_words=bias_words,
        stored_again=stored_again,
    )


class Fusion(NamedTuple):
    """How much of a layer's boundary is fused: 0 or 1, or the paper's sigma in between.

    `written`: the output goes to DRAM.  `copied`: it also (or only) stays on chip.
    """

    into: Number = 0
    copied: Number = 0
    written: Number = 1
    weights_on_chip: bool = False
    pooled: Pooled | None = None
    stores_sums: bool = False


def fusion_of(placement: Placement) -> Fusion:
    """The integral case."""
    return Fusion(
        int(placement.input_is_fused),
        int(placement.output_is_fused),
        int(placement.output_to_dram or not placement.output_is_fused),
        placement.weights_on_chip,
        placement.pooled,
        placement.stores_sums,
    )


def count_moves(
    q: Quantities, fusion: Fusion, target: Target, profile: Profile, *, paper: bool = False
) -> list[Move]:
    """All accesses of one layer, by level, operand and direction (some may be zero).

    Profile `hw` is Gemmini as emitted: accumulator tiles are initialised by mvin, every array result
    is a read-modify-write, spills are full words, fused tensors go through the tile buffer.
    Profile `dosa` is Timeloop's counting: first reads elided, drains free, one element per spilled
    partial sum, fused tensors copied into the scratchpad when final (Eq. 14).  `paper` is Eq. 13-15
    taken literally: a fused output's DRAM traffic vanishes, spills included, and so do all fills of
    a fused input, however often it would be fetched; no program does that when tiles are refetched.
    """
    counting = COUNTING[profile]
    e, word = target.element_bytes, target.accumulator_bytes_per_word
    into, copied, written, weights_on_chip, pooled, stores_sums = fusion
    leaving, distinct, taps = q.outputs + q.stored_again, q.stored, 1
    if pooled is not None:
        leaving, distinct, taps, _ = pooled
    # A tensor that is also read outside its group is stored once per element, else region by region.
    result = word if stores_sums and counting.moves_accumulator else e
    stored = written * (leaving + copied * (distinct - leaving)) * result
    spilled = q.spills * counting.partial_sum_bytes(target) * (written if paper else 1)
    weight_fills, weight_loads = q.weight_fills * e, q.weight_loads * e
    accumulated = (q.updates + q.spills) * word
    moves = [
        Move("L0", "W", "write", weight_loads, "register"),
        Move("L0", "W", "read", q.macs * e, "register"),
        Move("L1", "psum", "write", accumulated, "accumulator"),
        Move("L2", "W", "write", weight_fills, "scratchpad"),
        Move("L2", "W", "read", weight_loads, "scratchpad"),
        Move("L3", "W", "read", weight_fills, "tile-buffer" if weights_on_chip else "dram"),
        Move("L3", "I", "read", q.input_fills * (1 - into) * e, "dram"),
        Move("L3", "psum", "read", spilled, "dram"),
        Move("L3", "psum", "write", spilled, "dram"),
        Move("L3", "O", "write", stored, "dram"),
    ]
    if counting.moves_accumulator:
        drained = leaving * taps * (written + copied)  # one for DRAM, one for the copy
        moves += (
            Move("L1", "bias", "write", q.outputs * word, "accumulator"),
            Move("L1", "psum", "read", accumulated, "accumulator"),
            Move("L1", "O", "read", drained * word, "accumulator"),
            Move("L3", "bias", "read", q.bias_words * word, "dram"),
        )
    else:
        moves.append(Move("L1", "psum", "read", (q.updates - q.outputs) * word, "accumulator"))
        if not paper:
            moves.append(Move("L1", "O", "read", q.outputs * word * written * copied, "accumulator"))
    moves.append(Move("L2", "I", "read", q.input_reads * e, "scratchpad"))
    if counting.copies_into_scratchpad(paper=paper):
        moves += (
            Move("L2", "I", "write", q.input_fills * (1 - into) * e, "scratchpad"),
            Move("L2", "O", "write", q.outputs * copied * e, "scratchpad"),
        )
    else:
        moves += (
            Move("L2", "I", "write", q.input_fills * e, "scratchpad"),
            Move("L3", "I", "read", q.input_fills * into * e, "tile-buffer"),
            Move("L3", "O", "write", leaving * copied * e, "tile-buffer"),
        )
    return moves
