"""How much of each activation survives quantisation: signal to noise against the float model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fadiff.converter.check.noise import sqnr_db
from fadiff.converter.folders import scratch_folder
from fadiff.output_accuracy import output_accuracy
from fadiff.vectors import Arrays, TestVectors, nth, run_floats, run_vectors, stored_inputs

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Tensor
    from fadiff.costmodel.schedule.conversion_record import AccuracyRecord


@dataclass(frozen=True)
class Sensitivity:
    """What int8 costs the model.

    `sqnr_db` is the signal-to-quantisation-noise ratio of every int8 tensor that the float model also
    has; tensors without any noise or signal are left out.  `note` says how the integers differ from
    ONNX Runtime's run of the quantised model, and is empty where they do not; `runtime_steps` is the most
    by which a single layer does (`Agreement.own_steps`).
    """

    sqnr_db: Mapping[str, float]
    note: str
    runtime_steps: int | None
    accuracy: AccuracyRecord
    """The outputs, on test inputs where the user gave any, else on calibration inputs."""


def sensitivity(vectors: TestVectors, count: int = 2) -> Sensitivity:
    """Run `count` calibration inputs through the float model and the integers, tensor by tensor.

    The integers are those of the integer reference, so of the device.  A model that needed no
    calibration is run on the first test vectors.
    """
    from fadiff.converter.check.agreement import agreement
    from fadiff.converter.check.reference import integer_reference, reference_session
    from fadiff.converter.ir.stored import WeightFile, is_large

    conversion = vectors.conversion
    inputs, stored = map(dict, _inputs(vectors, count))
    graph = conversion.graph
    names = [t.onnx_name for t in graph.tensors.values() if t.onnx_name is not None and t.data is None]
    floats = run_floats(conversion, inputs, names)
    with scratch_folder() as scratch:
        folder = scratch if is_large(graph) else None
        with WeightFile(folder / "weights.bin") if folder else nullcontext() as file:
            reference = integer_reference(graph, file=file)
        session = reference_session(reference, folder)
        integers = run_vectors(session, stored, states=graph.states if conversion.consecutive else ())
        accuracy = output_accuracy(vectors, session)
        del session  # (its weights are mapped)
        compared = agreement(conversion, nth(inputs, 0), nth(integers, 0), folder)
    ratios = {}
    floats |= inputs
    for name, found in (stored | integers).items():
        tensor = graph.tensors[name]
        # (booleans are stored without a scale)
        if tensor.dtype == "int8" and tensor.scale is not None and tensor.onnx_name in floats:
            ratio = _sqnr(tensor, found, floats)
            if ratio is not None:
                ratios[name] = ratio
    return Sensitivity(ratios, compared.note, compared.own_steps, accuracy)


def _inputs(vectors: TestVectors, count: int) -> tuple[Arrays, Arrays]:
    """Inputs with a leading axis of samples: by ONNX name, and as stored by tensor name."""
    conversion = vectors.conversion
    samples = conversion.samples[:count]
    if not samples:
        return (
            {name: array[:count] for name, array in vectors.onnx_inputs.items()},
            {name: array[:count] for name, array in vectors.stored_inputs.items()},
        )
    inputs = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    return inputs, stored_inputs(conversion.graph, inputs)


def _sqnr(tensor: Tensor, stored: np.ndarray, floats: Arrays) -> float | None:
    assert tensor.onnx_name is not None and tensor.scale is not None
    expected = floats[tensor.onnx_name].astype(np.float64)
    if tensor.onnx_axes is not None:
        expected = expected.transpose(0, *(axis + 1 for axis in tensor.onnx_axes))
    if expected.size != stored.size:
        return None
    scale, offset = tensor.meaning()
    return sqnr_db(expected, stored.reshape(-1, *tensor.shape) * scale.astype(np.float64) + offset)
