"""A mapping applied to a layer: trip counts, fetch rules and the quantities they imply, exact.

One set of formulas for one mapping (Python integers) and for many at once (columns).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.loops import DIMS, RELEVANT, C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.sliding_window import sliding_input_words
from fadiff.costmodel.count.traffic import (
    ALONE,
    Fetches,
    Move,
    Placement,
    Quantities,
    count_moves,
    fusion_of,
    quantities_of,
)
from fadiff.costmodel.mapping.columns import MappingColumns, Orders
from fadiff.costmodel.mapping.counting import COUNTING, Profile
from fadiff.costmodel.mapping.mapping import Mapping, ceil_div
from fadiff.costmodel.mapping.numbers import Number, tabulate
from fadiff.costmodel.mapping.shape import LayerShape, Region, extents, whole
from fadiff.costmodel.mapping.tiling import (
    DimCounts,
    Interval,
    Outline,
    Window,
    dim_counts,
    fetched_rows,
    outline,
    tile_extents,
    unclipped_rows,
)
from fadiff.costmodel.target.target import Target

IS_RELEVANT = {operand: tuple(d in RELEVANT[operand] for d in DIMS) for operand in RELEVANT}
IRRELEVANT = {operand: tuple(i for i in range(8) if not IS_RELEVANT[operand][i]) for operand in RELEVANT}


ONE_INDEX: Outline = ((1, 1),)
ONCE = DimCounts(1, 1, 1, 1, 1, 1)


class LoopNest:
    """The loop nest of one layer over its regions, under one mapping or columns of them."""

    def __init__(self, shape: LayerShape, mapping: Mapping | MappingColumns, region: Region) -> None:
        self.shape, self.region = shape, region
        tiles = MappingColumns.one(mapping) if isinstance(mapping, Mapping) else mapping
        self.l2, self.l1, self.l0, self.order = tiles.l2, tiles.l1, tiles.l0, tiles.order
        self.by_lines = tiles.issue == "loop_conv_ws"
        self.channel_block = shape.channel_block if tiles.issue == "core_ws" else min(shape.channel_block, 1)
        """Channels that one store takes with a scale of its own: a block where tiles have whole blocks."""
        self.orders = [_positions(levels) for levels in tiles.orders]
        self.outlines: list[Outline] = [((bound, 1),) for bound in shape.dims]
        for d, axis in zip((G, K, N, P, Q), region, strict=True):
            self.outlines[d] = outline(axis)
        self.bounds = tuple(extents[-1][0] for extents in self.outlines)
        dims = zip(self.outlines, self.l2, self.l1, self.l0, tiles.spatial, strict=True)
        self.counts = [ONCE if dim[0] == ONE_INDEX else dim_counts(*dim) for dim in dims]
        # Whether a full tile of each level (L3, L2, L1) has several trips: that is where a fetch happens.
        self.several = [
            [False if a is b else a > b for a, b in zip(outer, inner, strict=True)]
            for outer, inner in ((self.bounds, self.l2), (self.l2, self.l1), (self.l1, self.l0))
        ]

    def by_order(self) -> Iterator[tuple[int, LoopNest]]:
        """All mappings under each of the loop orders: the order's index, and the nest."""
        for index, levels in enumerate(self.orders):
            nest = copy(self)
            nest.orders, nest.order = [levels], 0
            yield index, nest

    def fetch(self, operand: str, levels: int) -> tuple[Number, Number]:
        """How often each element of `operand` enters the tile below the outermost `levels` levels.

        Returns the multiplicity (regions included) and whether a tile is fetched more than once.
        """
        times, again = self._fetch(operand, levels, self.orders[0])
        for index, order in enumerate(self.orders[1:], 1):
            times = np.where(self.order == index, self._fetch(operand, levels, order)[0], times)
        return times, again

    def _fetch(self, operand: str, levels: int, orders: tuple[tuple[int, ...], ...]) -> tuple[Number, Number]:
        """Under one set of loop orders: from the innermost loop outward, all irrelevant loops multiply that
        are outside of a relevant one with several trips."""
        relevant, several, counts = IS_RELEVANT[operand], self.several, self.counts
        times = {d: counts[d].regions for d in IRRELEVANT[operand]}
        met: Number = False
        for level in range(levels - 1, -1, -1):
            for d in orders[level]:
                if relevant[d]:
                    if met is not True and several[level][d] is not False:
                        met = met | several[level][d]
                elif met is not False and counts[d][level + 1] is not counts[d][level]:
                    times[d] = times[d] + met * (counts[d][level + 1] - counts[d][level])
        return math.prod(times.values()), met

    def pieces(self, d: int, levels: int = 2) -> Outline:
        """Extents of scratchpad (levels 1), accumulator (2) or array (3) tiles along a dimension, with how
        often each occurs."""
        return tile_extents(self.outlines[d], *(tiles[d] for tiles in (self.l2, self.l1, self.l0)[:levels]))

    def input_positions(self, profile: Profile) -> Number:
        """Pixels of one image of one channel that one pass over all scratchpad tiles fetches."""
        shape, region = self.shape, self.region
        rows = fetched_positions(shape.height, region.P, self.l2[P], self.l2[R], profile)
        return rows * fetched_positions(shape.width, region.Q, self.l2[Q], self.l2[S], profile)

    def quantities(self, target: Target, profile: Profile, *, resident: bool) -> Quantities:
        """What the nest does; `resident` weights enter the scratchpad once for all regions."""
        shape, dims, counting = self.shape, self.shape.dims, COUNTING[profile]
        total = [count.total for count in self.counts]
        weights, bias, again = None, 0, 0
        if counting.loads_zeros and shape.is_depthwise:  # block-diagonal array tiles
            weights = sum(g * g * times for g, times in self.pieces(G, 3)) * total[R] * total[S]
        if counting.moves_accumulator and shape.has_bias:
            bias = total[G] * total[K] * self.bias_fills(target.side)
        if counting.moves_accumulator and self.channel_block:
            again = total[N] * total[P] * total[Q] * self._overwritten()
        return quantities_of(
            total,
            [count.l0 for count in self.counts],
            Fetches(
                1 if resident else self.fetch("W", 1)[0],
                self.fetch("W", 3)[0],
                self.fetch("I", 1)[0],
                self.fetch("O", 2)[0],
            ),
            stored=dims.G * dims.N * dims.K * dims.P * dims.Q,
            inputs=total[G] * total[N] * total[C] * self.input_positions(profile),
            weights=weights,
            bias_words=bias,
            stored_again=again,
        )

    def _overwritten(self) -> Number:
        """Elements of a pixel that are stored again: the last scale's store takes its whole array block."""
        channel, groups = (G, 1) if self.shape.is_depthwise else (K, self.counts[G].total)
        pieces, size = self.pieces(channel, 3), self.channel_block
        before = [((n - 1) // size, times) for n, times in pieces]
        return groups * sum(size * n * (n + 1) // 2 * times for n, times in before)

    def scaled_stores(self) -> Number:
        """Stores of a row of results, each with a scale of its own."""
        groups = 1 if self.shape.is_depthwise else self.counts[G].total
        pieces = self.pieces(G if self.shape.is_depthwise else K, 3)
        return groups * sum(ceil_div(n, self.channel_block) * times for n, times in pieces)

    def bias_fills(self, side: int) -> Number:
        """`bias_fills` of all accumulator tiles."""
        return bias_fills([self.pieces(d) for d in (N, P, Q)], side, by_lines=self.by_lines)


def bias_fills(tiles: Sequence[Outline], side: int, *, by_lines: bool = False) -> Number:
    """Stride-0 mvins that initialise accumulator tiles of these extents along N, P and Q, per column block:
    each initialises up to `side` rows and reads one; those of LOOP_CONV_WS lie in one line of the image."""
    fills: Number = 0
    for (n, n_times), (p, p_times), (q, q_times) in product(*tiles):
        loads = n * p * ceil_div(q, side) if by_lines else ceil_div(n * p * q, side)
        fills = fills + n_times * p_times * q_times * loads
    return fills


def fetched_positions(
    window: Window, intervals: tuple[Interval, ...], tile: Number, taps: Number, profile: Profile
) -> Number:
    """Rows or columns of the image that one pass over all scratchpad tiles of `intervals` fetches."""
    if not COUNTING[profile].clips_padding:
        return tabulate(partial(unclipped_rows, window, extents(intervals)), tile, taps)
    if window.kernel == 1:  # tiles share no row
        return fetched_rows(window, intervals, 1, 1)
    return tabulate(partial(fetched_rows, window, intervals), tile, taps)


@lru_cache(maxsize=1 << 12)
def _positions(orders: Orders) -> tuple[tuple[int, ...], ...]:
    """Loops of every level by place in DIMS, innermost first."""
    return tuple(tuple(DIMS.index(d) for d in reversed(order)) for order in orders)


class LayerTraffic(NamedTuple):
    """All moves of a layer, with what latency needs besides."""

    moves: tuple[Move, ...]
    macs: int
    compute_cycles: int
    columns: int
    """Array columns in use: their accumulator ports bound L1 bandwidth."""


def layer_traffic(
    shape: LayerShape,
    mapping: Mapping,
    region: Region,
    target: Target,
    profile: Profile,
    placement: Placement = ALONE,
    *,
    sliding_window: bool = False,
) -> LayerTraffic:
    """Every access of one layer (of a group: summed over all group tiles).

    `sliding_window` keeps the overlap of consecutive input tiles as Timeloop does; Gemmini reloads
    whole tiles.  It holds for divisor mappings of a layer that runs alone; others ignore it.
    """
    q = LoopNest(shape, mapping, region).quantities(target, profile, resident=placement.weights_are_resident)
    if sliding_window and region == whole(shape.dims) and mapping.is_divisor(shape.dims):
        q = q._replace(input_fills=sliding_input_words(shape, mapping))
    moves = count_moves(q, fusion_of(placement), target, profile, paper=placement.is_paper)
    return LayerTraffic(
        tuple(move for move in moves if move.bytes), q.macs, q.compute_cycles, mapping.cols.product
    )
