"""Mappings of a convolution that Gemmini's loop unit may run: few, as large as half of each memory allows."""

from __future__ import annotations

from collections.abc import Iterator

from fadiff.converter.ir.dims import Dims
from fadiff.costmodel.group.loop_convolutions import operand_rows
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping, Order
from fadiff.costmodel.mapping.shape import extents
from fadiff.optimizer.layer.loop_space import ORDERS, sizes


def convolution_mappings(setting: LoopSetting) -> Iterator[Mapping]:
    """Candidates, not all of them legal; none for layers that are no convolutions."""
    if setting.layer.op not in ("conv", "depthwise"):
        return
    for pixels in _pixel_tiles(setting):
        seen: set[Dims] = set()
        for tile in _channel_tiles(setting, pixels):
            if tile not in seen:
                seen.add(tile)
                yield from (_mapping(setting, tile, order) for order in ORDERS["loop_conv_ws"])


def _pixel_tiles(setting: LoopSetting) -> Iterator[Dims]:
    """Tiles of whole images, of whole lines, of parts of a line that fill array rows."""
    *_, n, p, q = (max(extents(axis)) for axis in setting.region)
    whole = Dims(N=n, P=p, Q=q, R=setting.layer.dims.R, S=setting.layer.dims.S)
    yield from (whole.replace({"N": images}) for images in sizes(n, 1) if images > 1)
    for columns in sizes(q, setting.target.side):
        for lines in sizes(p, 1):
            yield whole.replace({"N": 1, "P": lines, "Q": columns})


def _channel_tiles(setting: LoopSetting, pixels: Dims) -> Iterator[Dims]:
    """For every number of output channels the most input channels that fit, and half of them: while a call's
    products run, the next one's operands load."""
    d, side = setting.bounds, setting.target.side
    if setting.layer.op == "depthwise":
        yield pixels.replace({"G": min(d.G, side)})
        return
    half, accumulator = setting.target.scratchpad_rows // 2, setting.target.accumulator_rows // 2
    for k in sizes(d.K, side):
        for taps in ((d.R, d.S), (1, d.S), (1, 1)):
            tile = pixels.replace({"K": k, "R": taps[0], "S": taps[1]})
            fits = []
            for c in sizes(d.C, side):
                rows = operand_rows(setting.layer, {**tile.as_dict(), "C": c}, side)
                if rows[0] + rows[1] <= half and rows[2] <= accumulator:
                    fits.append(c)
            yield from (tile.replace({"C": c}) for c in fits[:2])
            if fits:
                break


def _mapping(setting: LoopSetting, tile: Dims, order: Order) -> Mapping:
    layer, side = setting.layer, setting.target.side
    if layer.op == "depthwise":
        rows, cols = Dims(), Dims(G=tile.G)
    else:
        c = min(tile.C, side)
        packs = setting.target.has_row_packing and tile.C == layer.dims.C and layer.dilation[1] == 1
        rows, cols = Dims(C=c, S=min(tile.S, side // c) if packs else 1), Dims(K=min(tile.K, side))
    block = Dims(*(r * c for r, c in zip(rows, cols, strict=True)))
    return Mapping(tile, tile, block, rows, cols, order, order, STREAM_ORDER, STREAM_ORDER)
