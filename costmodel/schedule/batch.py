"""Exact cost of many mappings of one layer that runs alone, in numpy integers: the numbers of `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as cartesian

import numpy as np
from numpy.typing import NDArray

from converter.ir.dims import DIMS, C, Dims, G, K, N, P, Q, R, S
from costmodel.count.energy import picojoules_per_byte
from costmodel.count.nest import IRRELEVANT, IS_RELEVANT
from costmodel.count.row_layout import input_rows, output_rows, packed_inputs_fit, splits_block, weight_rows
from costmodel.count.traffic import Fusion, Memory, Quantities, count_moves
from costmodel.latency.roofline import bandwidths
from costmodel.mapping.mapping import STREAM_ORDER, Mapping, Order
from costmodel.mapping.shape import LayerShape
from costmodel.mapping.tiling import Window, fetched_rows, spanned_rows, unclipped_rows
from costmodel.schedule.schedule import Profile
from costmodel.target.target import Target

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Orders = tuple[Order, Order, Order]
"""Loop orders of L3, L2 and L1, outermost first."""


@dataclass(frozen=True)
class MappingBatch:
    """M mappings: tile extents and spatial factors [M, 8] in `DIMS` order; `order` [M] indexes `orders`."""

    l2: Ints
    l1: Ints
    l0: Ints
    rows: Ints
    cols: Ints
    order: Ints
    orders: Sequence[Orders]

    @classmethod
    def of(cls, mappings: Sequence[Mapping]) -> MappingBatch:
        """Stack mappings."""
        orders: dict[Orders, int] = {}
        index = [orders.setdefault((m.order_l3, m.order_l2, m.order_l1), len(orders)) for m in mappings]
        l2, l1, l0, rows, cols = (
            np.array([list(getattr(m, name)) for m in mappings], dtype=np.int64).reshape(-1, 8)
            for name in ("tile_l2", "tile_l1", "tile_l0", "rows", "cols")
        )
        return cls(l2, l1, l0, rows, cols, np.array(index, dtype=np.int64), tuple(orders))

    def mapping(self, index: int) -> Mapping:
        """One of them as a Mapping."""
        l2, l1, l0, rows, cols = (
            Dims(*(int(v) for v in a[index])) for a in (self.l2, self.l1, self.l0, self.rows, self.cols)
        )
        order_l3, order_l2, order_l1 = self.orders[int(self.order[index])]
        return Mapping(l2, l1, l0, rows, cols, order_l3, order_l2, order_l1, STREAM_ORDER)

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class BatchCost:
    """Columns [M]: picojoules, cycles (roofline), bytes per memory, and whether the mapping fits."""

    energy_pj: Floats
    latency_cycles: Ints
    memory_bytes: dict[Memory, Ints]
    fits: NDArray[np.bool_]
    """Array and capacity rules of costmodel.group.legality.check_mapping."""


def evaluate_batch(
    shape: LayerShape, batch: MappingBatch, target: Target, profile: Profile = "hw"
) -> BatchCost:
    """Cost of every mapping of `batch` for one layer.

    Only K (depthwise: G) may be on columns and C, S on rows; tiles must nest.

    Raises:
        ValueError: a spatial factor that the array cannot have.
    """
    nest = _BatchNest(shape, batch)
    quantities = nest.quantities(target, profile)
    moves = count_moves(quantities, Fusion(), target, profile)
    memory: dict[Memory, Ints] = {}
    for move in moves:
        memory[move.memory] = memory.get(move.memory, np.zeros(len(batch), dtype=np.int64)) + move.bytes
    energy: Floats = quantities.macs * target.energy.mac + np.zeros(len(batch))
    price = picojoules_per_byte(target)
    for name, moved in memory.items():
        energy = energy + moved * price[name]
    columns = batch.cols.prod(axis=1)
    cycles = quantities.compute_cycles
    for name, bandwidth in bandwidths(target, 1).items():
        if name in memory:
            per_cycle = bandwidth * columns if name == "accumulator" else bandwidth
            cycles = np.maximum(cycles, np.ceil(memory[name] / per_cycle).astype(np.int64))
    return BatchCost(energy, cycles, memory, nest.fits(target, profile))


def _ceil(a: Ints | int, b: Ints) -> Ints:
    return -(-a // b)


class _BatchNest:
    """costmodel.count.nest.Nest over arrays."""

    def __init__(self, shape: LayerShape, batch: MappingBatch) -> None:
        self.shape, self.batch = shape, batch
        self.bounds = list(shape.dims)
        spatial = batch.rows * batch.cols
        if (spatial[:, [N, P, Q]] > 1).any() or (
            batch.l0[:, [G, K, C, R, S]] != spatial[:, [G, K, C, R, S]]
        ).any():
            raise ValueError("an array block holds one weight per element; N, P and Q are not unrolled")
        self.trips = [
            _ceil(np.array(self.bounds, dtype=np.int64), batch.l2),
            _ceil(batch.l2, batch.l1),
            _ceil(batch.l1, batch.l0),
        ]
        # Iterations over each dimension down to no loop, L3, L2 and L1: [M, 4, 8].
        self.counts = np.stack([self._counts(d) for d in range(8)], axis=2)
        self.met_cache: dict[tuple[str, int], tuple[Ints, NDArray[np.bool_]]] = {}

    def _counts(self, d: int) -> Ints:
        l2, l1, l0 = self.batch.l2[:, d], self.batch.l1[:, d], self.batch.l0[:, d]
        inner, blocks = _ceil(l2, l1), _ceil(l1, l0)
        full = (inner - 1) * blocks + _ceil(l2 - (inner - 1) * l1, l0)
        n3 = _ceil(self.bounds[d], l2)
        last = self.bounds[d] - (n3 - 1) * l2
        m = _ceil(last, l1)
        n2 = (n3 - 1) * inner + m
        n1 = (n3 - 1) * full + (m - 1) * blocks + _ceil(last - (m - 1) * l1, l0)
        return np.stack([np.ones_like(n3), n3, n2, n1], axis=1)

    def fetch(self, operand: str, levels: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Multiplicity of `operand` below the outermost `levels` levels, and whether any loop refetches."""
        if (operand, levels) in self.met_cache:
            return self.met_cache[operand, levels]
        relevant = np.array(IS_RELEVANT[operand])
        times = np.ones(len(self.batch), dtype=np.int64)
        refetched = np.zeros(len(self.batch), dtype=bool)
        for index, orders in enumerate(self.batch.orders):
            here = np.flatnonzero(self.batch.order == index)
            if not len(here):
                continue
            # Walk from the innermost loop outward; `depth` counts the levels whose loop over d multiplies.
            met = np.zeros(len(here), dtype=bool)
            depth = {d: np.zeros(len(here), dtype=np.int64) for d in IRRELEVANT[operand]}
            for level in range(levels - 1, -1, -1):
                for name in reversed(orders[level]):
                    d = DIMS.index(name)
                    if relevant[d]:
                        met = met | (self.trips[level][here, d] > 1)
                    else:
                        depth[d] = depth[d] + met
            for d, deep in depth.items():
                times[here] *= self.counts[here, deep, d]
            refetched[here] = met
        self.met_cache[operand, levels] = times, refetched
        return times, refetched

    def quantities(self, target: Target, profile: Profile) -> Quantities:
        """See costmodel.count.nest.Nest.quantities."""
        shape, bounds, hw = self.shape, self.bounds, profile == "hw"
        n1 = self.counts[:, 3]
        pixels = bounds[N] * bounds[P] * bounds[Q]
        weights: Ints | int = bounds[G] * bounds[K] * bounds[C] * bounds[R] * bounds[S]
        if hw and shape.is_depthwise:
            weights = self._diagonal() * bounds[R] * bounds[S]
        macs = shape.dims.product
        outputs = bounds[G] * bounds[K] * pixels
        steps = n1[:, C] * n1[:, R] * n1[:, S]
        ones = np.ones(len(self.batch), dtype=np.int64)
        volume = self._rows(shape.height, P, R, hw) * self._rows(shape.width, Q, S, hw)
        return Quantities(
            macs=macs * ones,
            compute_cycles=n1[:, G] * n1[:, K] * steps * pixels,
            outputs=outputs * ones,
            stored=outputs,
            updates=outputs * steps,
            spills=outputs * (self.fetch("O", 2)[0] - 1),
            weight_fills=weights * self.fetch("W", 1)[0],
            weight_loads=weights * self.fetch("W", 3)[0],
            input_fills=bounds[G] * bounds[N] * bounds[C] * volume * self.fetch("I", 1)[0],
            input_reads=macs // bounds[K] * n1[:, K],
            bias_words=bounds[G] * bounds[K] * self._bias_fills(target.side)
            if hw and shape.has_bias
            else 0 * ones,
        )

    def _rows(self, window: Window, outputs: int, taps: int, hw: bool) -> Ints:
        bound = self.bounds[outputs]

        def rows(tile: int, tap: int) -> int:
            if hw:
                return fetched_rows(window, ((0, bound),), tile, tap)
            return unclipped_rows(window, (bound,), tile, tap)

        if hw and window.kernel == 1:
            return np.full(len(self.batch), rows(1, 1), dtype=np.int64)
        return _tabulate(rows, self.batch.l2[:, outputs], self.batch.l2[:, taps])

    def _pieces(self, d: int) -> list[tuple[Ints, Ints]]:
        """Extents of the accumulator tiles of one dimension, with how often each occurs."""
        l2, l1 = self.batch.l2[:, d], self.batch.l1[:, d]
        n3 = _ceil(self.bounds[d], l2)
        pieces = []
        for piece, count in ((l2, n3 - 1), (self.bounds[d] - (n3 - 1) * l2, np.ones_like(n3))):
            inner = _ceil(piece, l1)
            pieces.append((l1, count * (inner - 1)))
            pieces.append((piece - (inner - 1) * l1, count))
        return [(extent, count) for extent, count in pieces if count.any()]

    def _bias_fills(self, side: int) -> Ints:
        fills = np.zeros(len(self.batch), dtype=np.int64)
        for (n, n_t), (p, p_t), (q, q_t) in cartesian(*(self._pieces(d) for d in (N, P, Q))):
            fills += n_t * p_t * q_t * -(-(n * p * q) // side)
        return fills

    def _diagonal(self) -> Ints:
        block = self.batch.l0[:, G]
        squares = np.zeros(len(self.batch), dtype=np.int64)
        for extent, times in self._pieces(G):
            full = extent // block
            squares += times * (full * block**2 + (extent - full * block) ** 2)
        return squares

    def fits(self, target: Target, profile: Profile) -> NDArray[np.bool_]:
        """Array shape and capacities (costmodel.group.legality)."""
        b, shape, dims = self.batch, self.shape, self.shape.dims
        l2, l1 = b.l2, b.l1
        column = G if shape.is_depthwise else K
        ok: NDArray[np.bool_] = (b.rows.prod(axis=1) <= target.side) & (b.cols.prod(axis=1) <= target.side)
        ok &= (np.delete(b.cols, column, axis=1) == 1).all(axis=1)
        on_rows = [] if shape.is_depthwise else [C, S]
        ok &= (np.delete(b.rows, on_rows, axis=1) == 1).all(axis=1)
        packed = b.rows[:, S] > 1
        ok &= ~packed | (b.rows[:, C] == dims.C)
        tile, cols = tuple(l2.T), tuple(b.cols.T)
        outputs = output_rows(tuple(l1.T), cols)
        if profile == "dosa":
            e = target.element_bytes
            h = spanned_rows(shape.height, tile[P], tile[R])
            w = spanned_rows(shape.width, tile[Q], tile[S])
            weights = e * tile[G] * tile[K] * tile[C] * tile[R] * tile[S]
            inputs = e * tile[G] * tile[N] * tile[C] * h * w
            ok &= (weights + inputs <= target.scratchpad_bytes) & (outputs <= target.accumulator_rows)
            return np.asarray(ok)
        if not target.has_row_packing or shape.width.dilation > 1:
            ok &= ~packed
        if dims.G > 1 and not shape.is_depthwise:
            ok &= l2[:, G] == 1
        block = b.rows * b.cols
        for d in (G, K, C):
            ok &= np.logical_not(splits_block(l1[:, d], l2[:, d], block[:, d]))
        array_rows = tuple(b.rows.T)
        weights = weight_rows(shape, tile, array_rows, cols) * (1 + self.fetch("W", 1)[1])
        inputs, twice = input_rows(shape, tile, array_rows, cols), self.fetch("I", 1)[1]
        visits, output_twice = self.fetch("O", 2)
        if not target.has_full_width_read:
            ok &= visits == 1
        outputs = outputs * (1 + output_twice)
        rows = target.scratchpad_rows
        ok &= ~packed | packed_inputs_fit(inputs, twice, weights, rows, rows, b.rows[:, S])
        spad = weights + inputs * (1 + twice)
        return np.asarray(ok & (spad <= rows) & (outputs <= target.accumulator_rows))


def _tabulate(function: Callable[[int, int], int], first: Ints, second: Ints) -> Ints:
    """function of two small integers for every row, computed once per distinct pair."""
    width = int(second.max(initial=1)) + 1
    keys, inverse = np.unique(first * width + second, return_inverse=True)
    values = [function(int(key) // width, int(key) % width) for key in keys]
    return np.array(values, dtype=np.int64)[inverse]
