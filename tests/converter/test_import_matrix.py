"""What every option of ONNX Runtime's quantiser writes is as accurate here as where it came from."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from fadiff.converter import convert, integer_reference
from fadiff.converter.check.reference import reference_session
from fadiff.converter.check.storage import from_storage, to_storage
from fadiff.converter.pipeline import Conversion
from tests.converter.oracle import Calibration, model_of, session, sqnr_db, weights

SHAPE = (1, 3, 8, 8)
WIDTH, TOKENS, HEADS = 16, 16, 2
U8, S8 = QuantType.QUInt8, QuantType.QInt8
TYPES = {"U8S8": (U8, S8), "U8U8": (U8, U8), "S8S8": (S8, S8)}
OPTIONS = {
    "symmetric": {"ActivationSymmetric": True, "WeightSymmetric": True},
    "constants behind pairs": {"AddQDQPairToWeight": True},
    "a pair per reader": {"DedicatedQDQPair": True},
    "float biases": {"QuantizeBias": False},
    "ReLUs kept": {"QDQKeepRemovableActivations": True},
}


def _cnn() -> onnx.ModelProto:
    """Depthwise and pointwise convolutions, a clip, a residual add and a concatenation."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], name="c1"),
        helper.make_node("Relu", ["c1"], ["r1"], name="r1"),
        helper.make_node("Conv", ["r1", "w2", "b1"], ["c2"], pads=[1, 1, 1, 1], group=8, name="dw"),
        helper.make_node("Clip", ["c2", "zero", "six"], ["r2"], name="relu6"),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], name="pw"),
        helper.make_node("Add", ["c3", "r1"], ["a"], name="add"),
        helper.make_node("HardSigmoid", ["a"], ["h"], name="h"),
        helper.make_node("Mul", ["a", "h"], ["m"], name="m"),
        helper.make_node("Concat", ["m", "r2"], ["k"], axis=1, name="k"),
        helper.make_node("GlobalAveragePool", ["k"], ["g"], name="g"),
        helper.make_node("Flatten", ["g"], ["f"], name="f"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y"], name="fc"),
    ]
    constants = {
        "w1": weights(1, 8, 3, 3, 3) / 5,
        "b1": weights(2, 8) / 2,
        "w2": weights(3, 8, 1, 3, 3) / 3,
        "w3": weights(4, 8, 8, 1, 1) / 3,
        "w4": weights(5, 16, 10) / 4,
        "b4": weights(6, 10),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
    }
    return model_of(nodes, {"x": SHAPE}, {"y": (1, 10)}, constants)


def _transformer() -> onnx.ModelProto:
    """Patches, a layer norm spelled out, attention, GELU spelled out."""
    nodes = [
        helper.make_node("Conv", ["x", "patch"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="patch"),
        helper.make_node("Reshape", ["p", "tokens"], ["pt"], name="tokens"),
        helper.make_node("Transpose", ["pt"], ["t"], perm=[0, 2, 1], name="rows"),
        helper.make_node("ReduceMean", ["t"], ["mean"], axes=[-1], name="mean"),
        helper.make_node("Sub", ["t", "mean"], ["d"], name="centre"),
        helper.make_node("Pow", ["d", "two"], ["d2"], name="square"),
        helper.make_node("ReduceMean", ["d2"], ["var"], axes=[-1], name="var"),
        helper.make_node("Add", ["var", "eps"], ["ve"], name="eps"),
        helper.make_node("Sqrt", ["ve"], ["sd"], name="sd"),
        helper.make_node("Div", ["d", "sd"], ["n"], name="norm"),
    ]
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["n", f"w{name}"], [f"{name}0"], name=f"{name}0"),
            helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"], name=f"{name}1"),
            helper.make_node(
                "Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            ),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s"], name="scores"),
        helper.make_node("Div", ["s", "root"], ["ss"], name="scale"),
        helper.make_node("Softmax", ["ss"], ["sm"], axis=-1, name="softmax"),
        helper.make_node("MatMul", ["sm", "v"], ["o"], name="context"),
        helper.make_node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3], name="o1"),
        helper.make_node("Reshape", ["o1", "joined"], ["o2"], name="o2"),
        helper.make_node("Add", ["o2", "t"], ["a"], name="residual"),
        helper.make_node("MatMul", ["a", "w1"], ["u"], name="up"),
        helper.make_node("Div", ["u", "root2"], ["u1"], name="u1"),
        helper.make_node("Erf", ["u1"], ["u2"], name="u2"),
        helper.make_node("Add", ["u2", "one"], ["u3"], name="u3"),
        helper.make_node("Mul", ["u", "u3"], ["u4"], name="u4"),
        helper.make_node("MatMul", ["u4", "w2"], ["y"], name="down"),
    ]
    floats = {"two": 2.0, "eps": 1e-5, "root": 8**0.5, "root2": 2**0.5, "one": 1.0}
    shapes = {
        "tokens": (1, WIDTH, TOKENS),
        "heads": (1, TOKENS, HEADS, WIDTH // HEADS),
        "joined": (1, TOKENS, WIDTH),
    }
    constants = {
        "patch": weights(1, WIDTH, 3, 2, 2) / 3,
        **{f"w{name}": weights(i, WIDTH, WIDTH) / 4 for i, name in enumerate("qkv")},
        "w1": weights(7, WIDTH, 2 * WIDTH) / 4,
        "w2": weights(8, 2 * WIDTH, WIDTH) / 6,
        **{name: np.array(value, np.float32) for name, value in floats.items()},
        **{name: np.array(value, np.int64) for name, value in shapes.items()},
    }
    return model_of(nodes, {"x": SHAPE}, {"y": (1, TOKENS, WIDTH)}, constants)


MODELS = {"cnn": _cnn, "transformer": _transformer}


def _calibration() -> Calibration:
    return Calibration({"x": _inputs(1, i)[0]} for i in range(8))


def _inputs(count: int, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(SHAPE).astype(np.float32) for _ in range(count)]


def _ours(conversion: Conversion, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """What the integers compute."""
    graph = conversion.graph
    reference = reference_session(integer_reference(graph))
    (source,), (result,) = graph.inputs, graph.outputs
    found = []
    for x in inputs:
        (stored,) = reference.run([result], {source: to_storage(graph.tensors[source], x)})
        found.append(from_storage(graph.tensors[result], stored, shape))
    return np.stack(found)


def _check(kind: str, folder: Path, lost_db: float, **options: object) -> Conversion:
    """Quantise, convert, and compare the file, our integers and the float model on fresh inputs."""
    source, path = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(MODELS[kind](), source)
    quantize_static(source, path, _calibration(), **options)
    conversion = convert(path, quantize="none")
    inputs = _inputs(16, 99)
    floats = np.stack([session(onnx.load(source)).run(None, {"x": x})[0] for x in inputs])
    theirs = np.stack([session(onnx.load(path)).run(None, {"x": x})[0] for x in inputs])
    ours = _ours(conversion, inputs, floats.shape[1:])
    assert sqnr_db(theirs, ours) > 24
    assert sqnr_db(floats, ours) > sqnr_db(floats, theirs) - lost_db
    return conversion


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("form", "types", "per_channel"), list(itertools.product(QuantFormat, TYPES, (False, True))), ids=str
)
def test_formats_types_and_channels(
    kind: str, form: QuantFormat, types: str, per_channel: bool, tmp_path: Path
) -> None:
    activation, weight = TYPES[types]
    _check(
        kind,
        tmp_path,
        lost_db=3,
        quant_format=form,
        activation_type=activation,
        weight_type=weight,
        per_channel=per_channel,
        reduce_range=activation == U8,  # what ONNX Runtime advises on machines without VNNI
    )


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("option", OPTIONS)
def test_placements(kind: str, option: str, tmp_path: Path) -> None:
    _check(kind, tmp_path, lost_db=3, extra_options=OPTIONS[option])


@pytest.mark.parametrize("kind", MODELS)
def test_sixteen_bit_activations_keep_eight(kind: str, tmp_path: Path) -> None:
    contrib = {"UseQDQContribOps": True}
    conversion = _check(kind, tmp_path, 12, activation_type=QuantType.QUInt16, extra_options=contrib)
    assert any("16 bits" in note for note in conversion.notes)


def test_four_bit_weights_are_exact(tmp_path: Path) -> None:
    conversion = _check(
        "cnn", tmp_path, 3, weight_type=QuantType.QInt4, extra_options={"WeightSymmetric": True}
    )
    (layer, *_) = conversion.graph.tensor_core_layers
    data = conversion.graph.tensors[layer.weight.tensor].data
    assert data is not None and np.abs(data).max() <= 8


def test_a_mixed_model_is_quantised_throughout(tmp_path: Path) -> None:
    """Some nodes quantised by the tool, some left float: these are calibrated."""
    source, path = tmp_path / "float.onnx", tmp_path / "mixed.onnx"
    onnx.save(_cnn(), source)
    quantize_static(source, path, _calibration(), nodes_to_exclude=["pw", "add", "fc"])
    conversion = convert(path, calibration=[{"x": x} for x in _inputs(8, 0)])
    inputs = _inputs(16, 99)
    theirs = np.stack([session(onnx.load(path)).run(None, {"x": x})[0] for x in inputs])
    assert sqnr_db(theirs, _ours(conversion, inputs, theirs.shape[1:])) > 24
