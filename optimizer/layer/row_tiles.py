"""Mappings of layers whose rows have scales of their own: accumulator tiles of `side` pixels.

One mvout then stores several blocks of channels of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.legality import has_room
from fadiff.optimizer.layer.loop_space import ORDERS, sizes

_PIXELS: tuple[Dim, ...] = ("N", "P", "Q")


def row_mappings(setting: LoopSetting, one: Mapping) -> Iterator[Mapping]:
    """Legal ones, issued by the core: along the longest axis of pixels, all depths; none for other layers.

    `one` has the array blocks.
    """
    if setting.layer.row_scale is None:
        return
    d, side = setting.bounds, setting.target.side
    axis = max(_PIXELS, key=lambda x: d[x])
    channel: Dim = "G" if setting.layer.op == "depthwise" else "K"
    pixels = {**dict.fromkeys(_PIXELS, 1), axis: min(side, d[axis])}
    block = one.tile_l0.replace(pixels)
    for width in sizes(d[channel], side):
        inner = d.replace({**pixels, "G": 1, channel: width})
        for rows in sizes(d[axis], side):
            outer = inner.replace({axis: rows})
            for order in ORDERS["loop_ws"]:
                mapping = replace(one, tile_l2=outer, tile_l1=inner, tile_l0=block, order_l3=order)
                if has_room(replace(setting, mapping=mapping)):
                    yield mapping
