"""Which layers, host operators mostly, become others: those whose part of the network costs less so."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.cut.exact import relaxed
from fadiff.optimizer.cut.partition import PRICES, Prices, value
from fadiff.optimizer.cut.problem import MOST_IN_PROGRAMS, Problem
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.realise.activations import realised_activation
from fadiff.optimizer.realise.average_pools import realised_average_pool
from fadiff.optimizer.realise.channel_products import realised_channel_product
from fadiff.optimizer.realise.joined_convolutions import joined_convolutions
from fadiff.optimizer.realise.linear_maps import realised_linear_map
from fadiff.optimizer.realise.max_pools import realised_max_pool
from fadiff.optimizer.realise.merged_columns import with_merged_columns
from fadiff.optimizer.realise.norms import realised_norm
from fadiff.optimizer.realise.ramps import realised_ramps
from fadiff.optimizer.realise.realised import Realised, with_realised
from fadiff.optimizer.realise.softmax import realised_softmax
from fadiff.optimizer.realise.space_to_depth import in_space_to_depth
from fadiff.optimizer.realise.sums import realised_sum
from fadiff.optimizer.realise.tables_of_products import realised_table_of_product
from fadiff.optimizer.search import solve

Realisation = Callable[[Graph, Layer, Target], Realised | None]
"""What may do a layer's work on a target, or None."""
Wanted = Callable[[Graph, Realised], bool]
"""Whether layers are to take the place of those in a graph."""

LEAST_GAIN = 0.01
"""Of what the layers cost before."""
EXACT: tuple[Realisation, ...] = (
    realised_sum,
    realised_average_pool,
    realised_channel_product,
    realised_max_pool,
    realised_table_of_product,
    in_space_to_depth,
    with_merged_columns,
)
"""The same bits."""
CLOSE: tuple[Realisation, ...] = (
    realised_norm,
    realised_softmax,
    realised_linear_map,
    realised_activation,
    realised_ramps,
    joined_convolutions,
)
"""As near to the float function, with other roundings."""


def realised_graph(
    graph: Graph, target: Target, realisations: Sequence[Realisation], wanted: Wanted
) -> Graph:
    """The graph with others in place of every layer for which they are wanted.

    Of several realisations of a layer the first that is wanted counts.
    """
    for layer in graph.layers:
        if graph.by_name.get(layer.name) is not layer or not layer.inputs:
            continue  # (a fill reads nothing)
        for realisation in realisations:
            realised = realisation(graph, layer, target)
            if realised is not None and wanted(graph, realised):
                graph = with_realised(graph, realised)
                break
    return graph


class Change(NamedTuple):
    """What a network gains by other layers in place of some."""

    energy: float
    """Picojoules less."""
    cycles: float
    """Cycles less."""
    own_energy: float
    """Of the layers replaced, fused or not."""
    own_cycles: float
    part_energy: float
    """Of all that was compared, before."""
    part_cycles: float


@dataclass(frozen=True)
class Tried:
    """What may do a layer's work."""

    layer: str
    op: str
    """Of the first layer replaced."""
    form: str
    exact: bool
    change: Change
    gain: float
    """Of the network by the objective."""
    is_cheaper: bool

    @property
    def before(self) -> float:
        """Cycles of the layers replaced."""
        return self.change.own_cycles

    @property
    def after(self) -> float:
        """These less what the network gains."""
        return self.before - self.change.cycles


class Cheaper:
    """Wanted are layers with which a network clearly costs less by an objective.

    Compared are the best schedules of a part of the network with and without them: they themselves and those
    next to them.  What that changes is seen in the whole network: what that takes at least,
    less what all that is wanted saves.  Where memories are too small for the network, as the search will say,
    nothing is wanted.
    """

    def __init__(self, graph: Graph, target: Target, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.target, self.settings = target, replace(settings, time_budget=None)
        self._known: dict[object, Change] = {}
        self._tried: dict[tuple[str, str], Tried] = {}
        self._counted: set[tuple[str, str]] = set()
        """Layers whose others are in energy and cycles."""
        try:
            network = relaxed(Problem.of(self.settings, graph, target)).best
        except ScheduleError:
            self.fits = False
            return
        self.fits = True
        self.energy, self.cycles = network.energy, network.latency
        self._prices = PRICES.get(settings.objective, Prices(1 / self.energy, 1 / self.cycles))
        realised_graph(graph, target, (*CLOSE, *EXACT), self)
        taken = {place: one.change for place, one in self._tried.items() if one.is_cheaper}
        self.energy -= sum(change.energy for change in taken.values())
        self.cycles -= sum(change.cycles for change in taken.values())
        self._counted.update(taken)
        self._tried.clear()

    @property
    def tried(self) -> tuple[Tried, ...]:
        """All that it was asked for, once."""
        return tuple(self._tried.values())

    def __call__(self, graph: Graph, realised: Realised) -> bool:
        """Whether they are wanted in a graph."""
        if not self.fits:
            return False
        around = _around(graph, realised.replaced) if self.settings.fuses else set(realised.replaced)
        part, changed = _part(graph, around), with_realised(graph, realised)
        others = _part(
            changed, {*(around - {*realised.replaced}), *(layer.name for layer in realised.layers)}
        )
        key = _kinds(part, realised.replaced), _kinds(others)
        if key not in self._known:
            self._known[key] = self._change(part, others, realised.replaced)
        first, change = graph.by_name[realised.replaced[0]], self._known[key]
        place = first.name, realised.form
        gain, own = self._gain(change, is_counted=place in self._counted)
        is_cheaper = gain > LEAST_GAIN * own
        self._tried[place] = Tried(
            first.name, first.op, realised.form, realised.exact, change, gain, is_cheaper
        )
        return is_cheaper

    def _change(self, part: Graph, others: Graph, replaced: Collection[str]) -> Change:
        before, after = self._cost(part), self._cost(others)
        assert before is not None
        own = [layer for layer in before.layers if layer.name in replaced]
        energy, cycles = sum(layer.energy_pj for layer in own), sum(layer.latency_cycles for layer in own)
        known = energy, cycles, before.energy_pj, before.latency_cycles
        if after is None:
            return Change(-math.inf, -math.inf, *known)
        less, sooner = before.energy_pj - after.energy_pj, before.latency_cycles - after.latency_cycles
        return Change(less, sooner, *known)

    def _gain(self, change: Change, is_counted: bool) -> tuple[float, float]:
        """What the network takes less by the objective, and what the layers replaced take of it.

        A change may be counted in what the network takes.
        """
        objective, energy, cycles = self.settings.objective, self.energy, self.cycles
        if is_counted:
            energy, cycles = energy + change.energy, cycles + change.cycles
        energy, cycles = max(energy, change.part_energy), max(cycles, change.part_cycles)
        before = value(objective, energy, cycles)
        own = before - value(objective, energy - change.own_energy, cycles - change.own_cycles)
        return before - value(objective, energy - change.energy, cycles - change.cycles), own

    def _cost(self, part: Graph) -> NetworkCost | None:
        """Of its best schedule; None where memories are too small for one."""
        problem = Problem.of(self.settings, part, self.target)
        problem.objective = self._prices
        try:
            schedule, *_ = solve(problem, "exact" if self.settings.fuses else "layerwise")
        except ScheduleError:
            return None
        return evaluate(schedule)


def _around(graph: Graph, layers: Collection[str]) -> set[str]:
    """Layers and those next to them, which may share a group or find tensors on chip: as many as a group has.

    None that shares a tensor with others that write it.
    """
    found, latest = set(layers), set(layers)
    while latest and len(found) < MOST_IN_PROGRAMS:
        near = list[Layer]()
        for layer in map(graph.by_name.__getitem__, latest):
            near += (producer for name in layer.inputs for producer in graph.producers(name))
            near += (reader for name in layer.outputs for reader in graph.consumers(name))
        latest = {
            layer.name
            for layer in near
            if all(len(graph.producers(name)) < 2 for name in (*layer.inputs, *layer.outputs))
        } - found
        found |= latest
    return found


def _part(graph: Graph, names: Collection[str]) -> Graph:
    """Some layers of a graph as a graph of their own."""
    layers = [layer for layer in graph.layers if layer.name in names]
    written = dict.fromkeys(name for layer in layers for name in layer.outputs)
    read = dict.fromkeys(name for layer in layers for name in layer.inputs)
    given = [name for name in read if name not in written and not graph.tensors[name].constant]
    wanted = [
        name
        for name in written
        if name in graph.outputs or any(reader.name not in names for reader in graph.consumers(name))
    ]
    tensors = {name: graph.tensors[name] for name in (*read, *written)}
    return Graph(graph.name, tensors, tuple(layers), tuple(given), tuple(wanted))


def _kinds(part: Graph, replaced: Collection[str] = ()) -> object:
    """What tells its cost from that of other parts."""
    place = {name: at for at, name in enumerate(part.tensors)}
    return tuple(
        (
            _kind(layer),
            layer.name in replaced,
            tuple((place[name], part.tensors[name].shape) for name in (*layer.inputs, *layer.outputs)),
        )
        for layer in part.layers
    )


def _kind(layer: Layer) -> object:
    """What tells its cycles from those of others of the same shapes."""
    if isinstance(layer, HostLayer):
        return layer.operator
    return (
        layer.dims,
        layer.op,
        layer.stride,
        layer.pads,
        layer.row_scale is None,
        layer.channel_scale is None,
    )
