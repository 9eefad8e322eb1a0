"""A mapping applied to a layer: trip counts, fetch rules and the quantities they imply, exact."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from converter.ir.dims import DIMS, RELEVANT, C, G, K, N, P, Q, R, S
from costmodel.count.sliding_window import sliding_input_words
from costmodel.count.traffic import ALONE, Move, Placement, Quantities, count_moves, fusion_of
from costmodel.mapping.decision import Profile
from costmodel.mapping.mapping import Mapping, Order, ceil_div
from costmodel.mapping.shape import LayerShape, Region, extents, whole
from costmodel.mapping.tiling import DimCounts, dim_counts, fetched_rows, tile_extents, unclipped_rows
from costmodel.target.target import Target

IS_RELEVANT = {operand: tuple(d in RELEVANT[operand] for d in DIMS) for operand in RELEVANT}
IRRELEVANT = {operand: tuple(i for i in range(8) if not IS_RELEVANT[operand][i]) for operand in RELEVANT}
_values = attrgetter(*DIMS)


class LoopNest:
    """The loop nest of one layer over its regions."""

    def __init__(self, shape: LayerShape, mapping: Mapping, region: Region) -> None:
        self.shape, self.region = shape, region
        n, p, q = (extents(axis) for axis in region)
        bounds = list(_values(shape.dims))
        self.extents: list[tuple[int, ...]] = [(b,) for b in bounds]
        self.extents[N], self.extents[P], self.extents[Q] = n, p, q
        bounds[N], bounds[P], bounds[Q] = max(n), max(p), max(q)
        l2, l1, l0 = _values(mapping.tile_l2), _values(mapping.tile_l1), _values(mapping.tile_l0)
        rows, cols = _values(mapping.rows), _values(mapping.cols)
        self.by_lines = mapping.issue in ("loop_conv_ws", "tiled_conv")
        self.l2: tuple[int, ...] = l2
        self.l1: tuple[int, ...] = l1
        self.l0: tuple[int, ...] = l0
        self.counts: list[DimCounts] = [
            dim_counts(self.extents[d], l2[d], l1[d], l0[d], rows[d] * cols[d]) for d in range(8)
        ]
        # Full-tile trip counts per level (L3, L2, L1): they decide where a fetch happens.
        self.trips = [
            [-(-a // b) for a, b in zip(outer, inner, strict=True)]
            for outer, inner in ((bounds, l2), (l2, l1), (l1, l0))
        ]
        self.orders = (
            _positions(mapping.order_l3),
            _positions(mapping.order_l2),
            _positions(mapping.order_l1),
        )

    def fetch(self, operand: str, levels: int) -> tuple[int, bool]:
        """How often each element of `operand` enters the tile below the outermost `levels` levels.

        Returns the multiplicity (regions included) and whether a tile is fetched more than once.
        """
        relevant = IS_RELEVANT[operand]
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
        for e in IRRELEVANT[operand]:
            times *= self.counts[e].regions
        return times, False

    def quantities(self, target: Target, profile: Profile, *, resident: bool) -> Quantities:
        """What the nest does; `resident` weights enter the scratchpad once for all regions."""
        shape, counts, hw = self.shape, self.counts, profile == "hw"
        total = [c.total for c in counts]
        steps = [c.l0 for c in counts]
        macs = math.prod(total)
        weights = total[G] * total[K] * total[C] * total[R] * total[S]
        if hw and shape.is_depthwise:
            weights = self._diagonal() * total[R] * total[S]
        outputs = total[G] * total[N] * total[K] * total[P] * total[Q]
        dims = shape.dims
        l2 = self.l2
        if hw:
            rows = fetched_rows(shape.height, self.region.P, l2[P], l2[R])
            columns = fetched_rows(shape.width, self.region.Q, l2[Q], l2[S])
        else:
            rows = unclipped_rows(shape.height, self.extents[P], l2[P], l2[R])
            columns = unclipped_rows(shape.width, self.extents[Q], l2[Q], l2[S])
        volume = total[G] * total[N] * total[C] * rows * columns
        return Quantities(
            macs=macs,
            compute_cycles=math.prod(steps),
            outputs=outputs,
            stored=dims.G * dims.N * dims.K * dims.P * dims.Q,
            updates=outputs * steps[C] * steps[R] * steps[S],
            spills=outputs * (self.fetch("O", 2)[0] - 1),
            weight_fills=weights * (1 if resident else self.fetch("W", 1)[0]),
            weight_loads=weights * self.fetch("W", 3)[0],
            input_fills=volume * self.fetch("I", 1)[0],
            input_reads=macs // total[K] * steps[K],
            bias_words=total[G] * total[K] * self._bias_fills(target.side) if hw and shape.has_bias else 0,
        )

    def _bias_fills(self, side: int) -> int:
        """Stride-0 mvins: each initialises up to `side` rows of a column block and reads one row; those of
        LOOP_CONV_WS lie in one line of the image."""
        n_tiles, p_tiles, q_tiles = (self._accumulator_tiles(d) for d in (N, P, Q))
        fills = 0
        for n, n_times in n_tiles:
            for p, p_times in p_tiles:
                for q, q_times in q_tiles:
                    loads = n * p * ceil_div(q, side) if self.by_lines else ceil_div(n * p * q, side)
                    fills += n_times * p_times * q_times * loads
        return fills

    def _accumulator_tiles(self, d: int) -> list[tuple[int, int]]:
        sizes = (self.l2[d], self.l1[d])
        return [piece for extent in self.extents[d] for piece in tile_extents(extent, sizes)]

    def _diagonal(self) -> int:
        """Weights of all block-diagonal array tiles of a depthwise layer, zeros included: sum of g * g."""
        sizes = (self.l2[G], self.l1[G], self.l0[G])
        return sum(size * size * times for size, times in tile_extents(self.extents[G][0], sizes))


@lru_cache(maxsize=1 << 12)
def _positions(order: Order) -> tuple[int, ...]:
    return tuple(DIMS.index(d) for d in order)


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
