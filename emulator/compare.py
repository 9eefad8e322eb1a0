"""Runs test vectors through firmware and ONNX Runtime and notes where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from pydantic import BaseModel

from fadiff.converter.check.reference import MEASURED, UNCLIPPED
from fadiff.converter.ir.recurrence import first_rows, with_rows
from fadiff.converter.read.runtime import NOT_OPTIMISED, open_session, session_options
from fadiff.costmodel.target.target import Target
from fadiff.emitters.memory_map import MEMORY_MAP
from fadiff.emulator.errors import ExecutionError, FirmwareError
from fadiff.emulator.machine import Machine
from fadiff.emulator.run import Firmware, RunResult


class Program(BaseModel):
    """What one of the functions of a firmware is compared with: `data` has its models and inputs.

    `states` are ONNX names of outputs and inputs.
    """

    data: Path
    map_name: str = MEMORY_MAP
    states: tuple[tuple[str, str], ...] = ()


class Call(NamedTuple):
    """One run: of a program of the job, on a vector of its inputs.npz."""

    program: int
    vector: int
    begins: bool
    """With states of zero; else with what the call before has left."""


class Job(BaseModel):
    """What one worker does with firmware `built` for the library `model`, call after call.

    `progress` grows a byte for each, `errors` gets what is said.
    """

    firmware: Path
    built: Path
    model: Path
    target: Target
    programs: list[Program]
    calls: list[Call]
    result: Path
    progress: Path
    errors: Path

    def done(self) -> int:
        """Vectors finished so far."""
        return self.progress.stat().st_size if self.progress.exists() else 0


@dataclass(frozen=True)
class Mismatch:
    """The first element of a tensor that differs, and how much all of them do."""

    tensor: str
    vector: int
    index: tuple[int, ...]
    expected: float
    actual: float
    wrong_elements: int


@dataclass(frozen=True)
class TensorDifference:
    """One tensor against the reference, in one vector."""

    tensor: str
    is_float: bool
    largest: float
    """Largest absolute difference: in steps of the integer, or in the value of a float tensor."""
    relative: float
    """`largest` over the largest magnitude of the reference."""
    mismatch: Mismatch | None


@dataclass(frozen=True)
class VectorResult:
    """One test vector: differences per tensor the firmware leaves in memory, and what it did."""

    program: int
    vector: int
    differences: tuple[TensorDifference, ...]
    outputs: dict[str, np.ndarray]
    """Graph outputs of the device, storage order."""
    quantized: dict[str, np.ndarray]
    """Outputs of quantized.onnx by name."""
    run: RunResult | None
    error: str | None = None


Kept = dict[str, np.ndarray]
"""States."""
FLOAT_TOLERANCE = 1e-5
"""Of float32 targets, relative to the largest magnitude of a tensor: the order of sums differs."""


def tolerance_of(target: Target) -> float:
    """What float tensors may differ by: layers kept in float beside int8 have a fixed order of sums."""
    return FLOAT_TOLERANCE if target.element_type == "float32" else 0.0


def difference(
    tensor: str,
    vector: int,
    expected: np.ndarray,
    actual: np.ndarray,
    absent: np.ndarray | None = None,
    tolerance: float = FLOAT_TOLERANCE,
    unclipped: float = 0.0,
) -> TensorDifference:
    """Compare a tensor with its reference, both in storage order, but for what is `absent`.

    `tolerance` is that of float tensors, relative to the largest magnitude: that before the ReLU, if
    `unclipped` is larger.
    """
    expected = expected.reshape(actual.shape)
    if absent is not None:
        expected = np.where(absent, actual, expected)
    is_float = bool(np.issubdtype(actual.dtype, np.floating))
    delta = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
    if is_float:
        delta = np.where(
            np.isnan(delta) & ~(np.isnan(expected) & np.isnan(actual)), np.inf, np.nan_to_num(delta)
        )
    scale = float(np.max(np.abs(expected), initial=unclipped)) or 1.0
    largest = float(np.max(delta, initial=0.0))
    wrong = delta > (tolerance * scale if is_float else 0)
    mismatch = None
    if wrong.any():
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        mismatch = Mismatch(
            tensor, vector, index, float(expected[index]), float(actual[index]), int(wrong.sum())
        )
    return TensorDifference(tensor, is_float, largest, largest / scale, mismatch)


def _session(path: Path) -> onnxruntime.InferenceSession:
    """Every rounding of the integer reference happens where it is written."""
    return open_session(path, session_options(NOT_OPTIMISED))


def _require_same_model(
    job: Job, program: Program, firmware: Firmware, reference: onnxruntime.InferenceSession
) -> None:
    """Firmware and reference must be of one compilation: then every tensor has the same size in both.

    Raises:
        FirmwareError: they are not.
    """
    places = firmware.memory_map.tensors
    kept = [state.input for state in firmware.memory_map.states]
    ours = {name: places[name].shape for name in (*firmware.memory_map.inputs, *kept) if name in places}
    theirs = {n.name: tuple(n.shape) for n in reference.get_inputs() if not n.name.startswith(MEASURED)}
    computed = {n.name: tuple(n.shape) for n in reference.get_outputs()}
    missing = [name for name in firmware.memory_map.outputs if name not in computed]
    sizes = [n for n in computed if n in places and np.prod(places[n].shape) != np.prod(computed[n])]
    if ours.keys() != theirs.keys() or missing or sizes:
        differs = next(iter([*missing, *sizes, *(ours.keys() ^ theirs.keys())]))
        raise FirmwareError(
            f"{program.data / 'reference.onnx'}: not of the model in {job.firmware} ({differs} differs): "
            "the folder mixes two compilations; compile the model again"
        )


def _expected(
    reference: onnxruntime.InferenceSession,
    names: list[str],
    inputs: dict[str, np.ndarray],
    run: RunResult,
) -> dict[str, np.ndarray]:
    """What the reference computes of every tensor.

    float32: every layer is checked on the inputs it had.  An output that leaves the accumulator pooled never
    was in memory: the pool is checked on what the reference computes of it.
    """
    given = dict(inputs)
    unseen: dict[str, str] = {}
    for node in reference.get_inputs():
        if node.name.startswith(MEASURED):
            name = node.name.removeprefix(MEASURED)
            if name not in run.tensors:
                unseen[node.name] = name
            given[node.name] = run.tensors.get(name, np.zeros(node.shape, np.float32))
    if unseen:
        computed = reference.run(list(unseen.values()), given)
        given.update(zip(unseen, computed, strict=True))
    return dict(zip(names, reference.run(names, given), strict=True))


class _Compared:
    """A program of the firmware with what it is compared with."""

    def __init__(self, job: Job, number: int, machine: Machine) -> None:
        program = job.programs[number]
        self.number, self.states = number, program.states
        self.is_float, self.tolerance = job.target.element_type == "float32", tolerance_of(job.target)
        self.firmware = Firmware(job.firmware, job.built, job.target, machine, program.map_name)
        self.reference = _session(program.data / "reference.onnx")
        self.quantized = _session(program.data / "quantized.onnx")
        _require_same_model(job, program, self.firmware, self.reference)
        self.names = [output.name for output in self.reference.get_outputs()]
        with np.load(program.data / "inputs.npz", allow_pickle=False) as data:
            self.inputs = {name: data[name] for name in data.files}

    def call(self, vector: int, kept: Kept, kept_floats: Kept) -> VectorResult:
        """Run a vector and compare; `kept` states, by the ONNX names of their inputs, become those after it.

        Args:
            vector: of the inputs.
            kept: as the firmware stores them; zero where there are none.
            kept_floats: those of the quantised model; the inputs' own where there are none.

        Raises:
            ExecutionError: the program broke a rule.
        """
        memory_map = self.firmware.memory_map
        places = memory_map.tensors
        stored = {name: self.inputs[name][vector, ...] for name in memory_map.inputs}
        for state, (_, into) in zip(memory_map.states, self.states, strict=True):
            place = places[state.input]
            before = kept.get(into, np.zeros(place.shape, place.dtype))
            stored[state.input] = first_rows(before, place.shape)
        run = self.firmware.run(stored)
        expected = _expected(self.reference, self.names, stored, run)
        seen = run.tensors if self.is_float else expected
        for state, (_, into) in zip(memory_map.states, self.states, strict=True):
            kept[into] = with_rows(kept.get(into), seen[state.output].reshape(places[state.input].shape))
        floats = {}
        for node in self.quantized.get_inputs():
            given = self.inputs[f"float:{node.name}"][vector, ...]
            floats[node.name] = first_rows(kept_floats.get(node.name, given), given.shape)
        differences = tuple(
            difference(
                name,
                vector,
                expected[name],
                run.tensors[name],
                run.absent.get(name),
                self.tolerance,
                float(expected.get(UNCLIPPED + name, 0.0)),
            )
            for name in self.names
            if name in run.tensors
        )
        outputs = {name: run.tensors[name] for name in memory_map.outputs}
        slim = RunResult({}, run.layers, run.counts)
        onnx_names = [output.name for output in self.quantized.get_outputs()]
        onnx_outputs = dict(zip(onnx_names, self.quantized.run(onnx_names, floats), strict=True))
        for output, into in self.states:
            kept_floats[into] = with_rows(kept_floats.get(into), onnx_outputs[output])
        return VectorResult(self.number, vector, differences, outputs, onnx_outputs, slim)


def run_job(job: Job) -> list[VectorResult]:
    """All calls of one worker; stops at the first broken rule."""
    machine = Machine(job.target, model=job.model)
    programs = [_Compared(job, number, machine) for number in range(len(job.programs))]
    kept: Kept = {}
    kept_floats: Kept = {}
    results = []
    for number, vector, begins in job.calls:
        if begins:
            kept.clear()
            kept_floats.clear()
            programs[number].firmware.reset()
        try:
            results.append(programs[number].call(vector, kept, kept_floats))
        except ExecutionError as error:
            results.append(VectorResult(number, vector, (), {}, {}, None, str(error)))
            break
        with job.progress.open("ab") as progress:
            progress.write(b".")
    return results
