"""What an operator is stands in one record: rooms that asked lists of their own had forgotten some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from fadiff.converter import convert
from fadiff.converter.cuts import cut_points
from fadiff.converter.ir.host import Formula
from fadiff.converter.ir.kinds import ELEMENTWISE, KEEPS_SCALE, MOVE, WEIGHTED, Kind, named
from fadiff.converter.ir.operators import keeps_apart
from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.inputs import suggested_spans
from fadiff.converter.read.cut import Cut
from tests.converter.oracle import session, weights

_HEAD = '<ir_version: 8, opset_import: ["": 17]> net'


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{_HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    for node in model.graph.node:
        node.name = node.output[0]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_kinds_that_exclude_each_other_share_no_operator() -> None:
    for kinds in ((ELEMENTWISE, WEIGHTED, Kind.RESHAPE, Kind.TRANSPOSE, Kind.SHUFFLE, Kind.PICK, Kind.JOIN),):
        found = [op for kind in kinds for op in named(kind)]
        assert len(set(found)) == len(found)
    assert named(Kind.RESHAPE) < named(MOVE) < named(KEEPS_SCALE)


_NOT_NEGATIVE = sorted(named(Kind.NOT_NEGATIVE) - {"Softmax"})


@pytest.mark.parametrize("op", sorted(named(Kind.HOMOGENEOUS)))
def test_homogeneous_functions_are(op: str) -> None:
    x = np.linspace(-8, 8, 97, dtype=np.float32)
    run = session(_model(f"(float[97] x) => (float[97] y) {{ y = {op} (x) }}"))
    ((once,), (twice,)) = (run.run(None, {"x": a}) for a in (x, 4 * x))
    np.testing.assert_array_equal(twice, 4 * once)


@pytest.mark.parametrize("op", _NOT_NEGATIVE)
def test_no_result_is_below_zero(op: str) -> None:
    x = np.linspace(-40, 40, 401, dtype=np.float32)
    (found,) = session(_model(f"(float[401] x) => (float[401] y) {{ y = {op} (x) }}")).run(None, {"x": x})
    assert np.nanmin(found) >= 0


def test_channels_stay_apart_in_an_unsqueeze_as_in_other_reshapes() -> None:
    program = program_of(
        _model("(float[2,5] x) => (float[2,5,1,1] y) <int64[2] axes = {2, 3}> { y = Unsqueeze (x, axes) }")
    )
    assert keeps_apart(program, program.nodes[0])


def test_a_normalisation_behind_a_flatten_says_what_inputs_are() -> None:
    text = """(float[1,3,4] x) => (float[1,12] y) <float most = {255}> {
        f = Flatten (x)
        d = Div (f, most)
        y = Relu (d)
    }"""
    assert suggested_spans(program_of(_model(text)))["x"] == (0, 255)


def test_pixels_made_of_channels_are_no_other_place_to_cut(tmp_path: Path) -> None:
    text = """(float[1,4,4,4] x) => (float[1,4,8,8] y) {
        a = Conv (x, w)
        b = DepthToSpace <blocksize = 2> (a)
        y = Relu (b)
    }"""
    onnx.save(_model(text, w=weights(1, 16, 4, 1, 1)), tmp_path / "m.onnx")
    points = cut_points(tmp_path / "m.onnx", dims={}, cut=Cut(), progress=lambda _: None)
    assert [point.tensor for point in points] == ["a"]


@pytest.mark.parametrize("body", ["Tile (m, reps)", "Expand (m, shape)"])
def test_repeated_elements_stay_in_float_between_float_layers(body: str, tmp_path: Path) -> None:
    text = f"""(float[1,4,1,6] x) => (float[1,4,3,6] y)
    <int64[4] reps = {{1, 1, 3, 1}}, int64[4] shape = {{1, 4, 3, 6}}> {{
        c = Conv (x, w)
        m = Mul (c, c)
        t = {body}
        y = Mul (t, t)
    }}"""
    onnx.save(_model(text, w=weights(1, 4, 4, 1, 1)), tmp_path / "m.onnx")
    graph = convert(tmp_path / "m.onnx", calibrate=False, keep_float=["m", "y"]).graph
    operators = [type(getattr(layer, "operator", layer)) for layer in graph.layers]
    assert operators.count(Formula) == 2 and [layer.op for layer in graph.layers].count("to_int8") == 1


def test_a_repetition_is_copied_where_movement_is_not_absorbed(tmp_path: Path) -> None:
    text = """(float[1,4] x) => (float[3,4] y) <int64[2] reps = {3, 1}> {
        t = Tile (x, reps)
        y = Add (t, w)
    }"""
    onnx.save(_model(text, w=weights(1, 3, 4)), tmp_path / "m.onnx")
    graph = convert(tmp_path / "m.onnx", calibrate=False, without=["absorb-movement"]).graph
    assert "copy" in [layer.op for layer in graph.layers]
