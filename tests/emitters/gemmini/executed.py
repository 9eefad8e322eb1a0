"""Runs schedules on the functional model: numbers as ONNX Runtime, bytes as predicted."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import build_firmware
from fadiff.emulator.run import Firmware, RunResult


@dataclass(frozen=True)
class Case:
    """A legal schedule."""

    schedule: Schedule

    @property
    def graph(self) -> Graph:
        return self.schedule.graph


def run_firmware(schedule: Schedule, inputs: dict[str, np.ndarray]) -> RunResult:
    """Emit, build and run on the functional model."""
    with tempfile.TemporaryDirectory() as scratch:
        firmware = emit(schedule, model_name=schedule.graph.name, out_dir=Path(scratch) / "firmware")
        for unused in firmware.glob("*_self_test.c"):  # a fifth of the time, never called
            unused.unlink()
        built = build_firmware(firmware, schedule.target, Path(scratch), "-O0")
        return Firmware(firmware, built, schedule.target).run(inputs)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return {
        name: numbers.integers(-128, 128, graph.tensors[name].shape).astype(np.int8) for name in graph.inputs
    }


def check(case: Case) -> RunResult:
    """Every tensor as the integer reference in ONNX Runtime, every byte as `evaluate` says."""
    inputs = random_inputs(case.graph)
    result = run_firmware(case.schedule, inputs)
    expected = run_reference(case.graph, inputs)
    unseen = {
        case.graph.by_name[name].outputs[0]
        for group in case.schedule.groups
        for name, member in plan_group(case.graph, group).items()
        if member.pooled_by
    }
    for layer in case.graph.layers:
        for name in layer.outputs:
            assert (name in unseen) == (name not in result.tensors), name
            if name in unseen:  # it leaves the accumulator pooled
                continue
            computed = ~result.absent.get(name, np.zeros(expected[name].shape, bool))
            np.testing.assert_array_equal(
                result.tensors[name][computed], expected[name][computed], err_msg=f"{layer.name}: {name}"
            )
    assert measured(result) == predicted(case.schedule)
    return result


Bytes = dict[tuple[str, str, str, str], int]
"""By layer, memory, tensor and direction."""


def measured(result: RunResult) -> Bytes:
    bytes_: Bytes = {}
    for layer in result.layers:
        for region in layer.traffic:
            for direction, moved in (("read", region.read), ("write", region.write)):
                if moved:
                    key = (layer.name, region.memory, region.tensor, direction)
                    bytes_[key] = bytes_.get(key, 0) + moved
    return bytes_


def predicted(schedule: Schedule) -> Bytes:
    bytes_: Bytes = {}
    for layer in evaluate(schedule).layers:
        for tensor, move in layer.moves:
            if move.memory in ("dram", "tile-buffer"):
                key = (layer.name, move.memory, tensor, move.direction)
                bytes_[key] = bytes_.get(key, 0) + move.bytes
    return bytes_
