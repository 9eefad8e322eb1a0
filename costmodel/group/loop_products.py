"""What LOOP_WS asks of a matrix product (or a convolution that is one).

One call multiplies I x K blocks of A by K x J blocks of B, `side` x `side` elements each: A from the start of
one half of the scratchpad, B up to the end of one, C in one half of the accumulator.  A NULL pointer leaves
an operand where an earlier call put it.  The unit's order is K, J, I: weights meet all pixels at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.shape import Region, extents, shape_of

_NO_MATRIX = "the pixels of its tiles are no rows of one matrix"
_PIXELS: tuple[Dim, ...] = ("N", "P", "Q")


def obstacle_to_product_loop(setting: LoopSetting) -> str:
    """Why the loop unit of products cannot run the layer's scratchpad tiles; empty if it can."""
    return (
        obstacle_to_products(setting)
        or _obstacle_in_tiles(setting)
        or setting.obstacle_in_capacity(*product_rows(setting))
        or ("" if None not in row_pitches(setting) else _NO_MATRIX)
    )


def is_product(layer: TensorCoreLayer) -> bool:
    """Whether the unit of products could run a layer."""
    return layer.op != "depthwise" and layer.dims.R * layer.dims.S == 1 and not any(layer.pads)


def obstacle_to_products(setting: LoopSetting) -> str:
    """Why the unit cannot run the layer, however it is mapped; empty if it may."""
    if not is_product(setting.layer):
        return "it is no matrix product"
    return "its stores pool" if setting.pools else setting.obstacle


def obstacle_to_core_products(setting: LoopSetting) -> str:
    """Why the core cannot issue a layer in tiles as the unit would, whatever the mapping; empty if it may.

    It stores what the unit cannot, sums, and rows or channels with scales of their own, and takes kernel taps
    whose pixels are as many rows of the input tile, each read by one tap.
    """
    layer, d = setting.layer, setting.layer.dims
    if len(setting.group.layers) > 1:
        return "it runs tile by tile with others"
    if layer.op == "depthwise":
        return "it is no matrix product"
    if any(layer.pads) or any(n > 1 and t > 1 for n, t in ((d.P, d.R), (d.Q, d.S))):
        return "its taps share pixels"
    if any(t > 1 and step > 1 for t, step in zip((d.R, d.S), layer.dilation, strict=True)) or d.R > 1 < d.S:
        return "its taps are no lines that follow one another"
    if setting.pools or setting.group.resident_weights or setting.space.room.reserved:
        return "its stores pool, or weights stay"
    return ""


def obstacle_to_core_tiles(setting: LoopSetting) -> str:
    """Why the core cannot issue the layer's scratchpad tiles as the unit would; empty if it can."""
    tile, d = setting.mapping.tile_l2, setting.bounds
    return (
        obstacle_to_core_products(setting)
        or _obstacle_in_tiles(setting)
        or ("" if (tile.R, tile.S) == (d.R, d.S) else "its tiles cut the kernel")
        or setting.obstacle_in_capacity(*product_rows(setting))
        or ("" if None not in (*row_pitches(setting), factor_pitch(setting)) else _NO_MATRIX)
    )


def _obstacle_in_tiles(setting: LoopSetting) -> str:
    mapping, side = setting.mapping, setting.target.side
    d = setting.bounds
    if mapping.tile_l1 != mapping.tile_l2:
        return "its accumulator tile is not its scratchpad tile"
    if (min(d.C, side), min(d.K, side)) != (mapping.rows.C, mapping.cols.K) or mapping.rows.S > 1:
        return f"it does not fill array blocks of {side} x {side}"
    for dim in ("C", "K"):
        if mapping.tile_l2[dim] % side and mapping.tile_l2[dim] < d[dim]:
            return f"its scratchpad tile of {mapping.tile_l2[dim]} {dim} is no multiple of {side}"
    return obstacle_in_sums(setting)


def obstacle_in_sums(setting: LoopSetting) -> str:
    """Why the units, which finish sums and stream pixels, are not the mapping; empty if they are."""
    if LoopNest(shape_of(setting.layer), setting.mapping, setting.region).fetch("O", 2)[0] > 1:
        return "it stores partial sums"
    if not setting.mapping.streams_pixels:
        return "its accumulator loops change weights inside those over pixels"
    return ""


def product_rows(setting: LoopSetting) -> tuple[int, int, int]:
    """Rows of the input, weight and output tiles as the unit lays them out: whole blocks."""
    tile, side = setting.mapping.tile_l2, setting.target.side
    i, j, k = (ceil_div(n, side) for n in (tile.N * tile.P * tile.Q, tile.K, tile.C))
    k *= tile.R * tile.S
    return i * k * side, k * j * side, i * j * side


def row_pitches(setting: LoopSetting) -> tuple[int | None, int | None]:
    """Elements from one row of the input tiles, and of the output tiles, to the next (see `pixel_pitch`)."""
    return tile_pitches(setting, [setting.mapping.tile_l2[d] for d in _PIXELS])


def factor_pitch(setting: LoopSetting) -> int | None:
    """Factors from that of each row of the output tiles to the next; 0 where rows have none."""
    scales = setting.layer.row_scale
    if scales is None:
        return 0
    _, *strides, _ = scales.strides
    return pixel_pitch([setting.mapping.tile_l2[d] for d in _PIXELS], setting.region, strides)


def tile_pitches(setting: LoopSetting, tile: Sequence[int]) -> tuple[int | None, int | None]:
    """`row_pitches` of tiles of these extents along N, P and Q, whatever the mapping."""
    sy, sx = setting.layer.stride
    n, h, w = setting.input_strides
    return (
        pixel_pitch(tile, setting.region, (n, h * sy, w * sx)),
        pixel_pitch(tile, setting.region, setting.output_strides),
    )


def pixel_pitch(tile: Sequence[int], region: Region, strides: Sequence[int]) -> int | None:
    """Elements from each pixel of a tile to the next, in any tile; None where they differ.

    Args:
        tile: Extents along N, P and Q.
        region: What the tiles cut up; the last along an axis may be smaller.
        strides: Of N, P and Q.
    """
    pitch, whole, adjoins = strides[2], True, 0
    merged = False
    for extent, axis, stride in zip(reversed(tile), reversed(region[2:]), reversed(strides), strict=True):
        if extent == 1:
            continue
        if merged and not (whole and stride == adjoins):
            return None
        if not merged:
            pitch, merged = stride, True
        whole = all(length % extent == 0 for length in extents(axis))
        adjoins = stride * extent
    return pitch
