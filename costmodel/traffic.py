"""Bytes that one layer moves at every level of the memory hierarchy: exact integers.

The counting rules are docs/execution-contract.md (profile hw) and Timeloop's (profile dosa); in
the paper's words: fill, inter-memory read, PE-supplying read, accumulation write-back and
inter-memory write-back of W, I and O.  The rule behind all of them: a tile is fetched in the body
of the innermost loop above it that is relevant and has more than one trip, so every loop from
there outward multiplies its traffic and irrelevant loops inside it are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple

from converter.dims import DIMS, REDUCTION, RELEVANT
from costmodel.mapping import Mapping, Order, ceil_div
from costmodel.schedule import Profile
from costmodel.shape import LayerShape, Region, extents
from costmodel.target import Target
from costmodel.tiling import DimCounts, dim_counts, fetched_rows, tile_extents, unclipped_rows

Role = Literal["W", "I", "O", "bias", "psum"]
Direction = Literal["read", "write"]
Memory = Literal["dram", "tile-buffer", "scratchpad", "accumulator", "register", "host"]

G, N, K, C, P, Q, R, S = range(8)
_IS_RELEVANT = {operand: tuple(d in RELEVANT[operand] for d in DIMS) for operand in RELEVANT}
_IRRELEVANT = {operand: tuple(i for i in range(8) if not _IS_RELEVANT[operand][i]) for operand in RELEVANT}
_REDUCTION = tuple(DIMS.index(d) for d in DIMS if d in REDUCTION)
_values = attrgetter(*DIMS)


class Move(NamedTuple):
    """Bytes of one operand through one memory in one direction.

    Role `psum` is an unfinished output.  A register or scratchpad element is `element_bytes`, an
    accumulator word `accumulator_bytes_per_word`.
    """

    level: str
    role: Role
    direction: Direction
    bytes: int
    memory: Memory


class Placement(NamedTuple):
    """Where a layer's operands live: DRAM, unless it is a member of a fusion group."""

    input_is_fused: bool = False
    output_is_fused: bool = False
    output_to_dram: bool = True
    weights_are_resident: bool = False
    is_paper: bool = False
    """Fused by the paper's Eq. 13-15: whole layers, no group tiles (see `paper_fusion`)."""


ALONE = Placement()


class LayerTraffic(NamedTuple):
    """All moves of a layer, with what latency needs besides."""

    moves: tuple[Move, ...]
    macs: int
    compute_cycles: int
    """Temporal steps of the array, ragged passes included."""
    columns: int
    """Array columns in use: their accumulator ports bound L1 bandwidth."""


class Nest:
    """A mapping applied to regions of a layer: trip counts, tile counts and fetch rules."""

    def __init__(self, shape: LayerShape, mapping: Mapping, region: Region) -> None:
        n, p, q = (extents(axis) for axis in region)
        bounds = list(_values(shape.dims))
        dim_extents: list[tuple[int, ...]] = [(b,) for b in bounds]
        dim_extents[N], dim_extents[P], dim_extents[Q] = n, p, q
        bounds[N], bounds[P], bounds[Q] = max(n), max(p), max(q)
        l2, l1, l0 = _values(mapping.tile_l2), _values(mapping.tile_l1), _values(mapping.tile_l0)
        rows, cols = _values(mapping.rows), _values(mapping.cols)
        self.l2: tuple[int, ...] = l2
        self.l1: tuple[int, ...] = l1
        self.l0: tuple[int, ...] = l0
        self.counts: list[DimCounts] = [
            dim_counts(dim_extents[d], l2[d], l1[d], l0[d], rows[d] * cols[d]) for d in range(8)
        ]
        self.extents = dim_extents
        outer = (bounds, l2, l1)
        inner = (l2, l1, l0)
        #: Full-tile trip counts per level (L3, L2, L1): they decide where a fetch happens.
        self.trips = [
            [-(-a // b) for a, b in zip(o, i, strict=True)] for o, i in zip(outer, inner, strict=True)
        ]
        self.orders = (
            _positions(mapping.order_l3),
            _positions(mapping.order_l2),
            _positions(mapping.order_l1),
        )

    def fetch(self, operand: str, levels: int) -> tuple[int, bool]:
        """How often each distinct element of `operand` enters the tile below `levels` temporal levels.

        Returns the multiplicity (regions included) and whether a tile is fetched more than once.
        """
        relevant = _IS_RELEVANT[operand]
        for level in range(levels - 1, -1, -1):
            order, trips = self.orders[level], self.trips[level]
            for position in range(7, -1, -1):
                d = order[position]
                if relevant[d] and trips[d] > 1:
                    times = 1
                    for at, e in enumerate(order):
                        if not relevant[e]:
                            times *= self.counts[e][level + 1 if at < position else level]
                    return times, True
        times = 1
        for e in _IRRELEVANT[operand]:
            times *= self.counts[e].regions
        return times, False


@lru_cache(maxsize=1 << 12)
def _positions(order: Order) -> tuple[int, ...]:
    return tuple(DIMS.index(d) for d in order)


def product(values: Sequence[int]) -> int:
    """Product of integers."""
    result = 1
    for value in values:
        result *= value
    return result


def _bias_bytes(nest: Nest, word: int, side: int) -> int:
    """One stride-0 mvin initialises up to `side` rows of a column block and reads its columns once."""
    pixels = [
        [pair for extent in nest.extents[d] for pair in tile_extents(extent, (nest.l2[d], nest.l1[d]))]
        for d in (N, P, Q)
    ]
    fills = 0
    for n, n_times in pixels[0]:
        for p, p_times in pixels[1]:
            for q, q_times in pixels[2]:
                fills += n_times * p_times * q_times * ceil_div(n * p * q, side)
    return word * nest.counts[G].total * nest.counts[K].total * fills


def _diagonal_blocks(nest: Nest) -> int:
    """Weights of all block-diagonal array tiles of a depthwise layer, zeros included: sum of g * g."""
    g = nest.extents[G][0]
    return sum(size * size * times for size, times in tile_extents(g, (nest.l2[G], nest.l1[G], nest.l0[G])))


def layer_traffic(
    shape: LayerShape,
    mapping: Mapping,
    region: Region,
    target: Target,
    profile: Profile,
    placement: Placement = ALONE,
) -> LayerTraffic:
    """Count every access of one layer (of a group: summed over all group tiles)."""
    nest = Nest(shape, mapping, region)
    counts = nest.counts
    hw = profile == "hw"
    e = target.element_bytes
    word = target.accumulator_bytes_per_word

    total = [c.total for c in counts]
    macs = product(total)
    weights = total[G] * total[K] * total[C] * total[R] * total[S]
    if hw and shape.is_depthwise:
        weights = _diagonal_blocks(nest) * total[R] * total[S]
    outputs = total[G] * total[N] * total[K] * total[P] * total[Q]

    w_fills = weights * (1 if placement.weights_are_resident else nest.fetch("W", 1)[0])
    w_loads = weights * nest.fetch("W", 3)[0]
    if hw:
        rows = fetched_rows(shape.height, region.P, nest.l2[P], nest.l2[R])
        columns = fetched_rows(shape.width, region.Q, nest.l2[Q], nest.l2[S])
    else:
        rows = unclipped_rows(shape.height, nest.extents[P], nest.l2[P], nest.l2[R])
        columns = unclipped_rows(shape.width, nest.extents[Q], nest.l2[Q], nest.l2[S])
    i_fills = total[G] * total[N] * total[C] * rows * columns * nest.fetch("I", 1)[0]
    i_reads = macs // total[K] * counts[K].l0
    spills = outputs * (nest.fetch("O", 2)[0] - 1)
    updates = outputs * product([counts[d].l0 for d in _REDUCTION])

    if placement.is_paper:
        placement = ALONE
    moves = [
        Move("L0", "W", "write", w_loads * e, "register"),
        Move("L0", "W", "read", macs * e, "register"),
        Move("L2", "W", "write", w_fills * e, "scratchpad"),
        Move("L2", "W", "read", w_loads * e, "scratchpad"),
        Move("L2", "I", "read", i_reads * e, "scratchpad"),
        Move("L3", "W", "read", w_fills * e, "dram"),
        Move("L1", "psum", "write", (updates + spills) * word, "accumulator"),
    ]
    if hw:
        moves += _hw_moves(shape, nest, target, placement, i_fills, outputs, spills, updates)
    else:
        moves += _dosa_moves(placement, i_fills, outputs, spills, updates, e, word)
    cycles = product([c.l0 for c in counts])
    return LayerTraffic(tuple(m for m in moves if m.bytes), macs, cycles, mapping.cols.product)


def _hw_moves(
    shape: LayerShape,
    nest: Nest,
    target: Target,
    placement: Placement,
    i_fills: int,
    outputs: int,
    spills: int,
    updates: int,
) -> list[Move]:
    """Gemmini as emitted: initialised accumulator tiles, 4-byte spills, fused tiles in the tile buffer."""
    e, word = target.element_bytes, target.accumulator_bytes_per_word
    source: Memory = "tile-buffer" if placement.input_is_fused else "dram"
    moves = [
        Move("L3", "I", "read", i_fills * e, source),
        Move("L2", "I", "write", i_fills * e, "scratchpad"),
        # Initialisation by mvin (bias or zeros), then every array result is a read-modify-write.
        Move("L1", "bias", "write", outputs * word, "accumulator"),
        Move("L1", "psum", "read", (updates + spills) * word, "accumulator"),
        Move("L1", "O", "read", outputs * word, "accumulator"),
        Move("L3", "psum", "read", spills * word, "dram"),
        Move("L3", "psum", "write", spills * word, "dram"),
    ]
    if shape.has_bias:
        moves.append(Move("L3", "bias", "read", _bias_bytes(nest, word, target.side), "dram"))
    if placement.output_is_fused:
        moves.append(Move("L3", "O", "write", outputs * e, "tile-buffer"))
        if placement.output_to_dram:
            moves.append(Move("L3", "O", "write", _whole_output(shape) * e, "dram"))
    else:
        moves.append(Move("L3", "O", "write", outputs * e, "dram"))
    return moves


def _dosa_moves(
    placement: Placement, i_fills: int, outputs: int, spills: int, updates: int, e: int, word: int
) -> list[Move]:
    """Timeloop's counting: first reads elided, drains free at L1, one word per spilled partial sum.

    A fused intermediate is copied from the accumulator into the scratchpad (Eq. 14) and read there.
    """
    moves = [
        Move("L1", "psum", "read", (updates - outputs) * word, "accumulator"),
        Move("L3", "psum", "read", spills * e, "dram"),
        Move("L3", "psum", "write", spills * e, "dram"),
    ]
    if not placement.input_is_fused:
        moves.append(Move("L3", "I", "read", i_fills * e, "dram"))
        moves.append(Move("L2", "I", "write", i_fills * e, "scratchpad"))
    if placement.output_is_fused:
        moves.append(Move("L2", "O", "write", outputs * e, "scratchpad"))
        if placement.output_to_dram:
            moves.append(Move("L1", "O", "read", outputs * word, "accumulator"))
    if placement.output_to_dram or not placement.output_is_fused:
        moves.append(Move("L3", "O", "write", outputs * e, "dram"))
    return moves


def _whole_output(shape: LayerShape) -> int:
    d = shape.dims
    return d.G * d.N * d.K * d.P * d.Q


def paper_fusion(traffic: LayerTraffic, placement: Placement) -> LayerTraffic:
    """Eq. 13-15 at sigma = 1, applied to a whole unfused layer.

    A fused output's DRAM traffic (spills too) becomes one copy into the scratchpad, unless it is
    also read outside; a fused input's fills vanish however often it would be fetched.  No program
    does that when tiles are refetched: `sound` fusion is the executable definition.
    """
    moves = []
    copied = 0
    for move in traffic.moves:
        if placement.input_is_fused and move.role == "I" and (move.level, move.direction) in _FILL:
            continue
        if placement.output_is_fused and move.level == "L3" and move.role in ("O", "psum"):
            if move.role == "O":
                copied = move.bytes
            if not placement.output_to_dram:
                continue
        moves.append(move)
    if copied:
        moves.append(Move("L2", "O", "write", copied, "scratchpad"))
    return traffic._replace(moves=tuple(moves))


_FILL = frozenset((("L3", "read"), ("L2", "write")))
