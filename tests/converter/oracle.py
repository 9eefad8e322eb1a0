"""Check a conversion against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader

from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs

OPSET = 17


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...] | None],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A float model."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model


@dataclass(frozen=True)
class Checked:
    """What the comparison found; errors in units of the output's last place."""

    conversion: Conversion
    lsb_to_quantized: float
    sqnr_db: float


def check(model: onnx.ModelProto, folder: Path, seed: int = 0, **options: object) -> Checked:
    """Convert, run the integer reference, ONNX Runtime's quantised and float models on one input."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    conversion = convert(path, seed=seed, **options)
    return compare(conversion, np.random.default_rng(seed + 1000))


def compare(conversion: Conversion, generator: np.random.Generator) -> Checked:
    quantized = session(conversion.quantized_model)
    feeds = {i.name: _random(i, generator) for i in quantized.get_inputs()}
    graph = conversion.graph
    wanted = quantized.run(None, feeds)
    floats = session(conversion.float_model).run(None, feeds)
    found = run_reference(graph, store_inputs(graph, feeds))
    worst, sqnr = 0.0, np.inf
    for name, quantised, real in zip(graph.outputs, wanted, floats, strict=True):
        tensor = graph.tensors[name]
        restored = from_storage(tensor, found[name], quantised.shape)
        worst = max(worst, float(np.abs(restored - quantised).max() / (tensor.scale or 1.0)))
        sqnr = min(sqnr, sqnr_db(real, restored))
    return Checked(conversion, worst, sqnr)


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Samples as ONNX Runtime's quantiser reads them."""

    def __init__(self, samples: Iterable[dict[str, np.ndarray]]) -> None:
        self.left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def sqnr_db(real: np.ndarray, found: np.ndarray) -> float:
    noise = float(((real.astype(np.float64) - found) ** 2).sum())
    signal = float((real.astype(np.float64) ** 2).sum())
    return float("inf") if noise == 0 else 10 * np.log10(max(signal, 1e-30) / noise)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # others would spin
    # unfused: float convolutions of dequantised numbers, an independent way to the same answer
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def _random(info: onnxruntime.NodeArg, generator: np.random.Generator) -> np.ndarray:
    if "float" in info.type:
        return generator.standard_normal(info.shape).astype(np.float32)
    return generator.integers(0, 2, info.shape).astype(np.int64)


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """A constant of shapes, axes or sizes."""
    return np.array(values, np.int64)
