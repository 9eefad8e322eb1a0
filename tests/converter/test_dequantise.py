"""What is read of a quantised file, against numbers computed by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from fadiff.converter.dequantise.affine import is_lowest, leaves, quantised, reach
from fadiff.converter.dequantise.qoperators import expand_integer_operators
from fadiff.converter.dequantise.strip import Imported, strip_quantisation
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.scale import Scale
from tests.converter.oracle import session


def _stripped(
    text: str, opset: int = 21, **constants: np.ndarray
) -> tuple[dict[str, np.ndarray], onnx.ModelProto, Imported]:
    """Constants of the float model by name, the model, and what was read."""
    domains = f'["": {opset}, "com.microsoft": 1]'
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {domains}> net {text}")
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    for node in model.graph.node:
        node.name = node.output[0]
    found, imported = strip_quantisation("m.onnx", model)
    return {t.name: numpy_helper.to_array(t) for t in found.graph.initializer}, found, imported


_PAIR = """(float[2,3] x) => (float[2,3] y) {
    q = QuantizeLinear (x, s, z)
    y = DequantizeLinear (q, s, z)
}"""


@pytest.mark.parametrize(
    ("dtype", "zero", "low", "high", "shifted"),
    [
        (np.int8, 0, -64, 63.5, None),
        (np.uint8, 128, -64, 63.5, None),
        (np.uint8, 0, 0, 127.5, -128),
        (np.uint8, 100, -50, 77.5, -28),
        (np.int8, -128, 0, 127.5, -128),
        (np.int8, 5, -66.5, 61, 5),
        (np.uint16, 0, 0, 32767.5, None),
        (np.int16, 0, -16384, 16383.5, None),
    ],
)
def test_a_pair_says_the_scale_of_a_value(
    dtype: type[np.generic], zero: int, low: float, high: float, shifted: int | None
) -> None:
    """A zero point is counted from the middle of int8; a symmetric scale covers the same range."""
    _, model, imported = _stripped(_PAIR, s=np.array(0.5, np.float32), z=np.array(zero, dtype))
    is_kept = dtype(0).itemsize == 1 and shifted is None
    step = 0.5 if is_kept else max(-low, high) / 127
    assert imported.given.steps == {"x": pytest.approx(step)}
    assert imported.given.zeros == ({} if shifted is None else {"x": Scale(0.5, shifted)})
    assert imported.spans == {"x": (low, high)}
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert any("16 bits (first: x)" in note for note in imported.notes) == (dtype(0).itemsize == 2)


_WEIGHTS = np.array([[100, -100], [20, 30]], np.int8)
_PRODUCT = """(float[3,2] x) => (float[3,2] y) {{
    w = DequantizeLinear {attributes} ({inputs})
    y = MatMul (x, w)
}}"""


@pytest.mark.parametrize(
    ("attributes", "zero", "scale", "wanted"),
    [
        ("<axis = 1>", [0, 0], [0.5, 0.25], [[50, -25], [10, 7.5]]),
        ("<axis = 0>", [0, 0], [0.5, 0.25], [[50, -50], [5, 7.5]]),
        ("<axis = -1>", [10, -20], [0.5, 0.25], [[45, -20], [5, 12.5]]),
        ("<axis = 0>", [-30, 0], [0.5, 0.25], [[65, -35], [5, 7.5]]),
        ("<axis = 0, block_size = 2>", None, [[0.5, 0.25]], [[50, -25], [10, 7.5]]),
        ("<axis = 0, block_size = 2>", [[4, 0]], [[0.5, 0.25]], [[48, -25], [8, 7.5]]),
        ("<axis = 1, block_size = 2>", [[0], [10]], [[0.5], [0.25]], [[50, -50], [2.5, 5]]),
    ],
)
def test_constants_are_the_numbers_that_they_stand_for(
    attributes: str, zero: list[int] | None, scale: list[float], wanted: list[list[float]]
) -> None:
    given = {"wq": _WEIGHTS, "s": np.array(scale, np.float32)}
    given |= {} if zero is None else {"z": np.array(zero, np.int8)}
    text = _PRODUCT.format(attributes=attributes, inputs="wq, s" if zero is None else "wq, s, z")
    constants, model, imported = _stripped(text, **given)
    name = model.graph.node[0].input[1]
    np.testing.assert_array_equal(constants[name], np.array(wanted, np.float32))
    assert not imported.given.steps
    steps = np.broadcast_to(imported.given.channels[name], (2, 2))
    shifted = np.array(wanted) / steps  # integers without their zero point
    np.testing.assert_array_equal(shifted, np.rint(shifted))


@pytest.mark.parametrize(("zero", "is_kept"), [(0, True), (-27, True), (-28, False), (28, True), (29, False)])
def test_one_scale_stays_where_integers_without_their_zero_point_are_of_eight_bits(
    zero: int, is_kept: bool
) -> None:
    text = _PRODUCT.format(attributes="", inputs="wq, s, z")
    constants, model, imported = _stripped(
        text, wq=_WEIGHTS, s=np.array(0.5, np.float32), z=np.array(zero, np.int8)
    )
    name = model.graph.node[0].input[1]
    np.testing.assert_array_equal(constants[name], np.float32(0.5) * (_WEIGHTS.astype(np.float32) - zero))
    assert imported.given.steps == ({name: 0.5} if is_kept else {})
    assert (name in imported.given.channels) != is_kept


@pytest.mark.parametrize("perm", ["", "<perm = [1, 0]>"])
def test_scales_of_channels_are_turned_with_them(perm: str) -> None:
    text = f"""(float[3,2] x) => (float[3,2] y) {{
        w = DequantizeLinear <axis = 0> (wq, s)
        t = Transpose {perm} (w)
        y = MatMul (x, t)
    }}"""
    *_, imported = _stripped(text, wq=_WEIGHTS, s=np.array([0.5, 0.25], np.float32))
    np.testing.assert_array_equal(imported.given.channels["t"], np.array([[0.5, 0.25]], np.float32))


def test_a_bias_has_no_scale_of_its_own() -> None:
    text = """(float[1,2,4] x) => (float[1,2,4] y) {
        b = DequantizeLinear (bq, s)
        y = Conv (x, w, b)
    }"""
    bias = np.array([300, -7], np.int32)
    constants, model, imported = _stripped(
        text, bq=bias, s=np.array(0.5, np.float32), w=np.ones((2, 2, 1), np.float32)
    )
    name = model.graph.node[0].input[2]
    np.testing.assert_array_equal(constants[name], np.float32([150, -3.5]))
    assert name not in imported.given.steps and name not in imported.given.channels


def test_a_zero_point_that_is_no_integer_is_refused() -> None:
    zero = np.array(0, ml_dtypes.float8_e4m3fn)
    with pytest.raises(ModelError, match=r"node q \(QuantizeLinear\): zero point z is not an integer"):
        _stripped(_PAIR, s=np.array(0.5, np.float32), z=zero)


@pytest.mark.parametrize("zeros", [None, 3, [3, -4]])
def test_products_of_integers_take_zero_points_of_channels(zeros: int | list[int] | None) -> None:
    """DynamicQuantizeLinear and ConvInteger are a convolution of floats."""
    weight = np.array([[[[5]], [[-6]]], [[[7]], [[8]]]], np.int8)
    given = {"w": weight} | ({} if zeros is None else {"z": np.array(zeros, np.int8)})
    text = f"""(float[1,2,1,1] x) => (float[1,2,1,1] y) {{
        q, s, o = DynamicQuantizeLinear (x)
        c = ConvInteger (q, w, o{"" if zeros is None else ", z"})
        f = Cast <to = 1> (c)
        y = Mul (f, s)
    }}"""
    constants, model, imported = _stripped(text, **given)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    shift = np.array(0 if zeros is None else zeros).reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(constants[conv.input[1]], weight.astype(np.float32) - shift)
    assert imported.notes == ("1 dynamically quantised products became float and are calibrated",)


@pytest.mark.parametrize("computed", ["xs", "ws"])
def test_a_scale_that_is_computed_is_refused_beside_a_bias(computed: str) -> None:
    numbers = {"xs": 0.5, "ws": 0.25, "ys": 1}
    given = {name: np.array(number, np.float32) for name, number in numbers.items() if name != computed}
    text = f"""(uint8[1,2,4] x, float {computed}) => (uint8[1,2,4] y) {{
        y = QLinearConv (x, xs, z, w, ws, none, ys, z, b)
    }}"""
    given |= {"z": np.array(128, np.uint8), "none": np.array(0, np.int8), "b": np.ones(2, np.int32)}
    with pytest.raises(ModelError, match=f"scale or zero point {computed} is computed at run time"):
        _stripped(text, w=np.ones((2, 2, 1), np.int8), **given)


def test_saturation_stands_for_a_relu_where_zero_is_the_lowest_integer() -> None:
    """Not behind what is never negative, and not for an input."""
    text = """(float[1,2] x) => (float[1,2] y) {
        xq = QuantizeLinear (x, s, low)
        a = DequantizeLinear (xq, s, low)
        b = Sub (a, w)
        bq = QuantizeLinear (b, s, low)
        c = DequantizeLinear (bq, s, low)
        d = Mul (c, c)
        dq = QuantizeLinear (d, s, low)
        y = DequantizeLinear (dq, s, low)
    }"""
    _, model, _ = _stripped(
        text, s=np.array(0.5, np.float32), low=np.array(0, np.uint8), w=np.float32([1, 2])
    )
    assert [node.op_type for node in model.graph.node] == ["Sub", "Relu", "Mul"]
    assert model.graph.node[1].name == "bq.relu"


@pytest.mark.parametrize(
    ("body", "is_positive"),
    [
        ("b = Pow (a, two)", True),
        ("b = Pow (a, three)", False),
        ("b = Pow (a, four)", True),
        ("b = Pow (a, a)", False),
        ("b = Mul (a, three)", False),
        ("p = Mul (a, a) b = Add (p, zeros)", True),
        ("p = Mul (a, a) b = Add (p, signs)", False),
        ("p = Mul (a, a) b = Mul (zeros, p)", True),
        ("p = Mul (a, a) b = Sub (p, zeros)", False),
        ("p = Mul (a, a) b = Add (p, a)", False),
        ("p = Sigmoid (a) b = Transpose (p)", True),
        ("p = Sigmoid (a) b = Concat <axis = 0> (p, p)", True),
        ("p = Sigmoid (a) b = Concat <axis = 0> (p, a)", False),
    ],
)
def test_what_cannot_be_negative_needs_no_relu(body: str, is_positive: bool) -> None:
    """Its zero point is the lowest integer."""
    text = f"""(float[2,2] x) => (float[N,2] y) {{
        a = Sub (x, signs)
        {body}
        q = QuantizeLinear (b, s, low)
        y = DequantizeLinear (q, s, low)
    }}"""
    numbers = {"two": [2], "three": [3], "four": [4], "zeros": [0, 1], "signs": [-1, 1], "s": 0.5}
    given = {name: np.array(number, np.float32) for name, number in numbers.items()}
    _, model, _ = _stripped(text, low=np.array(0, np.uint8), **given)
    assert any(node.op_type == "Relu" for node in model.graph.node) != is_positive


_INTEGER_PRODUCTS = {
    "QLinearConv": "y = QLinearConv (x, xs, xz, w, ws, none, ys, yz, b)",
    "QLinearConv without a bias": "y = QLinearConv (x, xs, xz, w, ws, none, ys, yz)",
    "QLinearMatMul": "y = QLinearMatMul (x, xs, xz, w, ws, none, ys, yz)",
    "QGemm": "y = com.microsoft.QGemm <transB = 0> (x, xs, xz, w, ws, none, b, ys, yz)",
    "QGemm turned": "y = com.microsoft.QGemm <transB = 1> (x, xs, xz, w, ws, none, b, ys, yz)",
}


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", _INTEGER_PRODUCTS)
def test_products_of_integers_are_what_onnxruntime_makes_of_them(name: str, channels: int) -> None:
    """To the bit: scales are powers of two, results no ties; one scale, or one for each of two columns."""
    generator = np.random.default_rng(3)
    x, w = generator.integers(60, 140, (3, 5)), generator.integers(-100, 101, (5, 2))
    if name.startswith("QLinearConv"):
        x, w = x.reshape(3, 5, 1), w.T.reshape(2, 5, 1)
    elif name == "QGemm turned":
        w = w.T
    gives = "uint8[3,2,1] y" if x.ndim == 3 else "uint8[3,2] y"
    steps = np.float32([0.25, 0.0625][:channels])
    given = {
        "xs": np.float32(0.5),
        "xz": np.uint8(100),
        "w": w.astype(np.int8),
        "ws": steps if channels > 1 else steps[0],
        "none": np.zeros(channels if channels > 1 else (), np.int8),
        "ys": np.float32(16),
        "yz": np.uint8(120),
        "b": np.array([1001, -2003], np.int32),
    }
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (uint8[{",".join(map(str, x.shape))}] x) => ({gives}) {{ {_INTEGER_PRODUCTS[name]} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in given.items())
    feeds = {"x": x.astype(np.uint8)}
    (wanted,) = session(model).run(None, feeds)
    expanded, dynamic = expand_integer_operators(model)
    assert not dynamic and not any(node.op_type.startswith("Q") for node in expanded.graph.node[:-1])
    (found,) = session(expanded).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 3


def test_products_of_two_computed_values_become_float_products() -> None:
    """What dynamic quantisation leaves of q k^T."""
    text = """(float[2,3] x) => (float[2,2] y) {
        t = Transpose <perm = [1, 0]> (x)
        q, s, o = DynamicQuantizeLinear (x)
        k, r, p = DynamicQuantizeLinear (t)
        c = MatMulInteger (q, k, o, p)
        f = Cast <to = 1> (c)
        g = Mul (f, s)
        y = Mul (g, r)
    }"""
    _, model, imported = _stripped(text)
    x = np.float32([[1, 2, 3], [-4, 5, 0.5]])
    np.testing.assert_allclose(session(model).run(None, {"x": x})[0], x @ x.T, rtol=1e-6)
    assert imported.notes == ("1 dynamically quantised products became float and are calibrated",)


_NUMBER = np.array(4, np.float32)


@pytest.mark.parametrize(
    ("op", "first", "wanted"),
    [
        ("Add", False, (3, 6)),
        ("Add", True, (3, 6)),
        ("Sub", False, (-5, -2)),
        ("Sub", True, (2, 5)),
        ("Mul", False, (-4, 8)),
        ("Mul", True, (-4, 8)),
        ("Div", False, (-0.25, 0.5)),
        ("Div", True, None),
        ("Max", False, None),
    ],
)
def test_where_an_operator_with_a_number_takes_a_range(
    op: str, first: bool, wanted: tuple[float, float] | None
) -> None:
    constants = [_NUMBER, None] if first else [None, _NUMBER]
    limits = [None, (-1, 2)] if first else [(-1, 2), None]
    assert reach(op, limits, constants) == wanted


def test_where_no_range_is_known() -> None:
    assert reach("Add", [None, None], [None, _NUMBER]) is None
    assert reach("Add", [(-1, 2), None], [None, np.ones(2, np.float32)]) is None
    assert reach("Add", [(-1, 2), (0, 1)], [None, None]) is None
    assert reach("Div", [(-1, 2), None], [None, np.zeros(1, np.float32)]) is None


def test_two_steps_of_255_are_rounding() -> None:
    assert not leaves(None, (0, 255))
    for found, beyond in [((-2, 257), False), ((-2.1, 255), True), ((0, 257.1), True), ((10, 20), False)]:
        assert leaves(found, (0, 255)) == beyond
        assert leaves((found[0] + 10, found[1] + 10), (10, 265)) == beyond


def test_integers_of_constants_saturate() -> None:
    values, scale = np.float32([-100, -0.75, 0.25, 0.75, 100]), np.float32(0.5)
    assert quantised(values, scale, np.array(3, np.int8)).tolist() == [-128, 1, 3, 5, 127]
    assert quantised(values, scale, np.array(3, np.uint8)).tolist() == [0, 1, 3, 5, 203]


def test_the_smallest_integer_of_a_type() -> None:
    for dtype, lowest in ((np.int8, -128), (np.uint8, 0), (np.int16, -32768), (np.uint16, 0)):
        assert is_lowest(np.array([lowest], dtype)) and not is_lowest(np.array([lowest + 1], dtype))
    assert not is_lowest(np.array(-(2**31), np.int32))


@pytest.mark.parametrize(
    ("element", "zero", "said"),
    [
        (np.uint8, 128, "0.5 * (integer - 128)"),
        (np.uint8, 100, "0.5 * (integer - 100)"),
        (np.int8, 0, "0.5 * integer"),
        (np.int8, -3, "0.5 * (integer - -3)"),
    ],
)
def test_outputs_and_inputs_of_integers_become_floats(element: type, zero: int, said: str) -> None:
    text = f"""({element.__name__}[2,3] x) => (int8[2,3] y) {{
        a = DequantizeLinear (x, s, middle)
        b = Tanh (a)
        y = QuantizeLinear (b, t, none)
    }}"""
    _, model, imported = _stripped(
        text,
        s=np.array(0.5, np.float32),
        t=np.array(0.25, np.float32),
        middle=np.array(zero, element),
        none=np.array(0, np.int8),
    )
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [
        TensorProto.FLOAT,
        TensorProto.FLOAT,
    ]
    assert imported.given.steps["y"] == 0.25
    assert any(
        n.startswith("input x was an 8-bit integer tensor") and n.endswith(said) for n in imported.notes
    )
    assert any(n.startswith("output y was an 8-bit integer tensor") for n in imported.notes)


@pytest.mark.parametrize("scales", [[0.5], [0.5, 0.25]])
def test_rows_of_a_table_have_one_scale(scales: list[float]) -> None:
    text = """(int64[3] i) => (float[3,2] y) {
        r = Gather (t, i)
        y = DequantizeLinear <axis = 1> (r, s)
    }"""
    given = {"t": _WEIGHTS, "s": np.array(scales, np.float32).reshape([] if len(scales) == 1 else [-1])}
    if len(scales) > 1:
        with pytest.raises(ModelError, match=r"y \(DequantizeLinear\): rows of t have several scales"):
            _stripped(text, **given)
        return
    constants, _, imported = _stripped(text, **given)
    (name,) = constants
    np.testing.assert_array_equal(constants[name], np.float32(0.5) * _WEIGHTS)
    assert imported.given.steps == {name: 0.5, "y": 0.5}
