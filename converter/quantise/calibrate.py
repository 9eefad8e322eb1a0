"""Ranges of activations: ONNX Runtime's calibrator over calibration samples."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator

from converter.errors import ModelError, one_line
from converter.ir.program import Program
from converter.ir.stored import StoredWeights
from converter.read.inputs import Samples, Spans, Wanted, random_input, read_inputs
from converter.read.piecewise import run_model
from converter.read.runtime import run_nodes

# Importing onnxruntime.quantization puts onnxruntime/transformers on sys.path, and with it a top-level
# module `optimizer` that hides our package in an editable install.
sys.path[:] = [entry for entry in sys.path if Path(entry).parts[-2:] != ("onnxruntime", "transformers")]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Samples) -> None:
        self._samples: Iterator[Mapping[str, np.ndarray]] = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next sample, None at the end (the interface of CalibrationDataReader)."""
        sample = next(self._samples, None)
        return None if sample is None else dict(sample)


def calibration_ranges(
    file: str, model: onnx.ModelProto, weights: StoredWeights, samples: Samples, values: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value that each activation took (MinMax calibration).

    A model with weights on disk is run a piece at a time.

    Raises:
        ModelError: the samples do not fit the model.
    """
    if weights:
        found = run_model(model, weights, samples, frozenset(values))
        return {
            name: (float(min(a.min() for a in arrays)), float(max(a.max() for a in arrays)))
            for name, arrays in found
        }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        onnx.save(model, path)
        try:
            calibrator = create_calibrator(
                path,
                augmented_model_path=str(Path(folder) / "augmented.onnx"),
                calibrate_method=CalibrationMethod.MinMax,
            )
            calibrator.collect_data(_Reader(samples))
            found = calibrator.compute_data()
        except Exception as error:
            raise ModelError(f"{file}: calibration failed: {one_line(error)}") from error
        ranges = {}
        for value in values:
            if value not in found:  # an input that nothing reads
                continue
            low, high = found[value].range_value
            ranges[value] = (float(np.min(low)), float(np.max(high)))
        return ranges


def channel_maxima(
    file: str, model: onnx.ModelProto, samples: Samples, values: Collection[str]
) -> dict[str, np.ndarray]:
    """The largest magnitude that each channel (the second axis) of some computed values took.

    Raises:
        ModelError: the samples do not fit the model.
    """
    found: dict[str, np.ndarray] = {}
    graph = model.graph
    try:
        for arrays in run_nodes(graph.node, samples, list(values), graph.initializer, like=model):
            for name, array in arrays.items():
                largest = np.abs(array).max((0, *range(2, array.ndim)))
                found[name] = np.maximum(found.get(name, largest), largest)
    except Exception as error:
        raise ModelError(f"{file}: calibration failed: {one_line(error)}") from error
    return found


def random_samples(program: Program, seed: int, spans: Spans, count: int = 4) -> list[dict[str, np.ndarray]]:
    """Random inputs (converter/read/inputs.py), repeatable for a seed."""
    generator = np.random.default_rng(seed)
    return [
        {name: random_input(generator, *wanted, spans.get(name)) for name, wanted in _inputs(program).items()}
        for _ in range(count)
    ]


def load_samples(program: Program, path: Path) -> list[dict[str, np.ndarray]]:
    """Samples of an .npz file (converter/read/inputs.py).

    Raises:
        ModelError: unreadable file, missing input, or a shape that does not fit.
    """
    stacked = read_inputs(path, "calibration data", _inputs(program))
    count = len(next(iter(stacked.values())))
    return [{name: array[i] for name, array in stacked.items()} for i in range(count)]


def _inputs(program: Program) -> Wanted:
    return {
        name: (program.shapes[name], onnx.helper.tensor_dtype_to_np_dtype(program.types[name]))
        for name in program.inputs
    }
