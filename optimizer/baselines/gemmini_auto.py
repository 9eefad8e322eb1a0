"""The tiles that gemmini.h's automatic functions choose (tiled_matmul_auto, tiled_conv_auto).

Matrix products: start from square blocks in half the accumulator, each operand as deep as a quarter of
the scratchpad allows (db_max_tile_k), then grow columns, rows, depth in turn.  Convolutions: start from
the whole layer, shrink the largest dimension until half the memories hold it (channels by array widths;
output columns last, once they fill the array), then grow again, output columns first.  Depthwise layers
run one channel at a time.  Nothing is fused.  Reduction loops are innermost in both.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.issue import loop_settings, obstacle_to_issue
from fadiff.costmodel.group.legality import check_mapping
from fadiff.costmodel.mapping.mapping import LOOPS, Mapping, ceil_div
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.schedule import FusionModel, Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.layer.canonical import L1_ORDER, L2_ORDER, L3_ORDERS


def automatic_schedule(
    graph: Graph,
    target: Target,
    row_packing: bool,
    profile: Profile = "hw",
    fusion_model: FusionModel = "sound",
) -> Schedule:
    """What gemmini.h's automatic functions would run: every layer alone, on the loop units where they can.

    Raises:
        ScheduleError: memories too small for gemmini.h's tiles.
    """
    mappings = {
        layer.name: automatic_mapping(layer, target, row_packing) for layer in graph.tensor_core_layers
    }
    schedule = Schedule(graph, target, mappings, singleton_groups(graph), profile, fusion_model)
    if profile != "hw" or fusion_model != "sound":
        return schedule
    for group in schedule.groups:
        for setting in loop_settings(schedule, group, plan_group(graph, group)):
            for issue in LOOPS:
                looped = replace(setting.mapping, issue=issue)
                if not obstacle_to_issue(replace(setting, mapping=looped)):
                    mappings[setting.layer.name] = looped
                    break
    return replace(schedule, mappings=mappings, additions=quickest_additions(schedule))


def automatic_mapping(layer: TensorCoreLayer, target: Target, row_packing: bool) -> Mapping:
    """The mapping of one layer."""
    is_matmul = layer.op in ("gemm", "bmm")
    tile = _matmul_tile(layer.dims, target) if is_matmul else _conv_tile(layer, target)
    side = target.side
    row_s = 1
    packs = row_packing and target.has_row_packing and layer.op != "depthwise" and layer.dilation[1] == 1
    if packs and tile.C == layer.dims.C <= side:
        row_s = min(side // tile.C, tile.S)
    packed = _mapping(tile, side, row_s)
    if row_s > 1:
        try:
            check_mapping(layer, packed, target, "hw")
        except ScheduleError:  # the tile would cross the middle of the scratchpad
            return _mapping(tile, side, 1)
    return packed


def _mapping(tile: Dims, side: int, row_s: int) -> Mapping:
    rows, cols = Dims(C=min(tile.C, side), S=row_s), Dims(K=min(tile.K, side))
    return Mapping(
        tile_l2=tile,
        tile_l1=tile,
        tile_l0=Dims(K=cols.K, C=rows.C, S=rows.S),
        rows=rows,
        cols=cols,
        order_l3=L3_ORDERS["OS"],
        order_l2=L2_ORDER,
        order_l1=L1_ORDER,
    )


def _matmul_tile(d: Dims, target: Target) -> Dims:
    """Tile of a matrix product P x C by C x K, in array blocks first."""
    side = target.side
    spad, acc = target.scratchpad_rows // 2, target.accumulator_rows // 2
    most = [ceil_div(x, side) for x in (d.P, d.K, d.C)]
    square = max(1, math.isqrt(acc // side))
    i, j = min(most[0], square), min(most[1], square)
    k = min(most[2], max(1, spad // 2 // side // square))

    def fits(i: int, j: int, k: int) -> bool:
        return (i * k + k * j) * side <= spad and i * j * side <= acc

    while True:
        grown = False
        if j < most[1] and fits(i, j + 1, k):
            j, grown = j + 1, True
        if i < most[0] and fits(i + 1, j, k):
            i, grown = i + 1, True
        if k < most[2] and fits(i, j, k + 1):
            k, grown = k + 1, True
        if not grown:
            return Dims(K=min(j * side, d.K), C=min(k * side, d.C), P=min(i * side, d.P))


def _conv_tile(layer: TensorCoreLayer, target: Target) -> Dims:
    d, side = layer.dims, target.side
    names = ("N", "P", "Q", "K", "R", "S", "C")
    most = {x: d[x] for x in names}  # type: ignore[index]
    tile = dict(most)
    (stride, stride_w), (dilation, dilation_w) = layer.stride, layer.dilation

    def fits(t: dict[str, int]) -> bool:
        rows = t["P"] * stride + t["R"] + (dilation - 1) * (t["R"] - 1) - 1
        columns = t["Q"] * stride_w + t["S"] + (dilation_w - 1) * (t["S"] - 1) - 1
        a = ceil_div(t["C"], side) * t["N"] * rows * columns
        b = ceil_div(t["K"], side) * t["R"] * t["S"] * t["C"]
        c = ceil_div(t["K"], side) * t["N"] * t["P"] * t["Q"]
        return a + b <= target.scratchpad_rows // 2 and c <= target.accumulator_rows // 2

    while not fits(tile):
        movable = [x for x in names if not (x == "Q" and tile["Q"] <= side and tile["P"] > 1)]
        largest = max(movable, key=lambda x: tile[x])
        if tile[largest] == 1:
            break
        if largest in ("K", "C"):
            less = tile[largest] // side * side if tile[largest] % side else tile[largest] - side
            tile[largest] = max(1, less)
        else:
            tile[largest] -= 1
    while tile["Q"] < most["Q"] and fits({**tile, "Q": tile["Q"] + 1}):
        tile["Q"] += 1
    grown = True
    while grown:
        grown = False
        for x in names:
            if tile[x] < most[x] and fits({**tile, x: tile[x] + 1}):
                tile[x] += 1
                grown = True
    return Dims(1, tile["N"], tile["K"], tile["C"], tile["P"], tile["Q"], tile["R"], tile["S"])
