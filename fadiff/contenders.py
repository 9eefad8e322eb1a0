"""One model three ways on the same data: float, our integers, ONNX Runtime's static int8."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnx

from fadiff.converter.folders import scratch_folder
from fadiff.errors import InputError
from fadiff.vectors import Arrays, onnx_states, run_floats, run_vectors, stored_inputs

if TYPE_CHECKING:
    from fadiff.converter import Conversion

Progress = Callable[[str], None]
Outputs = dict[str, np.ndarray]


def float_outputs(conversion: Conversion, inputs: Arrays, progress: Progress) -> Outputs:
    """The float model in ONNX Runtime."""
    progress("float")
    return run_floats(conversion, inputs, [value.name for value in conversion.float_model.graph.output])


def our_outputs(conversion: Conversion, inputs: Arrays, floats: Outputs, progress: Progress) -> Outputs:
    """The integers of the device, as floats."""
    from fadiff.converter.check.reference import integer_reference, reference_session
    from fadiff.output_accuracy import restored

    graph = conversion.graph
    if graph.element_type == "float32":
        return floats
    session = reference_session(integer_reference(graph))
    found = run_vectors(
        session,
        stored_inputs(graph, inputs),
        graph.outputs,
        graph.states,
        lambda done: progress(f"our int8: {done}"),
    )
    names = {graph.tensors[name].onnx_name or name: name for name in graph.outputs}
    return {
        onnx_name: restored(graph, names[onnx_name], found, array.shape)
        for onnx_name, array in floats.items()
        if onnx_name in names
    }


def runtime_outputs(conversion: Conversion, inputs: Arrays, per_channel: bool, progress: Progress) -> Outputs:
    """ONNX Runtime's static quantisation (QDQ, symmetric int8, MinMax) of the same float model.

    It runs without graph optimisations: the arithmetic that the file means, whatever kernels there are.

    Raises:
        InputError: there was nothing to calibrate.
        Exception: what ONNX Runtime's quantiser cannot do; it has no error of its own.
    """
    if not conversion.samples:
        raise InputError("not quantised: the file brings its own scales")
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

    from fadiff.converter.check.reference import reference_session

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Mapping[str, np.ndarray]] = iter(conversion.samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            sample = next(self._left, None)
            return None if sample is None else dict(sample)

    label = f"ONNX Runtime int8 per {'channel' if per_channel else 'tensor'}"
    progress(f"{label}: calibrating")
    with scratch_folder() as folder:
        source, quantised = folder / "float.onnx", folder / "int8.onnx"
        onnx.save(_at_least_13(conversion.float_model), source)
        with _quiet():
            quantize_static(
                source,
                quantised,
                Reader(),
                per_channel=per_channel,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
            )
        session = reference_session(onnx.load(quantised))
    states = onnx_states(conversion.graph)
    return run_vectors(session, inputs, (), states, lambda done: progress(f"{label}: {done}"))


@contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's quantiser logs advice that the user has no use for."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _at_least_13(model: onnx.ModelProto) -> onnx.ModelProto:
    """In an opset that has per-channel scales."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return model if opset >= 13 else onnx.version_converter.convert_version(model, 13)
