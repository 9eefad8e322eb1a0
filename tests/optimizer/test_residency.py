"""Tensors on chip between groups: against every schedule of tiny networks, and against random ones."""

from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.adversary.graphs import attention
from benchmarks.adversary.partitions import executable, partitions
from benchmarks.adversary.walk import keeps_over_gaps
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.group_tile import shared_channels
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.mapping.mapping import LOOPS, STREAM_ORDER, Mapping, as_single_instructions
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.evaluate import evaluate, group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.exact import Floors, exact
from fadiff.optimizer.cut.partition import MOST_RESIDENT, Partitioner, ordered, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort
from fadiff.optimizer.group.candidates import candidate_groups
from fadiff.optimizer.group.hull import GroupHull, Way
from fadiff.optimizer.group.residency import OFF_CHIP, PlacedGroup, Surroundings, surroundings_of, with_places
from fadiff.optimizer.group.tiles import all_tiles, groups_per_tile, last_output
from fadiff.optimizer.layer.canonical import L3_ORDERS, canonical_mapping
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.loop_points import loop_points
from fadiff.optimizer.layer.loop_space import ORDERS, LoopSite
from fadiff.optimizer.layer.space import LayerSpace, Rules
from tests.optimizer.graphs import Net, random_dags, residual, separable

TINY = Target(
    name="tiny", side=2, scratchpad_bytes=28, scratchpad_banks=2, accumulator_bytes=32, tile_buffer_bytes=20
)

PRODUCTS_INSIDE = ("G", "R", "S", "C", "K", "N", "P", "Q")
"""Loops of the unit for products, in a tile."""


def subsets(names):
    names = sorted(names)
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def rows(layers=3):
    """A chain of products of two rows."""
    net = Net(2, 2)
    x = net.x
    for i in range(layers):
        x = net.conv(f"c{i}", x, 2, stride=2 if i == 0 else 1)
    return net.build(x)


def block():
    """y = a(x); c(b(y) + y) on two pixels."""
    net = Net(2, 2)
    y = net.conv("a", net.x, 2, stride=2)
    return net.build(net.conv("c", net.add("sum", net.conv("b", y, 2), y), 2))


def widened():
    """A product of four channels on two pixels, and a table that works on one channel after the other."""
    net = Net(2, 2, width=1)
    return net.build(net.lookup("table", net.conv("a", net.x, 4)))


def every_tile(graph, layers, side):
    """All group tiles; of some of the channels those of whole array blocks."""
    size = last_output(graph, layers)
    yield from all_tiles(*size, "ragged", groups_per_tile(graph, layers))
    every = shared_channels(graph, layers)
    for part in range(side, every, side):
        if every % part == 0:
            yield from (replace(tile, K=part) for tile in all_tiles(*size, "ragged"))


def every_mapping(layer, rules):
    """All extents of a layer of at most 2 x 2 channels and one pixel row, and all orders."""
    d = layer.dims
    assert d.R == d.S == d.N == 1
    space = LayerSpace.alone(shape_of(layer), rules)
    found = set()
    sizes = [[(a, b) for a in range(1, n + 1) for b in range(1, a + 1)] for n in (d.K, d.P, d.Q)]
    for (k2, k1), (p2, p1), (q2, q1) in product(*sizes):
        for c, order in product(range(1, d.C + 1), L3_ORDERS.values()):
            tile = {"K": k2, "C": c, "R": 1, "S": 1, "N": 1, "P": p2, "Q": q2}
            tile |= {"k": k1, "n": 1, "p": p1, "q": q1}
            found.add(canonical_mapping(space, tile, order))
    return sorted(found, key=repr)


def every_loop_mapping(layer, side):
    """All tiles that loop units could run, by both units and in both orders; not all of them legal."""
    d = layer.dims
    sizes = [range(1, extent + 1) for extent in (d.K, d.C, d.P, d.Q)]
    for (k, c, p, q), unit in product(product(*sizes), LOOPS):
        tile, rows, cols = Dims(K=k, C=c, P=p, Q=q), Dims(C=min(c, side)), Dims(K=min(k, side))
        block = Dims(K=cols.K, C=rows.C)
        for order in ORDERS[unit]:
            inner = PRODUCTS_INSIDE if unit == "loop_ws" else order
            yield Mapping(tile, tile, block, rows, cols, order, inner, STREAM_ORDER, issue=unit)


def can_run(graph, group):
    """Whether the layers may be executed as a group at its tile."""
    try:
        return bool(plan_group(graph, group))
    except ScheduleError:
        return False


class Everything:
    """All schedules of a graph, group by group; in profile hw those on loop units."""

    def __init__(self, graph, target, profile):
        self.graph, self.target, self.profile = graph, target, profile
        self.layers = graph.tensor_core_layers
        self.pool = {layer.name: every_mapping(layer, Rules(target, profile)) for layer in self.layers}
        self.smallest = {name: min(pool, key=lambda m: m.tile_l2.product) for name, pool in self.pool.items()}
        if profile == "hw":
            for layer in self.layers:
                self._put_on_loops(layer)
        self.fronts = {}
        self.keeps = True
        """Whether tensors may stay from group to group."""

    def _put_on_loops(self, layer):
        """Where a loop unit can run the layer alone in tiles that fill the array, the core issues none."""
        groups, side = singleton_groups(self.graph), self.target.side
        pool, d = [*every_loop_mapping(layer, side)], layer.dims
        filling = [m for m in pool if (min(d.K, side), min(d.C, side)) == (m.cols.K, m.rows.C)]
        for mapping in sorted(filling, key=lambda m: m.tile_l2.product):
            run = as_single_instructions(self.smallest) | {layer.name: mapping}
            with suppress(ScheduleError):
                Schedule(self.graph, self.target, run, groups, self.profile)
                self.pool[layer.name], self.smallest[layer.name] = pool, mapping
                return

    def front(self, groups, at):
        """(energy, latency) of every undominated legal way to run groups[at]."""
        key = groups[at]
        if key not in self.fronts:
            self.fronts[key] = list(self._front(groups, at))
        return self.fronts[key]

    def _front(self, groups, at):
        layers = groups[at].layers
        members = [name for name in layers if name in self.pool]
        ways = []
        size = last_output(self.graph, layers) if len(layers) > 1 else None
        if len(layers) > 1 and size is None:
            return  # an add cannot lead a group
        tiles = [None] if size is None else every_tile(self.graph, layers, self.target.side)
        for tile, kept in product(tiles, subsets(members) if len(layers) > 1 else [()]):
            group = FusionGroup(layers, tile, frozenset(kept), resident_tensors=groups[at].resident_tensors)
            if not can_run(self.graph, group):
                continue
            costs = []
            for name in members:
                each = []
                for mapping in self.pool[name]:
                    run = {**self.smallest, name: mapping}
                    cost = group_cost(self.graph, group, run, self.target, self.profile)
                    each.append(next((c.energy_pj, c.latency_cycles) for c in cost if c.name == name))
                costs.append(each)
            rest = group_cost(self.graph, group, self.smallest, self.target, self.profile)
            host = [(c.energy_pj, c.latency_cycles) for c in rest if c.name not in self.pool]
            for picked in product(*(range(len(each)) for each in costs)):
                points = [each[i] for each, i in zip(costs, picked, strict=True)] + host
                chosen = {name: self.pool[name][i] for name, i in zip(members, picked, strict=True)}
                ways.append((sum(p[0] for p in points), sum(p[1] for p in points), group, chosen))
        ways.sort(key=lambda way: way[:2])
        least = float("inf")
        for energy, latency, group, chosen in ways:
            if latency < least and self._legal(groups, at, group, chosen):
                least = latency
                yield energy, latency

    def _legal(self, groups, at, group, chosen):
        """With the layers that are not in the group at their smallest tiles."""
        others = [*groups[:at], group, *groups[at + 1 :]]
        for i, other in enumerate(others):
            if i != at and len(other.layers) > 1:
                others[i] = replace(other, tile=GroupTile(1, 1, 1))
        try:
            Schedule(self.graph, self.target, {**self.smallest, **chosen}, tuple(others), self.profile)
        except ScheduleError:
            return False
        return True

    def best(self, most, objective="edp"):
        """Least EDP (uJ x cycles, or energy in pJ) over all partitions and all sets of tensors on chip, and
        its tensors."""
        names = [layer.name for layer in self.graph.layers]
        alone = [(name,) for name in names]
        candidates = list(candidate_groups(self.graph, most, adds=self.profile == "hw"))
        able = [t for t in self.graph.tensors if not obstacle_to_staying(self.graph, t, self.profile)]
        able = able if self.keeps else []
        best = float("inf"), ()
        for cuts in partitions(names, alone + candidates):
            if not executable(self.graph, cuts):
                continue
            ways = tuple(Way(FusionGroup(layers), (), ()) for layers in cuts)
            order = [way.group for way in ordered(self.graph, ways)]
            for staying in subsets(able):
                groups = with_resident_tensors(self.graph, order, staying)
                fronts = [self.front(groups, at) for at in range(len(groups))]
                for points in product(*fronts):
                    worth = value(objective, sum(p[0] for p in points), sum(p[1] for p in points))
                    best = min(best, (worth, tuple(sorted(resident_tensors(groups)))))
        return best


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize(("make", "most"), [(rows, 2), (block, 2)])
def test_exact_is_the_best_of_all_schedules(profile, make, most):
    graph = make()
    edp, staying = Everything(graph, TINY, profile).best(most)
    assert staying
    problem = Problem(graph, Rules(TINY, profile, row_packing=False), most_members=most)
    partition, bound, complete = exact(problem)
    found = problem.cost(problem.schedule(partition)).edp_uj_cycles
    assert complete
    assert found == pytest.approx(edp, rel=1e-12)
    assert bound * 1e-6 == pytest.approx(edp, rel=1e-12)


@pytest.mark.parametrize(("profile", "has_room"), [("hw", False), ("dosa", True)])
def test_tensors_on_chip_leave_group_tiles_less_of_the_tile_buffer(profile, has_room):
    """In profile dosa they are in the scratchpad."""
    rules = Rules(TINY.model_copy(update={"tile_buffer_bytes": 2}), profile)
    floors = Problem(rows(), rules).groups.tile_floors(("c1", "c2"), Surroundings(reserved=4))
    assert bool(floors.tiles) == has_room


def test_exact_is_the_best_of_all_schedules_of_a_long_chain():
    """Seven products of one number; all loop orders of one cost the same.

    In profile hw tensors that stay do what groups of one tile would.
    """
    net = Net(1, 1)
    x = net.x
    for i in range(7):
        x = net.conv(f"c{i}", x, 1)
    graph = net.build(x)
    everything = Everything(graph, TINY, "dosa")
    everything.pool = {name: pool[:1] for name, pool in everything.pool.items()}
    everything.keeps = False
    edp, _ = everything.best(7)
    found = optimize(graph, TINY, method="exact", profile="dosa", residency=False)
    assert found.cost.edp_uj_cycles == pytest.approx(edp, rel=1e-12)
    assert found.lower_bound == pytest.approx(edp, rel=1e-12)
    assert max(len(group.layers) for group in found.schedule.groups) == 7


@pytest.mark.parametrize(
    ("profile", "table", "room", "objective"),
    [
        ("hw", True, 28, "energy"),  # (fences of a tile take longer than what so few bytes save)
        ("hw", False, 28, "energy"),
        ("hw", False, 28, "edp"),
        ("dosa", False, 18, "edp"),
    ],
)
def test_exact_is_the_best_of_all_schedules_of_attention(profile, table, room, objective):
    """With room for the scores of one head, or of one row of both."""
    graph = attention(heads=2, rows=2, keys=2, depth=2, table=table)
    target = TINY.model_copy(update={"tile_buffer_bytes": 4, "scratchpad_bytes": room})
    worth, _ = Everything(graph, target, profile).best(2, objective)
    found = optimize(graph, target, method="exact", profile=profile, row_packing=False, objective=objective)
    assert found.value == pytest.approx(worth, rel=1e-12)
    assert found.lower_bound == pytest.approx(worth, rel=1e-12)
    if profile == "dosa" or objective == "energy":
        (group,) = found.schedule.groups
        assert group.tile is not None and group.tile.G == 1


def test_exact_is_the_best_of_all_schedules_of_some_channels():
    """With room for half of the product's results, and for half of its weights."""
    target = TINY.model_copy(update={"tile_buffer_bytes": 4, "scratchpad_bytes": 8})
    edp, _ = Everything(widened(), target, "hw").best(2)
    found = optimize(widened(), target, method="exact", row_packing=False)
    assert found.cost.edp_uj_cycles == pytest.approx(edp, rel=1e-12)
    assert found.lower_bound == pytest.approx(edp, rel=1e-12)
    (group,) = found.schedule.groups
    assert group.tile == GroupTile(1, 2, 1, K=2)


def all_surroundings(graph, groups, rules):
    return [surroundings_of(graph, group, rules) for group in groups]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("make", [separable, residual, lambda: separable(blocks=3)])
def test_cuts_equal_brute_force(make, profile, seed):
    """Any cost per group and surroundings: least over all partitions and all sets of tensors that fit."""
    graph, rng = make(), np.random.default_rng(seed)
    sizes = sorted(graph.tensors[t].nbytes for t in graph.tensors if t.endswith(".out"))
    room = 2 * sizes[len(sizes) // 2]
    rules = Rules(TINY.model_copy(update={"scratchpad_bytes": room, "tile_buffer_bytes": room}), profile)
    names = [layer.name for layer in graph.layers]
    groups = [(name,) for name in names] + list(candidate_groups(graph, 3, adds=profile == "hw"))
    cuts = Partitioner(graph, {layers: layers for layers in groups}, rules)
    assert cuts.most_resident == MOST_RESIDENT
    hulls = {}
    for placed in cuts.placed_groups:
        at = rng.integers(1, 100, 2) * len(placed.layers) / (1 + len(placed.surroundings.tensors))
        hulls[placed] = GroupHull(at[:1], at[1:], (Way(FusionGroup(placed.layers), (), ()),))
    best, most = float("inf"), 0
    able = [t for t in graph.tensors if not obstacle_to_staying(graph, t, profile)]
    for partition in partitions(names, groups):
        if not executable(graph, partition):
            continue
        ways = tuple(Way(FusionGroup(layers), (), ()) for layers in partition)
        order = [way.group for way in ordered(graph, ways)]
        for staying in subsets(able):
            run = with_resident_tensors(graph, order, staying)
            if resident_tensors(run) != set(staying) or not allowed(graph, run, room):
                continue
            total = 0.0
            for group, surroundings in zip(run, all_surroundings(graph, run, rules), strict=True):
                alone, layer = len(group.layers) == 1, graph.by_name[group.layers[0]]
                if alone and rules.counting.has_tile_buffer:
                    surroundings = surroundings._replace(reserved=0)
                if alone and not rules.counting.has_tile_buffer and not isinstance(layer, TensorCoreLayer):
                    surroundings = OFF_CHIP
                total += float(hulls[PlacedGroup(group.layers, surroundings)].energy[0])
            best, most = min(best, total), max(most, len(staying))
    assert most >= 2
    solve = cuts.solver(hulls)
    assert solve(1.0, 0.0).energy == pytest.approx(best)
    partition = ordered(graph, cuts.partition(hulls, solve(1.0, 0.0).argmin))
    tensors = resident_tensors([way.group for way in partition])
    again = with_resident_tensors(graph, [way.group for way in partition], tensors)
    assert [g.resident_tensors for g in again] == [c.group.resident_tensors for c in partition]


def allowed(graph, groups, room):
    """Few enough at once, and only while groups of neighbours run."""
    done = 0
    for group in groups:
        at = sorted(graph.index[name] for name in group.layers)
        run = at == list(range(done, done + len(at)))
        done += len(at)
        total = sum(graph.tensors[t].nbytes for t in group.resident_tensors)
        if group.resident_tensors and (
            not run or total > room or len(group.resident_tensors) > MOST_RESIDENT
        ):
            return False
    return True


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nothing_legal_is_below_the_bound(profile, data):
    """The schedule found is legal, no worse than without tensors on chip, and no random schedule beats it."""
    graph = data.draw(random_dags())
    room = data.draw(st.sampled_from([512, 2048, 8192]))
    target = TINY.model_copy(
        update={"side": 4, "scratchpad_bytes": room, "accumulator_bytes": 1024, "tile_buffer_bytes": room}
    )
    rules = Rules(target, profile)
    problem = Problem(graph, rules, most_members=2)
    partition, bound, *_ = exact(problem)
    schedule = problem.schedule(partition)
    found = problem.cost(schedule).edp_uj_cycles
    assert bound * 1e-6 <= found * (1 + 1e-9)
    without = Problem(graph, rules, most_members=2, residency=False)
    plain = without.schedule(exact(without)[0])
    assert found <= without.cost(plain).edp_uj_cycles * (1 + 1e-9)
    able = [t for t in graph.tensors if not obstacle_to_staying(graph, t, profile)]
    legal = 0
    for groups in (schedule.groups, plain.groups, tuple(FusionGroup((x.name,)) for x in graph.layers)):
        for _ in range(6):
            staying = data.draw(st.sets(st.sampled_from(able))) if able else set()
            run = with_resident_tensors(graph, groups, staying)
            mappings = {}
            for group in run:
                plan = plan_group(graph, group)
                for name in group.layers:
                    layer = graph.by_name[name]
                    if isinstance(layer, TensorCoreLayer):
                        space = LayerSpace(shape_of(layer), plan[name].computed, rules)
                        points = enumerate_space(space)
                        count = len(points)
                        site = LoopSite.of(graph, group, plan, layer, target) if profile == "hw" else None
                        if loops := loop_points(replace(space, site=site)):
                            points, count = loops, len(loops.energy)
                        mappings[name] = points.mapping(data.draw(st.integers(0, count - 1)))
            try:
                candidate = Schedule(graph, target, mappings, run, profile)
            except ScheduleError:
                continue
            legal += 1
            if keeps_over_gaps(candidate):
                continue  # outside of the canonical space
            assert evaluate(candidate).edp_uj_cycles * (1 + 1e-9) >= bound * 1e-6
    assert legal


@pytest.mark.parametrize("method", ["exact", "gradient"])
@pytest.mark.parametrize("profile", ["hw", "dosa"])
def test_tensors_stay_where_that_pays(method, profile, monkeypatch):
    monkeypatch.setattr("fadiff.optimizer.gradient.joint.Effort", lambda: Effort(4, 40))
    target = load_target("gemmini-large")
    graph = residual(size=32, channels=32)
    found, without = (
        optimize(graph, target, profile=profile, method=method, residency=residency)
        for residency in (True, False)
    )
    assert resident_tensors(found.schedule.groups)
    assert not resident_tensors(without.schedule.groups)
    assert found.bound == without.bound == "proven"
    assert found.value == pytest.approx(found.lower_bound)
    assert found.value < 0.998 * without.value


@pytest.mark.parametrize("method", ["layerwise", "dosa", "random", "gemmini-auto"])
def test_baselines_keep_nothing_on_chip(method):
    found = optimize(residual(), load_target("gemmini-large"), method=method, time_budget=0.5)
    assert not resident_tensors(found.schedule.groups)


def test_searches_by_the_clock_keep_tensors_too():
    graph = residual(size=16, channels=16)
    found = optimize(graph, load_target("gemmini-large"))
    assert resident_tensors(found.schedule.groups)
    assert found.lower_bound <= found.value * (1 + 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_tensors_without_a_place_go_to_memory(data):
    """Bytes that fit at every moment need not have places: what is left has."""
    net = Net(2, 1)
    tensors = [net.x]
    for i in range(data.draw(st.integers(3, 9))):
        source = data.draw(st.sampled_from(tensors[-3:]))
        tensors.append(net.conv(f"c{i}", source, data.draw(st.integers(1, 9))))
    read = {name for layer in net.builder.layers for name in layer.inputs}
    graph = net.build(*[t for t in tensors[1:] if t not in read])
    able = [t for t in graph.tensors if not obstacle_to_staying(graph, t)]
    groups = tuple(FusionGroup((layer.name,)) for layer in graph.layers)
    wanted = with_resident_tensors(graph, groups, able)
    capacity = data.draw(st.integers(1, 120))
    target = TINY.model_copy(update={"tile_buffer_bytes": capacity})
    found = with_places(graph, wanted, target)
    plan_tile_buffer(graph, found, [plan_group(graph, group) for group in found], target)
    assert resident_tensors(found) <= resident_tensors(wanted)
    if sum(graph.tensors[t].nbytes for t in able) <= capacity:
        assert found == wanted


def test_identical_variants_are_solved_once():
    """The same layers with the same of their tensors on chip, whatever they are called."""
    problem = Problem(separable(blocks=4), Rules(load_target("gemmini-large"), "dosa"))
    exact(problem)
    firsts = {placed.layers for placed in problem.cuts.placed_groups}
    assert ("dw0",) in firsts and ("dw0", "pw0") in firsts
    assert ("dw2",) not in firsts and ("dw2", "pw2") not in firsts


def test_fewer_tensors_at_once_where_states_would_be_too_many(monkeypatch):
    target = load_target("gemmini-large")
    edp = []
    for steps, most in ((50_000, MOST_RESIDENT), (25, 1), (1, 0)):
        monkeypatch.setattr("fadiff.optimizer.cut.partition.MOST_STEPS", steps)
        problem = Problem(residual(size=16, channels=16), Rules(target, "dosa"), most_members=1)
        found = exact(problem)
        groups = problem.schedule(found.partition).groups
        assert max(len(group.resident_tensors) for group in groups) <= problem.cuts.most_resident == most
        edp.append(found.lower_bound)
    assert edp[0] <= edp[1] < edp[2]


@pytest.mark.parametrize("profile", ["hw", "dosa"])
def test_floors_know_that_windows_may_skip_pixels(profile):
    """Of what a strided 1 x 1 convolution reads, small group tiles compute a part only."""
    net = Net(19, 8)
    graph = net.build(net.conv("b", net.conv("a", net.x, 8, 3), 8, 1, 3))
    problem = Problem(graph, Rules(load_target("gemmini-large"), profile))
    fused = PlacedGroup(("a", "b"))
    floor, hull = Floors(problem).of(fused), problem.price(fused)
    assert floor.energy[0] <= hull.energy.min() and floor.latency[0] <= hull.latency.min()


@pytest.mark.parametrize(("size", "kernel"), [(5, 3), (16, 1)])
def test_members_are_mapped_again_where_a_tensor_has_no_place(monkeypatch, size, kernel):
    """Without a place, what stays on chip for a later group goes to memory, too: no unit stores twice."""
    net = Net(size, 8)
    first = net.conv("first", net.x, 8, 3, depthwise=True)
    last = net.conv("last", net.conv("second", first, 8, kernel), 8, 1)
    graph, target = net.build(net.add("sum", last, first)), load_target("gemmini-default")
    placed = optimize(graph, target)
    monkeypatch.setattr(
        "fadiff.optimizer.cut.problem.with_places",
        lambda graph, groups, target: with_resident_tensors(graph, groups, frozenset()),
    )
    found = optimize(graph, target)
    assert not any(group.resident_tensors for group in found.schedule.groups)
    alone = optimize(graph, target, method="layerwise")
    assert placed.value <= found.value <= alone.value
