"""Operators one by one, and random chains of them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from fadiff.converter.ir.host import PoolWindow
from fadiff.converter.ir.strided import dense
from fadiff.converter.lower.context import _image_strides
from tests.converter.oracle import check, ints, model_of, weights

IMAGE = (1, 4, 7, 9)
ROWS = (2, 5, 12)


def _one(op: str, shape: tuple[int, ...], *, opset: int = 18, constants=None, **attributes):  # type: ignore[no-untyped-def]
    constants = constants or {}
    node = helper.make_node(op, ["x", *constants], ["y"], name="node", **attributes)
    return model_of([node], {"x": shape}, {"y": None}, constants, opset)


def test_a_global_maximum_is_one_window(tmp_path: Path) -> None:
    layers = check(_one("GlobalMaxPool", IMAGE), tmp_path).conversion.graph.layers
    (window,) = (layer.operator.window for layer in layers if layer.op == "max_pool")
    assert window == PoolWindow((7, 9), (1, 1), (1, 1), (0, 0, 0, 0))


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 4, 5), (1, 3, 1, 5), (2, 3, 4, 1), (2, 1, 4, 5), (2, 3, 5)]
)
def test_strides_of_an_image_are_those_of_a_dense_one(shape: tuple[int, ...]) -> None:
    """Also along axes of one element."""
    _, c, *plane = shape
    height, width = plane if len(plane) == 2 else (1, plane[0])
    stored = dense("t", shape, None, (0, *range(2, len(shape)), 1))
    assert _image_strides(stored) == (height * width * c, width * c, c, 1)
    assert _image_strides(dense("t", shape, None)) == (None if c > 1 else (height * width, width, 1, 1))


def _resized(height: int, width: int, coordinates: str, **attributes: object) -> onnx.ModelProto:
    constants = {"r": weights(0, 0), "s": weights(0, 0), "z": ints(1, 4, height, width)}
    return _one(
        "Resize", IMAGE, constants=constants, coordinate_transformation_mode=coordinates, **attributes
    )


COORDINATES = ("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
NEAREST = ("ceil", "floor", "round_prefer_ceil", "round_prefer_floor")

CASES = {
    "max pool": _one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "max pool ceil": _one("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max pool dilated": _one("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 3]),
    "max pool 1-d": _one("MaxPool", (2, 3, 11), kernel_shape=[3], strides=[2]),
    "average pool": _one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "average pool padded": _one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=1
    ),
    "global max pool": _one("GlobalMaxPool", IMAGE),
    "instance norm": _one("InstanceNormalization", IMAGE, constants={"s": weights(1, 4), "b": weights(2, 4)}),
    "batch norm": _one(
        "BatchNormalization",
        IMAGE,
        constants={"s": weights(1, 4), "b": weights(2, 4), "m": weights(3, 4), "v": weights(4, 4) ** 2 + 0.5},
    ),
    "layer norm": _one(
        "LayerNormalization", ROWS, constants={"s": weights(1, 12), "b": weights(2, 12)}, axis=-1
    ),
    "layer norm of two axes": _one("LayerNormalization", ROWS, constants={"s": weights(1, 5, 12)}, axis=1),
    "softmax": _one("Softmax", ROWS, axis=-1),
    "softmax inside": _one("Softmax", ROWS, axis=1),
    "softmax of old": _one("Softmax", ROWS, axis=1, opset=11),
    "log softmax": _one("LogSoftmax", ROWS, axis=-1),
    "log softmax inside": _one("LogSoftmax", ROWS, axis=1),
    "log softmax of old": _one("LogSoftmax", ROWS, axis=1, opset=11),
    "reduce mean": _one("ReduceMean", ROWS, constants={"a": ints(-1)}),
    "reduce sum kept": _one("ReduceSum", ROWS, constants={"a": ints(1)}, keepdims=1),
    "reduce max": _one("ReduceMax", ROWS, constants={"a": ints(0, 2)}, keepdims=0),
    "reduce min": _one("ReduceMin", IMAGE, constants={"a": ints(1)}),
    "slice": _one(
        "Slice", IMAGE, constants={"s": ints(1, 8), "e": ints(3, -9), "a": ints(1, 3), "t": ints(1, -2)}
    ),
    "slice of old": _one("Slice", IMAGE, opset=9, starts=[1, 2], ends=[3, 100], axes=[1, 3]),
    "slice of old, first axes": _one("Slice", ROWS, opset=9, starts=[1, 0], ends=[2, -1]),
    "slice of first axes": _one("Slice", ROWS, constants={"s": ints(1, 0), "e": ints(2, -1)}),
    "gather row": _one("Gather", ROWS, constants={"i": ints(3)}, axis=1),
    "gather rows": _one("Gather", ROWS, constants={"i": np.array([[4, 0], [2, 2]])}, axis=1),
    "gather the only row": _one("Gather", (1, 2, 5), constants={"i": ints(0, 0, -1)}, axis=0),
    "pad": _one("Pad", IMAGE, constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}),
    "pad reflect": _one("Pad", IMAGE, constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}, mode="reflect"),
    "pad edge": _one("Pad", IMAGE, constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}, mode="edge"),
    "pad of nothing left": _one("Pad", (2, 1), constants={"p": ints(0, 2, 1, -1)}),
    "pad edge of one row": _one("Pad", (2, 1, 5), constants={"p": ints(0, 2, 0, 0, 1, 0)}, mode="edge"),
    "tile": _one("Tile", ROWS, constants={"r": ints(2, 1, 3)}),
    "expand": _one("Expand", (1, 5, 1), constants={"s": ints(3, 1, 4)}),
    "transpose": _one("Transpose", ROWS, perm=[2, 0, 1]),
    "depth to space": _one("DepthToSpace", (1, 8, 3, 4), blocksize=2),
    "space to depth": _one("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    "resize nearest": _one(
        "Resize", IMAGE, constants={"r": weights(0, 0), "s": np.array([1, 1, 2, 2], np.float32)}
    ),
    "resize linear": _one(
        "Resize",
        IMAGE,
        constants={"r": weights(0, 0), "s": np.array([1, 1, 1.5, 2], np.float32)},
        mode="linear",
    ),
    "resize aligned": _one(
        "Resize",
        IMAGE,
        constants={"r": weights(0, 0), "s": np.array([1, 1, 3, 2], np.float32)},
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    **{f"{c} {n}": _resized(12, 6, c, mode="nearest", nearest_mode=n) for c in COORDINATES for n in NEAREST},
    **{f"linear {c}": _resized(12, 6, c, mode="linear") for c in COORDINATES},
    **{f"linear to two rows {c}": _resized(2, 14, c, mode="linear") for c in COORDINATES},
    **{f"linear to a row {c}": _resized(1, 14, c, mode="linear") for c in COORDINATES},
    "upsample": _one("Upsample", IMAGE, constants={"s": np.array([1, 1, 2, 3], np.float32)}, opset=9),
    "depth to space by columns": _one("DepthToSpace", (1, 12, 3, 4), blocksize=2, mode="CRD"),
    "pad wrap": _one("Pad", IMAGE, constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}, mode="wrap", opset=19),
    "pad reflect and crop": _one(
        "Pad", IMAGE, constants={"p": ints(0, 0, -2, 2, 0, 0, 3, -1)}, mode="reflect"
    ),
    "pad and crop": _one("Pad", IMAGE, constants={"p": ints(0, -1, -2, 2, 0, 1, 3, -1)}),
    "reduce the inner axis of an image": _one("ReduceSum", IMAGE, constants={"a": ints(1)}, keepdims=0),
    "mean of pixels": _one("ReduceMean", IMAGE, constants={"a": ints(2, 3)}, keepdims=0),
    "mean of rows and channels": _one("ReduceMean", IMAGE, constants={"a": ints(1, 2)}, keepdims=1),
    "max pool same upper": _one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max pool same lower": _one("MaxPool", IMAGE, kernel_shape=[2, 4], strides=[2, 3], auto_pad="SAME_LOWER"),
    "average pool ceil": _one(
        "AveragePool", IMAGE, kernel_shape=[3, 4], strides=[2, 3], pads=[1, 0, 0, 2], ceil_mode=1, opset=22
    ),
    **{
        f"transposed {pad}": _one(
            "ConvTranspose", IMAGE, constants={"w": weights(1, 4, 2, 4, 5)}, strides=[2, 2], auto_pad=pad
        )
        for pad in ("SAME_UPPER", "SAME_LOWER")
    },
    "transposed and cropped": _one(
        "ConvTranspose", IMAGE, constants={"w": weights(1, 4, 2, 3, 3)}, strides=[1, 2], pads=[3, 4, 3, 5]
    ),
    "transposed to a shape": _one(
        "ConvTranspose", IMAGE, constants={"w": weights(1, 4, 2, 3, 3)}, strides=[2, 2], output_shape=[14, 19]
    ),
    "sum of four": _one(
        "Sum", ROWS, constants={"a": weights(1, 5, 1), "b": weights(2, 12), "c": weights(3, 1)}
    ),
    "min of three": _one("Min", ROWS, constants={"a": weights(1, 5, 1), "b": weights(2, 12)}),
    "split": _one(
        "Slice", ROWS, constants={"s": ints(3, 1), "e": ints(-1, 4), "a": ints(2, 1), "t": ints(2, 1)}
    ),
    "prelu": _one("PRelu", IMAGE, constants={"s": weights(1, 4, 1, 1)}),
    "gelu": _one("Gelu", ROWS, opset=20),
    "clip": _one("Clip", ROWS, constants={"a": np.array(-0.5, np.float32), "b": np.array(0.7, np.float32)}),
    "mul broadcast": _one("Mul", IMAGE, constants={"c": weights(1, 4, 1, 1)}),
    "div": _one("Div", ROWS, constants={"c": np.abs(weights(1, 12)) + 1}),
    "sub": _one("Sub", ROWS, constants={"c": weights(1, 5, 1)}),
    "max": _one("Max", ROWS, constants={"c": weights(1, 12)}),
    "add broadcast": _one("Add", ROWS, constants={"c": weights(1, 2, 1, 12)}),
    "transposed convolution": _one(
        "ConvTranspose", IMAGE, constants={"w": weights(1, 4, 3, 3, 3)}, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "transposed grouped": _one(
        "ConvTranspose",
        IMAGE,
        constants={"w": weights(1, 4, 2, 2, 3), "b": weights(2, 4)},
        group=2,
        strides=[3, 2],
        output_padding=[1, 0],
    ),
    "transposed dilated": _one(
        "ConvTranspose", IMAGE, constants={"w": weights(1, 4, 2, 3, 3)}, dilations=[2, 2]
    ),
    "transposed 1-d": _one("ConvTranspose", (1, 4, 6), constants={"w": weights(1, 4, 3, 4)}, strides=[2]),
    "transposed 1-d, only pads given": _one(
        "ConvTranspose", (1, 4, 6), constants={"w": weights(1, 4, 3, 4)}, pads=[2, 1]
    ),
    "transposed 1-d dilated": _one(
        "ConvTranspose", (1, 4, 6), constants={"w": weights(1, 4, 3, 4)}, dilations=[2], pads=[0, 3]
    ),
    "transposed 1-d same lower": _one(
        "ConvTranspose", (1, 4, 6), constants={"w": weights(1, 4, 3, 4)}, strides=[3], auto_pad="SAME_LOWER"
    ),
    "transposed 1-d beside its image": _one(
        "ConvTranspose",
        (1, 4, 1),
        constants={"w": weights(1, 4, 3, 2)},
        strides=[3],
        dilations=[7],
        pads=[3, 0],
    ),
    "gemm of columns": _one("Gemm", (8, 5), constants={"w": weights(1, 6, 8)}, transA=1, transB=1, alpha=0.5),
    "matmul of one column": _one("MatMul", (5, 1), constants={"w": weights(1, 1, 6)}),
    "matmul": _one("MatMul", ROWS, constants={"w": weights(1, 12, 6)}),
    "matmul batched weight": _one("MatMul", ROWS, constants={"w": weights(1, 2, 12, 6)}),
}


@pytest.mark.parametrize("case", CASES)
def test_one_operator(case: str, tmp_path: Path) -> None:
    checked = check(CASES[case], tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 20


@pytest.mark.parametrize(("op", "first"), [("Conv", (6, 1)), ("ConvTranspose", (6, 1)), ("Conv", (12, 1))])
def test_groups_of_one_channel_are_depthwise(op: str, first: tuple[int, int], tmp_path: Path) -> None:
    """But not where a channel gives several."""
    model = _one(op, (1, 6, 7, 9), constants={"w": weights(1, *first, 3, 3)}, group=6, strides=[1, 1])
    layers = check(model, tmp_path).conversion.graph.tensor_core_layers
    assert {layer.op for layer in layers} == {"depthwise" if first[0] == 6 else "conv"}


@pytest.mark.parametrize(("index", "perm"), [(np.array(3), (1, 0)), (ints(1, 3), (2, 1, 0))])
def test_an_index_takes_its_axis_away_and_a_vector_keeps_it(
    index: np.ndarray, perm: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["picked"], axis=1),
        helper.make_node("Transpose", ["picked"], ["turned"], perm=perm),
        helper.make_node("Mul", ["turned", "turned"], ["y"]),
    ]
    checked = check(model_of(nodes, {"x": ROWS}, {"y": None}, {"i": index}), tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 20


def test_a_chain_of_functions_becomes_one_table(tmp_path: Path) -> None:
    """x * sigmoid(1.7 x) in four nodes; scaling alone costs nothing."""
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("Div", ["c", "two"], ["y"]),
    ]
    constants = {"k": np.array(1.7, np.float32), "two": np.array([2], np.float32)}
    checked = check(model_of(nodes, {"x": ROWS}, {"y": None}, constants), tmp_path)
    assert [layer.op for layer in checked.conversion.graph.layers] == ["lookup"]
    assert checked.lsb_to_quantized <= 1.01


def test_a_causal_mask_joins_the_softmax(tmp_path: Path) -> None:
    mask = np.triu(np.full((6, 6), -1e9, np.float32), 1)
    nodes = [helper.make_node("Add", ["x", "m"], ["s"]), helper.make_node("Softmax", ["s"], ["y"])]
    checked = check(model_of(nodes, {"x": (2, 3, 6, 6)}, {"y": None}, {"m": mask}), tmp_path)
    assert [layer.op for layer in checked.conversion.graph.layers] == ["softmax"]
    assert checked.lsb_to_quantized <= 1.01


@pytest.mark.parametrize("fill", [-1e9, -np.inf])
@pytest.mark.parametrize("keep_where_true", [True, False])
def test_scores_that_a_where_blanks_join_the_softmax(
    tmp_path: Path, fill: float, keep_where_true: bool
) -> None:
    seen = np.tril(np.ones((6, 6), bool))
    condition, branches = (seen, ["x", "f"]) if keep_where_true else (~seen, ["f", "x"])
    nodes = [helper.make_node("Where", ["c", *branches], ["s"]), helper.make_node("Softmax", ["s"], ["y"])]
    constants = {"c": condition, "f": np.array(fill, np.float32)}
    checked = check(model_of(nodes, {"x": (2, 3, 6, 6)}, {"y": None}, constants), tmp_path)
    assert [layer.op for layer in checked.conversion.graph.layers] == ["softmax"]
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 30


def test_a_row_that_is_blank_throughout_stays_a_where(tmp_path: Path) -> None:
    condition = np.ones((6, 6), bool)
    condition[2] = False
    nodes = [helper.make_node("Where", ["c", "x", "f"], ["s"]), helper.make_node("Softmax", ["s"], ["y"])]
    constants = {"c": condition, "f": np.array(-2e4, np.float32)}
    checked = check(model_of(nodes, {"x": (2, 3, 6, 6)}, {"y": None}, constants), tmp_path)
    assert [layer.op for layer in checked.conversion.graph.layers] == ["where", "softmax"]
    assert checked.lsb_to_quantized <= 1.01


@pytest.mark.parametrize("perm", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_mask_meets_its_own_rows_however_the_scores_are_stored(
    tmp_path: Path, perm: tuple[int, ...], shared: bool
) -> None:
    shape = [(2, 3, 6)[axis] for axis in perm]
    drawn = np.random.default_rng(3).random(shape[1:] if shared else shape)
    mask = np.where(drawn < 0.4, -1e9, 0).astype(np.float32)
    mask[..., 0] = 0
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node("Add", ["t", "m"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    checked = check(model_of(nodes, {"x": (2, 3, 6)}, {"y": None}, {"m": mask}), tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 30


def test_a_split_and_concatenation_move_no_more_than_they_must(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "c"], ["y"], axis=1),
    ]
    checked = check(
        model_of(nodes, {"x": (1, 8, 6, 6)}, {"y": None}, {"w": weights(1, 4, 4, 3, 3)}), tmp_path
    )
    layers = checked.conversion.graph.layers
    assert layers[0].op == "conv"
    assert layers[0].input.offset == 4  # type: ignore[union-attr]
    assert checked.lsb_to_quantized <= 1.01


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "GlobalAveragePool", "ArgMax"])
def test_shuffled_channels_are_reduced_in_order(op: str, tmp_path: Path) -> None:
    """A channel shuffle costs nothing until a reader needs the channels in order."""
    constants = {"a": ints(1, 2, 4, 5, 6), "b": ints(1, 8, 5, 6), "axes": ints(2, 3)}
    reduction = {
        "ArgMax": helper.make_node("ArgMax", ["s"], ["y"], axis=1),
        "GlobalAveragePool": helper.make_node("GlobalAveragePool", ["s"], ["y"]),
    }.get(op) or helper.make_node(op, ["s", "axes"], ["y"], keepdims=0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "a"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["e", "b"], ["s"]),
        reduction,
    ]
    constants["w"] = weights(1, 8, 4, 1, 1)
    model = model_of(nodes, {"x": (1, 4, 5, 6)}, {"y": None}, constants, 18)
    if op == "ArgMax":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert check(model, tmp_path).lsb_to_quantized <= 2.01


@st.composite
def chains(draw: st.DrawFn) -> onnx.ModelProto:
    """A random chain of layers on an image, with a residual add where shapes allow."""
    channels = draw(st.integers(1, 6))
    height, width = draw(st.integers(4, 9)), draw(st.integers(4, 9))
    shape = (1, channels, height, width)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    value, earlier = "x", ("x", channels, height, width)
    for i in range(draw(st.integers(1, 5))):
        out = f"v{i}"
        kind = draw(st.sampled_from(["conv", "depthwise", "pool", "activation", "add", "shuffle"]))
        if kind in ("conv", "depthwise"):
            r, s = draw(st.integers(1, min(3, height))), draw(st.integers(1, min(3, width)))
            stride = draw(st.integers(1, 2))
            pads = [draw(st.integers(0, r - 1)), draw(st.integers(0, s - 1))] * 2
            outputs = channels if kind == "depthwise" else draw(st.integers(1, 6))
            group = channels if kind == "depthwise" else 1
            constants[f"w{i}"] = weights(i, outputs, channels // group, r, s)
            nodes.append(
                helper.make_node(
                    "Conv", [value, f"w{i}"], [out], strides=[stride] * 2, pads=pads, group=group
                )
            )
            height = (height + pads[0] + pads[2] - r) // stride + 1
            width = (width + pads[1] + pads[3] - s) // stride + 1
            channels = outputs
        elif kind == "pool" and min(height, width) >= 2:
            op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
            nodes.append(helper.make_node(op, [value], [out], kernel_shape=[2, 2], strides=[2, 2]))
            height, width = height // 2, width // 2
        elif kind == "add" and earlier[1:] == (channels, height, width) and earlier[0] != value:
            nodes.append(helper.make_node("Add", [value, earlier[0]], [out]))
        elif kind == "shuffle" and channels % 2 == 0:
            halves = np.array([1, 2, channels // 2, height, width])
            constants |= {f"a{i}": halves, f"b{i}": np.array([1, channels, height, width])}
            nodes += [
                helper.make_node("Reshape", [value, f"a{i}"], [f"{out}a"]),
                helper.make_node("Transpose", [f"{out}a"], [f"{out}b"], perm=[0, 2, 1, 3, 4]),
                helper.make_node("Reshape", [f"{out}b", f"b{i}"], [out]),
            ]
        else:
            op = draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish"]))
            nodes.append(helper.make_node(op, [value], [out]))
        if draw(st.booleans()):
            earlier = (out, channels, height, width)
        value = out
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    return model_of(nodes, {"x": shape}, {"y": None}, constants)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=chains())
def test_random_chains(model: onnx.ModelProto, tmp_path: Path) -> None:
    checked = check(model, tmp_path)
    # one rounding may differ per layer (float ties), and later layers may amplify it
    assert checked.lsb_to_quantized <= 1 + 3 * len(checked.conversion.graph.layers)
    if len(checked.conversion.graph.layers) == 1:
        assert checked.lsb_to_quantized <= 1.01


def test_boolean_conditions(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "c"], ["g"]),
        helper.make_node("Where", ["g", "x", "d"], ["y"]),
    ]
    constants = {"c": weights(1, 12), "d": weights(2, 5, 12)}
    assert check(model_of(nodes, {"x": ROWS}, {"y": None}, constants), tmp_path).sqnr_db > 20


def test_arg_max_gives_integers(tmp_path: Path) -> None:
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    model = model_of([node], {"x": ROWS}, {"y": None})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized == 0
    assert checked.conversion.graph.tensors[checked.conversion.graph.outputs[0]].dtype == "int32"
