"""What LOOP_CONV_WS asks of a convolution.

One call takes a box of input pixels, padding included, from the start of one half of the scratchpad, weights
up to the end of one, outputs in one half of the accumulator.  A NULL pointer leaves an operand where an
earlier call put it.  Products start when the loads are issued, stores when its products are; calls overlap,
two at a time.  Depthwise layers are dense convolutions of one block of channels, with block-diagonal weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.group.loop_products import obstacle_in_sums
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.mapping.shape import extents, shape_of
from fadiff.costmodel.mapping.tiling import Window

_MOST = 0xFFFF
"""Largest extent and stride: the instruction's fields have 16 bits."""
_MOST_ROWS = 0xFF
"""Largest stride, and rows of padding below a tile: 8 bits."""
_MOST_PIXELS = 0xFF
"""Pixels of a line of pooled outputs: 8 bits."""


def obstacle_to_convolution_loop(setting: LoopSetting) -> str:
    """Why the loop unit of convolutions cannot run the layer's scratchpad tiles; empty if it can."""
    return (
        obstacle_to_convolutions(setting)
        or _obstacle_in_tiles(setting)
        or (_obstacle_in_pooling(setting) if setting.pools else "")
        or setting.obstacle_in_capacity(*convolution_rows(setting))
    )


def obstacle_to_convolutions(setting: LoopSetting) -> str:
    """Why the unit cannot run the layer, however it is mapped; empty if it may."""
    layer = setting.layer
    if layer.op not in ("conv", "depthwise"):
        return f"a {layer.op} is no convolution"
    if shape_of(layer).has_transposed_weights:
        return "its weights are contiguous along input channels"
    return setting.obstacle or _obstacle_in_windows(layer) or _obstacle_in_pitches(setting)


def loop_steps(layer: TensorCoreLayer) -> tuple[int, int]:
    """The unit's one stride and one dilation: those of the axis where they matter."""
    shape = shape_of(layer)
    axes = _steps(shape.height), _steps(shape.width)
    return max(stride for stride, _ in axes), max(dilation for _, dilation in axes)


def skips(layer: TensorCoreLayer) -> tuple[int, int]:
    """Image rows and columns from one touched pixel to the next: the stride where the kernel is 1."""
    shape = shape_of(layer)
    return _skip(shape.height), _skip(shape.width)


def _skip(axis: Window) -> int:
    return axis.stride if axis.kernel == 1 else 1


def _steps(axis: Window) -> tuple[int, int]:
    """Stride and dilation of what is loaded of an axis; of a kernel of 1 touched pixels lie side by side."""
    return (axis.stride, axis.dilation) if axis.kernel > 1 else (1, 1)


def _obstacle_in_windows(layer: TensorCoreLayer) -> str:
    shape, d = shape_of(layer), layer.dims
    stride, dilation = loop_steps(layer)
    for axis, outputs in ((shape.height, d.P), (shape.width, d.Q)):
        own_stride, own_dilation = _steps(axis)
        if own_stride != stride and outputs > 1:
            return "its strides differ along height and width"
        if own_dilation != dilation and axis.kernel > 1:
            return "its dilations differ along height and width"
        if stride + dilation * axis.kernel > _MOST_ROWS:
            return f"its window is larger than {_MOST_ROWS} pixels"
    return ""


def _obstacle_in_pitches(setting: LoopSetting) -> str:
    """The unit counts pixels, rows and taps: every stride is a multiple of the next smaller one."""
    layer, d = setting.layer, setting.layer.dims
    skip_y, skip_x = skips(layer)
    n, h, w = setting.input_strides
    pixel, line = w * skip_x, h * skip_y
    out_n, out_p, out_q = setting.output_strides
    pitches = [
        ("input", line, pixel, d.P * d.R),
        ("input", n, line, d.N),
        ("output", out_p, out_q, d.P),
        ("output", out_n, out_p, d.N),
    ]
    widest = [pixel, out_q]
    if layer.op != "depthwise":
        _, r, s, c, _ = layer.weight.strides
        pitches += [("weight", r, s, d.R if d.S > 1 else 1), ("weight", s if d.S > 1 else r, c, d.R * d.S)]
        widest.append(c)
    for operand, outer, inner, count in pitches:
        if count > 1 and (not inner or outer % inner):
            return f"its {operand} does not lie in memory in equal steps"
        widest.append(outer // inner if count > 1 else 1)
    if max(*widest, *layer.input_size) > _MOST:
        return f"its operands have strides beyond {_MOST}"
    return ""


def _obstacle_in_tiles(setting: LoopSetting) -> str:
    layer, mapping, side = setting.layer, setting.mapping, setting.target.side
    tile = mapping.tile_l2
    if mapping.tile_l1 != tile:
        return "its accumulator tile is not its scratchpad tile"
    blocks: dict[Dim, int] = {"C": mapping.rows.C, "K": mapping.cols.K}
    if layer.op == "depthwise":
        blocks = {"G": mapping.cols.G}
        if side < tile.G:
            return f"its scratchpad tile has {tile.G} channels: the unit takes a block of {side} at a time"
    for dim, block in blocks.items():
        if block != min(tile[dim], side):
            return f"it does not fill array blocks of {side} x {side}"
    return obstacle_in_sums(setting)


def _obstacle_in_pooling(setting: LoopSetting) -> str:
    """One instruction pools all windows of an image and block of channels."""
    pool, tile = setting.pool, setting.mapping.tile_l2
    _, p, q = setting.output_strides
    if p // q > _MOST_PIXELS:
        return f"lines of {p // q} pooled pixels lie in memory, the unit counts {_MOST_PIXELS}"
    windows = [
        tile_extent // pool.stride if tile_extent < max(extents(axis)) else max(extents(pooled))
        for tile_extent, axis, pooled in (
            (tile.P, setting.region.P, setting.stored.computed.P),
            (tile.Q, setting.region.Q, setting.stored.computed.Q),
        )
    ]
    taps = math.prod(windows) * pool.kernel**2
    most = max(setting.target.scratchpad_rows, setting.target.accumulator_rows)
    return f"its tiles have {taps} taps of windows, one instruction pools {most}" if taps > most else ""


def convolution_rows(setting: LoopSetting) -> tuple[int, int, int]:
    """Rows of the input, weight and output tiles as the unit lays them out."""
    return operand_rows(setting.layer, setting.mapping.tile_l2.as_dict(), setting.target.side)


def operand_rows(
    layer: TensorCoreLayer, tile: Mapping[Dim, Number], side: int
) -> tuple[Number, Number, Number]:
    """Rows of input, weight and output of a scratchpad tile, or of columns of tiles, on an array of `side`.

    The unit has stride - 1 more rows and columns of input than the windows touch.
    """
    stride, dilation = loop_steps(layer)
    height = tile["P"] * stride + (tile["R"] - 1) * dilation
    width = tile["Q"] * stride + (tile["S"] - 1) * dilation
    channels, outputs = (tile["G"], tile["G"]) if layer.op == "depthwise" else (tile["C"], tile["K"])
    in_blocks, out_blocks = -(-channels // side), -(-outputs // side)
    return (
        in_blocks * tile["N"] * height * width,
        out_blocks * tile["R"] * tile["S"] * channels,
        out_blocks * tile["N"] * tile["P"] * tile["Q"],
    )
