"""Files with a scale for each output channel: our integers beside ONNX Runtime's run of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from fadiff.converter import convert
from fadiff.converter.check.reference import integer_reference, reference_session
from fadiff.converter.check.storage import from_storage, to_storage
from tests.converter.oracle import Calibration, model_of, session, weights


def _unlike(seed: int, *shape: int) -> np.ndarray:
    """Weights whose output channels differ 30-fold."""
    loud = np.exp(np.random.default_rng(seed).uniform(-3.4, 0, (shape[0], *[1] * (len(shape) - 1))))
    return (weights(seed, *shape) * loud / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def _dense() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1, name="g1"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["c"], transB=1, name="g2"),
        helper.make_node("Tanh", ["c"], ["t"]),
        helper.make_node("MatMul", ["t", "w3"], ["y"], name="m3"),
    ]
    constants = {"w1": _unlike(1, 40, 24), "w2": _unlike(2, 40, 40), "w3": _unlike(3, 8, 40).T.copy()}
    constants |= {"b1": weights(4, 40) / 9, "b2": weights(5, 40) / 9}
    return model_of(nodes, {"x": (1, 24)}, {"y": (1, 8)}, constants)


def _images() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4, name="c1"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2", "b2"], ["c"], group=16, strides=[2, 2], pads=[1] * 4, name="c2"),
        helper.make_node("Relu", ["c"], ["s"]),
        helper.make_node("Conv", ["s", "w3", "b3"], ["y"], name="c3"),
    ]
    constants = {"w1": _unlike(1, 16, 3, 3, 3), "w2": _unlike(2, 16, 1, 3, 3), "w3": _unlike(3, 10, 16, 1, 1)}
    constants |= {"b1": weights(4, 16) / 9, "b2": weights(5, 16) / 9, "b3": weights(6, 10) / 9}
    return model_of(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 10, 6, 6)}, constants)


MODELS = {"dense": _dense, "images": _images}


@pytest.mark.parametrize("activation", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("form", list(QuantFormat), ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_integers_are_the_files(kind: str, form: QuantFormat, activation: QuantType, tmp_path: Path) -> None:
    """Within one step of the output at a few ties; zero points of inputs and outputs stay, too."""
    model, path = MODELS[kind](), tmp_path / "int8.onnx"
    onnx.save(model, tmp_path / "float.onnx")
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    quantize_static(
        tmp_path / "float.onnx",
        path,
        Calibration({"x": weights(i, *shape)} for i in range(8)),
        quant_format=form,
        activation_type=activation,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"ActivationSymmetric": activation == QuantType.QInt8},
    )
    conversion = convert(path, quantize="none")
    assert not any("requantised" in note for note in conversion.notes)
    graph = conversion.graph
    assert all(layer.channel_scale is not None for layer in graph.tensor_core_layers)
    reference, theirs = reference_session(integer_reference(graph)), session(onnx.load(path))
    source, result = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
    step, unequal, count = float(result.meaning()[0].reshape(-1)[0]), 0, 0
    for i in range(16):
        x = weights(100 + i, *shape)
        wanted = theirs.run(None, {"x": x})[0]
        (stored,) = reference.run([result.name], {source.name: to_storage(source, x)})
        off = np.rint(np.abs(from_storage(result, stored, wanted.shape) - wanted) / step)
        assert off.max() <= 1
        unequal, count = unequal + int(off.sum()), count + off.size
    assert unequal <= 0.02 * count
