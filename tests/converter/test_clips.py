"""The upper bound of a fused Clip survives whatever happens to the scale of its result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import convert
from tests.converter.oracle import check, compare, model_of, session, sqnr_db, weights

_BOUNDS = {"low": np.array(0, np.float32), "high": np.array(2, np.float32)}


def _joined(join: str) -> onnx.ModelProto:
    """A clipped convolution meets one with twenty times the range."""
    axis = {"axis": 1} if join == "Concat" else {}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="clipped"),
        helper.make_node("Clip", ["c1", "low", "high"], ["r1"], name="clip"),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[1, 1], name="pool"),
        helper.make_node("Conv", ["x", "w2"], ["c2"], name="wide"),
        helper.make_node(join, ["p1", "c2"], ["k"], name="join", **axis),
        helper.make_node("Conv", ["k", "w3"], ["y"], name="last"),
    ]
    constants = {
        **_BOUNDS,
        "w1": 3 * weights(1, 4, 3, 1, 1),
        "w2": 5 * weights(2, 4, 3, 1, 1),
        "w3": weights(3, 4, 8 if join == "Concat" else 4, 1, 1),
    }
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, constants)


@pytest.mark.parametrize("join", ["Concat", "Add"])
def test_a_wider_partner_does_not_lift_the_bound(join: str, tmp_path: Path) -> None:
    checked = check(_joined(join), tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 24
    clipped = checked.conversion.graph.by_name["clipped"]
    scale = checked.conversion.graph.tensors[clipped.outputs[0]].scale
    assert scale is not None and 127 * scale <= 2.01


def test_a_prescribed_scale_beyond_the_bound(tmp_path: Path) -> None:
    """The file quantises a value clipped at 2 in steps of 0.05: 127 of them are 6.35."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "zero"], ["xd"]),
        helper.make_node("Conv", ["xd", "w"], ["c"], name="conv"),
        helper.make_node("Clip", ["c", "low", "high"], ["r"], name="clip"),
        helper.make_node("QuantizeLinear", ["r", "s", "zero"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "s", "zero"], ["y"]),
    ]
    constants = {
        **_BOUNDS,
        "w": 3 * weights(1, 4, 3, 1, 1),
        "s": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
    }
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, constants)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path, calibration=[{"x": weights(9, 1, 3, 8, 8)}])
    x = weights(7, 1, 3, 8, 8)
    theirs, ours = (session(m).run(None, {"x": x})[0] for m in (model, conversion.quantized_model))
    assert theirs.max() == pytest.approx(2) and ours.max() <= 2.05
    assert sqnr_db(theirs, ours) > 25
    assert compare(conversion, np.random.default_rng(0)).lsb_to_quantized <= 1.01
