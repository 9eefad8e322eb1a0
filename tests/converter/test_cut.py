"""Cutting a model at tensors, the advice where to, and the list of places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fadiff.converter import Cut, ModelError, UnsupportedError, convert
from fadiff.converter.cuts import cut_points
from fadiff.converter.read.load import load_model
from tests.converter.oracle import model_of, weights


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, two heads, and a TopK that sorts too much; the batch has a name."""
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "stem_relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "body", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3"], ["scores"], "score"),
        helper.make_node("Gemm", ["flat", "w4"], ["boxes"], "box"),
        helper.make_node("TopK", ["scores", "k"], ["best", "which"], "best_ones"),
        helper.make_node("Concat", ["best", "boxes"], ["all"], "pack", axis=1),
    ]
    constants = {
        "w1": weights(0, 8, 4, 3, 3),
        "w2": weights(1, 8, 8, 3, 3),
        "w3": weights(2, 8, 48),
        "w4": weights(3, 8, 5),
        "k": np.array([40], np.int64),
    }
    path = tmp_path_factory.mktemp("cut") / "detector.onnx"
    onnx.save(model_of(nodes, {"image": ("batch", 4, 9, 9)}, {"all": None}, constants), path)
    return path


def test_a_cut_model_computes_the_same_numbers(detector: Path) -> None:
    cut = Cut(("r1",), ("boxes", "pooled"))
    model, _, _ = load_model(detector, {"batch": 1}, cut)
    assert [v.name for v in model.graph.input] == ["r1"]
    assert {tensor.name for tensor in model.graph.initializer} == {"w2", "w4"}
    whole = onnx.load(detector)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("r1", "boxes", "pooled"))
    image = np.random.default_rng(0).standard_normal((1, 4, 9, 9)).astype(np.float32)
    r1, boxes, pooled = _run(whole, {"image": image}, ["r1", "boxes", "pooled"])
    for mine, theirs in zip(_run(model, {"r1": r1}, None), (boxes, pooled), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str] | None) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(names, feeds)


def test_a_cut_converts_what_is_refused_as_a_whole(detector: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(detector, dims={"batch": 1})
    message = str(caught.value)
    assert "before node best_ones converts: --outputs scores,boxes" in message
    graph = convert(detector, dims={"batch": 1}, cut=Cut(outputs=("scores", "boxes")), calibrate=False).graph
    assert [graph.tensors[name].shape for name in graph.outputs] == [(1, 48), (1, 5)]


def test_the_advice_leaves_out_both_ends(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["first", ""], "sort"),
        helper.make_node("Gemm", ["first", "w"], ["y"], "fc"),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
        helper.make_node("TopK", ["z", "k"], ["last", ""], "rank"),
    ]
    constants = {"w": weights(0, 40, 40), "k": np.array([40], np.int64)}
    path = tmp_path / "both.onnx"
    onnx.save(model_of(nodes, {"x": (1, 48)}, {"last": None}, constants), path)
    with pytest.raises(UnsupportedError, match="after node sort and before node rank") as caught:
        convert(path)
    assert "--inputs first --outputs z" in str(caught.value)
    convert(path, cut=Cut(("first",), ("z",)), calibrate=False)


def test_no_advice_where_nothing_would_stay(tmp_path: Path) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", ""], "sort")
    path = tmp_path / "sort.onnx"
    onnx.save(model_of([node], {"x": (1, 48)}, {"y": None}, {"k": np.array([40], np.int64)}), path)
    with pytest.raises(UnsupportedError) as caught:
        convert(path)
    assert "--outputs" not in str(caught.value)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (Cut(outputs=("scores_",)), "did you mean scores?"),
        (Cut(("imag",)), "did you mean image?"),
        (Cut(outputs=("boxes", "boxes")), "named twice"),
        (Cut(("pooled",), ("c2",)), "also need image"),
        (Cut(("image", "best"), ("boxes",)), "no output depends on it"),
    ],
)
def test_cuts_that_cannot_be_made(detector: Path, cut: Cut, said: str) -> None:
    with pytest.raises(ModelError, match=r"detector\.onnx") as caught:
        convert(detector, dims={"batch": 1}, cut=cut)
    assert said in str(caught.value)


def test_dimensions_that_were_cut_away_may_be_bound(detector: Path) -> None:
    shape = convert(detector, dims={"batch": 2}, cut=Cut(("flat",), ("boxes",)), calibrate=False).graph
    assert shape.tensors[shape.inputs[0]].shape == (2, 8)
    with pytest.raises(ModelError, match="did you mean batch"):
        convert(detector, dims={"batsch": 2}, cut=Cut(("flat",), ("boxes",)))


def test_values_that_a_branch_reads_are_kept(tmp_path: Path) -> None:
    branches = []
    for op in ("Relu", "Neg"):
        out = helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)
        branches.append(helper.make_graph([helper.make_node(op, ["a"], [out.name])], op, [], [out]))
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "fc"),
        helper.make_node("If", ["flag"], ["b"], "choice", then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Exp", ["b"], ["c"], "end"),
    ]
    constants = {"w": weights(0, 8, 4), "flag": np.array(False)}
    path = tmp_path / "if.onnx"
    onnx.save(model_of(nodes, {"x": (1, 8)}, {"c": None}, constants), path)
    model, _, _ = load_model(path, {}, Cut(outputs=("b",)))
    assert [node.name for node in model.graph.node] == ["fc", "choice"]


def test_cut_points_are_where_one_tensor_separates(detector: Path) -> None:
    points = cut_points(detector, dims={"batch": 1}, cut=Cut(), progress=lambda _: None)
    assert [(p.tensor, p.shape) for p in points] == [
        ("c1", (1, 8, 9, 9)),
        ("r1", (1, 8, 9, 9)),
        ("c2", (1, 8, 4, 4)),
        ("pooled", (1, 8, 1, 1)),
    ]
    stem, body, heads = 81 * 8 * 4 * 9, 16 * 8 * 8 * 9, 8 * 48 + 8 * 5
    assert [p.macs_before for p in points] == [stem, stem, stem + body, stem + body]
    assert {p.macs_before + p.macs_behind for p in points} == {stem + body + heads}
