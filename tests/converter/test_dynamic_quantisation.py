"""What ONNX Runtime's quantize_dynamic writes, and masks that no tool can quantise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

from fadiff.converter import ModelError, convert
from tests.converter.oracle import Calibration, compare, model_of, session, sqnr_db, weights

TOKENS, WIDTH, HIDDEN = 6, 16, 8


def _dynamic(model: onnx.ModelProto, folder: Path, **options: object) -> Path:
    source, path = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, **options)
    return path


def test_rows_of_a_table_go_straight_into_a_product(tmp_path: Path) -> None:
    """MatMulInteger reads the integers, its scale comes behind; the other reader has the scale before."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"], name="embed"),
        helper.make_node("MatMul", ["e", "w"], ["m"], name="product"),
        helper.make_node("Transpose", ["e"], ["t"], perm=[1, 0], name="turn"),
        helper.make_node("MatMul", ["t", "v"], ["n"], name="turned"),
        helper.make_node("Concat", ["m", "n"], ["c"], axis=0, name="both"),
        helper.make_node("ReduceMean", ["e"], ["r"], name="mean", keepdims=1),
        helper.make_node("Add", ["c", "r"], ["y"], name="add"),
    ]
    constants = {
        "table": weights(0, 20, WIDTH) / 3,
        "w": weights(1, WIDTH, HIDDEN) / 4,
        "v": weights(2, TOKENS, HIDDEN) / 4,
    }
    model = model_of(nodes, {}, {"y": None}, constants)
    model.graph.input.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, (TOKENS,)))
    path = _dynamic(model, tmp_path)
    assert sum(node.op_type == "MatMulInteger" for node in onnx.load(path).graph.node) == 2
    tokens = {"tokens": np.arange(TOKENS)}
    conversion = convert(path, calibration=[tokens])
    for model, least in ((conversion.float_model, 30), (conversion.quantized_model, 25)):
        wanted, found = (session(m).run(None, tokens)[0] for m in (onnx.load(path), model))
        assert sqnr_db(wanted, found) > least
    assert compare(conversion, np.random.default_rng(1)).lsb_to_quantized <= 2.01


def test_a_recurrent_cell(tmp_path: Path) -> None:
    """DynamicQuantizeLSTM: weights of both directions as integers, input first."""
    cell = helper.make_node(
        "LSTM", ["x", "w", "r", "b"], ["h"], name="cell", hidden_size=HIDDEN, direction="bidirectional"
    )
    constants = {
        "w": weights(0, 2, 4 * HIDDEN, WIDTH) / 4,
        "r": weights(1, 2, 4 * HIDDEN, HIDDEN) / 3,
        "b": weights(2, 2, 8 * HIDDEN) / 4,
    }
    model = model_of([cell], {"x": (TOKENS, 1, WIDTH)}, {"h": None}, constants)
    for per_channel in (False, True):
        path = _dynamic(model, tmp_path, per_channel=per_channel, reduce_range=True)
        assert any(node.op_type == "DynamicQuantizeLSTM" for node in onnx.load(path).graph.node)
        x = {"x": weights(5, TOKENS, 1, WIDTH)}
        wanted, found = (session(m).run(None, x)[0] for m in (onnx.load(path), convert(path).float_model))
        assert sqnr_db(wanted, found) > 30


def _masked(mask: np.ndarray) -> onnx.ModelProto:
    """Attention scores with a mask added."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0], name="turn"),
        helper.make_node("MatMul", ["x", "t"], ["s"], name="scores"),
        helper.make_node("Add", ["s", "mask"], ["m"], name="blank"),
        helper.make_node("Softmax", ["m"], ["p"], name="softmax"),
        helper.make_node("MatMul", ["p", "x"], ["y"], name="context"),
    ]
    return model_of(nodes, {"x": (TOKENS, WIDTH)}, {"y": None}, {"mask": mask})


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnxruntime")
def test_a_quantised_mask_of_infinities_is_lost(tmp_path: Path) -> None:
    """The quantiser gives it an infinite scale, and ONNX Runtime computes NaN or ignores it."""
    mask = np.triu(np.full((TOKENS, TOKENS), -np.inf, np.float32), 1)
    onnx.save(_masked(mask), tmp_path / "float.onnx")
    samples = Calibration([{"x": weights(i, TOKENS, WIDTH) / 4} for i in range(3)])
    quantize_static(tmp_path / "float.onnx", tmp_path / "m.onnx", samples)
    with pytest.raises(ModelError, match=r"scale of constant mask_quantized is infinite.*-1e4") as caught:
        convert(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)


def test_an_infinite_scale_of_a_computed_mask_is_calibrated(tmp_path: Path) -> None:
    scales = {"inf": np.array(np.inf, np.float32), "zero": np.array(255, np.uint8)}
    limits = {"low": np.array(-np.inf, np.float32), "none": np.array(0, np.float32)}
    model = _masked(np.zeros(0, np.float32))
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("hidden", TensorProto.BOOL, (1, TOKENS)))
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in {**scales, **limits}.items()
    )
    for node in reversed(
        [
            helper.make_node("Where", ["hidden", "low", "none"], ["w"], name="where"),
            helper.make_node("QuantizeLinear", ["w", "inf", "zero"], ["q"], name="q"),
            helper.make_node("DequantizeLinear", ["q", "inf", "zero"], ["mask"], name="dq"),
        ]
    ):
        model.graph.node.insert(0, node)
    onnx.save(model, tmp_path / "m.onnx")
    hidden = np.arange(TOKENS)[None] > 3
    calibration = [{"x": weights(i, TOKENS, WIDTH) / 4, "hidden": hidden} for i in range(3)]
    conversion = convert(tmp_path / "m.onnx", calibration=calibration)
    x = weights(7, TOKENS, WIDTH) / 4
    (found,) = session(conversion.quantized_model).run(None, {"x": x, "hidden": hidden})
    scores = np.where(hidden, -np.inf, x @ x.T)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    assert sqnr_db(shares / shares.sum(1, keepdims=True) @ x, found) > 25
