"""Calibration samples: the user's, or random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from converter.errors import ModelError
from converter.ir.program import Program
from converter.read.inputs import Spans, Wanted, random_input, read_inputs


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
        ModelError: unreadable file, missing input, a shape that does not fit, or nothing but zeros.
    """
    stacked = read_inputs(path, "calibration data", _inputs(program))
    floats = [array for name, array in stacked.items() if program.is_float(name)]
    if floats and not any(array.any() for array in floats):
        raise ModelError(
            f"{path}: the calibration data is zero everywhere: no range can come from it; give real inputs"
        )
    count = len(next(iter(stacked.values())))
    return [{name: array[i, ...] for name, array in stacked.items()} for i in range(count)]  # (scalars, too)


def _inputs(program: Program) -> Wanted:
    return {
        name: (program.shapes[name], onnx.helper.tensor_dtype_to_np_dtype(program.types[name]))
        for name in program.inputs
    }
