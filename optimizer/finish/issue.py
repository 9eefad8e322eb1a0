"""How the layers of a finished schedule are issued: one call of gemmini.h where it can be, else one
hardware loop per scratchpad tile, else single instructions, each of which takes the core 23 to 31 more.

A layer whose tiles suit no loop unit may be mapped again, to tiles that do.  Loops are priced by the `rtl`
model, which was fitted on programs of hardware loops, single instructions by what they take the core, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import get_args

from costmodel.count.traffic import Placement, Role
from costmodel.group.fusion import plan_group
from costmodel.group.issue import loop_settings, obstacle_to_issue, prefetching_layers
from costmodel.group.loop_setting import LoopSetting
from costmodel.group.placement import placement_of
from costmodel.mapping.mapping import Issue
from costmodel.mapping.mapping import Mapping as LayerMapping
from costmodel.mapping.shape import shape_of
from costmodel.schedule.evaluate import LayerNumbers, evaluate, layer_cost
from costmodel.schedule.schedule import Schedule
from optimizer.finish.convolution_tiles import convolution_mappings
from optimizer.finish.product_tiles import product_mappings
from optimizer.finish.traffic_limit import dram_bytes

SHORTEST_FIRST: tuple[Issue, ...] = ("tiled_matmul", "loop_ws", "tiled_conv", "loop_conv_ws")
ALL_ROLES: frozenset[Role] = frozenset(get_args(Role))
BIAS: frozenset[Role] = frozenset({"bias"})
"""LOOP_CONV_WS loads it once per line of an output tile: few bytes for the instructions that it saves."""
NOTHING: frozenset[Role] = frozenset()
CORE_CYCLES = 25
"""Of the core for every move and product that it issues itself, measured on RTL."""


def with_issues(schedule: Schedule, most_bytes: int | None = None) -> Schedule:
    """`schedule` (profile hw) with the issues and tiles that lower its energy-delay product.

    Args:
        schedule: What a search found.
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
    """
    for may_grow in (ALL_ROLES, BIAS, NOTHING):
        issued = _with_issues(schedule, may_grow)
        if most_bytes is None or dram_bytes(evaluate(issued)) <= most_bytes:
            return issued
    return issued


def _with_issues(schedule: Schedule, may_grow: frozenset[Role]) -> Schedule:
    cost = evaluate(schedule, "rtl")
    choice = _Choice(cost.energy_pj, cost.latency_cycles, may_grow)
    mappings = dict(schedule.mappings)
    early = prefetching_layers(schedule)
    known: dict[object, LayerMapping] = {}
    for group in schedule.groups:
        plan = plan_group(schedule.graph, group)
        for setting in loop_settings(schedule, group, plan, early):
            layer = setting.layer
            placement = placement_of(schedule.graph, group, plan, layer)
            strides = setting.input_strides, setting.output_strides
            place = setting.region, placement, *strides, setting.obstacle, len(group.layers) > 1
            key = (shape_of(layer), layer.op, setting.mapping, *place)
            if key not in known:
                known[key] = choice.of(setting, placement)
            mappings[layer.name] = known[key]
    return replace(schedule, mappings=mappings)


@dataclass(frozen=True)
class _Choice:
    """What a network takes: what a layer's mapping is worth follows."""

    energy: float
    latency: float
    may_grow: frozenset[Role]
    """Operands of which a layer may move more bytes than it does."""

    def of(self, setting: LoopSetting, placement: Placement) -> LayerMapping:
        """The mapping of one layer."""
        now = replace(setting.mapping, issue="instructions")
        cost = _cost(setting, now, placement)
        as_few = _bytes(cost, self.may_grow & BIAS)
        tried = []
        for mapping in (now, *product_mappings(setting), *convolution_mappings(setting)):
            for issued in islice(_legal(setting, mapping), 1):
                priced = _cost(setting, issued, placement)
                more = _bytes(priced, self.may_grow & BIAS) > as_few
                if mapping is now and not more:
                    return issued
                tried.append((more, self._worth(priced), issued))
        if not tried:
            return now
        more, worth, best = min(tried, key=lambda ranked: ranked[:2])
        pays = self.may_grow == ALL_ROLES and worth < self._worth(cost, _core_cycles(cost, setting))
        return best if pays or not more else now

    def _worth(self, cost: LayerNumbers, core_cycles: float = 0) -> float:
        return cost.energy_pj * self.latency + max(cost.latency_cycles, core_cycles) * self.energy


def _legal(setting: LoopSetting, mapping: LayerMapping) -> Iterator[LayerMapping]:
    for issue in SHORTEST_FIRST:
        issued = replace(mapping, issue=issue)
        if not obstacle_to_issue(replace(setting, mapping=issued)):
            yield issued


def _cost(setting: LoopSetting, mapping: LayerMapping, placement: Placement) -> LayerNumbers:
    shape, region = shape_of(setting.layer), setting.region
    return layer_cost(shape, mapping, setting.target, "hw", "rtl", region=region, placement=placement)


def _bytes(cost: LayerNumbers, without: frozenset[Role]) -> int:
    """Bytes that the DMA moves, `without` some operands."""
    on_its_way = (move for move in cost.moves if move.memory in ("dram", "tile-buffer"))
    return sum(move.bytes for move in on_its_way if move.role not in without)


def _core_cycles(cost: LayerNumbers, setting: LoopSetting) -> float:
    """To issue products, two commands each, on rows of at most `side` pixels."""
    words: int = sum(move.bytes for move in cost.moves if move[:3] == ("L1", "psum", "write"))
    sums = words / setting.target.accumulator_bytes_per_word
    return CORE_CYCLES * 2.0 * sums / (setting.target.side * setting.mapping.cols.product)
