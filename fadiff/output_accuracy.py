"""The outputs of the integers against those of the float model in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from fadiff.vectors import Arrays, TestVectors, run_floats, run_vectors, stored_inputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.schedule.conversion_record import AccuracyRecord, OutputAccuracyRecord

MOST_SAMPLES = 32
_MACS = 2e10
"""Fewer samples of large networks: about this many multiply-accumulates, but two samples."""
_BLOCK = 1 << 20
"""Elements that are compared at a time in double precision."""
_SENTINEL = 1e8
"""Numbers of this size in an output (masked scores) stand for "not here" and are no signal."""


def output_accuracy(vectors: TestVectors, reference: InferenceSession) -> AccuracyRecord:
    """Judge the outputs on test inputs where the user gave any, else on calibration inputs.

    Args:
        vectors: the test inputs.
        reference: the integer reference (converter/check/reference).
    """
    from fadiff.costmodel.schedule.conversion_record import AccuracyRecord

    conversion = vectors.conversion
    inputs, kind = _inputs(vectors)
    macs = sum(getattr(layer, "macs", 0) for layer in conversion.graph.layers)
    count = int(np.clip(_MACS / max(macs, 1), 2, MOST_SAMPLES))
    inputs = {name: array[:count] for name, array in inputs.items()}
    graph = conversion.graph
    computed = {output.name for output in reference.get_outputs()}
    outputs = [name for name in graph.results if name in computed]  # (not an input that is handed through)
    if kind == "calibration":
        floats = run_floats(conversion, inputs, [graph.tensors[name].onnx_name or name for name in outputs])
    else:  # (all of them are written to the folder, too)
        floats = {name: array[:count] for name, array in vectors.float_outputs.items()}
    chain = graph.states if kind != "calibration" or conversion.consecutive else ()
    stored = run_vectors(reference, stored_inputs(graph, inputs), outputs, chain)
    records = []
    for name in outputs:
        expected = floats[graph.tensors[name].onnx_name or name]
        records.append(_record(graph, name, expected, restored(graph, name, stored, expected.shape)))
    samples = len(next(iter(inputs.values())))
    return AccuracyRecord(inputs=kind, samples=samples, outputs=tuple(records))


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


def _record(graph: Graph, name: str, expected: np.ndarray, found: np.ndarray) -> OutputAccuracyRecord:
    from fadiff.costmodel.schedule.conversion_record import OutputAccuracyRecord

    tensor = graph.tensors[name]
    onnx_name = tensor.onnx_name or name
    if not np.issubdtype(expected.dtype, np.floating):
        equal = float(np.mean(expected == found))
        indices = any(name in layer.outputs and layer.op == "arg_max" for layer in graph.layers)
        return OutputAccuracyRecord(output=onnx_name, top1_agreement=equal, classifies=indices)
    classifies = any(
        name in layer.outputs and layer.op in ("softmax", "log_softmax") for layer in graph.layers
    )
    scores = (classifies or expected.ndim == 3) and expected.shape[-1] > 1  # [samples, rows, classes]
    same = float(np.mean(expected.argmax(-1) == found.argmax(-1))) if scores else None
    ratio = sqnr_db(expected, found)
    return OutputAccuracyRecord(
        output=onnx_name,
        sqnr_db=None if ratio is None else round(ratio, 2),
        top1_agreement=same,
        classifies=classifies and scores,
    )


def sqnr_db(expected: np.ndarray, found: np.ndarray) -> float | None:
    """Signal to noise in decibels over elements that are numbers; None without noise or signal."""
    wanted, got = expected.reshape(-1), found.reshape(-1)
    noise = signal = 0.0
    for start in range(0, wanted.size, _BLOCK):
        block = wanted[start : start + _BLOCK].astype(np.float64)
        seen = np.abs(block) < _SENTINEL  # (false for NaN)
        noise += float(np.sum((block[seen] - got[start : start + _BLOCK][seen]) ** 2))
        signal += float(np.sum(block[seen] ** 2))
    return 10 * float(np.log10(signal / noise)) if noise and signal else None
