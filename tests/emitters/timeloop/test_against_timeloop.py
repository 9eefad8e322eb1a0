"""Our counts against Timeloop's: recorded ones always, the real timeloop-model when it is on PATH."""

from __future__ import annotations

import csv
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.emitters.timeloop import emit
from fadiff.emitters.timeloop.compare import compare, predict, run_model
from fadiff.emitters.timeloop.index import read_index
from fadiff.emitters.timeloop.read.problem import one_layer_graph
from fadiff.emitters.timeloop.stats import StatsError
from fadiff.emitters.timeloop.write.architecture import architecture
from fadiff.emitters.timeloop.write.units import units_of
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from tests.emitters.timeloop.examples import MAPPING, PROBLEM
from tests.emitters.timeloop.record import COUNTS, schedule_of
from tests.emitters.timeloop.strategies import SMALL, schedules

LARGER = SMALL.model_copy(update={"scratchpad_bytes": 1 << 16, "accumulator_bytes": 1 << 16})
MODEL = shutil.which("timeloop-model")
needs_timeloop = pytest.mark.skipif(MODEL is None, reason="timeloop-model is not on PATH")

with (Path(__file__).parent / "recorded.csv").open() as file:
    RECORDED = list(csv.DictReader(file))


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['layer']} {row['target']}")
def test_recorded_counts_cycles_and_energy(row: dict[str, str]) -> None:
    schedule = schedule_of(row)
    (unit,) = units_of(schedule)
    ours = predict(unit, schedule.target)
    counted = {}
    for name in COUNTS:
        level, space, what = name.split(".")
        counted[name] = ours.accesses.get((level, space), (0, 0))[what == "writes"]
    assert counted == {name: int(row[name]) for name in COUNTS}
    assert ours.cycles == int(row["cycles"])
    assert ours.energy_pj == pytest.approx(float(row["energy_pj"]), rel=1e-5)


def timeloop_agrees(schedule: Schedule) -> None:
    assert MODEL is not None
    with tempfile.TemporaryDirectory() as folder:
        index = emit(schedule, Path(folder))
        (result,) = compare(schedule, index, Path(folder), Path(MODEL))
    assert result.problem == ""
    assert result.differences == ()
    assert result.is_equal


@needs_timeloop
@given(schedule=schedules())
@settings(max_examples=40, deadline=None)
def test_random_mappings_on_the_real_timeloop(schedule: Schedule) -> None:
    timeloop_agrees(schedule)


@needs_timeloop
@given(schedule=schedules(ragged=True))
@settings(max_examples=20, deadline=None)
def test_timeloop_accepts_imperfect_factors_without_warnings(schedule: Schedule) -> None:
    assert MODEL is not None
    with tempfile.TemporaryDirectory() as folder:
        index = emit(schedule, Path(folder))
        (result,) = compare(schedule, index, Path(folder), Path(MODEL))
    assert result.passes
    assert result.status == "no form" or result.problem == ""


def agreed_to_fit(schedule: Schedule) -> bool:
    """Whether a mapping for large memories is legal in small ones; Timeloop must say the same."""
    assert MODEL is not None
    try:
        replace(schedule, target=SMALL)
        legal = True
    except ScheduleError:
        legal = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (entry,) = emit(schedule, folder).layers
        files = [folder / str(file) for file in (entry.arch, entry.problem, entry.mapping)]
        files[0].write_text(yaml_text(architecture(SMALL)))
        try:
            run_model(Path(MODEL), files)
            fits = True
        except StatsError as error:
            assert "couldn't map level" in str(error)
            fits = False
    assert legal == fits
    return fits


@needs_timeloop
@pytest.mark.parametrize("ragged", [False, True])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_what_fits_is_what_timeloop_can_hold(data: st.DataObject, ragged: bool) -> None:
    schedule = data.draw(schedules(ragged=ragged, target=LARGER))
    assume(units_of(schedule)[0].nest is not None)
    agreed_to_fit(schedule)


@needs_timeloop
@pytest.mark.parametrize("pixels", [64, 65])
def test_timeloop_counts_the_fullest_column(pixels: int) -> None:
    """8 channels on 7 columns of 128 words: the first has two words for every pixel, the mean is 8/7."""
    bounds = Dims(K=8, P=pixels)
    mapping = Mapping(bounds, bounds, Dims(K=7), cols=Dims(K=7))
    graph = one_layer_graph("layer", bounds, (1, 1), (1, 1))
    schedule = Schedule(graph, LARGER, {"layer": mapping}, singleton_groups(graph), profile="dosa")
    assert agreed_to_fit(schedule) == (pixels == 64)


@needs_timeloop
@pytest.mark.slow
@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("target", ["gemmini-large", "gemmini-small"])
@pytest.mark.parametrize("network", ["resnet18", "mobilenetv1", "gpt3-block"])
def test_networks_on_the_real_timeloop(tmp_path: Path, network: str, target: str, fusion: bool) -> None:
    """Every layer runs without a warning; where tiles divide, everything is equal."""
    from fadiff.costmodel.target.target import load_target
    from fadiff.optimizer import optimize
    from fadiff.samples.graphs import graph_of

    assert MODEL is not None
    found = optimize(
        graph_of(network),
        load_target(target),
        profile="dosa",
        method="exact",
        fusion=fusion,
        tiling="divisor",
    )
    index = emit(found.schedule, tmp_path)
    results = compare(found.schedule, index, tmp_path, Path(MODEL))
    assert {result.layer for result in results} == set(found.schedule.mappings)
    wrong = [r for r in results if r.status != "equal" and not (fusion and r.status == "estimated")]
    assert wrong == []


@needs_timeloop
def test_the_script_runs_the_known_example(tmp_path: Path) -> None:
    import subprocess

    from fadiff.emitters.timeloop.read.mapping import read_mapping
    from fadiff.emitters.timeloop.read.problem import read_problem

    (tmp_path / "p.yaml").write_text(PROBLEM)
    (tmp_path / "m.yaml").write_text(MAPPING)
    problem = read_problem(tmp_path / "p.yaml")
    mappings = {problem.layer.name: read_mapping(tmp_path / "m.yaml", problem)}
    schedule = Schedule(problem.graph, SMALL, mappings, singleton_groups(problem.graph), profile="dosa")
    emit(schedule, tmp_path / "timeloop")
    done = subprocess.run(["./run_timeloop.sh"], cwd=tmp_path / "timeloop", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "p: Utilization = 0.11 | pJ/Compute =   29.742 | Cycles = 288\n"
    assert read_index(tmp_path / "timeloop" / "index.yaml").layers[0].factors == "perfect"
