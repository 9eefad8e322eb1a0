"""Random walks over legal schedules that no search proposed, against the bound of one that did.

From every layer alone, or from the schedule found, one thing changes at a time: a layer's mapping, where
groups begin and end, a group's tile, resident weights, tensors on chip.  What is legal and not much worse is
where the next step starts, so that walks press against the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import networkx as nx
import numpy as np

from benchmarks.adversary.attacks import Attempt, Rng, drawn_mapping, profile_of, small_target, with_group
from benchmarks.adversary.graphs import chain, network, some_channels, some_heads
from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.group_tile import shared_channels, shared_groups
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import bounds_of, shape_of
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.optimizer.cut.partition import ordered
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.group.candidates import candidate_groups
from fadiff.optimizer.group.hull import Way
from fadiff.optimizer.group.tiles import halved_tiles, last_output
from fadiff.optimizer.layer.candidates import divisors, extents
from fadiff.optimizer.layer.loop_points import loop_points
from fadiff.optimizer.layer.loop_space import pins
from fadiff.optimizer.search import optimize

STEPS = 120
CANONICAL = 0.8
"""Share of the walks that keep to extents that the search tries; the others show what it leaves out."""
WORSE = 1.05
"""A step may lose so much."""


def schedules(rng: Rng) -> Attempt:
    """One walk over schedules of convolutions and adds."""
    return _walk(rng, "schedules", lambda rng: network(rng, int(rng.integers(2, 6))))


def heads(rng: Rng) -> Attempt:
    """One walk over schedules of attention."""
    return _walk(rng, "heads", some_heads)


def channels(rng: Rng) -> Attempt:
    """One walk over schedules of what hands on channels one by one."""
    return _walk(rng, "channels", some_channels)


def chains(rng: Rng) -> Attempt:
    """One walk over schedules of a long chain of few channels: groups may be large."""
    return _walk(rng, "chains", lambda rng: chain(rng, int(rng.integers(7, 10))))


def _walk(rng: Rng, name: str, drawn: Callable[[Rng], Graph]) -> Attempt:
    """One walk, in either profile."""
    profile = profile_of(rng)
    graph = drawn(rng)
    target = small_target(rng, int(rng.choice([2, 4, 8])))
    settings = Settings(method="exact", profile=profile)
    case = f"{name}: {[(x.name, *x.inputs) for x in graph.layers]} {target} {profile}"
    if not graph.tensor_core_layers:
        return Attempt(0, np.inf, case)  # nothing has a mapping
    try:
        found = optimize(graph, target, settings)
    except ScheduleError:
        return Attempt(0, np.inf, case)
    problem = Problem.of(settings, graph, target)
    at = found.schedule
    if rng.random() < 0.5:
        at = problem.schedule(problem.layerwise[0].argmin)
    value, tried, lowest, outside = evaluate(at).edp_uj_cycles, 1, np.inf, np.inf
    canonical = bool(rng.random() < CANONICAL) and found.bound == "proven"
    for _ in range(STEPS):
        changed = step(at, problem, rng, canonical=canonical)
        if changed is None:
            continue
        edp = evaluate(changed).edp_uj_cycles
        tried, share = tried + 1, edp / found.lower_bound
        if canonical and not keeps_over_gaps(changed):
            lowest = min(lowest, share)
        else:
            outside = min(outside, share)
        if edp < value * WORSE:
            at, value = changed, edp
    return Attempt(tried, lowest, case, outside)


def keeps_over_gaps(schedule: Schedule) -> bool:
    """Whether a tensor is on chip while a group runs that leaves out layers between its own, or one of these
    layers: not in the canonical space (fadiff.optimizer.cut.partition)."""
    at = {layer.name: i for i, layer in enumerate(schedule.graph.layers)}
    kept = [at[name] for group in schedule.groups if group.resident_tensors for name in group.layers]
    for group in schedule.groups:
        places = [at[name] for name in group.layers]
        first, last = min(places), max(places)
        if last - first >= len(places) and any(first <= place <= last for place in kept):
            return True
    return False


def step(schedule: Schedule, problem: Problem, rng: Rng, *, canonical: bool) -> Schedule | None:
    """A legal schedule that differs in one thing; None if what was drawn is illegal.

    `canonical`: at extents that the search tries, too.
    """
    try:
        groups, again = _groups(schedule, problem, rng, canonical)
        ways = tuple(Way(group, (), ()) for group in groups)
        groups = tuple(way.group for way in ordered(schedule.graph, ways))
        groups = with_resident_tensors(schedule.graph, groups, _staying(schedule, problem, rng))
        mappings = dict(schedule.mappings)
        for group in groups:
            for name in sorted(again & set(group.layers)):
                plan = plan_group(schedule.graph, group)
                layer = schedule.graph.by_name[name]
                assert isinstance(layer, TensorCoreLayer)
                drawn = _drawn(problem, group, plan, layer, rng, canonical=canonical)
                if drawn is None:
                    return None
                mappings[name] = drawn
        return Schedule(schedule.graph, schedule.target, mappings, groups, schedule.profile)
    except (ScheduleError, nx.NetworkXUnfeasible):  # the latter: two groups that need each other
        return None


def _drawn(
    problem: Problem,
    group: FusionGroup,
    plan: dict[str, Member],
    layer: TensorCoreLayer,
    rng: Rng,
    *,
    canonical: bool,
) -> Mapping | None:
    """A mapping of a member of a group; of a program, one that a loop unit can run if any can."""
    resident = layer.name in group.resident_weights
    space = problem.groups.spaces.space(layer, plan, group, resident)
    if space.site is not None:
        if group.resident_weights:
            shapes = {
                name: (member, Dims(*bounds_of(shape_of(member), plan[name].computed)))
                for name in sorted(group.resident_weights)
                if isinstance(member := problem.graph.by_name[name], TensorCoreLayer)
            }
            ways = list(pins(shapes, problem.rules.target.side))
            if not ways:
                return None
            pinned = ways[int(rng.integers(len(ways)))]
            plain = replace(group, resident_weights=frozenset())
            space = problem.groups.spaces.space(layer, plan, plain, False).beside(pinned, group)
        points = loop_points(space)
        if points is not None:
            return points.mapping(int(rng.integers(len(points.energy))))
    parts = space.by_lanes()
    return drawn_mapping(parts[int(rng.integers(len(parts)))], rng, canonical=canonical)


def _groups(
    schedule: Schedule, problem: Problem, rng: Rng, canonical: bool
) -> tuple[tuple[FusionGroup, ...], frozenset[str]]:
    """Groups with one changed, and the layers to map again."""
    graph, groups = schedule.graph, schedule.groups
    core = frozenset(layer.name for layer in graph.tensor_core_layers)
    group = groups[int(rng.integers(len(groups)))]
    kind = int(rng.integers(5))
    if kind == 0 and len(group.layers) > 1:  # apart
        return with_group(groups, [FusionGroup((name,)) for name in group.layers]), core & set(group.layers)
    if kind == 1:  # another group, and what it breaks apart
        candidates = list(candidate_groups(graph, problem.most_members, adds=problem.fuses_adds))
        if candidates:
            layers = candidates[int(rng.integers(len(candidates)))]
            broken = {name for g in groups if set(g.layers) & set(layers) for name in g.layers}
            alone = [FusionGroup((name,)) for name in graph.by_name if name in broken - set(layers)]
            changed = [_drawn_group(problem, layers, core, rng, canonical), *alone]
            return with_group(groups, changed), core & broken
    if kind == 2 and len(group.layers) > 1:  # another tile
        return with_group(groups, [_drawn_group(problem, group.layers, core, rng, canonical)]), core & set(
            group.layers
        )
    if kind == 3 and len(group.layers) > 1 and core & set(group.layers):  # other resident weights
        name = str(rng.choice(sorted(core & set(group.layers))))
        other = replace(group, resident_weights=group.resident_weights ^ {name})
        return with_group(groups, [other]), frozenset({name})
    return groups, frozenset({str(rng.choice(sorted(core)))})


def _drawn_group(
    problem: Problem, layers: tuple[str, ...], core: frozenset[str], rng: Rng, canonical: bool
) -> FusionGroup:
    graph = problem.graph
    size = last_output(graph, layers)
    if size is None:
        raise ScheduleError(f"{layers[0]}: an add cannot lead a group")
    among: list[Sequence[int]] = [range(1, extent + 1) for extent in size]
    if canonical:
        among = [(1, size[0]), *(extents(extent, "ragged") for extent in size[1:])]
    n, p, q = (
        int(rng.choice([extent, tried[int(rng.integers(len(tried)))]]))
        for extent, tried in zip(size, among, strict=True)
    )
    kept = frozenset(name for name in layers if name in core and rng.random() < 0.5)
    groups, some = shared_groups(graph, layers), None
    if groups > 1 and rng.random() < 0.7:
        some = 1 if canonical else int(rng.choice(divisors(groups)))
    tile = GroupTile(n, p, q, some)
    if canonical and problem.rules.latency == "clock":
        tiles = [*halved_tiles(graph, layers), *problem.groups.channel_tiles(layers)]
        if not tiles:
            raise ScheduleError(f"{layers[0]}: the space has no tile of its group")
        tile = tiles[int(rng.integers(len(tiles)))]
    every = shared_channels(graph, layers)
    if every > 1 and rng.random() < 0.7:
        parts = problem.groups.channel_tiles(layers)
        if canonical and parts:
            tile = parts[int(rng.integers(len(parts)))]
        elif not canonical:
            tile = replace(tile, K=int(rng.choice(divisors(every))))
    return FusionGroup(layers, tile, kept)


def _staying(schedule: Schedule, problem: Problem, rng: Rng) -> frozenset[str]:
    """The tensors on chip, sometimes with one more or less."""
    staying = resident_tensors(schedule.groups)
    able = [t for t in schedule.graph.tensors if not obstacle_to_staying(schedule.graph, t, schedule.profile)]
    if able and rng.random() < 0.3:
        return frozenset(staying) ^ {able[int(rng.integers(len(able)))]}
    return frozenset(staying)
