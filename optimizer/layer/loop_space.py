"""Every mapping of one layer that Gemmini's loop units can run, in columns, and the front of these.

A unit runs one scratchpad tile per call, in halves of both memories; the tile is the accumulator tile, too,
and blocks fill the array.  What is left to choose: extents (for every number of tiles along a dimension the
least), and which operand's tile stays while DRAM loops walk over the other's.  Kernel taps are cut into
rows, or one by one.  Of depthwise layers all lanes, a half or a quarter are used: fewer channels at once move
fewer zeros.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, RELEVANT, Dim, Dims
from fadiff.costmodel.count.capacity import Occupancy
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.group.issue import obstacle_to_issue, obstacle_to_unit
from fadiff.costmodel.group.legality import Room
from fadiff.costmodel.group.loop_convolutions import operand_rows, skips
from fadiff.costmodel.group.loop_products import tile_pitches
from fadiff.costmodel.group.loop_setting import PLACES, LoopSetting, PinnedWeights
from fadiff.costmodel.group.scratchpad import MemberSpace
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.decision import FusionGroup
from fadiff.costmodel.mapping.mapping import LOOPS, ONES, STREAM_ORDER, Issue, Order, ceil_div
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.mapping.numbers import Ints, Number
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.legality import has_room
from fadiff.costmodel.target.target import Target

_OF_PRODUCTS: tuple[Order, Order] = (
    ("G", "R", "S", "N", "P", "Q", "K", "C"),
    ("G", "R", "S", "K", "N", "P", "Q", "C"),
)
ORDERS: dict[Issue, tuple[Order, Order]] = {
    "core_ws": _OF_PRODUCTS,
    "loop_ws": _OF_PRODUCTS,
    "loop_conv_ws": (("G", "N", "P", "Q", "K", "R", "S", "C"), ("G", "K", "N", "P", "Q", "R", "S", "C")),
}
"""DRAM loops, outermost first: input tiles stay over output channels, or weight tiles over pixels."""
_IN_UNIT: dict[Issue, Order] = dict.fromkeys(("core_ws", "loop_ws"), ("G", "R", "S", "C", "K", "N", "P", "Q"))
"""Of scratchpad loops, which have one trip."""
Extents = dict[Dim, Number]
_ANY = LayerMapping(ONES, ONES, ONES)


@dataclass(frozen=True)
class LoopSite:
    """What a loop unit meets where a layer runs; sites with equal keys are as good as each other."""

    key: tuple[Hashable, ...]
    setting: LoopSetting = field(compare=False, repr=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        group: FusionGroup,
        plan: Mapping[str, Member],
        layer: TensorCoreLayer,
        target: Target,
    ) -> LoopSite:
        """Of a member of a group, no weights of which stay."""
        space = MemberSpace(layer, Occupancy(0, 0, 0, 0), Room())
        setting = LoopSetting(graph, group, plan, space, _ANY, target)
        pools = (setting.pool, setting.stored.computed) if setting.pools else None
        strides = setting.input_strides, setting.output_strides, layer.weight.strides
        return cls((layer.op, strides, pools, None, setting.obstacle), setting)

    def beside(self, pinned: PinnedWeights, group: FusionGroup) -> LoopSite:
        """The same where weights of the group stay."""
        op, strides, pools, *_ = self.key
        own = pinned.tiles.get(self.setting.layer.name, 0)
        others = pinned.rows * (sum(pinned.tiles.values()) - own)
        room = Room(is_resident=own > 0, reserved=others)
        setting = replace(
            self.setting,
            group=group,
            space=replace(self.setting.space, room=room),
            resident_elsewhere=others,
            pinned=pinned,
        )
        return LoopSite((op, strides, pools, (pinned.rows, own, others), setting.obstacle), setting)

    def runs(self, mapping: LayerMapping) -> bool:
        """Whether a mapping can be issued as it says, and the rules of schedules allow it here."""
        setting = replace(self.setting, mapping=mapping)
        return not obstacle_to_issue(setting) and has_room(setting)

    @cached_property
    def units(self) -> tuple[Issue, ...]:
        """Those that can run some mapping of the layer; else the core, as one would."""
        units: tuple[tuple[Issue, ...], ...] = (LOOPS, ("core_ws",))
        able = (tuple(unit for unit in some if not obstacle_to_unit(self.setting, unit)) for some in units)
        return next(filter(None, able), ())

    @property
    def without_pins(self) -> LoopSite:
        """Where the same mappings run if they leave no room for weights that stay."""
        op, strides, pools, *_ = self.key
        return LoopSite((op, strides, pools), replace(self.setting, pinned=None))


def loop_mappings(
    site: LoopSite, unit: Issue, lanes: Sequence[int], *, row_packing: bool
) -> list[MappingColumns]:
    """All mappings for one unit, but for rules that few of them break, by loop order.

    Args:
        site: Of the layer.
        unit: One of `site.units`.
        lanes: Channels of a depthwise layer at once, each of them.
        row_packing: Whether kernel taps may share the array rows of a layer with few channels.
    """
    tiles = (
        _convolution_tiles(site.setting, lanes) if unit == "loop_conv_ws" else _product_tiles(site.setting)
    )
    tiles = _select(tiles, _fits(site.setting, tiles, unit))
    if not len(tiles["P"]):
        return []
    return _columns(site.setting, tiles, unit, row_packing=row_packing)


def pins(members: Mapping[str, tuple[TensorCoreLayer, Dims]], side: int) -> Iterator[PinnedWeights]:
    """What of the weights of `members` (and their largest extents) may stay: one tile of each, or two of a
    single one."""
    for tiles in product(range(1, PLACES + 1), repeat=len(members)):
        if sum(tiles) <= PLACES:
            counts = dict(zip(members, tiles, strict=True))
            rows = (_weight_rows(*members[name], count, side) for name, count in counts.items())
            yield PinnedWeights(counts, max(rows))


def _weight_rows(layer: TensorCoreLayer, d: Dims, tiles: int, side: int) -> int:
    """Of a tile of weights, where as many make up all; at most."""
    if layer.op == "depthwise":
        return d.R * d.S * side
    return ceil_div(ceil_div(d.K, side), tiles) * d.R * d.S * ceil_div(d.C, side) * side


def sizes(bound: int, unit: int) -> list[int]:
    """The least multiple of `unit` for each number of tiles that `bound` may fall into, largest first."""
    blocks = ceil_div(bound, unit)
    return [
        min(bound, n * unit)
        for n in sorted({ceil_div(blocks, n) for n in range(1, blocks + 1)}, reverse=True)
    ]


def _product_tiles(setting: LoopSetting) -> Extents:
    d, side = setting.bounds, setting.target.side
    pixels = [tile for tile in _rows_of_pixels(setting) if None not in tile_pitches(setting, tile)]
    return _grid(pixels, [(d.R, d.S)], sizes(d.K, side), sizes(d.C, side), [1])


def _rows_of_pixels(setting: LoopSetting) -> Iterator[tuple[int, int, int]]:
    """Extents N, P and Q of whole rows, of a part of one, of whole images."""
    n, p, q = (max(extents(axis)) for axis in setting.region[2:])
    side = setting.target.side
    if q == 1:
        yield from ((1, rows, 1) for rows in sizes(p, side))
    else:
        yield from ((1, rows, q) for rows in sizes(p, 1))
        yield from ((1, 1, columns) for columns in sizes(q, side) if columns < q)
    yield from ((images, p, q) for images in sizes(n, 1) if images > 1)


def _convolution_tiles(setting: LoopSetting, lanes: Sequence[int]) -> Extents:
    d, side = setting.bounds, setting.target.side
    pixels = list(_boxes_of_pixels(setting))
    taps = list(dict.fromkeys((*((rows, d.S) for rows in sizes(d.R, 1)), (1, 1))))
    if setting.layer.op == "depthwise":
        return _grid(pixels, taps, [1], [1], list(dict.fromkeys(min(d.G, count) for count in lanes)))
    return _grid(pixels, taps, sizes(d.K, side), sizes(d.C, side), [1])


def _boxes_of_pixels(setting: LoopSetting) -> Iterator[tuple[int, int, int]]:
    """Extents N, P and Q of whole images, or of a part of one; where a max pool follows, of whole windows."""
    n, p, q = (max(extents(axis)) for axis in setting.region[2:])
    if _has_square_images(setting):
        yield from ((images, p, q) for images in sizes(n, 1) if images > 1)
    steps = setting.pool.steps if setting.pools else (1, 1)
    lines = _windows(p, steps[0], 1)
    columns = dict.fromkeys((*_windows(q, steps[1], setting.target.side), *_windows(q, steps[1], 1)))
    yield from product((1,), lines, columns)


def _has_square_images(setting: LoopSetting) -> bool:
    """Whether images lie in memory like as many lines as a line has pixels: the unit of Gemminis from before
    July 2023 has one number for both, so that only these can follow one another in a tile."""
    skip_y, skip_x = skips(setting.layer)
    n, h, w = setting.input_strides
    out_n, out_p, out_q = setting.output_strides
    return n * w * skip_x == (h * skip_y) ** 2 and out_n * out_q == out_p**2


def _windows(bound: int, step: int, unit: int) -> list[int]:
    """`sizes` in multiples of `step`; 0: no tile may cut the bound."""
    if not step:
        return [bound]
    return [min(bound, step * count) for count in sizes(ceil_div(bound, step), max(unit // step, 1))]


def _grid(
    pixels: list[tuple[int, int, int]],
    taps: list[tuple[int, int]],
    outputs: list[int],
    inputs: list[int],
    groups: list[int],
) -> Extents:
    """All of them with each other."""
    axes = [np.array(pixels, dtype=np.int64).reshape(-1, 3), np.array(taps, dtype=np.int64)]
    axes += [np.array(extents, dtype=np.int64) for extents in (outputs, inputs, groups)]
    index = [grid.ravel() for grid in np.meshgrid(*(np.arange(len(axis)) for axis in axes), indexing="ij")]
    at, tap = axes[0][index[0]].T, axes[1][index[1]].T
    names: tuple[Dim, ...] = ("N", "P", "Q", "R", "S", "K", "C", "G")
    rest = [axis[i] for axis, i in zip(axes[2:], index[2:], strict=True)]
    return dict(zip(names, (*at, *tap, *rest), strict=True))


def _select(tiles: Extents, keep: Ints) -> Extents:
    return {d: tile[keep] for d, tile in tiles.items()}


def _fits(setting: LoopSetting, tiles: Extents, unit: Issue) -> Ints:
    """Which have room in half of each memory, and as many weight tiles as must stay."""
    t, target, side = tiles, setting.target, setting.target.side
    if unit != "loop_conv_ws":
        i, j, k = (-(-extent // side) for extent in (t["N"] * t["P"] * t["Q"], t["K"], t["C"]))
        k = k * t["R"] * t["S"]
        inputs, weights, outputs = i * k * side, k * j * side, i * j * side
    else:
        inputs, weights, outputs = operand_rows(setting.layer, t, side)
    pinned = setting.pinned
    held = np.maximum(weights, pinned.rows if pinned else 0)
    fits = (inputs + held <= target.scratchpad_rows // 2) & (outputs <= target.accumulator_rows // 2)
    wanted = pinned.tiles.get(setting.layer.name) if pinned else None
    if wanted:
        trips: Number = 1
        for d in RELEVANT["W"]:
            trips = trips * -(-setting.bounds[d] // t[d])
        fits &= trips == wanted
    return np.flatnonzero(fits)


def with_pins(setting: LoopSetting, columns: MappingColumns) -> Ints:
    """Which of the mappings that have room leave some for the weights that stay, and keep as many tiles."""
    tiles = dict(zip(DIMS, np.broadcast_arrays(*columns.l2, columns.order), strict=False))
    return _fits(setting, tiles, columns.issue)


def _columns(setting: LoopSetting, tiles: Extents, unit: Issue, *, row_packing: bool) -> list[MappingColumns]:
    bounds = setting.bounds
    # The other order is another one only where both operands have several tiles.
    several = (tiles["N"] * tiles["P"] * tiles["Q"] < bounds.N * bounds.P * bounds.Q) & (
        tiles["K"] < bounds.K
    )
    first, second = ORDERS[unit]
    found = [_ordered(setting, tiles, unit, first, row_packing=row_packing)]
    if several.any():
        some = _select(tiles, np.flatnonzero(several))
        found.append(_ordered(setting, some, unit, second, row_packing=row_packing))
    return found


def _ordered(
    setting: LoopSetting, tiles: Extents, unit: Issue, order: Order, *, row_packing: bool
) -> MappingColumns:
    """With DRAM loops in one order."""
    layer, side, bounds, many = setting.layer, setting.target.side, setting.bounds, len(tiles["P"])
    tiles = {d: int(tile) if bounds[d] == 1 else tile for d, tile in _folded(tiles).items()}
    rows: Extents = {}
    cols: Extents = {"G": tiles["G"]} if layer.op == "depthwise" else {"K": np.minimum(tiles["K"], side)}
    if layer.op != "depthwise":
        rows["C"] = np.minimum(tiles["C"], side)
        if row_packing and unit == "loop_conv_ws" and setting.target.has_row_packing:
            room = np.maximum(side // rows["C"], 1)
            alone = (tiles["C"] == layer.dims.C) & (layer.dilation[1] == 1)
            rows["S"] = np.where(alone, np.minimum(tiles["S"], room), 1)
    rows, cols = _folded(rows), _folded(cols)
    l2, row, col = (tuple(known.get(d, 1) for d in DIMS) for known in (tiles, rows, cols))
    block = tuple(r if isinstance(c, int) and c == 1 else c for r, c in zip(row, col, strict=True))
    orders = ((order, _IN_UNIT.get(unit, order), STREAM_ORDER),)
    every = np.zeros(many, dtype=np.int64)
    return MappingColumns(l2, l2, block, row, col, orders, every, unit)


def _folded(tiles: Extents) -> Extents:
    """Columns that say the same all along as integers, equal ones as one object: formulas work once."""
    known: dict[bytes, Number] = {}
    found: Extents = {}
    for d, column in tiles.items():
        tile = np.atleast_1d(column)
        one = int(tile[0]) if len(tile) and (tile == tile[0]).all() else tile
        found[d] = one if isinstance(one, int) else known.setdefault(tile.tobytes(), tile)
    return found
