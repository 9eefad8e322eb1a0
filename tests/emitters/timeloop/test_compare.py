"""Running the user's binary: what it wrote, and everything that can go wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.timeloop import emit
from fadiff.emitters.timeloop.compare import Comparison, TimeloopRunError, compare, predict
from fadiff.emitters.timeloop.index import Index, read_index
from fadiff.emitters.timeloop.stats import StatsError, read_stats
from fadiff.emitters.timeloop.write.units import units_of
from tests.emitters.timeloop.examples import HAND, KNOWN, hand_schedule, program


def run(tmp_path: Path, body: str, schedule: Schedule | None = None) -> Comparison:
    schedule = schedule or hand_schedule()
    emit(schedule, tmp_path / "files")
    index = read_index(tmp_path / "files" / "index.yaml")
    (result,) = compare(schedule, index, tmp_path / "files", program(tmp_path / "model", body))
    return result


def test_the_parser_and_the_prediction_find_the_numbers_derived_by_hand() -> None:
    schedule = hand_schedule()
    (unit,) = units_of(schedule)
    for found in (read_stats(KNOWN), predict(unit, schedule.target)):
        assert found.cycles == HAND.cycles
        assert found.accesses == HAND.accesses
        assert found.energy_pj == pytest.approx(HAND.energy_pj, rel=1e-6)


def test_equal(tmp_path: Path) -> None:
    result = run(tmp_path, f'cp {KNOWN} "$out/timeloop-model.stats.txt"')
    assert (result.status, result.passes, result.differences) == ("equal", True, ())
    assert len(result.accesses) == 12


def test_a_count_that_differs(tmp_path: Path) -> None:
    edit = r"s/^\(.*Scalar reads (per-instance) *: \)512$/\1513/"
    result = run(tmp_path, f"sed '{edit}' {KNOWN} > $out/timeloop-model.stats.txt")
    assert (result.status, result.passes) == ("differs", False)
    assert result.differences == (
        ("Scratchpad", "Inputs", "reads", 512, 513),
        ("DRAM", "Inputs", "reads", 512, 513),
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "echo 'ERROR: parsing mapping: no' >&2; exit 1",
            r"timeloop-model failed \(exit 1\): ERROR: parsing mapping",
        ),
        (
            'echo "ERROR: key not found: data-spaces, at line: 0"; exit 1',
            r"data-spaces, at line: 0 \(a release before 2024-02: compile with --timeloop-hyphens\)",
        ),
        ('echo "WARNING: odd"; echo "ERROR: wrong"', r"timeloop-model failed \(exit 0\): ERROR: wrong"),
        ("exit 0", r"timeloop-model failed \(exit 0\): no error message; run_timeloop.sh"),
        (
            f'cp {KNOWN} "$out/timeloop-model.stats.txt"; echo "WARNING: odd"',
            "timeloop-model warns: WARNING: odd",
        ),
        ('echo nothing > "$out/timeloop-model.stats.txt"', "no `Cycles:` line"),
    ],
)
def test_runs_that_fail(tmp_path: Path, body: str, problem: str) -> None:
    result = run(tmp_path, body)
    assert (result.status, result.passes) == ("failed", False)
    with pytest.raises(StatsError, match=problem):
        raise StatsError(result.problem)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    schedule = hand_schedule()
    index = emit(schedule, tmp_path)
    (tmp_path / "layer.mapping.yaml").unlink()
    (result,) = compare(schedule, index, tmp_path, tmp_path / "model")
    assert result.status == "failed"
    assert result.problem == f"{tmp_path / 'layer.mapping.yaml'}: no such file; compile again"


def test_files_of_another_schedule(tmp_path: Path) -> None:
    schedule = hand_schedule()
    index = emit(schedule, tmp_path)
    other = Index(**{**index.model_dump(), "layers": [{**index.layers[0].model_dump(), "layer": "gone"}]})
    with pytest.raises(TimeloopRunError, match=r"layer \(layer gone\) is not in the schedule; compile again"):
        compare(schedule, other, tmp_path, tmp_path / "model")


def test_the_front_end_dialect_is_not_for_the_binary(tmp_path: Path) -> None:
    index = emit(hand_schedule(), tmp_path, "frontend")
    with pytest.raises(TimeloopRunError, match="frontend dialect; timeloop-model reads the native one"):
        compare(hand_schedule(), index, tmp_path, tmp_path / "model")


def test_a_binary_that_does_not_start(tmp_path: Path) -> None:
    schedule = hand_schedule()
    index = emit(schedule, tmp_path)
    with pytest.raises(TimeloopRunError, match="model: cannot be started: No such file"):
        compare(schedule, index, tmp_path, tmp_path / "model")
