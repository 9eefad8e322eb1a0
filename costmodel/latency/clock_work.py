"""What the clock counts of a layer on the array: commands, rows, DMA requests, cache lines of a nest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from fadiff.converter.ir.loops import DIMS, REDUCTION, RELEVANT, C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import Placement, Quantities
from fadiff.costmodel.latency import cache
from fadiff.costmodel.latency.clock import BLOCK, BOX, ROW_COMMAND, TILE, TILED_COMMAND, LayerCounts
from fadiff.costmodel.mapping.mapping import Issue, ceil_div
from fadiff.costmodel.mapping.numbers import Number, largest, occurs, smallest, tabulate
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import tile_count, tile_extents
from fadiff.costmodel.target.target import Target

OVERLAPPING_ROW = 2.5
"""Rows that storing one takes as long as whose bytes other stores overlap: channels have scales of their own.

On RTL (16 x 16) convolutions of 4096, 2048 and 2048 such rows took 32.6, 30.2 and 19.0 thousand cycles.
"""


class Issued(NamedTuple):
    """What the core issues of a layer without a loop unit."""

    products: Number
    """Pairs of preload and compute."""
    moves: Number
    """Loads and stores, but for rows that are stored with scales of their own."""
    blocks: Number
    """Of weights, each met by all products of an accumulator tile; none of a layer of one tile, of which all
    is known when it is compiled."""
    boxes: Number
    """Tiles of an operand whose loads are worked out; none of a layer of one tile."""

    def commands(self, block: float = BLOCK, box: float = BOX) -> Number:
        """What all of it takes, in commands, at the price of a block and of a box."""
        return 2 * self.products + self.moves + block * self.blocks + box * self.boxes


class WeightLoads(NamedTuple):
    """Of all weights of a layer, each once."""

    nbytes: int
    requests: float
    missed_lines: float


def request_bytes(target: Target) -> int:
    """Most bytes of one row that one DMA request loads."""
    return max(target.max_bytes, target.side * target.element_bytes)


def segments(shape: LayerShape) -> tuple[int, int, int]:
    """The dimension along which W, I and O are contiguous in DRAM; -1: one array block (depthwise W)."""
    if shape.is_depthwise:
        return -1, G, G
    return C if shape.has_transposed_weights else K, C, K


def walks(d: int, contiguous: tuple[int, int, int]) -> tuple[cache.Walk, cache.Walk, cache.Walk]:
    """How a DRAM loop over `d` moves W, I and O (kernel taps mostly meet the same input pixels)."""

    def walk(operand: str, segment: int) -> cache.Walk:
        if d == segment:
            return "segment"
        if DIMS[d] not in RELEVANT[operand] or (operand == "I" and d in (R, S)):
            return "stay"
        return "rows"

    w, i, o = (walk(operand, segment) for operand, segment in zip(cache.OPERANDS, contiguous, strict=True))
    return w, i, o


def nest_counts(
    nest: LoopNest,
    target: Target,
    placement: Placement,
    network_weights: int,
    issue: Issue = "instructions",
) -> LayerCounts:
    """What a layer makes core and Gemmini do, under one mapping or columns of them, issued so."""
    return NestWork(nest, target, network_weights).counts(placement, issue)


class NestWork:
    """What a nest makes core and Gemmini do; what is the same wherever operands are is counted once.

    All mappings of `nest` have the same loop orders; `network_weights` are the bytes of all weights.
    """

    def __init__(self, nest: LoopNest, target: Target, network_weights: int) -> None:
        self.nest, self.target, self.network_weights = nest, target, network_weights
        self.along, self.in_channel, self.out_channel = segments(nest.shape)
        self._quantities: dict[bool, Quantities] = {}
        self._missed_weights: dict[bool, Number] = {}

    def quantities(self, *, resident: bool) -> Quantities:
        """Of the nest, in elements."""
        if resident not in self._quantities:
            self._quantities[resident] = self.nest.quantities(self.target, "hw", resident=resident)
        return self._quantities[resident]

    def counts(self, placement: Placement, issue: Issue = "instructions") -> LayerCounts:
        """With operands there, issued so."""
        nest, target = self.nest, self.target
        q = self.quantities(resident=placement.weights_are_resident)
        spilled = q.spills * target.accumulator_bytes_per_word
        stored = self._stored(q, placement)
        weights = self._weight_rows(q)
        weight_requests = weights if self.along < 0 else weights * _requests(nest, self.along, target)
        return LayerCounts(
            visits=self._visits,
            commands=self._commands(placement, issue),
            loops=0 if issue == "instructions" else self._tiles,
            tiles=self._tiles,
            full_rows=self._full_rows,
            blocks=self._blocks,
            short_strips=self._short_strips,
            requests=weight_requests + self._input_requests + self._spilled(q),
            copies=0.0 if nest.shape.is_depthwise else self._input_requests * (nest.l0[S] - 1),
            loaded_bytes=(q.weight_fills + q.input_fills) * target.element_bytes + spilled,
            missed_lines=self._missed_lines(placement),
            stored_rows=stored,
            row_commands=self._row_commands(placement, issue),
        )

    def _commands(self, placement: Placement, issue: Issue) -> Number:
        """Of the core, for moves and products."""
        if issue == "instructions":
            return self.issued(placement).commands()
        if issue != "core_ws":
            return 0.0
        issued = self.issued(placement)
        return TILED_COMMAND * (2 * issued.products + issued.moves)

    def _row_commands(self, placement: Placement, issue: Issue) -> Number:
        """What Gemmini waits for; tiles of LOOP_WS by the core have blocks of channels beside each other."""
        in_tiles, commands = issue == "core_ws", self._channel_commands
        if placement.has_row_scale:
            commands = row_commands(self.nest, self.target, self.target.max_block_len if in_tiles else 1)
        tiles = self._tiles * self._has_several
        return (TILED_COMMAND * commands + TILE * tiles) / ROW_COMMAND if in_tiles else commands

    def issued(self, placement: Placement) -> Issued:
        """What the core issues where no loop unit runs the tiles.

        Moves are of rows of tiles, at most so long; requests of these rows are aligned.
        """
        nest, resident = self.nest, placement.weights_are_resident
        q, weight_rows = self.quantities(resident=resident), self.target.side

        def pieces(d: int) -> Number:
            return tile_count(nest.pieces(d, 1), request_bytes(self.target) // self.target.element_bytes)

        weights = self._weight_rows(q)
        if self.along < 0:
            weight_rows = smallest(nest.l0[G], self.target.side)
        else:
            weights = weights * pieces(self.along)
        by_rows = placement.has_row_scale or nest.channel_block
        stored = 0 if by_rows else self._stored(q, placement)
        products, tile_rows = _mean(self._strips)
        _, box_rows = _mean(list(strips(nest, self.target.side, 1)))
        moves = (
            self._input_rows * pieces(self.in_channel) / box_rows + (self._spilled(q) + stored) / tile_rows
        )
        moves = moves + weights / weight_rows + q.bias_words / self.target.side
        blocks = math.prod([nest.counts[d].l0 for d in (G, K, C, R, S)])
        blocks = blocks * math.prod([nest.counts[d].l2 for d in (N, P, Q)])
        boxes = self._boxes(resident=resident)
        return Issued(products, moves, blocks * self._has_several, boxes * self._has_several)

    def _boxes(self, *, resident: bool) -> Number:
        """Of every tile of the input; of the weights' but the first where the emitter loads them early."""
        nest, shape = self.nest, self.nest.shape

        def tiles(operand: str) -> Number:
            several = math.prod([nest.counts[DIMS.index(d)].l3 for d in RELEVANT[operand]])
            return several * nest.fetch(operand, 1)[0]

        early = not (resident or shape.is_depthwise or shape.has_transposed_weights)
        return tiles("I") + (tiles("W") - self._visits if early else 0)

    def _stored(self, q: Quantities, placement: Placement) -> Number:
        """Rows that leave the accumulator, one for each scale of its own."""
        leaving = q.outputs if placement.pooled is None else placement.pooled.outputs * placement.pooled.taps
        rows = leaving / self.nest.counts[self.out_channel].total * self._stores
        if 0 < self.nest.channel_block < self.target.side:
            rows = rows / self._stores * self.nest.scaled_stores() * OVERLAPPING_ROW
        return rows + self._spilled(q)

    def _spilled(self, q: Quantities) -> Number:
        """Moves of unfinished sums, one way."""
        return q.spills * self.target.accumulator_bytes_per_word / request_bytes(self.target)

    def _weight_rows(self, q: Quantities) -> Number:
        """Rows of the array that are loaded, whole along the contiguous dimension."""
        nest = self.nest
        return q.weight_fills / (nest.l0[G] if self.along < 0 else nest.counts[self.along].total)

    def _missed_lines(self, placement: Placement) -> Number:
        resident = placement.weights_are_resident
        if not placement.weights_on_chip and resident not in self._missed_weights:
            use = self._cache_use.weights
            # Between two runs of a layer, all weights of the network pass through the cache.
            use = use._replace(footprint=largest(use.footprint, self.network_weights))
            use = use._replace(again=(), touched=()) if resident else use
            self._missed_weights[resident] = self._misses(use)
        weights = 0 if placement.weights_on_chip else self._missed_weights[resident]
        return weights + (0 if placement.input_is_fused else self._missed_inputs)

    def _misses(self, reuse: cache.Reuse) -> Number:
        return cache.misses(reuse, self.target.last_level_cache_bytes)

    @cached_property
    def _missed_inputs(self) -> Number:
        return self._misses(self._cache_use.inputs)

    @cached_property
    def _cache_use(self) -> cache.CacheUse:
        return _cache_use(self.nest, self.target.element_bytes)

    @cached_property
    def _visits(self) -> int:
        return math.prod(len(axis) for axis in self.nest.region)

    @cached_property
    def _tiles(self) -> Number:
        return largest(math.prod(count.l3 for count in self.nest.counts), self._visits)

    @cached_property
    def _has_several(self) -> Number:
        """Of depthwise layers, none of which was timed, one tile takes what each of several does."""
        return 1 if self.nest.shape.is_depthwise else 1 * (self._tiles > 1)

    @cached_property
    def _stores(self) -> Number:
        """Rows of the array that hold a pixel's output channels."""
        return tile_count(self.nest.pieces(self.out_channel), self.target.side)

    @cached_property
    def _input_rows(self) -> Number:
        return self.quantities(resident=False).input_fills / self.nest.counts[self.in_channel].total

    @cached_property
    def _input_requests(self) -> Number:
        return self._input_rows * _requests(self.nest, self.in_channel, self.target)

    @cached_property
    def _strips(self) -> list[tuple[Number, Number]]:
        return list(strips(self.nest, self.target.side))

    @cached_property
    def _full_rows(self) -> Number:
        return sum(rows * times * (rows == self.target.side) for rows, times in self._strips)

    @cached_property
    def _short_strips(self) -> tuple[tuple[Number, Number], ...]:
        side = self.target.side
        return tuple((rows, times * short) for rows, times in self._strips if occurs(short := rows < side))

    @cached_property
    def _channel_commands(self) -> Number:
        """Configurations and stores of all accumulator tiles whose channels have scales of their own."""
        if not self.nest.channel_block:
            return 0
        counts, pieces = self.nest.counts, [self.nest.pieces(d) for d in (N, P, Q)]
        tiles = math.prod([counts[d].l2 for d in (N, P, Q)])
        stores = math.prod([tile_count(pieces[i], self.target.side if i == 2 else 1) for i in range(3)])
        return self.nest.scaled_stores() * (tiles + stores)

    @cached_property
    def _blocks(self) -> Number:
        nest = self.nest
        return math.prod([nest.counts[d].l0 for d in (G, K, C, R, S)]) * nest.fetch("W", 3)[0]


def _mean(found: Sequence[tuple[Number, Number]]) -> tuple[Number, Number]:
    """How many strips, and their rows on average."""
    times = sum(times for _, times in found)
    return times, largest(sum(rows * times for rows, times in found) / largest(times, 1), 1)


def row_commands(nest: LoopNest, target: Target, blocks: int) -> Number:
    """Configurations and stores of all rows with scales of their own, so many blocks of channels a store."""
    _, _, channel = segments(nest.shape)
    stores = tile_count(nest.pieces(channel), blocks * target.side)
    tiles = tile_count(nest.pieces(channel), nest.bounds[channel])
    rows = math.prod([nest.counts[d].total for d in (N, P, Q)])
    return rows * nest.counts[G if channel == K else K].total * (stores + tiles)


def weight_loads(nest: LoopNest, target: Target, network_weights: int) -> WeightLoads:
    """All weights of a layer, once."""
    along, *_ = segments(nest.shape)
    d = nest.shape.dims
    elements = int(nest.quantities(target, "hw", resident=True).weight_fills)
    if along < 0:
        requests = elements / nest.l0[G]
    else:
        pitch = d[DIMS[along]] * target.element_bytes
        requests = elements / d[DIMS[along]] * segment_requests(d[DIMS[along]], pitch, target)
    use = _cache_use(nest, target.element_bytes).weights
    first = cache.Reuse(use.lines, (), (), largest(use.footprint, network_weights))
    missed = cache.misses(first, target.last_level_cache_bytes)
    return WeightLoads(elements * target.element_bytes, float(requests), float(missed))


def aligned_requests(nbytes: Number, pitch: int, longest: int) -> Number:
    """Requests for one row segment, on average over rows that lie `pitch` bytes apart.

    The DMA requests at most `longest` bytes, aligned to their size, so a segment that starts elsewhere
    takes one more: over all multiples of `step` that is the sum of ceil((offset + nbytes) / longest).
    """
    step = math.gcd(pitch, longest)
    return (ceil_div(nbytes, step) + longest // step - 1) * step / longest


def segment_requests(extent: Number, pitch: int, target: Target) -> Number:
    """`aligned_requests` of all moves that load one row of a tile, `extent` elements long."""
    longest = request_bytes(target)
    full, rest = divmod(extent * target.element_bytes, longest)
    whole = full * aligned_requests(longest, pitch, longest)
    return whole + aligned_requests(rest, pitch, longest) * (rest > 0)


def _requests(nest: LoopNest, d: int, target: Target) -> Number:
    """Of one pass along a contiguous dimension."""
    pitch = nest.shape.dims[DIMS[d]] * target.element_bytes
    return sum(times * segment_requests(extent, pitch, target) for extent, times in nest.pieces(d, 1))


def streams_height(shape: LayerShape) -> bool:
    """Whether pixels below each other stream together: a one-column image, else those of one row do."""
    return shape.dims.Q == shape.dims.S == 1


def strips(nest: LoopNest, side: int, levels: int = 2) -> Iterator[tuple[Number, Number]]:
    """(rows, how many) of the strips of at most `side` pixels that stream through blocks of weights.

    A strip has pixels of one row of an accumulator tile (levels 1: as if of a scratchpad tile); every array
    block sees all of them.
    """
    streamed, other = (P, Q) if streams_height(nest.shape) else (Q, P)
    repeats = math.prod([nest.counts[d].l0 for d in (G, K, C, R, S)])
    repeats *= nest.counts[other].total * nest.counts[N].total
    for rows, times in tile_extents(nest.pieces(streamed, levels), side):
        yield rows, times * repeats * (rows > 0)


def _cache_use(nest: LoopNest, element: int) -> cache.CacheUse:
    counts, bounds = nest.counts, list(nest.shape.dims)
    tile = list(map(smallest, nest.l2, nest.bounds))
    boxes = math.prod([counts[d].l3 for d in (N, P, Q, R, S)])

    def stream(rows: Number, segment: Number, whole: Number) -> cache.Stream:
        width = whole * element
        pitch = tabulate(cache.pitch_lines, width)
        return cache.Stream(rows, segment * element, width, smallest(cache.LINE_BYTES, width), pitch)

    contiguous = along, in_channel, out_channel = segments(nest.shape)
    # Of one pass over all input tiles and groups.
    channels = counts[G].total * counts[N].total * counts[C].total / counts[in_channel].total
    pixels = channels * nest.input_positions("hw")
    weights = tile[G] * tile[K] * tile[C] * tile[R] * tile[S]
    positions, images = pixels / boxes, tile[N] * tile[P] * tile[Q]
    if along < 0:
        held = stream(weights, nest.l0[G], nest.l0[G])
    else:
        held = stream(weights / tile[along], tile[along], bounds[along])
        positions, images = positions * tile[G] / counts[G].total, images * tile[G]
    streams = (
        held,
        stream(positions, tile[in_channel], bounds[in_channel]),
        stream(images, tile[out_channel], bounds[out_channel]),
    )
    # The regions of a group are the outermost loops.
    trips = [(d, counts[d].l3 / counts[d].regions) for d in nest.orders[0][0]]
    trips += [(d, counts[d].regions) for d in (Q, P, N, K, G)]
    loops = [
        cache.Loop(times, walks(d, contiguous), DIMS[d] in REDUCTION)
        for d, times in trips
        if occurs(times - 1)
    ]
    return cache.cache_use(streams, loops, largest)
