"""Firmware with host operators in groups: its C and its schedule file."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags
from tests.emitters.gemmini.executed import Case
from tests.emitters.gemmini.gemmini_cases import rows_case

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


def first_case(wanted) -> Case:
    """The first random case of a kind."""
    for seed in range(200):
        case = rows_case(random.Random(seed))
        if case is not None and wanted(case.graph):
            return case
    raise AssertionError("no such case")


CASES = {
    "softmax": lambda graph: getattr(graph.by_name["l1"].operator, "mask_rows", 0) > 1,
    "lookup": lambda graph: graph.by_name["l1"].op == "lookup",
}


@pytest.mark.parametrize("kind", CASES)
def test_no_warnings(kind: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    schedule = first_case(CASES[kind]).schedule
    folder = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    flags = include_flags(schedule.target, tmp_path / "headers")
    command = [compiler, "-std=gnu11", "-O2", *WARNINGS, *flags, "-c", "net.c", "-o", "net.o"]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_schedule_file_says_which_path_each_edge_takes() -> None:
    schedule = first_case(CASES["softmax"]).schedule
    document = to_document(schedule, evaluate(schedule), generator="test")
    assert {(edge.fused, edge.path) for edge in document.fusion.edges} == {(True, "tile-buffer")}
    again = schedule_from_document(document, schedule.graph)
    assert again.groups == schedule.groups
