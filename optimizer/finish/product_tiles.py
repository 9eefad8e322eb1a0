"""Mappings of a product that Gemmini's loop unit may run: few, as large as half of each memory allows."""

from __future__ import annotations

from collections.abc import Iterator

from fadiff.converter.ir.dims import Dims
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping, Order, ceil_div
from fadiff.costmodel.mapping.shape import extents
from fadiff.optimizer.layer.loop_space import ORDERS, sizes

_ORDER_IN_UNIT: Order = ("G", "R", "S", "C", "K", "N", "P", "Q")


def product_mappings(setting: LoopSetting) -> Iterator[Mapping]:
    """Candidates, not all of them legal; none for layers that are no products."""
    d, side, target = setting.bounds, setting.target.side, setting.target
    if setting.layer.op == "depthwise" or d.R * d.S > 1:
        return
    rows, cols = Dims(C=min(d.C, side)), Dims(K=min(d.K, side))
    block = Dims(C=rows.C, K=cols.K)
    for pixels in _pixel_tiles(setting):
        i = ceil_div(pixels.N * pixels.P * pixels.Q, side)
        widths = [k for k in sizes(d.K, side) if i * ceil_div(k, side) * side <= target.accumulator_rows // 2]
        depths = {}
        for k in widths:
            room = target.scratchpad_rows // 2 // side // (i + ceil_div(k, side))
            depths[k] = next((c for c in sizes(d.C, side) if ceil_div(c, side) <= room), 0)
        for k, depth in depths.items():
            # Of tiles that are no deeper, the widest two.
            if depth and sum(other >= depth for wider, other in depths.items() if wider > k) < 2:
                tile = pixels.replace({"K": k, "C": depth})
                for order in ORDERS["loop_ws"]:
                    yield Mapping(tile, tile, block, rows, cols, order, order, _ORDER_IN_UNIT, STREAM_ORDER)


def _pixel_tiles(setting: LoopSetting) -> Iterator[Dims]:
    """Tiles of whole rows, of a part of one, of whole images."""
    *_, n, p, q = (max(extents(axis)) for axis in setting.region)
    side = setting.target.side
    if q == 1:
        yield from (Dims(P=rows) for rows in sizes(p, side))
    else:
        yield from (Dims(P=rows, Q=q) for rows in sizes(p, 1))
        yield from (Dims(Q=columns) for columns in sizes(q, side) if columns < q)
    yield from (Dims(N=images, P=p, Q=q) for images in sizes(n, 1) if images > 1)
