"""First weights loaded while an earlier group runs: emitted C against ONNX Runtime and the cost model."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume, given, settings

from fadiff.converter.ir.dims import Dims
from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.local_tensors import obstacle
from fadiff.costmodel.group.weight_prefetch import planned_prefetches, without_prefetches
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.target.target import Target, load_target
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import (
    LOCAL_TARGETS,
    SEEDS,
    SETTINGS,
    first_legal,
    largest_region,
    random_conv,
    random_mapping,
    random_runs,
)
from tests.emitters.gemmini.nets import Net, Shape


def prefetching_case(rng: random.Random) -> Case | None:
    """Dense, depthwise and grouped convolutions, adds and lookups in random groups, prefetching."""
    target = rng.choice(LOCAL_TARGETS)
    net = Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(3, 9), rng.randint(3, 9), rng.randint(1, 30))
    x, sizes = net.input(shape), []
    for _ in range(rng.randint(2, 6)):
        kind = rng.random()
        if sizes and kind < 0.1:
            x = net.lookup(x, shape)
        elif len(sizes) > 1 and kind < 0.25 and sizes[-2] == shape:
            x = net.add(x, net.builder.layers[-2].outputs[0], shape)
        else:
            divisors = [g for g in (2, 3) if shape[3] % g == 0]
            if divisors and kind < 0.4:
                built = net.conv(x, shape, outputs=shape[3], kernel=(2, 1), groups=rng.choice(divisors))
            else:
                built = random_conv(rng, net, x, shape)
            if built is None:
                return None
            x, shape = built
        sizes.append(shape)
    read = {tensor for layer in net.builder.layers for tensor in layer.inputs}
    graph = net.builder.build(
        tuple(t for layer in net.builder.layers for t in layer.outputs if t not in read)
    )
    return first_legal(lambda: _random_groups(rng, graph, sizes, target))


def _random_groups(rng: random.Random, graph: Graph, sizes: list[Shape], target: Target) -> Case | None:
    groups = random_runs(rng, graph, sizes)
    for at, group in enumerate(groups):
        stays = {name for name in group.layers if len(group.layers) > 1 and rng.random() < 0.3}
        resident = frozenset(layer.name for layer in graph.tensor_core_layers if layer.name in stays)
        groups[at] = replace(group, resident_weights=resident)
    try:
        mappings = {}
        for at, group in enumerate(groups):
            members = plan_group(graph, group)
            able = [name for name in group.layers if not obstacle(graph, group, members, name, "spad")]
            held = frozenset(name for name in able if rng.random() < 0.3)
            groups[at] = replace(group, in_scratchpad=held)
            whole = held | {r.name for name in held for r in graph.consumers(graph.by_name[name].outputs[0])}
            for name in group.layers:
                layer = graph.by_name[name]
                if isinstance(layer, TensorCoreLayer):
                    bounds = largest_region(layer, members[name])
                    mappings[name] = random_mapping(rng, bounds, layer, target, full_blocks=name in whole)
        schedule = Schedule(graph, target, mappings, tuple(groups))
    except (ScheduleError, ValueError):
        return None
    schedule = prefetching(rng, schedule)
    return Case(schedule) if planned_prefetches(schedule) else None


def prefetching(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule with every group's first weights loaded during some layer, wherever that is legal."""
    for at in range(1, len(schedule.groups)):
        for during in rng.sample(
            [layer.name for layer in schedule.graph.tensor_core_layers], k=len(schedule.mappings)
        ):
            groups = list(schedule.groups)
            groups[at] = replace(groups[at], prefetch_during=during)
            try:
                schedule = replace(schedule, groups=tuple(groups))
            except ScheduleError:
                continue
            break
    return schedule


@settings(SETTINGS, max_examples=15)
@given(SEEDS)
def test_random_schedules_that_prefetch(seed: int) -> None:
    case = prefetching_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


def test_hides_loads_under_products() -> None:
    """The estimated cycles fall by the time of the loads; the bytes stay the same."""
    rng = random.Random(0)
    net = Net(rng)
    shape: Shape = (1, 14, 14, 64)
    first = net.conv(net.input(shape), shape, outputs=64, kernel=(5, 5), pads=(2, 2, 2, 2), bias=False)
    assert first is not None
    built = net.conv(*first, outputs=512, kernel=(1, 1), bias=False)
    assert built is not None
    graph, target = net.builder.build((built[0],)), load_target("gemmini-large")
    mappings = {}
    for layer, k in zip(graph.tensor_core_layers, (64, 64), strict=True):
        tile = layer.dims.replace({"K": k})
        block = tile.replace({"K": 32, "C": 32, "R": 1, "S": 1})
        mappings[layer.name] = Mapping(tile, tile.replace({"K": 32}), block, Dims(C=32), Dims(K=32))
    early = Schedule(
        graph, target, mappings, (FusionGroup(("l0",)), FusionGroup(("l1",), prefetch_during="l0"))
    )
    late = without_prefetches(early)
    (prefetch,) = planned_prefetches(early).values()
    runs = [check(Case(schedule)) for schedule in (late, early)]
    assert runs[0].counts.dram_bytes == runs[1].counts.dram_bytes
    in_cache = 3 * prefetch.nbytes / 64  # cycles of requests
    assert runs[0].counts.cycles - runs[1].counts.cycles >= in_cache
