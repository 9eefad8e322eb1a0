"""Firmware with tensors in local memory and host operators in groups: its C, memory map and schedule file."""

from __future__ import annotations

import json
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
from tests.emitters.gemmini.gemmini_cases import held_case, rows_case

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


def first_case(make, wanted) -> Case:
    """The first random case of a kind."""
    for seed in range(200):
        case = make(random.Random(seed))
        if case is not None and wanted(case.schedule.groups[0], case.graph):
            return case
    raise AssertionError("no such case")


CASES = {
    "ring": (held_case, lambda group, graph: group.in_scratchpad and group.halo == "retain"),
    "box": (held_case, lambda group, graph: group.in_scratchpad and group.halo == "recompute"),
    "accumulator": (held_case, lambda group, graph: group.in_accumulator),
    "softmax": (rows_case, lambda group, graph: getattr(graph.by_name["l1"].operator, "mask_rows", 0) > 1),
    "lookup": (rows_case, lambda group, graph: graph.by_name["l1"].op == "lookup"),
}


@pytest.mark.parametrize("kind", CASES)
def test_no_warnings(kind: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    schedule = first_case(*CASES[kind]).schedule
    folder = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    flags = include_flags(schedule.target, tmp_path / "headers")
    command = [compiler, "-std=gnu11", "-O2", *WARNINGS, *flags, "-c", "net.c", "-o", "net.o"]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["ring", "accumulator", "softmax"])
def test_the_schedule_file_says_which_path_each_edge_takes(kind: str) -> None:
    schedule = first_case(*CASES[kind]).schedule
    document = to_document(schedule, evaluate(schedule), generator="test")
    group = schedule.groups[0]
    for edge in document.fusion.edges:
        assert edge.fused
        assert edge.path == group.path(edge.producer)
    again = schedule_from_document(document, schedule.graph)
    assert again.groups == schedule.groups


def test_held_tensors_have_no_dram_region(tmp_path: Path) -> None:
    schedule = first_case(*CASES["box"]).schedule
    folder = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    layers = json.loads((folder / "memory_map.json").read_text())["layers"]
    for layer in layers:
        held = layer["name"] in schedule.groups[0].in_scratchpad
        symbols = {tile["symbol"] for tile in layer.get("tiles", ())}
        assert (symbols == {"scratchpad"}) == held
        if held:
            tensor = layer["outputs"][0]
            assert not any(
                region["memory"] == "tile-buffer" for region in layer["regions"] if region["tensor"] == tensor
            )
