"""Layers in float32 beside int8: the order of sums is that of the contract, the function that of ONNX."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.quantise.mixed import MixedSearch
from tests.converter.oracle import session


def one_layer(node: onnx.NodeProto, shape: tuple[int, ...], **constants: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def run_in_float(
    model: onnx.ModelProto, folder: Path, x: np.ndarray, name: str = "one"
) -> tuple[Graph, dict[str, np.ndarray]]:
    """The layer's tensors, and its graph, calibrated on `x`."""
    path = folder / "one.onnx"
    onnx.save(model, path)
    graph = convert(path, keep_float=[name], calibration=[{"x": x}]).graph
    (source,) = graph.inputs
    tensor = graph.tensors[source]
    stored = np.rint(x / np.float32(tensor.scale)).clip(-128, 127)
    axes = tensor.onnx_axes or range(x.ndim)
    integers = stored.transpose(axes).astype(np.int8)
    return graph, {source: integers, **run_reference(graph, {source: integers})}


def product_of(graph: Graph) -> HostLayer:
    (layer,) = (layer for layer in graph.layers if layer.op == "float_product")
    assert isinstance(layer, HostLayer)
    return layer


@settings(max_examples=15)
@given(st.data())
def test_convolutions(tmp_path_factory, data):
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    groups, kernel = draw(1, 3), (draw(1, 3), draw(1, 3))
    depth, channels = draw(1, 3), draw(1, 5)
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        "one",
        group=groups,
        strides=[draw(1, 2), draw(1, 2)],
        dilations=[draw(1, 2), 1],
        pads=[draw(0, 2) for _ in range(4)],
    )
    random = np.random.default_rng(draw(0, 99))
    size = (draw(5, 8), draw(kernel[1], 8))
    x = random.standard_normal((draw(1, 2), groups * depth, *size)).astype(np.float32)
    weight = random.standard_normal((groups * channels, depth, *kernel))
    model = one_layer(node, x.shape, w=weight, b=random.standard_normal(groups * channels))
    graph, found = run_in_float(model, tmp_path_factory.mktemp("conv"), x)
    layer = product_of(graph)
    scale = np.float32(graph.tensors[graph.inputs[0]].scale)
    rounded = found[graph.inputs[0]].transpose(0, 3, 1, 2) * scale
    expected = session(model).run(None, {"x": rounded})[0].transpose(0, 2, 3, 1)
    computed = found[layer.outputs[0]]
    assert computed.dtype == np.float32
    np.testing.assert_allclose(computed, expected, rtol=0, atol=2e-6 * np.abs(expected).max(initial=1))
    last = graph.tensors[graph.outputs[0]]
    steps = np.rint(computed / np.float32(last.scale)).clip(-128, 127)
    np.testing.assert_array_equal(found[last.name], steps)


def test_sums_are_in_order(tmp_path):
    """1e8 + 1 - 1e8 is 0 in one order of float32 sums and 1 in others."""
    weight = np.array([[1e8], [1.0], [-1e8], [0.5]])
    model = one_layer(helper.make_node("MatMul", ["x", "w"], ["y"], "one"), (1, 4), w=weight)
    graph, found = run_in_float(model, tmp_path, np.ones((1, 4), np.float32))
    total = np.float32(0)
    for x, w in zip(found["x.float"][0], weight[:, 0], strict=True):
        total = np.float32(total + np.float32(x * np.float32(w)))
    assert found[product_of(graph).outputs[0]].item() == total


@pytest.mark.parametrize("bound", [None, 0.5])
def test_an_upper_bound_is_kept(tmp_path, bound):
    """What saturation stands for in int8 is an operation in float."""
    limits = {} if bound is None else {"high": np.array(bound)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "one"),
        helper.make_node("Clip", ["c", "low", *limits], ["y"], "clip"),
    ]
    model = one_layer(nodes[0], (1, 2, 3, 3), w=np.ones((2, 2, 1, 1)), low=np.array(0.0), **limits)
    model.graph.node.append(nodes[1])
    model.graph.node[0].output[0] = "c"
    random = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    graph, found = run_in_float(onnx.shape_inference.infer_shapes(model), tmp_path, random)
    computed = found[product_of(graph).outputs[0]]
    assert computed.min() == 0.0
    assert (computed.max() == bound) if bound is not None else computed.max() > 0.5


@pytest.mark.parametrize(
    ("op", "constants", "exact"),
    [("Sqrt", {}, np.sqrt), ("Pow", {"w": np.array([2.0])}, lambda x: x * x)],
)
def test_roots_and_squares_are_rounded_once(tmp_path, op, constants, exact):
    """A printed name is a name, too: characters that files may not hold are replaced in it."""
    model = one_layer(helper.make_node(op, ["x", *constants], ["y"], "stage::one"), (1, 64), **constants)
    x = np.random.default_rng(0).uniform(0.1, 5, (1, 64)).astype(np.float32)
    graph, found = run_in_float(model, tmp_path, x, "stage_one")
    (layer,) = (layer for layer in graph.layers if layer.op == "formula")
    np.testing.assert_array_equal(found[layer.outputs[0]], exact(found[layer.inputs[0]]))


def test_other_powers_have_no_float_form(tmp_path):
    model = one_layer(helper.make_node("Pow", ["x", "w"], ["y"], "one"), (1, 8), w=np.array([3.0]))
    with pytest.raises(ModelError, match="Pow has no float32 form beside int8"):
        run_in_float(model, tmp_path, np.ones((1, 8), np.float32))


def test_twice_as_many_values_are_tried_each_time() -> None:
    """Of nine that could be held in float, six are enough: one, two, four and eight are tried."""
    sets, tried = [frozenset({f"layer{i}"}) for i in range(9)], list[int]()
    search = SimpleNamespace(
        is_judged=True,
        named=frozenset(),
        _candidates=lambda kept: sets,
        score=lambda kept: tried.append(len(kept)) or float(len(kept)),
        _needed=lambda kept, wanted, progress: (kept, wanted),
    )
    (kept, wanted), warning = MixedSearch.until(search, 5.0, lambda line: None)
    assert (len(kept), wanted, warning) == (8, 6.0, "")
    assert tried == [0, 9, 1, 2, 4, 8]
    assert "out of reach" in MixedSearch.until(search, 9.5, lambda line: None)[1]


def test_of_equal_layers_the_same_stay_int8_in_every_run():
    """Sets of strings have another order in every process; here one of twenty layers alone can do without."""
    names = frozenset(f"layer{i:02}" for i in range(20))
    search = SimpleNamespace(named=frozenset(), score=lambda kept: float(len(kept)), _work=lambda names: 1.0)
    assert names - MixedSearch._needed(search, names, 19.0, lambda line: None) == {"layer00"}
