"""The map-space of one layer on one target: bounds, rules and candidate tiles.

A `LayerSpace` has everything that decides a layer's mapping and nothing that does not (no names, no
tensors), so that layers with equal spaces are solved once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.loops import Dim, Dims
from fadiff.costmodel.count.nest import fetched_positions
from fadiff.costmodel.count.traffic import ALONE, Placement
from fadiff.costmodel.group.loop_setting import PinnedWeights
from fadiff.costmodel.group.pooling import MOST_PIXELS, most_columns
from fadiff.costmodel.mapping.counting import COUNTING, Counting, LatencyModel
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.mapping.shape import LayerShape, Region, bounds_of, whole
from fadiff.costmodel.mapping.tiling import Interval, Outline, Window, box_rows, outline, spanned_rows
from fadiff.costmodel.schedule.schedule import FusionGroup, Profile
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.layer import candidates
from fadiff.optimizer.layer.candidates import Tiling
from fadiff.optimizer.layer.loop_space import LoopSite

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MOST_LANES = 3
"""Numbers of depthwise channels at once to try: all columns, half, a quarter."""


@dataclass(frozen=True)
class Rules:
    """What holds for every layer of one search."""

    target: Target = field(hash=False)
    profile: Profile = "hw"
    tiling: Tiling = "ragged"
    row_packing: bool = True
    keep_weights: bool = True
    """Whether a group may keep weights in the scratchpad over all its tiles."""
    network_weights: int = 0
    """Bytes of all weights of the network, which pass through the cache between two runs (profile hw)."""
    all_lanes: bool = False
    """Whether depthwise layers try every number of channels at once, however slow."""

    @property
    def counting(self) -> Counting:
        """The rules of the profile."""
        return COUNTING[self.profile]

    @property
    def latency(self) -> LatencyModel:
        """By which layers are scored."""
        return self.counting.latency


@dataclass(frozen=True)
class LayerSpace:
    """Bounds and rules of one layer's mapping, alone or as a member of a fusion group."""

    shape: LayerShape
    region: Region
    rules: Rules
    placement: Placement = ALONE
    reserved: int = 0
    """Scratchpad rows (profile dosa: bytes) that the rest of the group occupies."""
    lanes: int = 0
    """Channels of a depthwise layer that run at once; 0: as many as the array has columns."""
    site: LoopSite | None = None
    """Where a layer of a program runs (profile hw): its mappings are those that Gemmini's loop units can
    run there, single instructions where none can."""

    @classmethod
    def alone(cls, shape: LayerShape, rules: Rules) -> LayerSpace:
        """The space of a layer that is not fused."""
        return cls(shape, whole(shape.dims), rules)

    def beside(self, pinned: PinnedWeights, group: FusionGroup) -> LayerSpace:
        """The same member of a group in which weights stay for loop units."""
        assert self.site is not None
        placement = self.placement._replace(weights_are_resident=self.site.setting.layer.name in pinned.tiles)
        return replace(self, placement=placement, site=self.site.beside(pinned, group))

    @property
    def holds_input(self) -> bool:
        """Whether the input is in the scratchpad already: in profile dosa every fused one."""
        p = self.placement
        return p.input_is_fused and not p.is_paper and not self.rules.counting.has_tile_buffer

    @property
    def holds_output(self) -> bool:
        """Whether the output stays in the scratchpad, hence must be final when it leaves its tile."""
        p = self.placement
        return p.output_is_fused and not p.is_paper and not self.rules.counting.has_tile_buffer

    @property
    def must_finish(self) -> bool:
        """Whether no partial sum may leave the accumulator: what stays on chip is final."""
        pooled, target = self.placement.pooled is not None, self.rules.target
        return self.holds_output or (
            self.rules.counting.moves_accumulator and (pooled or not target.has_full_width_read)
        )

    @cached_property
    def outlines(self) -> dict[str, Outline]:
        """Extents of G, K, N, P and Q over all regions."""
        return dict(zip(Region._fields, map(outline, self.region), strict=True))

    @cached_property
    def bounds(self) -> Dims:
        """Largest extent of every dimension that one run of the nest sees."""
        return Dims(*bounds_of(self.shape, self.region))

    @property
    def side(self) -> int:
        """Rows, and columns, of the array."""
        return self.rules.target.side

    def block(self, extent: int, most: int | None = None) -> int:
        """Spatial factor for `extent` indices: as many lanes as there are (a divisor if tiling is)."""
        most = self.side if most is None else most
        if self.rules.tiling == "divisor":
            return max(d for d in candidates.divisors(extent) if d <= most)
        return min(extent, most)

    def blocks(self, extents: Number) -> Number:
        """`block` of every extent."""
        if isinstance(extents, int):
            return self.block(extents)
        if self.rules.tiling != "divisor":
            return np.minimum(extents, self.side)
        table = np.zeros(int(extents.max(initial=0)) + 1, dtype=np.int64)
        for extent in np.unique(extents):
            table[extent] = self.block(int(extent))
        return np.asarray(table[extents])

    @cached_property
    def _most_taps(self) -> Ints:
        """Kernel columns packed next to all channels on the array rows (rows.S), by the taps of a tile."""
        room = self.side // self.shape.dims.C if self.packs else 0
        kernel = range(self.bounds.S + 1)
        return np.array([self.block(s, min(s, room)) if s and room else 1 for s in kernel], dtype=np.int64)

    def packed(self, channels: Number, taps: Number) -> Number:
        """Kernel columns packed next to `channels`: next to all of them only, so `taps` alone decides."""
        if self._most_taps[-1] == 1:
            return 1
        return np.where(channels == self.shape.dims.C, self._most_taps[taps], 1)

    def is_one_block(self, tile: Mapping[str, Ints]) -> Bools:
        """Whether the array holds all weights of a scratchpad tile K C R S, walked by accumulator tiles of k
        channels: they stay there while these pass."""
        c, k, s = tile["C"], tile["k"], tile["S"]
        whole = (tile["K"] == k) & (k == self.blocks(k)) & (c == self.blocks(c))
        return np.asarray(whole & (tile["R"] == 1) & (s == self.packed(c, s)))

    @property
    def packs(self) -> bool:
        """Whether kernel taps may share the array rows with channels."""
        if (
            self.rules.counting.in_rows and self.shape.width.dilation > 1
        ):  # a row holds neighbouring pixels only
            return False
        return self.rules.row_packing and self.rules.target.has_row_packing and not self.shape.is_depthwise

    @cached_property
    def groups_at_once(self) -> int:
        """Tile extent of G: groups share no operand, so one array block of them at a time is never worse."""
        if not self.shape.is_depthwise:
            return 1
        return self.lanes or self.block(self.shape.dims.G)

    def by_lanes(self) -> tuple[LayerSpace, ...]:
        """This space for every number of depthwise channels at once worth trying.

        In profile hw a block of g channels moves g * g weights per tap (zeros included): fewer
        channels at once take more cycles and fewer bytes.  Below a quarter of the columns loading the
        array takes longer than using it, which roofline latency does not see.
        """
        if self.lanes or self.site or not (self.shape.is_depthwise and self.rules.counting.loads_zeros):
            return (self,)
        return tuple(replace(self, lanes=g) for g in self.lanes_to_try)

    @property
    def lanes_to_try(self) -> tuple[int, ...]:
        """Numbers of depthwise channels at once, the most first."""
        lanes = [self.groups_at_once]
        while lanes[-1] > 1 and (len(lanes) < MOST_LANES or self.rules.all_lanes):
            lanes.append(self.block(self.shape.dims.G, lanes[-1] // 2))
        return tuple(lanes)

    def tiles(self, dim: Dim) -> tuple[int, ...]:
        """Scratchpad-tile extents worth trying, ascending."""
        size = self.bounds[dim]
        if dim == "G":
            return (self.groups_at_once,)
        if dim in ("K", "C"):
            return candidates.blocked_extents(size, min(size, self.side), self.rules.tiling)
        return self.pixel_tiles(dim, size)

    def pixel_tiles(self, dim: Dim, size: int) -> tuple[int, ...]:
        """Extents worth trying for pixels or taps, ascending; where a max pool follows, of whole windows."""
        step = self._pool_step(dim)
        if step == 1:
            return candidates.extents(size, self.rules.tiling)
        if not step:
            return (size,)
        windows = candidates.extents(ceil_div(size, step), self.rules.tiling)
        return tuple(min(size, step * count) for count in windows)

    def accumulator_extents(self, dim: Dim, size: int, most: int) -> Ints:
        """Every extent of accumulator tiles that nests in a scratchpad extent `size`, ascending; those above
        `most` may be missing."""
        step = self._pool_step(dim)
        if self.rules.tiling == "divisor" or not step:
            return np.array(self.pixel_tiles(dim, size), dtype=np.int64)
        windows = min(ceil_div(size, step), ceil_div(most, step))
        return np.minimum(size, step * np.arange(1, windows + 1))

    def _pool_step(self, dim: Dim) -> int:
        """What tiles along `dim` must be multiples of; 0: no tile may cut a region (group.pooling)."""
        pooled = self.placement.pooled
        if pooled is None or dim not in ("P", "Q"):
            return 1
        return pooled.steps[0 if dim == "P" else 1]

    def pools(self, p: Ints, q: Ints) -> Bools:
        """Whether accumulator tiles of P `p` and Q `q` are small enough for a max pool that follows."""
        pooled = self.placement.pooled
        if pooled is None:
            return np.ones(len(p), dtype=np.bool_)
        return np.asarray((p <= MOST_PIXELS) & (q <= most_columns(self.rules.target, pooled.taps)))

    @cached_property
    def has_room_to_pool(self) -> bool:
        """Whether the smallest tile that a max pool which follows can take fits the accumulator; if not, the
        space is empty."""
        if self.placement.pooled is None:
            return True
        p, q = (min(self.pixel_tiles(d, self.bounds[d])) for d in ("P", "Q"))
        fits = p * q <= self.accumulator_limit(split=False)
        return fits and bool(self.pools(np.array([p]), np.array([q]))[0])

    @property
    def scratchpad_limit(self) -> int:
        """Scratchpad rows (dosa: bytes)."""
        return self.rules.counting.scratchpad_size(self.rules.target)

    def accumulator_limit(self, split: bool) -> int:
        """Accumulator rows (dosa: words per column) for one output tile; `split`: there are several."""
        rows = self.rules.target.accumulator_rows
        return rows // 2 if split and self.rules.counting.in_rows else rows

    def outline(self, dim: Dim) -> Outline:
        """Extents of any dimension over all regions."""
        return self.outlines.get(dim, ((self.shape.dims[dim], 1),))

    def total(self, dim: Dim) -> int:
        """Indices computed over all regions (more than the bound where halo is computed again)."""
        return sum(extent * times for extent, times in self.outline(dim))

    def runs(self) -> int:
        """Runs of the loop nest for the same weights: group tiles, 1 for a layer alone."""
        return len(self.region.N) * len(self.region.P) * len(self.region.Q)

    def input_positions(self, dim: Dim, out: Number, taps: Number) -> Number:
        """Rows (dim P) or columns (dim Q) of the image fetched by one pass over all tiles."""
        window = self.shape.height if dim == "P" else self.shape.width
        intervals = self.region.P if dim == "P" else self.region.Q
        return fetched_positions(window, intervals, out, taps, self.rules.profile)

    @cached_property
    def touched_inputs(self) -> int:
        """Input elements that some tap of some output needs, of every run: no tiles fetch fewer.

        With gaps between taps (dilation) or windows (stride), small tiles fetch less than one whole tile.
        """
        positions = 1
        for window, intervals in ((self.shape.height, self.region.P), (self.shape.width, self.region.Q)):
            positions *= _touched(window, intervals)
        d = self.shape.dims
        return d.G * d.C * len(self.region.K) * self.total("N") * positions

    def box(self, dim: Dim, out: Ints, taps: Ints) -> Ints:
        """Rows (dim P) or columns (dim Q) that a tile's input occupies on chip."""
        window = self.shape.height if dim == "P" else self.shape.width
        rows = box_rows if self.rules.counting.in_rows else spanned_rows
        return np.asarray(rows(window, out, taps))


@lru_cache(maxsize=1 << 14)
def _touched(window: Window, intervals: tuple[Interval, ...]) -> int:
    """Rows of the image that some tap of some output needs, of every interval."""
    taps = [k * window.dilation - window.pad for k in range(window.kernel)]
    return sum(
        len({r for i in range(a, b) for t in taps if 0 <= (r := i * window.stride + t) < window.size})
        for a, b in intervals
    )
