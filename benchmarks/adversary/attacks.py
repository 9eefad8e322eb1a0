"""Attempts to find something below a bound called proven, each from one random generator.

An attack draws a case, lets the search bound it, and compares with what it finds by other means: prices of
`costmodel`, every partition, every set, random walks over legal schedules.  All keep to the canonical space
(docs/optimizer.md lists what that leaves out).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.adversary.graphs import Net, crossing, dense, exchange, skips
from benchmarks.adversary.partitions import Layers, executable, partitions
from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.legality import legal
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.group.scratchpad import live_bytes
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, shape_of, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Profile, Schedule
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.cut.partition import MOST_RESIDENT, Partitioner, ordered
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.candidates import candidate_groups
from fadiff.optimizer.group.hull import GroupHull, Way
from fadiff.optimizer.group.residency import OFF_CHIP, PlacedGroup, surroundings_of
from fadiff.optimizer.layer.canonical import L3_ORDERS, canonical_mapping
from fadiff.optimizer.layer.fronts import FrontCache
from fadiff.optimizer.layer.space import LayerSpace, Rules

Rng = np.random.Generator
Floats = NDArray[np.float64]
CLOSE = 1 - 1e-9
"""Sums in another order differ by less."""
SLOPES = (0.0, *np.geomspace(1e-2, 1e6, 17).tolist(), np.inf)


class Attempt(NamedTuple):
    """How many things were compared with a bound, the least of them over the bound, and what it was."""

    tried: int
    lowest: float
    case: str
    outside: float = np.inf
    """The least over the bound of what is legal but not in the canonical space: how much that leaves out."""

    @property
    def breaks(self) -> bool:
        """Whether something is below the bound."""
        return self.lowest < CLOSE


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All of them, smallest first."""
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def profile_of(rng: Rng) -> Profile:
    """Either profile."""
    return "hw" if rng.random() < 0.5 else "dosa"


def small_target(rng: Rng, side: int) -> Target:
    """Tiny memories, in whole banks."""
    rows = int(rng.choice([16, 32, 64, 256, 1024]))
    return Target(
        name="drawn",
        side=side,
        scratchpad_bytes=rows * side,
        scratchpad_banks=2,
        accumulator_bytes=int(rng.choice([4, 8, 32, 128])) * 4 * side,
        tile_buffer_bytes=int(rng.choice([64, 512, 4096])),
        has_full_width_read=bool(rng.random() < 0.8),
    )


def weighted(energy: Floats, latency: Floats) -> Floats:
    """Least energy + slope x latency over points, one per slope."""
    sums = [energy + slope * latency if np.isfinite(slope) else latency for slope in SLOPES]
    return np.array([float(s.min()) for s in sums])


def few_channels(rng: Rng) -> LayerShape:
    """A layer whose kernel taps may share the array rows with its channels."""
    depthwise = rng.random() < 0.2
    taps = [int(t) for t in rng.choice([1, 1, 2, 3, 5, 7], size=2)]
    pixels = [int(p) for p in rng.integers(1, 13, size=2)]
    channels = int(rng.choice([1, 1, 2, 3, 4, 9]))
    dims = Dims(
        G=channels if depthwise else 1,
        N=int(rng.choice([1, 1, 2])),
        K=1 if depthwise else int(rng.integers(1, 25)),
        C=1 if depthwise else channels,
        P=pixels[0],
        Q=pixels[1],
        R=taps[0],
        S=taps[1],
    )
    windows = []
    for out, kernel in zip(pixels, taps, strict=True):
        stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, kernel))
        size = max(1, (out - 1) * stride + kernel - 2 * pad)
        windows.append(Window(kernel, stride, 1, pad, size))
    return LayerShape(dims, windows[0], windows[1], depthwise and dims.G > 1, bool(rng.random() < 0.5))


def drawn_mapping(space: LayerSpace, rng: Rng, *, canonical: bool) -> Mapping | None:
    """A mapping of canonical form, at the space's scratchpad extents or at any, with any accumulator tile;
    None where none fits."""
    bounds, tile = space.bounds, {}
    for d in ("N", "K", "C", "P", "Q", "R", "S"):
        extents = space.tiles(d) if canonical or rng.random() < 0.5 else range(1, bounds[d] + 1)
        tile[str(d)] = int(rng.choice([extents[-1], extents[int(rng.integers(len(extents)))]]))
    tile |= {"k": tile["K"], "n": tile["N"], "p": tile["P"], "q": tile["Q"]}
    if rng.random() < 0.6:
        tile["k"], room = space.block(tile["K"]), space.accumulator_limit(split=True)
        for d in rng.permutation(list("NPQ")).tolist():
            most = min(tile[d], room)
            if not most:
                return None
            tile[d.lower()] = int(rng.choice([most, int(rng.integers(1, most + 1))]))
            room //= tile[d.lower()]
    return canonical_mapping(space, tile, list(L3_ORDERS.values())[int(rng.integers(3))])


def fronts(rng: Rng, shape: LayerShape | None = None, target: Target | None = None) -> Attempt:
    """Mappings of one layer with few channels, priced by `costmodel`, against its enumerated front.

    In profile dosa: single instructions are all tried only where a roofline counts them.
    """
    profile: Profile = "dosa"
    shape = shape or few_channels(rng)
    target = target or small_target(rng, int(rng.choice([2, 4, 8])))
    case = f"fronts: {shape} on {target} {profile}"
    whole_space = LayerSpace(shape, whole(shape.dims), Rules(target, profile))
    front = FrontCache().front(whole_space)
    tried, lowest = 0, {True: np.inf, False: np.inf}
    for canonical, count in ((True, 600), (False, 200)):
        drawn = [
            mapping
            for space in whole_space.by_lanes()
            for _ in range(count)
            if (mapping := drawn_mapping(space, rng, canonical=canonical)) is not None
        ]
        if not drawn:
            continue
        columns = MappingColumns.of(drawn)
        fits = legal(shape, columns, target, profile)
        tried += int(fits.sum())
        if not fits.any():
            continue
        cost = evaluate_columns(shape, columns, target, profile)
        found = weighted(cost.energy[fits], cost.latency[fits])
        least = (found / weighted(front.energy, front.latency)).min() if len(front) else 0.0
        lowest[canonical] = float(least)
    return Attempt(tried, lowest[True], case, lowest[False])


def cuts(rng: Rng, graph: Graph | None = None) -> Attempt:
    """Every partition of a graph with crossing branches into groups of drawn costs, and every set of tensors
    that may stay on chip between them, against the dynamic program."""
    makers = (exchange, dense, skips, lambda: crossing(rng, int(rng.integers(4, 9))))
    graph = graph or makers[int(rng.integers(len(makers)))]()
    profile = profile_of(rng)
    room = int(rng.choice([0, 304, 608]))
    target = Target(name="drawn", side=2, scratchpad_bytes=64, accumulator_bytes=64)
    rules = Rules(
        target.model_copy(update=dict.fromkeys(("scratchpad_bytes", "tile_buffer_bytes"), room)), profile
    )
    names = [layer.name for layer in graph.layers]
    most = int(rng.integers(2, 5))
    groups = [(name,) for name in names] + list(candidate_groups(graph, most, adds=profile == "hw"))
    search = Partitioner(graph, {layers: layers for layers in groups}, rules)
    hulls = {}
    for placed in search.placed_groups:
        at = rng.uniform(1, 2, 2) * len(placed.layers) ** 0.5 / (1 + len(placed.surroundings.tensors))
        hulls[placed] = GroupHull(at[:1], at[1:], (Way(FusionGroup(placed.layers), (), ()),))
    case = f"cuts: {[(x.name, *x.inputs) for x in graph.layers]} {profile} most={most} room={room}"
    tried, best = 0, np.inf
    able = [t for t in graph.tensors if not obstacle_to_staying(graph, t, profile)]
    for partition in partitions(names, groups):
        if not executable(graph, partition):
            continue
        for total in _totals(graph, partition, able, rules, room, hulls):
            tried, best = tried + 1, min(best, total)
        if tried > 3000:
            break  # the rest could only be lower
    return Attempt(tried, best / search.solver(hulls)(1.0, 0.0).energy, case)


def _totals(
    graph: Graph,
    partition: Sequence[Layers],
    able: Sequence[str],
    rules: Rules,
    room: int,
    hulls: dict[PlacedGroup, GroupHull],
) -> Iterator[float]:
    """Energy of a partition for every set of tensors on chip that the space allows."""
    ways = tuple(Way(FusionGroup(layers), (), ()) for layers in partition)
    order = [way.group for way in ordered(graph, ways)]
    for staying in subsets(able) if room else [()]:
        run = with_resident_tensors(graph, order, staying)
        if resident_tensors(run) != set(staying) or not _allowed(graph, run, room):
            continue
        total = 0.0
        for group in run:
            surroundings = surroundings_of(graph, group, rules)
            if len(group.layers) == 1 and rules.counting.has_tile_buffer:
                surroundings = surroundings._replace(reserved=0)
            elif len(group.layers) == 1 and not isinstance(graph.by_name[group.layers[0]], TensorCoreLayer):
                surroundings = OFF_CHIP
            total += float(hulls[PlacedGroup(group.layers, surroundings)].energy[0])
        yield total


def _allowed(graph: Graph, groups: Sequence[FusionGroup], room: int) -> bool:
    """Few enough at once, and only while groups of neighbours run."""
    done = 0
    for group in groups:
        at = sorted(graph.index[name] for name in group.layers)
        is_run = at == list(range(done, done + len(at)))
        done += len(at)
        total = sum(graph.tensors[t].nbytes for t in group.resident_tensors)
        if group.resident_tensors and (
            not is_run or total > room or len(group.resident_tensors) > MOST_RESIDENT
        ):
            return False
    return True


def residents(
    rng: Rng,
    graph: Graph | None = None,
    target: Target | None = None,
    tile: GroupTile | None = None,
) -> Attempt:
    """Every set of resident weights of one group at one tile against what its solver finds (in profile dosa:
    loop units have places for two tiles of weights)."""
    profile: Profile = "dosa"
    if graph is None:
        net, size = Net(int(rng.choice([6, 8, 12])), int(rng.choice([2, 4, 8]))), int(rng.integers(2, 7))
        out = net.x
        for i in range(size):
            out = net.conv(f"c{i}", out, int(rng.choice([2, 4, 8, 16, 24])), int(rng.choice([1, 1, 3])))
        graph = net.build(out)
    target = target or small_target(rng, int(rng.choice([2, 4, 8])))
    dims = graph.tensor_core_layers[-1].dims
    tile = tile or GroupTile(1, int(rng.integers(1, dims.P + 1)), int(rng.integers(1, dims.Q + 1)))
    names, rules, cache = tuple(layer.name for layer in graph.layers), Rules(target, profile), FrontCache()
    case = f"residents: {[layer.dims for layer in graph.tensor_core_layers]} {target} {tile} {profile}"
    tried, edps = 0, []
    for staying in subsets(names):
        group = FusionGroup(names, tile, frozenset(staying))
        run = _best_members(graph, group, rules, cache)
        if run is None:
            continue
        try:
            Schedule(graph, target, run[1], (group,), profile)
        except ScheduleError:
            continue
        tried += 1
        edps.append(run[0])
    nothing = np.zeros(0), np.zeros(0)
    groups = Problem(graph, rules).groups
    found = groups.solve(groups.tile_floors(names, tiles=[tile]), nothing)
    if not edps:
        return Attempt(0, np.inf, case)
    bound = float((found.energy * found.latency).min()) if len(found) else np.inf
    return Attempt(tried, min(edps) / bound, case)


def _best_members(
    graph: Graph, group: FusionGroup, rules: Rules, cache: FrontCache
) -> tuple[float, dict[str, Mapping]] | None:
    """EDP of a group whose members each have the vertex of least EDP, and their mappings."""
    try:
        plan = plan_group(graph, group)
    except ScheduleError:
        return None
    side, taken, energy, latency = rules.target.side, {}, 0.0, 0.0
    live = (
        dict.fromkeys(group.layers, 0)
        if rules.counting.has_tile_buffer
        else live_bytes(graph, plan, rules.target)
    )
    for layer in graph.tensor_core_layers:
        d = layer.dims
        taken[layer.name] = d.C * d.R * d.S * (-(-d.K // side) if rules.counting.in_rows else d.K)
    kept, mappings = sum(taken[name] for name in group.resident_weights), {}
    for layer in graph.tensor_core_layers:
        place = placement_of(graph, group, plan, layer)
        reserved = kept + live[layer.name]
        space = LayerSpace(shape_of(layer), plan[layer.name].computed, rules, place, reserved)
        front = cache.front(space)
        if not len(front):
            return None
        at = int(np.argmin(front.energy * front.latency))
        mappings[layer.name] = front.mappings[at]
        energy, latency = energy + float(front.energy[at]), latency + float(front.latency[at])
    return energy * latency, mappings


def with_group(groups: Sequence[FusionGroup], changed: Sequence[FusionGroup]) -> tuple[FusionGroup, ...]:
    """`groups` with `changed` in place of those that have their layers."""
    names = {name for group in changed for name in group.layers}
    kept = [replace(group, resident_tensors=frozenset()) for group in groups if not names & set(group.layers)]
    return (*kept, *changed)
