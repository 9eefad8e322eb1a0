"""Runs test vectors through firmware and ONNX Runtime and notes where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from pydantic import BaseModel

from fadiff.converter.check.reference import MEASURED, UNCLIPPED
from fadiff.converter.read.runtime import NOT_OPTIMISED, open_session, session_options
from fadiff.costmodel.target.target import Target
from fadiff.emulator.errors import ExecutionError, FirmwareError
from fadiff.emulator.run import Firmware, RunResult


class Job(BaseModel):
    """What one worker does with firmware `built` for the library `model`.

    `vectors` are indices into inputs.npz, `progress` grows a byte for each, `errors` gets what is said.
    With `states` (ONNX names of outputs and inputs) the vectors are consecutive steps.
    """

    firmware: Path
    built: Path
    model: Path
    data: Path
    target: Target
    vectors: list[int]
    result: Path
    progress: Path
    errors: Path
    states: tuple[tuple[str, str], ...] = ()

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

    vector: int
    differences: tuple[TensorDifference, ...]
    outputs: dict[str, np.ndarray]
    """Graph outputs of the device, storage order."""
    quantized: dict[str, np.ndarray]
    """Outputs of quantized.onnx by name."""
    run: RunResult | None
    error: str | None = None


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


def _require_same_model(job: Job, firmware: Firmware, reference: onnxruntime.InferenceSession) -> None:
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
            f"{job.data / 'reference.onnx'}: not of the model in {job.firmware} ({differs} differs): "
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


def run_job(job: Job) -> list[VectorResult]:
    """All vectors of one worker; stops at the first broken rule."""
    firmware = Firmware(job.firmware, job.built, job.target, job.model)
    reference = _session(job.data / "reference.onnx")
    quantized = _session(job.data / "quantized.onnx")
    _require_same_model(job, firmware, reference)
    tolerance = tolerance_of(job.target)
    names = [output.name for output in reference.get_outputs()]
    onnx_names = [output.name for output in quantized.get_outputs()]
    places = firmware.memory_map.tensors
    results = []
    with np.load(job.data / "inputs.npz", allow_pickle=False) as data:
        inputs = {name: data[name] for name in data.files}
    states = firmware.memory_map.states
    kept = {s.input: np.zeros(places[s.input].shape, places[s.input].dtype) for s in states}
    kept_floats: dict[str, np.ndarray] = {}
    firmware.reset()
    for vector in job.vectors:
        stored = {name: inputs[name][vector, ...] for name in firmware.memory_map.inputs} | kept
        try:
            run = firmware.run(stored)
        except ExecutionError as error:
            results.append(VectorResult(vector, (), {}, {}, None, str(error)))
            break
        expected = _expected(reference, names, stored, run)
        seen = run.tensors if job.target.element_type == "float32" else expected
        kept = {s.input: seen[s.output].reshape(kept[s.input].shape) for s in states}
        floats = {node.name: inputs[f"float:{node.name}"][vector, ...] for node in quantized.get_inputs()}
        floats |= kept_floats
        differences = tuple(
            difference(
                name,
                vector,
                expected[name],
                run.tensors[name],
                run.absent.get(name),
                tolerance,
                float(expected.get(UNCLIPPED + name, 0.0)),
            )
            for name in names
            if name in run.tensors
        )
        outputs = {name: run.tensors[name] for name in firmware.memory_map.outputs}
        slim = RunResult({}, run.layers, run.counts)
        onnx_outputs = dict(zip(onnx_names, quantized.run(onnx_names, floats), strict=True))
        kept_floats = {into: onnx_outputs[output] for output, into in job.states}
        results.append(VectorResult(vector, differences, outputs, onnx_outputs, slim))
        with job.progress.open("ab") as progress:
            progress.write(b".")
    return results
