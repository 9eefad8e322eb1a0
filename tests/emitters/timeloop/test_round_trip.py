from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.emitters.timeloop import emit
from fadiff.emitters.timeloop.compare import predict
from fadiff.emitters.timeloop.read.mapping import check_tiles, read_mapping
from fadiff.emitters.timeloop.read.problem import read_problem
from fadiff.emitters.timeloop.write.units import units_of
from tests.emitters.timeloop.strategies import SMALL, schedules


@pytest.mark.parametrize("ragged", [False, True])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back_identical(data: st.DataObject, ragged: bool) -> None:
    schedule = data.draw(schedules(ragged=ragged))
    layer = schedule.graph.tensor_core_layers[0]
    dialect = data.draw(st.sampled_from(("native", "frontend", "hyphenated")))
    assume(units_of(schedule)[0].nest is not None)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        emit(
            schedule,
            out,
            "frontend" if dialect == "frontend" else "native",
            hyphenated=dialect == "hyphenated",
        )
        problem = read_problem(out / "layer.problem.yaml")
        mapping = read_mapping(out / "layer.mapping.yaml", problem)
        check_tiles(out / "layer.mapping.yaml", problem, mapping, SMALL)
    read = problem.layer
    assert (read.op, read.dims, read.stride, read.dilation) == (
        layer.op,
        layer.dims,
        layer.stride,
        layer.dilation,
    )
    (unit,) = units_of(schedule)
    assert mapping == unit.mapping
    if not any("equal blocks" in note for note in unit.notes):
        assert mapping == schedule.mappings[layer.name]


def test_a_layer_without_a_timeloop_form_is_listed_with_the_reason(tmp_path: Path) -> None:
    from fadiff.emitters.timeloop.read.problem import one_layer_graph

    graph = one_layer_graph("layer", Dims(P=100), (1, 1), (1, 1))
    mapping = Mapping(Dims(P=13), Dims(P=5), Dims())
    index = emit(Schedule(graph, SMALL, {"layer": mapping}, singleton_groups(graph)), tmp_path)
    (entry,) = index.layers
    assert entry.factors == "none" and entry.mapping is None
    assert any("no Timeloop form: P: the L2 tile 13" in note for note in entry.notes)
    assert not list(tmp_path.glob("*.mapping.yaml"))


@given(schedule=schedules(ragged=True))
@settings(max_examples=40, deadline=None)
def test_equal_blocks_cost_what_the_schedule_does(schedule: Schedule) -> None:
    (unit,) = units_of(schedule)
    assume(unit.nest is not None)
    own = replace(unit, mapping=schedule.mappings["layer"])
    ours, written = (predict(each, SMALL) for each in (own, unit))
    # The overlap of input tiles that Timeloop keeps is counted for divisor mappings: those of equal blocks.
    slides = not own.mapping.is_divisor(own.layer.dims) and own.layer.dims.R * own.layer.dims.S > 1
    loaded = {(memory, "Inputs") for memory in ("DRAM", "Scratchpad")} if slides else set()
    assert {key: value for key, value in written.accesses.items() if key not in loaded} == {
        key: value for key, value in ours.accesses.items() if key not in loaded
    }
    if not slides:
        assert written.energy_pj == pytest.approx(ours.energy_pj)
