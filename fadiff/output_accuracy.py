"""The outputs of the integers against those of the float model in the file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fadiff.vectors import Arrays, TestVectors, onnx_name, run_floats, run_vectors, stored_inputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from fadiff.converter.check.noise import Parts
    from fadiff.converter.ir.graph import Graph, Tensor
    from fadiff.costmodel.schedule.conversion_record import (
        AccuracyRecord,
        OutputAccuracyRecord,
        PartAccuracyRecord,
    )

MOST_SAMPLES = 32
_MACS = 2e10
"""Fewer samples of large networks: about this many multiply-accumulates, but two samples."""


@dataclass(frozen=True)
class Judged:
    """Inputs that outputs are judged on, by ONNX name."""

    kind: Literal["test", "calibration", "random"]
    inputs: Arrays

    @property
    def count(self) -> int:
        """Samples."""
        return len(next(iter(self.inputs.values())))

    def stored(self, vectors: TestVectors) -> Arrays:
        """As the device stores them, by tensor name."""
        if self.kind == "calibration":
            return stored_inputs(vectors.conversion.graph, self.inputs)
        return {name: array[: self.count] for name, array in vectors.stored_inputs.items()}

    def length(self, vectors: TestVectors) -> int:
        """`TestVectors.length` of them."""
        return (not vectors.conversion.consecutive) if self.kind == "calibration" else vectors.length


@dataclass(frozen=True)
class Expected(Judged):
    """And what the float model makes of them."""

    outputs: Arrays


def judged_inputs(vectors: TestVectors) -> Judged:
    """Test inputs where the user gave any, else calibration inputs, else random ones."""
    inputs, kind = _inputs(vectors)
    macs = sum(getattr(layer, "macs", 0) for layer in vectors.conversion.graph.layers)
    count = int(np.clip(_MACS / max(macs, 1), 2, MOST_SAMPLES))
    return Judged(kind, {name: array[:count] for name, array in inputs.items()})


def expected_outputs(vectors: TestVectors) -> Expected:
    """What the float model makes of the inputs that outputs are judged on."""
    judged, graph = judged_inputs(vectors), vectors.conversion.graph
    if judged.kind == "calibration":
        names = [onnx_name(graph, name) for name in graph.results]
        outputs = run_floats(vectors.conversion, judged.inputs, names)
    else:  # (all of them are written to the folder, too)
        outputs = {name: array[: judged.count] for name, array in vectors.float_outputs.items()}
    return Expected(judged.kind, judged.inputs, outputs)


def output_accuracy(vectors: TestVectors, reference: InferenceSession) -> AccuracyRecord:
    """Judge the outputs, and what rounding the inputs alone costs them.

    Args:
        vectors: the test inputs.
        reference: the integer reference (converter/check/reference).
    """
    from fadiff.costmodel.schedule.conversion_record import AccuracyRecord

    expected = expected_outputs(vectors)
    records = judged_outputs(vectors, reference, expected)
    floats = {record.output: expected.outputs[record.output] for record in records}
    return AccuracyRecord(
        inputs=expected.kind,
        samples=expected.count,
        outputs=records,
        inputs_db=_inputs_alone(vectors, expected, floats),
    )


def judged_outputs(
    vectors: TestVectors, reference: InferenceSession, expected: Expected
) -> tuple[OutputAccuracyRecord, ...]:
    """The outputs that a reference computes against those of the float model."""
    from fadiff.converter.check.noise import Parts, parts_of

    conversion = vectors.conversion
    graph = conversion.graph
    computed = {output.name for output in reference.get_outputs()}
    outputs = [name for name in graph.results if name in computed]  # (not an input that is handed through)
    stored, length = expected.stored(vectors), expected.length(vectors)
    found = run_vectors(reference, stored, outputs, graph.states, length=length)
    program = conversion.program
    records = []
    for output in outputs:
        name = onnx_name(graph, output)
        floats = expected.outputs[name]
        parts = parts_of(program, name) if program.is_float(name) else Parts()
        integers = restored(graph, output, found, floats.shape)
        records.append(_record(graph, output, floats, integers, parts))
    return tuple(records)


def _inputs(vectors: TestVectors) -> tuple[Arrays, Literal["test", "calibration", "random"]]:
    if vectors.given:
        return vectors.onnx_inputs, "test"
    conversion = vectors.conversion
    samples = conversion.samples
    if not samples or conversion.random_calibration:
        return vectors.onnx_inputs, "random"
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}, "calibration"


def restored(graph: Graph, name: str, stored: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    """An output of the integers as ONNX values of `shape` [samples, ...]."""
    from fadiff.converter.check.storage import from_storage

    return np.stack([from_storage(graph.tensors[name], one, shape[1:]) for one in stored[name]])


def _inputs_alone(vectors: TestVectors, expected: Expected, floats: Arrays) -> float | None:
    """Signal to noise of the worst output of the float model on inputs as int8 holds them."""
    from fadiff.converter.check.noise import noise_of

    graph, inputs, stored = vectors.conversion.graph, expected.inputs, expected.stored(vectors)
    rounded = dict(inputs)
    for tensor in graph.inputs:
        name = onnx_name(graph, tensor)
        values = restored(graph, tensor, stored, inputs[name].shape)
        rounded[name] = values.astype(inputs[name].dtype)
    found = run_floats(vectors.conversion, rounded, list(floats))
    ratios = [
        noise_of(floats[name], array).sqnr_db
        for name, array in found.items()
        if np.issubdtype(array.dtype, np.floating)
    ]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _record(
    graph: Graph, name: str, expected: np.ndarray, found: np.ndarray, unequal: Parts
) -> OutputAccuracyRecord:
    from fadiff.converter.check.noise import small_columns
    from fadiff.costmodel.schedule.conversion_record import OutputAccuracyRecord

    tensor = graph.tensors[name]
    writers = {layer.op for layer in graph.layers if name in layer.outputs}
    if not np.issubdtype(expected.dtype, np.floating):
        equal = float(np.mean(expected == found))
        return OutputAccuracyRecord(
            output=onnx_name(graph, name), top1_agreement=equal, classifies="arg_max" in writers
        )
    classifies = bool(writers & {"softmax", "log_softmax"})
    scores = (classifies or expected.ndim <= 3) and expected.shape[-1] > 1  # [samples, rows, classes]
    same = float(np.mean(expected.argmax(-1) == found.argmax(-1))) if scores else None
    seen = None if unequal.passed is None else ~unequal.passed
    parts = unequal.joined or ({} if classifies else small_columns(expected))
    return OutputAccuracyRecord(
        output=onnx_name(graph, name),
        top1_agreement=same,
        classifies=classifies and scores,
        parts=tuple(_part(tensor, part, expected, found, where) for part, where in parts.items()),
        **_figures(tensor, expected, found, seen),
    )


def _part(
    tensor: Tensor, part: str, expected: np.ndarray, found: np.ndarray, seen: np.ndarray
) -> PartAccuracyRecord:
    from fadiff.costmodel.schedule.conversion_record import PartAccuracyRecord

    figures = _figures(tensor, expected, found, seen)
    return PartAccuracyRecord(part=part, elements=int(seen.sum()), **figures)


def _figures(
    tensor: Tensor, expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None
) -> dict[str, Any]:
    from fadiff.converter.check.noise import noise_of
    from fadiff.converter.check.storage import from_storage, to_storage

    figures = asdict(noise_of(expected, found, seen))
    if tensor.dtype == "int8" and tensor.scale is not None:
        shape = expected.shape[1:]
        rounded = [from_storage(tensor, to_storage(tensor, one), shape) for one in expected]
        figures["rounding_db"] = noise_of(expected, np.stack(rounded), seen).sqnr_db
    return figures
