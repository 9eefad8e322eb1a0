"""Operators written as others: the float model still computes what ONNX Runtime computes with the file's
own operators, and its layers what the quantised model says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import UnsupportedError, convert
from tests.converter.oracle import check, ints, model_of, session, weights

T, B, IN, H = 5, 2, 6, 8
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(op: str, directions: int = 1, outputs: str = "yh", constants=(), **attributes):  # type: ignore[no-untyped-def]
    """x [T, B, IN] through one recurrent node; graph outputs as in `outputs` (y, h, c)."""
    gates = _GATES[op] * H
    values = {
        "W": weights(1, directions, gates, IN) / 2,
        "R": weights(2, directions, gates, H) / 3,
        "B": weights(3, directions, 2 * gates) / 4,
    }
    inputs = ["x", "W", "R", "B"]
    if "h0" in constants:
        values |= {"h0": weights(4, directions, B, H)}
        inputs += ["", "h0"]
    if "c0" in constants:
        values |= {"c0": weights(5, directions, B, H)}
        inputs += ["c0"]
    names = [name if name in outputs else "" for name in ("yhc" if op == "LSTM" else "yh")]
    node = helper.make_node(op, inputs, names, name="cell", hidden_size=H, **attributes)
    shapes = {"y": (T, directions, B, H), "h": (directions, B, H), "c": (directions, B, H)}
    return model_of([node], {"x": (T, B, IN)}, {n: shapes[n] for n in outputs}, values, 17)


def _moved_weights() -> onnx.ModelProto:
    """Weights that are constant behind a Cast and a Transpose."""
    model = _recurrent("LSTM")
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == "R")
    half = onnx.numpy_helper.to_array(tensor).astype(np.float16).transpose(0, 2, 1)
    tensor.CopyFrom(onnx.numpy_helper.from_array(half.copy(), "R_half"))
    model.graph.node.insert(0, helper.make_node("Cast", ["R_half"], ["R_moved"], to=1))
    model.graph.node.insert(1, helper.make_node("Transpose", ["R_moved"], ["R"], perm=[0, 2, 1]))
    return model


def _one(op: str, shape: tuple[int, ...], constants=None, opset: int = 18, inputs=None, **attributes):  # type: ignore[no-untyped-def]
    constants = constants or {}
    names = inputs or ["x", *constants]
    node = helper.make_node(op, names, ["y"], name="node", **attributes)
    shapes = {name: shape for name in names if name not in constants and name}
    return model_of([node], shapes, {"y": None}, constants, opset)


def _picked(  # type: ignore[no-untyped-def]
    shape: tuple[int, ...], k: int, op: str = "GatherElements", batch_dims: int | None = None, **attributes
):
    """What a TopK finds, and what lies at its places in another value."""
    axis = {} if batch_dims is not None else {"axis": attributes.get("axis", -1)}
    options = axis or {"batch_dims": batch_dims}
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["y", "places"], **attributes),
        helper.make_node("Neg", ["x"], ["other"]),
        helper.make_node(op, ["other", "places"], ["z"], **options),
    ]
    return model_of(nodes, {"x": shape}, {"y": None, "z": None}, {"k": ints(k)})


def _routed(shape: tuple[int, ...], k: int, axis: int, back: int) -> onnx.ModelProto:
    """The largest of a value at their places among zeros (a router of experts), counted from `back`."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["best", "found"], axis=axis),
        helper.make_node("Sub", ["found", "back"], ["places"]),
        helper.make_node("ScatterElements", ["zeros", "places", "best"], ["y"], axis=axis),
    ]
    constants = {"k": ints(k), "back": ints(back), "zeros": np.zeros(shape, np.float32)}
    return model_of(nodes, {"x": shape}, {"y": None}, constants)


LINEAR = {"linear_before_reset": 1}
CASES = {
    "lstm": _recurrent("LSTM", outputs="yhc"),
    "lstm of weights that are moved": _moved_weights(),
    "lstm backwards": _recurrent("LSTM", direction="reverse"),
    "lstm both ways": _recurrent("LSTM", 2, outputs="yhc", direction="bidirectional"),
    "lstm with states": _recurrent("LSTM", outputs="yhc", constants=("h0", "c0")),
    "lstm of other functions": _recurrent("LSTM", activations=["HardSigmoid", "Softsign", "Tanh"]),
    "gru": _recurrent("GRU"),
    "gru both ways": _recurrent("GRU", 2, direction="bidirectional", constants=("h0",)),
    "gru of pytorch": _recurrent("GRU", **LINEAR),
    "gru of pytorch with states": _recurrent("GRU", constants=("h0",), **LINEAR),
    "rnn": _recurrent("RNN"),
    "rnn of relus": _recurrent("RNN", 2, direction="bidirectional", activations=["Relu", "Relu"]),
    "einsum product": _one("Einsum", (2, 3, 4, 5), {"w": weights(1, 5, 4, 6)}, equation="bijd,djk->bik"),
    "einsum heads": _one("Einsum", (2, 3, 4, 5), inputs=["x", "x"], equation="bqhd,bkhd->bhqk"),
    "einsum transposition": _one("Einsum", (2, 3, 4), equation="...ij->...ji"),
    "einsum sum": _one("Einsum", (2, 3, 4), equation="bij->i"),
    "running sum": _one("CumSum", (3, 7), {"a": np.array(1)}),
    "running sum backwards": _one("CumSum", (3, 7), {"a": np.array(0)}, reverse=1, exclusive=1),
    "unit vectors": _one("LpNormalization", (3, 4, 7), axis=1),
    "unit sums": _one("LpNormalization", (3, 7), p=1),
    "sum of magnitudes": _one("ReduceL1", (3, 4, 7), opset=13, axes=[1]),
    "length": _one("ReduceL2", (3, 4, 7), opset=13, axes=[-1], keepdims=0),
    "length of all": _one("ReduceL2", (3, 4), opset=17),
    "sum of squares": _one("ReduceSumSquare", (3, 4, 7), {"a": ints(0, 2)}, opset=18),
    "logarithm of a sum of powers": _one("ReduceLogSumExp", (3, 4, 7), opset=11, axes=[1]),
    "logarithm of a sum": model_of(
        [
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("ReduceLogSum", ["s"], ["y"], axes=[1], keepdims=0),
        ],
        {"x": (3, 9)},
        {"y": None},
        opset=13,
    ),
    "convolution of video": _one(
        "Conv",
        (1, 4, 5, 6, 6),
        {"w": weights(1, 6, 2, 3, 3, 3), "b": weights(2, 6)},
        group=2,
        pads=[1, 1, 1, 1, 1, 1],
        strides=[2, 1, 1],
    ),
    "convolution over frames": _one(
        "Conv", (1, 4, 5, 6, 6), {"w": weights(1, 6, 4, 3, 1, 1)}, pads=[1, 0, 0, 1, 0, 0]
    ),
    "convolution of frames": _one("Conv", (2, 4, 3, 6, 6), {"w": weights(1, 6, 4, 1, 3, 3)}),
    "max pool of video": _one(
        "MaxPool", (1, 4, 5, 6, 6), kernel_shape=[3, 2, 2], strides=[1, 2, 2], pads=[1, 0, 0, 1, 0, 0]
    ),
    "average pool of video": _one(
        "AveragePool", (1, 4, 5, 6, 6), kernel_shape=[3, 3, 2], strides=[2, 2, 2], pads=[1, 1, 0, 1, 1, 0]
    ),
    "mean of video": _one("GlobalAveragePool", (1, 4, 5, 6, 6)),
    "three largest": _picked((2, 9), 3),
    "two smallest of columns": _picked((2, 9, 3), 2, axis=1, largest=0),
    "rows at computed places": _picked((2, 9, 3), 2, "GatherND", axis=2, batch_dims=1),
    "spectrogram": _one(
        "STFT", (2, 70, 1), {"step": ints(8)[0], "window": np.hanning(16).astype(np.float32)}
    ),
    "spectrum without window": _one(
        "STFT",
        (1, 40),
        {"step": ints(5)[0], "length": ints(12)[0]},
        inputs=["x", "step", "", "length"],
        onesided=0,
    ),
    "hardmax": _one("Hardmax", (3, 4, 7), axis=1),
    "group norm": _one(
        "GroupNormalization", (2, 6, 4, 5), {"s": weights(1, 6), "b": weights(2, 6)}, opset=21, num_groups=3
    ),
    "local response": _one("LRN", (2, 7, 3, 4), size=5, alpha=0.3, beta=0.6, bias=1.5),
    "lp pool": _one("LpPool", (1, 3, 7, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]),
    "mean variance": _one("MeanVarianceNormalization", (2, 3, 4, 5)),
    "mean": _one("Mean", (2, 3, 4), inputs=["x", "x2", "x3"]),
    "gemm with a matrix added": _one("Gemm", (3, 4), {"w": weights(1, 4, 5), "c": weights(2, 3, 5)}),
    "gather elements": _one("GatherElements", (3, 4), {"i": np.array([[0, -1, 2, 1]])}, axis=0),
    "gather nd": _one("GatherND", (3, 4, 5), {"i": np.array([[0, 1], [2, -1]])}),
    "gather nd batched": _one("GatherND", (2, 4, 5), {"i": np.array([[1], [0]])}, batch_dims=1),
    "scatter elements": _one(
        "ScatterElements", (3, 4), {"i": np.array([[1, 0], [2, -1]]), "u": weights(1, 2, 2)}, axis=1
    ),
    "scatter to computed places": _routed((4, 6), 2, 1, 0),
    "scatter to computed places from the end": _routed((2, 5, 3), 3, 1, 5),
    "scatter rows": _one("ScatterND", (5, 4, 3), {"i": np.array([[1], [-2]]), "u": weights(1, 2, 4, 3)}),
    "scatter columns": _one(
        "ScatterND",
        (2, 5, 3),
        {"i": np.stack(np.indices((2, 2)), -1) + np.array([0, 1]), "u": weights(1, 2, 2, 3)},
    ),
    "scatter the last rows": _one("ScatterND", (5, 4), {"i": ints(-2, 4)[:, None], "u": weights(1, 2, 4)}),
    "scatter columns backwards": _one(
        "ScatterElements", (2, 4), {"i": np.array([[2, 1], [2, 1]]), "u": weights(1, 2, 2)}, axis=1
    ),
    "scatter of one": _one("ScatterND", (5, 4), {"i": np.array([[1, 2], [4, 0]]), "u": weights(1, 2)}),
    "compress": _one("Compress", (3, 4), {"c": np.array([True, False, True])}, axis=0),
    "reversed sequences": _one("ReverseSequence", (4, 3, 2), {"l": ints(4, 1, 3)}),
    "triangle": _one("Trilu", (2, 4, 5), {"k": np.array(-1)}, upper=0),
    "matrices times a vector": model_of(
        [
            helper.make_node("MatMul", ["v", "x"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("MatMul", ["w", "r"], ["y"]),
        ],
        {"x": (24,)},
        {"y": None},
        {"v": weights(1, 32, 24), "b": weights(2, 32), "w": weights(3, 16, 32)},
    ),
    "one value of two": _one(
        "Where", (2, 1, 5), {"c": np.ones((3, 5), bool), "o": weights(1, 5)}, inputs=["c", "x", "o"]
    ),
    "the other value of two": _one("Where", (2, 5), {"c": np.zeros((), bool)}, inputs=["c", "x", "x2"]),
    "resize of two axes": _one(
        "Resize",
        (1, 3, 4, 5),
        {"s": np.array([2, 1.5], np.float32)},
        inputs=["x", "", "s"],
        axes=[3, 2],
        mode="linear",
    ),
    "resize cubic": _one(
        "Resize",
        (1, 3, 5, 6),
        {"s": ints(1, 3, 9, 7)},
        inputs=["x", "", "", "s"],
        mode="cubic",
        cubic_coeff_a=-0.5,
    ),
    "resize cubic by scales": _one(
        "Resize",
        (1, 3, 5, 6),
        {"s": np.array([1, 1, 1.7, 0.6], np.float32)},
        inputs=["x", "", "s"],
        opset=13,
        mode="cubic",
        exclude_outside=1,
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    "resize with antialias": _one(
        "Resize",
        (1, 3, 5, 6),
        {"s": ints(3, 2)},
        inputs=["x", "", "", "s"],
        mode="linear",
        antialias=1,
        axes=[2, 3],
    ),
    "resize of a sequence": _one(
        "Resize",
        (2, 3, 6),
        {"s": ints(2, 3, 11)},
        inputs=["x", "", "", "s"],
        opset=13,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    "resize of a volume": _one(
        "Resize", (1, 2, 3, 4, 5), {"s": ints(1, 2, 6, 4, 8)}, inputs=["x", "", "", "s"], mode="linear"
    ),
    "resize of rows before channels": _one(
        "Resize", (1, 4, 5, 3), {"s": ints(1, 8, 10, 3)}, inputs=["x", "", "", "s"], mode="linear"
    ),
}


def test_parts_without_elements_disappear(tmp_path: Path) -> None:
    """What a rotary embedding of all channels exports: split off nothing, append nothing."""
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["rotated", "rest"], axis=-1),
        helper.make_node("Relu", ["rotated"], ["r"]),
        helper.make_node("Concat", ["r", "rest"], ["y"], axis=-1),
    ]
    model = model_of(nodes, {"x": (2, 3, 8)}, {"y": None}, {"sizes": ints(8, 0)})
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized == 0
    assert checked.conversion.graph.tensors[checked.conversion.graph.outputs[0]].shape == (2, 3, 8)


@pytest.mark.parametrize("case", CASES)
def test_written_as_other_operators(case: str, tmp_path: Path) -> None:
    model = CASES[case]
    checked = check(model, tmp_path)
    # the state of a recurrent cell carries roundings of operands of unlike scales from step to step
    recurrent = any(node.op_type in _GATES for node in model.graph.node)
    assert checked.lsb_to_quantized <= (T + 1.01 if recurrent else 1.01)
    assert checked.sqnr_db > 15
    written = checked.conversion.float_model
    generator = np.random.default_rng(7)
    feeds = {
        value.name: generator.standard_normal(value.shape).astype(np.float32)
        for value in session(written).get_inputs()
    }
    for found, wanted in zip(session(written).run(None, feeds), session(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_vector_on_the_right_of_weights_is_a_dense_layer(tmp_path: Path) -> None:
    """As converters of .nnet files write it, W x + b: bias and ReLU are parts of the product."""
    layers = check(CASES["matrices times a vector"], tmp_path).conversion.graph.layers
    assert [layer.op for layer in layers] == ["gemm", "gemm"]


def test_a_choice_that_is_the_same_everywhere_is_no_layer(tmp_path: Path) -> None:
    """What is left copies one value to three rows."""
    layers = check(CASES["one value of two"], tmp_path).conversion.graph.layers
    assert [layer.op for layer in layers] == ["copy"]


def test_all_time_steps_read_one_copy_of_the_weights(tmp_path: Path) -> None:
    graph = check(_recurrent("LSTM"), tmp_path).conversion.graph
    recurrent = [layer for layer in graph.tensor_core_layers if layer.dims.C == H]
    assert len(recurrent) == T - 1  # the first state is zero
    assert len({layer.weight.tensor for layer in recurrent}) == 1
    stored = {layer.weight.tensor for layer in graph.tensor_core_layers}
    assert sum(graph.tensors[name].nbytes for name in stored) == 4 * H * (IN + H)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"clip": 3.0}, "clip"),
        ({"activations": ["Affine", "Tanh", "Tanh"]}, "activation Affine"),
        ({"input_forget": 1}, "input_forget"),
    ],
)
def test_cells_that_are_refused_say_why(attributes: dict[str, object], why: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_recurrent("LSTM", **attributes), path)
    with pytest.raises(UnsupportedError, match=why):
        convert(path)


def test_shortened_sequences_are_refused(tmp_path: Path) -> None:
    model = _recurrent("GRU")
    model.graph.node[0].input.append("lengths")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 3], np.int32), "lengths"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(UnsupportedError, match="sequence_lens shorten sequences"):
        convert(path)


def test_recurrent_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    """Changed by hand: ONNX's shape inference looks at none of them but the last size."""
    model = _recurrent("GRU")
    (recurrent,) = (tensor for tensor in model.graph.initializer if tensor.name == "R")
    recurrent.dims[:] = [3 * H, H]
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(UnsupportedError, match=r"R has shape \[24, 8\] instead of \[1, 24, 8\]"):
        convert(path)
