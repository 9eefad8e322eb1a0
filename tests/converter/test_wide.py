"""16-bit activations as two int8 products: what the integers are, and what they gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import fadiff
from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.pipeline import ModelOptions
from tests.converter.oracle import model_of, session, sqnr_db, weights


def _perceptron() -> onnx.ModelProto:
    """Three products, a swish and an ELU between them; channels of the weights differ 30-fold."""
    loud = np.exp(np.linspace(0, 3.4, 32)).astype(np.float32)
    constants = {"a": weights(0, 24, 32) * loud, "b": weights(1, 32), "c": weights(2, 32, 16) / loud[:, None]}
    constants |= {"d": weights(3, 16), "e": weights(4, 16, 6)}
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["p"], "first"),
        helper.make_node("Sigmoid", ["p"], ["s"], "gate"),
        helper.make_node("Mul", ["p", "s"], ["q"], "swish"),
        helper.make_node("Gemm", ["q", "c", "d"], ["r"], "second"),
        helper.make_node("Elu", ["r"], ["t"], "elu"),
        helper.make_node("MatMul", ["t", "e"], ["y"], "third"),
    ]
    return model_of(nodes, {"x": (1, 24)}, {"y": None}, constants)


def _images() -> onnx.ModelProto:
    """Padding, strides, a pixel's own channel count, a ReLU, and rows of a matrix."""
    constants = {"a": weights(0, 8, 3, 3, 3), "b": weights(1, 8), "c": weights(2, 12, 8, 2, 2)}
    constants |= {"rows": np.array([1, 12, 4]), "e": weights(4, 4, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "a", "b"], ["p"], "first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["q"], "relu"),
        helper.make_node("Conv", ["q", "c"], ["r"], "second", strides=[2, 2]),
        helper.make_node("Reshape", ["r", "rows"], ["t"], "reshape"),
        helper.make_node("MatMul", ["t", "e"], ["y"], "third"),
    ]
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, constants)


def _slopes() -> onnx.ModelProto:
    """A PReLU with a slope for each channel between products, and behind a sum with what it read."""
    constants = {"a": weights(0, 16, 3, 3, 3), "b": weights(1, 16), "c": weights(2, 16, 16, 1, 1)}
    constants |= {"u": weights(5, 16, 1, 1), "v": weights(6, 16, 1, 1), "e": weights(4, 5, 16, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "a", "b"], ["p"], "first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("PRelu", ["p", "u"], ["q"], "slopes"),
        helper.make_node("Conv", ["q", "c"], ["r"], "second"),
        helper.make_node("Add", ["q", "r"], ["s"], "sum"),
        helper.make_node("PRelu", ["s", "v"], ["t"], "again"),
        helper.make_node("Conv", ["t", "e"], ["y"], "third"),
    ]
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, constants)


MODELS = {"perceptron": _perceptron, "images": _images, "slopes": _slopes}
PRODUCTS = ("first", "second", "third")


def _samples(model: onnx.ModelProto, first: int, count: int) -> list[dict[str, np.ndarray]]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": weights(first + i, *shape)} for i in range(count)]


def _converted(name: str, folder: Path, **options: object) -> Conversion:
    model = MODELS[name]()
    onnx.save(model, folder / "model.onnx")
    return convert(folder / "model.onnx", calibration=_samples(model, 100, 16), **options)


def _noise_free_db(conversion: Conversion, samples: list[dict[str, np.ndarray]]) -> float:
    """Of the last product, of inputs that int8 holds exactly."""
    graph = conversion.graph
    wanted, found = [], []
    runtime = session(conversion.float_model)
    x = graph.tensors[graph.inputs[0]]
    for sample in samples:
        stored = store_inputs(graph, sample)
        exact = {"x": from_storage(x, stored[x.name], sample["x"].shape).astype(np.float32)}
        wanted.append(runtime.run(None, exact)[0])
        integers = run_reference(graph, stored)
        found.append(
            from_storage(graph.tensors[graph.outputs[0]], integers[graph.outputs[0]], wanted[0].shape)
        )
    return sqnr_db(np.stack(wanted), np.stack(found))


@pytest.mark.parametrize(("name", "gain"), [("perceptron", 8), ("images", 2), ("slopes", 2)])
def test_bits_that_eight_had_lost(name: str, gain: float, tmp_path: Path) -> None:
    """What is left is the rounding of weights and of the output."""
    seen = _samples(MODELS[name](), 500, 20)
    plain, wide = _converted(name, tmp_path), _converted(name, tmp_path, wide=PRODUCTS)
    kinds = {layer.name: layer.op for layer in wide.graph.layers}
    assert all(kinds[product] == "float_sums" for product in PRODUCTS)
    assert list(kinds.values()).count("to_int8") == 1  # (the output)
    products = [layer for layer in wide.graph.layers if isinstance(layer, TensorCoreLayer)]
    assert len(products) == 3 and all(wide.graph.tensors[x.outputs[0]].dtype == "int32" for x in products)
    ours = sum(x.macs for x in plain.graph.layers if isinstance(x, TensorCoreLayer))
    assert sum(x.macs for x in products) == 2 * ours
    before, after = _noise_free_db(plain, seen), _noise_free_db(wide, seen)
    assert after > before + gain, (before, after)


@pytest.mark.parametrize("name", MODELS)
def test_the_device_computes_them(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "model.calibration.npz", x=np.stack([s["x"] for s in _samples(model, 100, 16)]))
    result = fadiff.compile(
        tmp_path / "model.onnx",
        tmp_path / "out",
        reading=ModelOptions(wide=PRODUCTS),
        method="layerwise",
        verify=True,
    )
    assert result.verification is not None
    assert result.verification.bit_exact and result.verification.traffic_exact


def test_auto_takes_them_before_the_core(tmp_path: Path) -> None:
    conversion = _converted("perceptron", tmp_path, keep_float_until=20.0)
    kinds = {layer.op for layer in conversion.graph.layers}
    assert "float_sums" in kinds and "float_product" not in kinds
    assert conversion.mixed.before_db is not None and conversion.mixed.after_db is not None
    assert conversion.mixed.before_db < 20.0 <= conversion.mixed.after_db
