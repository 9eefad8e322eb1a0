"""The trace, the changes that the report advises, and two builds side by side: each against another count."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import fadiff as package
from fadiff.costmodel.latency.clock import CORE_COEFFICIENTS, ClockCoefficients, clock_of
from fadiff.costmodel.schedule.changes import changes
from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document
from fadiff.emitters.trace import trace
from fadiff.pipeline import CompileResult


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    """A convolution, a sigmoid on the core, a matrix product."""
    folder = tmp_path_factory.mktemp("compiled")
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in (("w1", (16, 8, 3, 3)), ("w2", (16 * 100, 10)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["c"], "conv"),
            helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
            helper.make_node("Flatten", ["s"], ["f"], "flatten"),
            helper.make_node("MatMul", ["f", "w2"], ["y"], "product"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return package.compile(
        model, folder / "out", method="layerwise", calibration=[np.ones((1, 8, 12, 12), "f4")]
    )


@pytest.fixture(scope="module")
def schedule(compiled: CompileResult) -> Schedule:
    return schedule_from_document(compiled.document)


def total(schedule: Schedule) -> float:
    return sum(clock.cycles for clock in program_parts(schedule).values())


def test_an_activation_on_the_core_is_worth_its_cycles(schedule: Schedule) -> None:
    clocks = program_parts(schedule)
    (change,) = (one for one in changes(schedule) if "ReLU" in one.what)
    assert change.layers == ("sigmoid",)
    assert change.cycles_won == pytest.approx(clocks["sigmoid"].cycles)


def test_faster_engines_are_targets_with_these_cycles(compiled: CompileResult, schedule: Schedule) -> None:
    """The same schedule on a target file that gives the coefficients: another way to the same clock."""
    own, found = clock_of(schedule.target), {one.what: one for one in changes(schedule)}
    names = {field.name for field in fields(ClockCoefficients)} - {*CORE_COEFFICIENTS}
    moved = names & {"request", "pixel_copy", "byte", "miss", "store_row", "added_byte"}
    record = schedule.target.model_dump()
    record["engines"] |= {name: getattr(own, name) / 2 for name in moved}
    document = compiled.document.model_copy(update={"target": type(schedule.target).model_validate(record)})
    won = total(schedule) - total(schedule_from_document(document))
    assert won > 0
    assert found["loads and stores of twice the speed"].cycles_won == pytest.approx(won)
    by_worth = [one.cycles_won for one in changes(schedule)]
    assert by_worth == sorted(by_worth, reverse=True)
    page = (compiled.out / "report.html").read_text()
    assert "What would make it faster" in page and f"{won:,.0f}" in page


def test_spans_of_the_trace_are_the_clock(compiled: CompileResult, schedule: Schedule) -> None:
    events = json.loads(trace(compiled.document))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    layers = [span for span in spans if span["tid"] == 2]
    assert [span["name"] for span in layers] == [layer.name for layer in compiled.document.layers]
    assert sum(span["dur"] for span in layers) == pytest.approx(total(schedule))
    ends = [0.0, *(span["ts"] + span["dur"] for span in layers)]
    assert [span["ts"] for span in layers] == pytest.approx(ends[:-1])
    inside = {span["name"]: span["dur"] for span in layers}
    assert all(span["dur"] <= inside[span["name"]] * (1 + 1e-9) for span in spans if span["tid"] > 2)


def test_two_builds_side_by_side(fadiff, compiled: CompileResult, tmp_path: Path) -> None:
    same = fadiff("diff", compiled.out, compiled.out)
    assert same.code == 0 and "0 layers differ" in same.out
    model = compiled.out / "verify" / "quantized.onnx"
    built = package.compile(model, tmp_path / "b", target="gemmini-small", method="layerwise")
    found = package.diff(compiled.out, str(tmp_path / "b"))
    totals = {row["name"]: (row["a"], row["b"]) for row in found.totals}
    assert totals["dram_bytes"] == (
        compiled.document.totals.dram_bytes,
        built.document.totals.dram_bytes,
    )
    assert found.layers
    page, file = tmp_path / "diff.html", tmp_path / "trace.json"
    assert fadiff("diff", compiled.out, tmp_path / "b", "--html", page, "-q").code == 0
    assert "edp uj cycles" in page.read_text() or "edp_uj_cycles" in page.read_text()
    assert fadiff("report", compiled.out, "--trace", file, "-q").code == 0
    assert file.read_text() == trace(compiled.document)
