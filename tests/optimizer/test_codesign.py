"""Hardware and schedules together: areas, legal designs, gradients of sizes, searches against all designs."""

import itertools
import time

import pytest

from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer import Settings, optimize
from fadiff.optimizer.codesign.area import Area
from fadiff.optimizer.codesign.designs import Gemminis, elaborates
from fadiff.optimizer.codesign.score import Cost, Found, GemminiScorer, Scored, pareto
from fadiff.optimizer.codesign.search import SEARCHES, search
from tests.optimizer.graphs import residual, separable

KB = 1024
VALUES = {
    "side": (4, 8, 16),
    "scratchpad_bytes": (4 * KB, 8 * KB, 16 * KB),
    "accumulator_bytes": (2 * KB, 4 * KB),
    "tile_buffer_bytes": (4 * KB, 16 * KB),
    "bandwidth.dram_bytes": (4, 8, 16),
}
GRAPHS = {"separable": separable(channels=16), "residual": residual(channels=16)}


def designs(limit=0.4, **values):
    return Gemminis(load_target("gemmini-small"), {**VALUES, **values}, Area(dram_byte=0.01), limit)


def at_sides(graphs, space):
    """The same graph for every array size."""
    return {name: dict.fromkeys(space.by_side(), graph) for name, graph in graphs.items()}


@pytest.mark.parametrize(
    ("side", "accumulator", "scratchpad", "published"),
    [(32, 16, 2, 0.550372), (16, 128, 128, 1.258575), (16, 2, 8, 0.17069), (128, 2048, 1, 18.855377)],
)
def test_areas_are_near_those_published_with_dosa(side, accumulator, scratchpad, published):
    target = load_target("gemmini-small").model_copy(
        update={
            "side": side,
            "scratchpad_bytes": scratchpad * KB,
            "accumulator_bytes": accumulator * KB,
            "tile_buffer_bytes": 0,
        }
    )
    assert Area()(target) == pytest.approx(published, rel=0.2)


def test_designs_are_those_that_fit_and_that_the_generator_makes():
    space = designs()
    expected = []
    for choice in itertools.product(*(enumerate(values) for values in VALUES.values())):
        side, spad, acc, buffer, dram = (value for _, value in choice)
        rows, acc_rows = spad // side // 4, acc // (4 * side) // 2
        made = all(n and not n & (n - 1) and n % side == 0 for n in (rows, acc_rows))
        made = made and spad // side // side - 2 >= acc // (4 * side) // side
        kb = (0.002604 * (spad + buffer) + 0.00555 * acc) / KB
        if made and 0.01384 + 0.001088 * side + 0.0004045 * side**2 + kb + 0.01 * dram <= 0.4:
            expected.append(tuple(i for i, _ in choice))
    assert list(space.feasible) == expected and 0 < len(expected) < 3 * 3 * 2 * 2 * 3
    for preset in ("gemmini-default", "gemmini-large", "gemmini-small"):
        assert elaborates(load_target(preset))
    target = space.hardware(expected[-1])
    assert target is not None and space.mm2(expected[-1]) == pytest.approx(Area(dram_byte=0.01)(target))
    for near in space.neighbours(expected[5]):
        moved = [b - a for a, b in zip(expected[5], near, strict=True)]
        assert near in expected and sorted(filter(None, moved)) in ([1], [-1], [-1, 1])
    assert space.nearest((2, 2, 1, 1, 2)) in expected and space.nearest(expected[3]) == expected[3]


FEW = {"side": (4, 8, 16), "scratchpad_bytes": (2 * KB, 8 * KB, 16 * KB), "bandwidth.dram_bytes": (4, 8)}


@pytest.fixture(scope="module")
def every():
    """EDP of every design of a small space, searched exactly."""
    space = Gemminis(load_target("gemmini-small"), FEW, Area(dram_byte=0.01), 1.0)
    graph = separable(size=8, channels=16, blocks=1)
    costs = {
        choice: optimize(graph, space.hardware(choice), method="exact").cost.edp_uj_cycles
        for choice in space.feasible
    }
    return graph, space, costs


@pytest.mark.parametrize("method", [method for method in SEARCHES if method != "gradient"])
def test_searches_find_the_best_of_few_designs(every, method):
    graph, space, costs = every
    scorer = GemminiScorer(
        at_sides({"separable": graph}, space), space, Settings(), 2.0, clock=time.process_time
    )
    search(scorer, method)
    for found in scorer.found:
        assert found.scored.area_mm2 <= 1.0
        assert found.scored.mean.edp == pytest.approx(costs[found.scored.sizes])
    assert scorer.best.mean.edp == pytest.approx(min(costs.values()))
    assert len({found.scored.sizes for found in scorer.found}) == len(scorer.found)


def test_the_front_has_what_nothing_beats():
    def scored(i, energy, latency, area):
        return Found(0.0, Scored((i,), area, {"a": Cost(energy, latency)}))

    found = [
        scored(0, 1, 4, 1),
        scored(1, 2, 2, 1),
        scored(2, 2, 3, 1),
        scored(3, 9, 9, 0.5),
        scored(4, 2, 2, 1),
    ]
    assert [row.sizes for row in pareto(found)] == [(0,), (1,), (4,), (3,)]


def test_a_target_of_the_search_is_the_base_but_for_its_sizes():
    space = designs()
    target, base = space.hardware(space.feasible[0]), space.base
    assert isinstance(target, Target)
    other = target.model_dump(exclude={"name", "bandwidth", *VALUES})
    assert other == base.model_dump(exclude={"name", "bandwidth", *VALUES})
