"""The enumerated front equals brute force over every tiling, spatial choice and loop order."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.group.legality import legal
from fadiff.costmodel.latency.clock import ROW_COMMAND, TILED_COMMAND
from fadiff.costmodel.latency.clock_work import NestWork, row_commands
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping
from fadiff.costmodel.mapping.shape import LayerShape, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.layer.canonical import L1_ORDER, L2_ORDER, L3_ORDERS
from fadiff.optimizer.layer.enumerate import _pixels
from fadiff.optimizer.layer.floors import _least_row_commands, ideal_cost
from fadiff.optimizer.layer.fronts import FrontCache, _hull
from fadiff.optimizer.layer.space import LayerSpace, Rules

CASES = {
    "gemm": Dims(K=4, C=4, P=6),
    "gemm-ragged": Dims(K=5, C=3, P=5),
    "wide": Dims(K=8, C=2, P=4),
    "conv": Dims(K=2, C=2, P=4, R=3),
    "deep": Dims(K=2, C=8, P=3),
    "depthwise": Dims(G=2, P=3, Q=2, R=3),
    "batched": Dims(G=2, K=2, C=2, P=3),
}


def shape_of_case(dims):
    windows = []
    for out, taps in ((dims.P, dims.R), (dims.Q, dims.S)):
        windows.append(Window(taps, 1, 1, taps // 2, out + taps - 1 - 2 * (taps // 2)))
    return LayerShape(dims, *windows, is_depthwise=dims.K == dims.C == 1 and dims.G > 1, has_bias=False)


def every_mapping(shape, side, l3_orders=None):
    """All extents (not only candidates) x spatial factors x orders of the loops that exist (of DRAM: or those
    given, with the canonical ones inside)."""
    dims = shape.dims
    column = "G" if shape.is_depthwise else "K"
    looped = [d for d in DIMS if dims[d] > 1]
    choices = []
    for d in looped:
        options = []
        for l2 in range(1, dims[d] + 1):
            for l1 in range(1, l2 + 1):
                spatial = {1}
                if d == column or (d == "C" and not shape.is_depthwise):
                    spatial = set(range(1, min(side, l1) + 1))
                options += [(l2, l1, s) for s in spatial]
        choices.append(options)
    tiles = np.array(list(product(*choices)), dtype=np.int64).reshape(-1, len(looped), 3)
    rest = tuple(d for d in DIMS if d not in looped)
    base = np.ones((len(tiles), 8), dtype=np.int64)
    l2, l1, l0, rows, cols = (base.copy() for _ in range(5))
    for i, d in enumerate(looped):
        at = DIMS.index(d)
        l2[:, at], l1[:, at], l0[:, at] = tiles[:, i, 0], tiles[:, i, 1], tiles[:, i, 2]
        (cols if d == column else rows)[:, at] = tiles[:, i, 2]
    for order in l3_orders or ():
        yield MappingColumns(l2.T, l1.T, l0.T, rows.T, cols.T, [(order, L2_ORDER, L1_ORDER)])
    orders = [] if l3_orders else [(*rest, *p) for p in permutations(looped)]
    # The accumulator level only has one order worth trying per position of the pixel loops; the
    # canonical one and its reverse are enough to show it.
    inner = (STREAM_ORDER, tuple(reversed(STREAM_ORDER)))
    for o3, o2, o1 in product(orders, orders, inner):
        yield MappingColumns(l2.T, l1.T, l0.T, rows.T, cols.T, [(o3, o2, o1)])


def tiny(profile):
    spad = 96 if profile == "dosa" else 160
    return Target(name="tiny", side=2, scratchpad_bytes=spad // 2, accumulator_bytes=64)


SLOPES = [0.0, *np.geomspace(1e-2, 1e6, 17)]


NEAR = 0.05
"""Of the optimum: the single instructions that the search has for layers which no loop unit can run.  Which
of them are tried was proven for bytes and a roofline; the clock sees strips and commands, too."""


def assert_best(shape, target, profile, front, batches):
    """The front is as good as the best legal mapping at every slope, and in EDP; in profile hw in energy, and
    else `NEAR`."""
    least, edp = np.full(len(SLOPES), np.inf), np.inf
    for batch in batches:
        fits = legal(shape, batch, target, profile)
        if not fits.any():
            continue
        cost = evaluate_columns(shape, batch, target, profile)
        energy, latency = cost.energy[fits], cost.latency[fits]
        edp = min(edp, float((energy * latency).min()))
        least = np.minimum(least, [float((energy + slope * latency).min()) for slope in SLOPES])
    found = [float((front.energy + slope * front.latency).min()) for slope in SLOPES]
    near = NEAR if profile == "hw" else 1e-12
    assert found[0] == pytest.approx(least[0], rel=1e-12)
    assert found == pytest.approx(list(least), rel=near)
    assert float((front.energy * front.latency).min()) == pytest.approx(edp, rel=near)


@pytest.mark.parametrize("profile", ["dosa", "hw"])
@pytest.mark.parametrize("case", CASES)
def test_front_equals_brute_force(case, profile):
    shape, target = shape_of_case(CASES[case]), tiny(profile)
    front = FrontCache().front(LayerSpace(shape, whole(shape.dims), Rules(target, profile, "ragged", False)))
    assert len(front) > 0
    assert_best(shape, target, profile, front, every_mapping(shape, target.side))


@pytest.mark.parametrize("rows", [3, 6])
@pytest.mark.parametrize("profile", ["dosa", "hw"])
@pytest.mark.parametrize(
    "dims",
    [
        Dims(K=2, C=3, P=7, Q=2, R=3),
        Dims(K=3, C=2, P=6, Q=4),
        Dims(K=5, P=7, Q=4),
        Dims(N=3, K=2, P=5, Q=3),
        Dims(G=3, P=7, Q=3, R=2),
    ],
    ids=["conv", "pointwise", "one-channel", "images", "depthwise"],
)
def test_every_accumulator_tile_of_every_scratchpad_tile_is_tried(dims, profile, rows):
    """With a bias, of which larger tiles may take more loads, and ragged scratchpad tiles."""
    shape = shape_of_case(dims)._replace(has_bias=True)
    target = Target(name="tiny", side=2, scratchpad_bytes=64, scratchpad_banks=2, accumulator_bytes=8 * rows)
    space = LayerSpace(shape, whole(dims), Rules(target, profile, "ragged", False))
    extents = {d: np.unique([lanes.tiles(d) for lanes in space.by_lanes()]) for d in DIMS}

    def nested():
        for batch in every_mapping(shape, target.side, list(L3_ORDERS.values())):
            able = np.all([np.isin(batch.l2[i], extents[d]) for i, d in enumerate(DIMS)], axis=0)
            yield replace(
                batch, **{n: getattr(batch, n)[:, able] for n in ("l2", "l1", "l0", "rows", "cols")}
            )

    assert_best(shape, target, profile, FrontCache().front(space), nested())


PACKED = Target(name="packed", side=8, scratchpad_bytes=8192, accumulator_bytes=512)


@pytest.mark.parametrize("profile", ["dosa", "hw"])
@pytest.mark.parametrize(
    ("dims", "target"),
    [
        pytest.param(Dims(K=20, C=20, P=10, Q=10), load_target("gemmini-small"), id="20-channels"),
        pytest.param(Dims(K=32, C=8, P=14, Q=14), load_target("gemmini-small"), id="8-channels"),
        pytest.param(Dims(K=16, C=1, P=16, Q=16, S=7), PACKED, id="packed-rows"),
    ],
)
def test_nothing_is_dropped_that_loads_less_of_bias_or_weights(profile, dims, target, monkeypatch):
    """Larger tiles take more loads of the bias, or more than the one array block of weights that stays (its
    rows hold kernel taps, too, where channels are few)."""
    shape = shape_of_case(dims)._replace(has_bias=True)
    space = LayerSpace(shape, whole(dims), Rules(target, profile))
    front = FrontCache().front(space)
    monkeypatch.setattr(
        "fadiff.optimizer.layer.enumerate._undominated", lambda grid, _: np.arange(len(grid["R"]))
    )
    monkeypatch.setattr("fadiff.optimizer.layer.enumerate._records", lambda fits, *_, **__: fits.copy())
    _pixels.cache_clear()
    every = FrontCache().front(space)
    _pixels.cache_clear()
    if profile == "dosa":
        assert (front.energy.tolist(), front.latency.tolist()) == (
            every.energy.tolist(),
            every.latency.tolist(),
        )
    else:
        assert front.energy[0] == every.energy[0]
        assert front.latency.min() <= (1 + NEAR) * every.latency.min()


def test_floors_count_the_fewest_loads_of_a_bias():
    """The accumulator tiles of the floor take more of them than others do."""
    shape = shape_of_case(CASES["gemm"])._replace(has_bias=True)
    target = Target(name="tiny", side=2, scratchpad_bytes=4096, accumulator_bytes=40)
    floor = ideal_cost(LayerSpace(shape, whole(shape.dims), Rules(target, "hw", "ragged", False)))
    for batch in every_mapping(shape, target.side):
        fits = legal(shape, batch, target, "hw")
        if fits.any():
            cost = evaluate_columns(shape, batch, target, "hw")
            assert cost.energy[fits].min() >= floor[0]
            assert cost.latency[fits].min() >= floor[1]


def test_floors_of_rows_with_scales_store_the_longest_pieces():
    """Tiles as of the loop unit store several blocks by one instruction, at a lower price: others do not."""
    shape = shape_of_case(Dims(K=16, C=2, P=8))
    target = Target(name="tiny", side=2, scratchpad_bytes=4096, accumulator_bytes=4096)
    placement = ALONE._replace(has_row_scale=True)
    space = LayerSpace(shape, whole(shape.dims), Rules(target, "hw", "ragged", False), placement)
    mapping = Mapping(shape.dims, shape.dims, Dims(K=2, C=2), Dims(C=2), Dims(K=2))
    nest = LoopNest(shape, mapping, whole(shape.dims))
    assert row_commands(nest, target, 1) == 8 * (16 / 2 + 1), "a configuration and stores of each row"
    assert row_commands(nest, target, target.max_block_len) == 8 * (1 + 1)
    assert _least_row_commands(space) * ROW_COMMAND == pytest.approx(TILED_COMMAND * 8 * (1 + 1))
    assert NestWork(nest, target, 0).counts(placement, "core_ws").row_commands >= _least_row_commands(space)


@pytest.mark.parametrize("profile", ["dosa", "hw"])
def test_fronts_beside_reserved_space_are_enumerated_only_where_they_differ(profile):
    target, cache, differ, asked = tiny(profile), FrontCache(), 0, 0
    for case in CASES:
        shape = shape_of_case(CASES[case])
        rules = Rules(target, profile, "ragged", False)
        alone = LayerSpace(shape, whole(shape.dims), rules, lanes=int(shape.is_depthwise))
        for reserved in range(alone.scratchpad_limit + 1):
            space = replace(alone, reserved=reserved)
            front, fresh = cache.front(space), _hull(space)
            assert front.energy.tolist() == fresh.energy.tolist()
            assert front.latency.tolist() == fresh.latency.tolist()
            differ += front is not cache.front(alone)
            asked += 1
    assert 0 < differ < asked / 1.5
    assert len(cache) == len(CASES) + differ
