"""First weights of a group, loaded while a layer of the group before runs: time, energy, rows, legality."""

from dataclasses import replace

import pytest

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.weight_prefetch import planned_prefetches
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule, singleton_groups
from tests.costmodel.networks import conv, graph, whole_tile
from tests.costmodel.schedules import LARGE, prefetching, weight_bound


def test_the_first_tile_moves_from_one_layers_dram_time_to_the_others():
    early = prefetching()
    late = replace(early, groups=singleton_groups(early.graph))
    before, after = evaluate(late), evaluate(early)
    assert before.layers[0].bound in ("compute", "L1") and before.layers[1].bound == "L3"
    # One 32 x 32 weight tile of 1 KB at 8 bytes per cycle; `a` has more slack than that.
    assert before.latency_cycles - after.latency_cycles == 1024 // 8
    assert after.layers[0].latency_cycles == before.layers[0].latency_cycles
    assert after.layers[1].latency_cycles == before.layers[1].latency_cycles - 1024 // 8
    assert after.energy_pj == before.energy_pj
    assert [layer.moves for layer in after.layers] == [layer.moves for layer in before.layers]
    assert [group.latency_cycles for group in after.groups] == [x.latency_cycles for x in after.layers]


def test_a_layer_bound_by_dram_takes_as_long_as_all_it_loads():
    bandwidth = LARGE.bandwidth.model_copy(update={"dram_bytes": 1.0})
    early = prefetching(target=LARGE.model_copy(update={"bandwidth": bandwidth}))
    before = evaluate(replace(early, groups=singleton_groups(early.graph)))
    after = evaluate(early)
    assert before.layers[0].bound == "L3"
    assert after.layers[0].latency_cycles == before.layers[0].latency_cycles + 1024
    assert after.latency_cycles == before.latency_cycles


def test_the_clock_moves_load_time_too():
    early = prefetching("hw")
    late = replace(early, groups=singleton_groups(early.graph))
    (a, b), (a_late, b_late) = evaluate(early).layers, evaluate(late).layers
    assert a.latency_cycles >= a_late.latency_cycles
    assert b.latency_cycles < b_late.latency_cycles


def test_rows_are_free_in_the_group_before():
    (prefetch,) = planned_prefetches(prefetching("hw")).values()
    # a: 25 taps of 32 channels at the top; the tiles of b alternate between two places of 32 rows, of which
    # the first, 64 rows below the top, moves down below the weights of a.
    end = LARGE.scratchpad_rows
    assert prefetch.rows == (end - 25 * 32 - 32, end - 25 * 32)
    assert prefetch.above == 25 * 32 - 32
    assert prefetch.nbytes == 1024


def test_the_top_is_used_again_where_the_group_before_leaves_it():
    c = conv("c", "z", "o", 32, 512, 16, 16)
    net = graph([*weight_bound().layers, c], ("x",), ("o",))
    mappings = prefetching("hw").mappings | {"c": whole_tile(c.dims, 32, C=32)}
    groups = (
        FusionGroup(("a",)),
        FusionGroup(("b",), prefetch_during="a"),
        FusionGroup(("c",), prefetch_during="b"),
    )
    planned = planned_prefetches(Schedule(net, LARGE, mappings, groups))
    # 768 rows above the tiles of b are empty.
    assert planned["b"].above == 768
    assert planned["c"].above == 0 and planned["c"].rows == (
        LARGE.scratchpad_rows - 64,
        LARGE.scratchpad_rows - 32,
    )


def _refused(match, **changes):
    with pytest.raises(ScheduleError, match=match):
        prefetching(**changes)


def test_refuses_what_has_no_room():
    small = LARGE.model_copy(update={"scratchpad_bytes": 1216 * 32})
    _refused("they take 32 rows of the scratchpad, 16 are free", profile="hw", target=small)


def test_refuses_the_papers_model():
    _refused("paper", fusion_model="paper")


def test_refuses_what_is_not_the_group_before():
    early = prefetching()
    for during in ("b", "nothing"):
        with pytest.raises(ScheduleError, match="of the group before"):
            replace(early, groups=(early.groups[0], FusionGroup(("b",), prefetch_during=during)))
    with pytest.raises(ScheduleError, match="of the group before"):
        replace(early, groups=(FusionGroup(("a",), prefetch_during="b"), FusionGroup(("b",))))
