"""What public files have in them: operators beside the standard, older opsets than ONNX knows them in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import check, session, weights


def _model(text: str, opset: int = 17, **constants: tuple[int, ...]) -> onnx.ModelProto:
    contrib = ', "com.microsoft": 1' if "com.microsoft" in text else ""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{contrib}]> net {text}')
    generator = np.random.default_rng(3)
    for name, shape in constants.items():
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_operators_outside_the_standard_are_refused_before_shapes_are_needed(tmp_path: Path) -> None:
    """All in one message: what comes behind them has no shape, and is no reason of its own."""
    model = _model(
        """(float[8,8] x) => (float z, float t) {
            c = com.microsoft.CDist <metric = "euclidean"> (x, x)
            i = com.microsoft.Inverse (x)
            r = Reshape (c, s)
            z = Conv <kernel_shape = [1, 1]> (r, w)
            u = Resize (i, e, e, z2)
            t = Einsum <equation = "ij,jk->ik"> (u, x)
        }""",
        w=(8, 1, 1, 1),
    )
    for name, values in {"s": [1, 1, 8, 8], "z2": [16, 16]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.float32), "e"))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError) as caught:
        convert(tmp_path / "m.onnx", calibrate=False)
    assert [problem.op for problem in caught.value.problems] == ["CDist", "Inverse"]


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_in_an_opset_before_it(tmp_path: Path, axis: int) -> None:
    """ONNX Runtime's optimiser writes it into files of any opset; gamma [D] broadcasts to all rows."""
    model = _model(
        f"""(float[1,6,8] x) => (float y) {{
            n = LayerNormalization <axis = {axis}> (x, gamma, beta)
            m = MatMul (n, w)
            y = LayerNormalization <axis = {axis}> (m, gamma, beta)
        }}""",
        opset=12,
        gamma=(8,) if axis == -1 else (6, 8),
        beta=(8,) if axis == -1 else (6, 8),
        w=(8, 8),
    )
    found = check(model, tmp_path)
    assert found.lsb_to_quantized <= 1 and found.sqnr_db > 20


def test_layer_normalization_with_weights_that_broadcast(tmp_path: Path) -> None:
    text = """(float[1,6,8] x) => (float y) {
        n = LayerNormalization <axis = 1> (x, gamma, beta)
        y = MatMul (n, w)
    }"""
    onnx.save(_model(text, gamma=(8,), beta=(1, 8), w=(8, 8)), tmp_path / "m.onnx")
    graph = convert(tmp_path / "m.onnx", calibrate=False).graph
    gamma = next(tensor for name, tensor in graph.tensors.items() if name.endswith("gamma"))
    assert gamma.shape == (48,) and gamma.data is not None
    rows = np.asarray(gamma.data).reshape(6, 8)
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], (6, 8)))


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_past_keys_and_no_mask(tmp_path: Path, opset: int, causal: int) -> None:
    """The float model computes what onnx's reference evaluator does of the file."""
    model = _model(
        f"""(float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v, float[1,2,3,8] pk, float[1,2,3,8] pv)
            => (float y, float keys, float values) {{
            y, keys, values = Attention <is_causal = {causal}> (q, k, v, , pk, pv)
        }}""",
        opset=opset,
    )
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibrate=False)
    generator = np.random.default_rng(5)
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input
    }
    feeds = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    expected = ReferenceEvaluator(model).run(None, feeds)
    found = session(conversion.float_model).run(None, feeds)
    for wanted, real in zip(expected, found, strict=True):
        np.testing.assert_allclose(real, wanted, atol=1e-5)


def test_messages_of_onnx_runtime_come_with_advice(tmp_path: Path) -> None:
    """Random indices are 0 and 1; this table has one row."""
    model = _model("(int64[1,4] i) => (float y) { e = Gather (t, i) y = MatMul (e, w) }", t=(1, 8), w=(8, 8))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"m\.onnx: .*out of data bounds.* give calibration data") as caught:
        convert(tmp_path / "m.onnx")
    assert "ONNXRuntimeError" not in str(caught.value) and "\n" not in str(caught.value)
    np.savez(tmp_path / "c.npz", i=np.zeros((2, 1, 4), np.int64))
    convert(tmp_path / "m.onnx", calibration=tmp_path / "c.npz")


def test_an_unnamed_node_beside_one_of_its_name(tmp_path: Path) -> None:
    model = _model(
        "(float[1,8,4,4] x) => (float y) { a = Conv (x, w) b = Conv (a, w) y = Conv (b, w) }", w=(8, 8, 1, 1)
    )
    model.graph.node[0].name = "Conv_1"
    onnx.save(model, tmp_path / "m.onnx")
    names = [layer.name for layer in convert(tmp_path / "m.onnx", calibrate=False).graph.layers]
    assert len(set(names)) == 3


def test_nodes_in_any_order_and_ai_onnx_as_a_domain(tmp_path: Path) -> None:
    """Both are in ONNX Runtime's own test data: it sorts nodes itself."""
    model = _model("(float[1,8,4,4] x) => (float y) { a = Conv (x, w) y = Conv (a, w) }", w=(8, 8, 1, 1))
    first = model.graph.node.pop(0)
    model.graph.node.append(first)
    model.opset_import[0].domain = "ai.onnx"
    onnx.save(model, tmp_path / "m.onnx")
    assert len(convert(tmp_path / "m.onnx", calibrate=False).graph.layers) == 2
    first.input[0] = "y"
    model.graph.node[-1].CopyFrom(first)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="need each other's results"):
        convert(tmp_path / "m.onnx", calibrate=False)


def test_a_constant_that_is_said_twice(tmp_path: Path) -> None:
    """As ONNX Runtime's optimiser wrote into a GPT-2."""
    model = _model(
        """(float[1,8] x) => (float y) {
            c = Constant <value = float {2.0}> ()
            m = Mul (x, c)
            c = Constant <value = float {2.0}> ()
            n = Add (m, c)
            y = MatMul (n, w)
        }""",
        w=(8, 8),
    )
    onnx.save(model, tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", calibrate=False)
    model.graph.node[2].attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(3)))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="two nodes compute c"):
        convert(tmp_path / "m.onnx", calibrate=False)


def test_weights_that_are_outputs_without_a_type(tmp_path: Path) -> None:
    """QDQ test models list every value as an output; such a weight was no float any more."""
    model = _model("(float[1,8] x) => (float y) { v = Neg (w) y = MatMul (x, v) }", w=(8, 8))
    model.graph.output.append(onnx.ValueInfoProto(name="v"))
    onnx.save(model, tmp_path / "m.onnx")
    assert convert(tmp_path / "m.onnx", calibrate=False).graph.layers


def test_constants_that_are_outputs_beside_samples(tmp_path: Path) -> None:
    """Anchors that a detector hands out: calibration asked ONNX Runtime for a value that no node computes."""
    model = _model("(float[1,8] x) => (float y, anchors) { y = MatMul (x, w) }", w=(8, 8), anchors=(3, 2))
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": weights(i, 1, 8)} for i in range(9)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples)
    assert conversion.reach is None  # (of the worst output, and a constant is none)
    graph = conversion.graph
    name = next(name for name in graph.outputs if graph.tensors[name].onnx_name == "anchors")
    stored = run_reference(graph, store_inputs(graph, samples[0]))[name]
    (anchors,) = (t for t in model.graph.initializer if t.name == "anchors")
    expected = onnx.numpy_helper.to_array(anchors)
    (described,) = (v for v in conversion.quantized_model.graph.output if v.name == "anchors")
    assert [d.dim_value for d in described.type.tensor_type.shape.dim] == [3, 2]
    np.testing.assert_allclose(from_storage(graph.tensors[name], stored, (3, 2)), expected, atol=0.02)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("y = com.microsoft.nchwc.ReorderInput (x)", "one kind of processor; save the model with"),
        ("y = com.microsoft.extensions.DecodeImage (x)", "do this step outside of the model"),
        ("y = com.microsoft.BeamSearch (x)", "generates a sequence by a search; convert the decoder"),
        ("y = ai.onnx.ml.Imputer (x)", "no neural network operator; do this step outside of the model"),
        ("y = ai.onnx.ml.ZipMap (x)", "leave it out: skl2onnx's options={'zipmap': False}"),
        ("y = RequantShift (x)", "it is no operator of ONNX: export the model without the tool"),
    ],
)
def test_refusals_say_what_to_do(node: str, why: str, tmp_path: Path) -> None:
    domain = node.split()[2].rpartition(".")[0]
    model = _model(f"(float[1,8] x) => (float y) {{ {node} }}")
    if domain not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=why):
        convert(tmp_path / "m.onnx", calibrate=False)


def test_shapes_below_one_ask_for_larger_sizes(tmp_path: Path) -> None:
    model = _model("(float[1,8,N] x) => (float y) { y = Conv (x, w) }", w=(8, 8, 5))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="give larger --dim sizes"):
        convert(tmp_path / "m.onnx", calibrate=False, dims={"N": 2})


def test_a_rank_that_is_not_known_is_not_that_of_a_scalar(tmp_path: Path) -> None:
    """ONNX Runtime tells [] before it folds; Shape of that became nothing (GPT-2 of its own tests)."""
    model = _model(
        """(float[2, 8] x) => (float[2, 8] y) {
            s = Shape (x)
            f = Cast <to = 1> (s)
            places = NonZero (f)
            flat = Squeeze (places)
            same = Gather (s, flat)
            r = Reshape (x, same)
            g = com.microsoft.FastGelu (r)
            t = Shape (r)
            y = Reshape (g, t)
        }"""
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    graph = convert(path).graph
    assert graph.tensors[graph.outputs[0]].shape == (2, 8)
