"""All products of a network on one machine: identical ones searched once, the network cut into groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.mapping.decision import FusionGroup, GroupTile
from fadiff.costmodel.nests.count import Floats, Nests
from fadiff.costmodel.nests.machine import Machine, MachineError, Operand
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective, Partitioner, value
from fadiff.optimizer.group.hull import GroupHull, Way, merge
from fadiff.optimizer.group.residency import Layers, PlacedGroup
from fadiff.optimizer.layer.fronts import minkowski
from fadiff.optimizer.nests.auto import auto
from fadiff.optimizer.nests.fusion import FusedGroup, Run, fused, groups_of, least
from fadiff.optimizer.nests.layer import Found, LayerSearch, Method
from fadiff.optimizer.nests.local import glance

MOST_TILES = 3
"""Tiles of a group that are searched: those with the lowest bounds."""
ALONE, TRIED = 0.5, 0.8
"""Shares of a time budget after which layers alone, and first tries of groups, end."""


@dataclass(frozen=True)
class MappedLayer:
    """A layer with the mapping of each of its runs."""

    layer: TensorCoreLayer
    run: Run
    found: Found

    @property
    def energy(self) -> float:
        """pJ of all runs."""
        return self.run.times * self.found.energy

    @property
    def cycles(self) -> int:
        """Of all runs."""
        return self.run.times * self.found.cycles

    @property
    def edp(self) -> float:
        """uJ x cycles of all runs."""
        return self.energy * 1e-6 * self.cycles

    def nests(self, machine: Machine) -> Nests:
        """Of one run."""
        return Nests(self.run.on(machine), self.run.workload, self.found.mapping)

    def traffic(self, machine: Machine) -> dict[str, float]:
        """Bytes read and written of every memory, all runs and instances, outermost memory first."""
        words = (
            sum(int((c.instances * (c.reads + c.fills + c.updates))[0]) for c in counted)
            for counted in self.nests(machine).counted
        )
        return {
            memory.name: self.run.times * n * memory.word_bits / 8
            for memory, n in zip(machine.memories, words, strict=True)
        }


@dataclass(frozen=True)
class Mapped:
    """Layers in graph order, one after the other; the groups of them that are fused, with their tiles."""

    layers: tuple[MappedLayer, ...]
    groups: Mapping[Layers, GroupTile]

    @property
    def energy(self) -> float:
        """pJ."""
        return sum(mapped.energy for mapped in self.layers)

    @property
    def cycles(self) -> int:
        """Of all layers."""
        return sum(mapped.cycles for mapped in self.layers)

    @property
    def edp(self) -> float:
        """uJ x cycles of the whole network."""
        return self.energy * 1e-6 * self.cycles


@dataclass(frozen=True)
class MappedNetwork:
    """A network as it is mapped best, and with no layers fused; layers without a loop nest by name.

    `bound`: no cut and no mappings have a lower objective; `unfused_bound`: none without fusion.
    """

    machine: Machine
    best: Mapped
    unfused: Mapped
    others: tuple[str, ...]
    bound: float
    unfused_bound: float

    def saved(self, layers: Layers) -> float:
        """Bytes of the outermost memory that fusing a group saves, beside its layers alone."""
        alone, together = (
            sum(next(iter(x.traffic(self.machine).values())) for x in mapped.layers if x.layer.name in layers)
            for mapped in (self.unfused, self.best)
        )
        return alone - together


def map_network(
    graph: Graph,
    machine: Machine,
    objective: Objective = "edp",
    seconds: float | None = None,
    seed: int = 0,
    fusion: bool = True,
    method: Method = auto,
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> MappedNetwork:
    """The best mapping found of every distinct layer, and the best cut into fused groups; `seconds` of
    `clock` for all.  Groups are tried in the order of their bounds.

    Raises:
        MachineError: a layer that fits at no tile size.
    """
    search = _Search(graph, machine, objective, seconds, seed, method, progress, clock)
    if not fusion:
        search.groups.clear()
    search.settle(search.alone.values(), ALONE if search.groups else 1.0)
    unfused = search.cut(search.alone_hulls())
    best = search.fused(unfused) if search.groups else unfused
    others = tuple(layer.name for layer in graph.layers if not isinstance(layer, TensorCoreLayer))
    return MappedNetwork(machine, best, unfused, others, search.bound(unfused), _bound(objective, unfused))


class _Search:
    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        objective: Objective,
        seconds: float | None,
        seed: int,
        method: Method,
        progress: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.graph, self.machine, self.objective = graph, machine, objective
        self.seconds, self.seed, self.method, self.progress = seconds, seed, method, progress
        self.clock, self.began = clock, clock()
        self.alone = {layer.name: Run(Workload.of(layer)) for layer in graph.tensor_core_layers}
        self.groups = groups_of(graph, machine)
        self.tiles: dict[Layers, list[FusedGroup]] = {}
        """Of the first of identical groups, those that were searched."""
        self.fronts: dict[Run, tuple[Found, ...]] = {}
        """Of single runs, mappings on the hull of energy and cycles."""
        self.settled: set[Run] = set()
        """Runs that were searched in full."""

    @property
    def used(self) -> float:
        """Of the time budget."""
        return 0.0 if self.seconds is None else (self.clock() - self.began) / self.seconds

    def settle(self, runs: Iterable[Run], until: float) -> None:
        """Search runs in full, up to a share of the time budget, of which each has as much."""
        left = [run for run in dict.fromkeys(run.once for run in runs) if run not in self.settled]
        for at, run in enumerate(left):
            self.progress(f"layer {at + 1} of {len(left)}: {run.workload.dims}")
            share = None
            if self.seconds is not None:
                share = max(until - self.used, 0.0) * self.seconds / (len(left) - at)
            self._search(run, self.method, share)
            self.settled.add(run)

    def _search(self, run: Run, method: Method, seconds: float | None) -> None:
        """Raises MachineError if nothing fits."""
        search = LayerSearch(
            run.on(self.machine), run.workload, self.objective, seconds, self.seed, self.clock, all_worth=True
        )
        method(search)
        fronts = [search.worth(), *([self.fronts[run]] if run in self.fronts else [])]
        self.fronts[run] = min(fronts, key=lambda front: min(map(_objective, front)))

    def alone_hulls(self) -> dict[PlacedGroup, GroupHull]:
        """Of every layer alone; what is no loop nest costs nothing."""
        found = {}
        for layer in self.graph.layers:
            group = FusionGroup((layer.name,))
            runs = [self.alone[layer.name]] if layer.name in self.alone else []
            found[PlacedGroup(group.layers)] = self._hull(group, runs)
        return found

    def _hull(self, group: FusionGroup, runs: Iterable[Run]) -> GroupHull:
        """Of all that the runs can do one after the other."""
        fronts = [(run.times, self.fronts[run.once]) for run in runs]
        energy, cycles, vertices = minkowski(
            [
                (
                    times * np.array([x.energy for x in front]),
                    times * np.array([float(x.cycles) for x in front]),
                )
                for times, front in fronts
            ]
        )
        return GroupHull(energy, cycles, tuple(Way(group, (), tuple(row)) for row in vertices.tolist()))

    def cut(self, hulls: Mapping[PlacedGroup, GroupHull]) -> Mapped:
        """The best cut into layers and groups that have a hull."""
        every: dict[Layers, Layers] = {(layer.name,): (layer.name,) for layer in self.graph.layers}
        cuts = Partitioner(self.graph, {**every, **self.groups})
        chosen: dict[str, tuple[Run, Found]] = {}
        groups: dict[Layers, GroupTile] = {}
        for way in cuts.optimum(hulls, self.objective).argmin:
            layers, tile = way.group.layers, way.group.tile
            if tile is None:
                runs = {name: self.alone[name] for name in layers if name in self.alone}
            else:
                first = self.groups[layers]
                [option] = [option for option in self.tiles[first] if option.tile == tile]
                names = dict(zip(first, layers, strict=True))
                runs = {names[name]: run for name, run in option.runs.items()}
                groups[layers] = tile
            for (name, run), vertex in zip(runs.items(), way.vertices, strict=True):
                chosen[name] = run, self.fronts[run.once][vertex]
        mapped = (MappedLayer(layer, *chosen[layer.name]) for layer in self.graph.tensor_core_layers)
        return Mapped(tuple(mapped), groups)

    def fused(self, unfused: Mapped) -> Mapped:
        """The best cut: groups are tried in short searches, and those that are taken searched in full."""
        alone = {mapped.layer.name: mapped for mapped in unfused.layers}
        best = value(self.objective, unfused.energy, unfused.cycles)
        known = dict.fromkeys(self.groups.values(), best)
        """Of the network with each group at its best tile so far, the rest alone."""
        self.tiles = {layers: [] for layers in known}
        tries: list[tuple[int, float, Layers, FusedGroup, tuple[float, float]]] = []
        for layers in known:
            members = [alone[name] for name in layers if name in alone]
            energy = unfused.energy - sum(x.energy for x in members)
            rest = energy, float(unfused.cycles - sum(x.cycles for x in members))
            bounds = [
                (self._with(rest, self._least(option.runs.values())), place, option)
                for place, option in enumerate(fused(self.graph, layers, self.machine))
            ]
            best_first = sorted(bounds, key=lambda bound: bound[:2])
            for rank, (bound, _, option) in enumerate(best_first[:MOST_TILES]):
                tries.append((rank, bound, layers, option, rest))
        tries.sort(key=lambda each: each[:2])
        for at, (_, bound, layers, option, rest) in enumerate(tries):
            if bound >= known[layers] or self.used >= TRIED:
                continue
            self.progress(f"fusion {at + 1} of {len(tries)}: {', '.join(layers)}")
            if all(self._try(run.once) for run in option.runs.values()):
                self.tiles[layers].append(option)
                costs = [
                    (run.times, min(self.fronts[run.once], key=_objective)) for run in option.runs.values()
                ]
                cost = sum(n * x.energy for n, x in costs), sum(n * x.cycles for n, x in costs)
                known[layers] = min(known[layers], self._with(rest, cost))
        while True:
            hulls = self.alone_hulls()
            for layers, options in self.tiles.items():
                ways = [self._hull(FusionGroup(layers, o.tile), o.runs.values()) for o in options]
                hulls[PlacedGroup(layers)] = merge(ways)
            found = self.cut(hulls)
            left = [mapped.run for mapped in found.layers if mapped.run.once not in self.settled]
            if not left or self.used >= 1.0:
                return found
            self.settle(left, 1.0)

    def _try(self, run: Run) -> bool:
        """Whether a short search finds a mapping, now or earlier."""
        if run not in self.fronts:
            try:
                self._search(run, _glance, None)
            except MachineError:
                return False
        return True

    def _with(self, rest: tuple[float, float], group: tuple[float, float]) -> float:
        """The objective of a group and the rest of the network, each pJ and cycles."""
        return value(self.objective, rest[0] + group[0], rest[1] + group[1])

    def _least(self, runs: Iterable[Run]) -> tuple[float, float]:
        """pJ and cycles of runs at least."""
        costs = [(run.times, *least(run.on(self.machine), run.workload)) for run in runs]
        return sum(n * energy for n, energy, _ in costs), sum(n * cycles for n, _, cycles in costs)

    def bound(self, unfused: Mapped) -> float:
        """Of the network, where layers fuse: whatever they hand over may stay on chip."""
        if not self.groups:
            return _bound(self.objective, unfused)
        both: frozenset[Operand] = frozenset({"I", "O"})
        runs = (replace(mapped.run, held=both, inside=both) for mapped in unfused.layers)
        return value(self.objective, *self._least(runs))


def _glance(search: LayerSearch) -> None:
    glance(search)


def _objective(found: Found) -> float:
    return found.objective


def _bound(objective: Objective, unfused: Mapped) -> float:
    """Of layers alone.  Energies E and cycles L with E L >= b each have (sum E)(sum L) >= (sum sqrt b)^2, by
    Cauchy and Schwarz."""
    bounds: Floats = np.array([mapped.found.bound for mapped in unfused.layers])
    return float(np.sqrt(bounds).sum() ** 2 if objective == "edp" else bounds.sum())
