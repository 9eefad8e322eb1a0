"""How much of each activation survives quantisation: signal to noise against the float model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from fadiff.vectors import Arrays, TestVectors, run_vectors, session, stored_inputs

if TYPE_CHECKING:
    from converter import Conversion
    from converter.graph import Tensor


@dataclass(frozen=True)
class Sensitivity:
    """What int8 costs the model.

    `sqnr_db` is the signal-to-quantisation-noise ratio of every int8 tensor that the float model also
    has; tensors without any noise or signal are left out.  `note` says how the integers differ from
    ONNX Runtime's run of the quantised model, and is empty where they do not.
    """

    sqnr_db: Mapping[str, float]
    note: str


def sensitivity(conversion: Conversion, vectors: TestVectors, count: int = 2) -> Sensitivity:
    """Run `count` calibration inputs through the float model and the integers, tensor by tensor.

    The integers are those of the integer reference, so of the device.  A model that needed no
    calibration is run on the first test vectors.
    """
    from converter.agreement import agreement
    from converter.reference import integer_reference, reference_session

    inputs, stored = _inputs(conversion, vectors, count)
    graph = conversion.graph
    floats = run_vectors(session(_with_all_outputs(conversion)), inputs)
    integers = run_vectors(reference_session(integer_reference(graph)), stored)
    ratios = {}
    for name, found in integers.items():
        tensor = graph.tensors[name]
        if tensor.dtype == "int8" and tensor.onnx_name in floats:
            ratio = _sqnr(tensor, found, floats)
            if ratio is not None:
                ratios[name] = ratio
    first = [{name: array[0] for name, array in arrays.items()} for arrays in (inputs, integers)]
    return Sensitivity(ratios, agreement(conversion, first[0], first[1]).note)


def _inputs(conversion: Conversion, vectors: TestVectors, count: int) -> tuple[Arrays, Arrays]:
    """Inputs with a leading axis of samples: by ONNX name, and as stored by tensor name."""
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
    noise = expected.reshape(stored.shape) - stored * tensor.scale
    signal_power, noise_power = float(np.sum(expected**2)), float(np.sum(noise**2))
    return 10 * float(np.log10(signal_power / noise_power)) if signal_power and noise_power else None


def _with_all_outputs(conversion: Conversion) -> onnx.ModelProto:
    """The float model with every activation that the graph stores as an output."""
    model = onnx.ModelProto()
    model.CopyFrom(conversion.float_model)
    computed = {name for node in model.graph.node for name in node.output}
    known = {output.name for output in model.graph.output}
    for tensor in conversion.graph.tensors.values():
        name = tensor.onnx_name
        if name is not None and tensor.data is None and name in computed - known:
            known.add(name)
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return model
