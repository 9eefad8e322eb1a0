"""Tensors that stay on chip across group boundaries: bytes, places and rules, against cases made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.resident_tensors import obstacle_to_staying, with_resident_tensors
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.schedule.evaluate import LayerCost, evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from tests.costmodel.networks import add, conv, graph, whole_tile
from tests.costmodel.schedules import TARGET, alone, residual

BYTES = 8 * 8 * 16
"""Of every activation below."""


def moved(cost: LayerCost, memory: str) -> dict[str, tuple[int, int]]:
    """Activations only."""
    return {name: both for name, both in cost.bytes_in(memory).items() if not name.endswith(".w")}


def test_bytes_of_resident_tensors_move_to_the_tile_buffer() -> None:
    g = residual()
    cost = evaluate(alone(g, ("A", "S"))).by_name
    assert moved(cost["a"], "dram") == {"x": (BYTES, 0)}
    assert moved(cost["a"], "tile-buffer") == {"A": (0, BYTES)}
    assert moved(cost["b"], "dram") == {"B": (0, BYTES)}
    assert moved(cost["b"], "tile-buffer") == {"A": (BYTES, 0)}
    assert moved(cost["sum"], "dram") == {"B": (BYTES, 0)}
    assert moved(cost["sum"], "tile-buffer") == {"A": (BYTES, 0), "S": (0, BYTES)}
    assert moved(cost["c"], "dram") == {"y": (0, BYTES)}
    assert moved(cost["c"], "tile-buffer") == {"S": (BYTES, 0)}
    plain = evaluate(alone(g, ())).by_name
    for name, layer in cost.items():  # nothing else changes
        for memory in ("scratchpad", "accumulator", "register"):
            assert layer.bytes_in(memory) == plain[name].bytes_in(memory)


def test_dosa_keeps_resident_tensors_in_the_scratchpad() -> None:
    cost = evaluate(alone(residual(), ("A",), profile="dosa")).by_name
    assert moved(cost["a"], "dram") == {"x": (BYTES, 0)}
    assert moved(cost["a"], "scratchpad")["A"] == (0, BYTES)
    assert moved(cost["b"], "dram") == {"B": (0, BYTES)}
    assert moved(cost["b"], "scratchpad")["A"][1] == 0  # the reader fetches nothing


def test_dosa_takes_resident_bytes_from_every_group_meanwhile() -> None:
    g = residual()
    needs = {"b": 16 * 16 * 9, "B": BYTES}  # weights and output box are not both in the scratchpad
    exact = TARGET.model_copy(update={"scratchpad_bytes": needs["b"] + BYTES})
    alone(g, ("A",), exact, "dosa")
    with pytest.raises(ScheduleError, match=r"b: scratchpad overflows: W 2304 .* 1024 = 3328"):
        alone(g, ("A",), exact.model_copy(update={"scratchpad_bytes": needs["b"] + BYTES - 1}), "dosa")


def test_tile_buffer_must_hold_all_residents_of_a_moment() -> None:
    g = residual()
    alone(g, ("A", "B", "S"), TARGET.model_copy(update={"tile_buffer_bytes": 3 * BYTES}))
    with pytest.raises(ScheduleError, match=r"sum: .*\(A, B, S\) need 3072 of 3071 tile-buffer bytes"):
        alone(g, ("A", "B", "S"), TARGET.model_copy(update={"tile_buffer_bytes": 3 * BYTES - 1}))


def test_residents_are_there_from_writer_to_last_reader_and_nowhere_else() -> None:
    g = residual()
    good = alone(g, ("A",))
    assert [sorted(group.resident_tensors) for group in good.groups] == [["A"], ["A"], ["A"], []]
    for at, message in (
        (1, "not resident while the group of b runs"),
        (3, "is resident while the group of c"),
    ):
        groups = list(good.groups)
        groups[at] = replace(groups[at], resident_tensors=groups[at].resident_tensors ^ {"A"})
        with pytest.raises(ScheduleError, match=message):
            replace(good, groups=tuple(groups))


@pytest.mark.parametrize("tensor, reason", [("x", "input or output"), ("y", "input or output"), ("A", "")])
def test_which_tensors_can_stay(tensor: str, reason: str) -> None:
    found = obstacle_to_staying(residual(), tensor)
    assert reason in found and bool(reason) == bool(found)


def test_a_resident_that_its_own_group_reads_has_one_place_and_no_box() -> None:
    """{b, sum, c} with S read inside: stored region by region once, read by c where it is."""
    layers = [
        conv("a", "x", "A", 16, 16, 8, 8),
        add("sum", "A", "A", "S"),
        conv("b", "S", "B", 16, 16, 8, 8, 3, 1, 1),
        add("end", "S", "B", "y"),
    ]
    g = graph(layers, ("x",), ("y",))
    mappings = {layer.name: whole_tile(layer.dims, P=4) for layer in g.tensor_core_layers}
    groups = (FusionGroup(("a", "sum", "b"), GroupTile(1, 4, 8)), FusionGroup(("end",)))
    mappings["a"] = whole_tile(layers[0].dims, P=5)
    schedule = Schedule(g, TARGET, mappings, with_resident_tensors(g, groups, ("S",)))
    cost = evaluate(schedule).by_name
    rows = 8 * 16  # bytes of one
    # Both tiles of four output rows need five rows of S, halo included.
    assert moved(cost["sum"], "tile-buffer") == {"A": (2 * 10 * rows, 0), "S": (0, 10 * rows)}
    assert moved(cost["b"], "tile-buffer") == {"S": (10 * rows, 0)}
    assert moved(cost["end"], "tile-buffer") == {"S": (8 * rows, 0)}
    assert moved(cost["sum"], "dram") == {}
    plans = [plan_group(g, group) for group in schedule.groups]
    places = plan_tile_buffer(g, schedule.groups, plans, TARGET)
    assert set(places.boxes) == {"A"} and set(places.whole) == {"S"}


def test_the_papers_model_keeps_nothing_between_groups() -> None:
    with pytest.raises(ScheduleError, match=r"tensor A: the paper's model keeps no tensor on chip"):
        replace(alone(residual(), ("A",)), fusion_model="paper")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_places_alive_together_never_overlap_and_fit(data: st.DataObject) -> None:
    """Random widths, skips and residents: either the plan fits or it is refused."""
    count = data.draw(st.integers(2, 9))
    widths = [data.draw(st.integers(1, 40)) for _ in range(count + 1)]
    sources = [data.draw(st.integers(max(0, i - 3), i)) for i in range(count)]
    layers = [
        conv(f"l{i}", f"t{source}", f"t{i + 1}", widths[i + 1], widths[source], 3, 3)
        for i, source in enumerate(sources)
    ]
    read = set(sources)
    g = graph(layers, ("t0",), tuple(f"t{i}" for i in range(1, count + 1) if i not in read))
    able = [name for name in g.tensors if not obstacle_to_staying(g, name)]
    chosen = [name for name in able if data.draw(st.booleans())]
    groups = with_resident_tensors(g, singleton_groups(g), chosen)
    capacity = data.draw(st.integers(1, 1200))
    target = TARGET.model_copy(update={"tile_buffer_bytes": capacity})
    plans = [plan_group(g, group) for group in groups]
    most = max(sum(g.tensors[name].nbytes for name in group.resident_tensors) for group in groups)
    try:
        places = plan_tile_buffer(g, groups, plans, target)
    except ScheduleError:
        assert chosen
        return
    assert most <= places.nbytes <= capacity
    for group in groups:
        spans = sorted((places.whole[n].offset, places.whole[n].nbytes) for n in group.resident_tensors)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
        assert all(offset + size <= places.nbytes for offset, size in spans)
