"""One message names every operator that is not supported, like ones together, with what to do."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import pytest
from onnx import helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.errors import Unsupported
from fadiff.converter.lower.table import cannot_load
from tests.converter.oracle import ints, model_of


def _refusal(nodes: list[onnx.NodeProto], folder: Path, **inputs: tuple[int, ...]) -> UnsupportedError:
    path = folder / "m.onnx"
    onnx.save(model_of(nodes, inputs, {nodes[-1].output[0]: None}), path)
    with pytest.raises(UnsupportedError) as caught:
        convert(path)
    return caught.value


def test_repeated_refusals_are_one_entry(tmp_path: Path) -> None:
    values = ["x", *(f"v{i}" for i in range(5))]
    nodes = [
        helper.make_node("RequantShift", [a], [b], name=f"block/{i}/shift", domain="my.ops")
        for i, (a, b) in enumerate(itertools.pairwise(values))
    ]
    model = _refusal(nodes, tmp_path, x=(2, 3))
    assert len(model.problems) == 5
    assert "\n" not in str(model)
    assert "my.ops.RequantShift x 5: nodes block/0/shift, block/1/shift, block/2/shift and 2 more" in str(
        model
    )


def test_what_folds_is_not_called_unknown(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Reshape", ["x", "s"], ["r"], name="reshape"),
        helper.make_node("Mystery", ["r"], ["y"], name="mystery", domain="my.ops"),
    ]
    assert [problem.op for problem in _refusal(nodes, tmp_path, x=(2, 3)).problems] == ["Mystery"]


def test_what_follows_from_a_refusal_is_not_listed(tmp_path: Path) -> None:
    """Of known operators behind one that nobody can shape; other unknown ones are."""
    nodes = [
        helper.make_node("NhwcMaxPool", ["x"], ["a"], name="pool", domain="com.microsoft"),
        helper.make_node("Transpose", ["a"], ["b"], name="turn", perm=[1, 0]),
        helper.make_node("Softmax", ["b"], ["c"], name="softmax"),
        helper.make_node("CDist", ["c", "c"], ["y"], name="distance", domain="com.microsoft"),
    ]
    found = [problem.op for problem in _refusal(nodes, tmp_path, x=(2, 3)).problems]
    assert found == ["NhwcMaxPool", "CDist"]


@pytest.mark.parametrize(
    ("op", "domain", "is_lost"),
    [
        ("Relu", "", False),
        ("NonZero", "", False),
        ("If", "", True),
        ("Mystery", "", True),
        ("Relu", "my", True),
    ],
)
def test_what_nothing_can_be_loaded_with(op: str, domain: str, is_lost: bool) -> None:
    """Control flow that was not flattened, and what ONNX does not define."""
    assert cannot_load(Unsupported("node", op, domain, "why")) == is_lost


def test_what_data_shapes_is_named_each_time_and_nothing_behind_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], name="first"),
        helper.make_node("Cast", ["i"], ["f"], name="floats", to=1),
        helper.make_node("Softmax", ["f"], ["s"], name="softmax"),
        helper.make_node("NonZero", ["s"], ["j"], name="second"),
        helper.make_node("Cast", ["j"], ["y"], name="again", to=1),
    ]
    found = [problem.node for problem in _refusal(nodes, tmp_path, x=(2, 3)).problems]
    assert found == ["first", "second"]


@pytest.mark.parametrize(
    ("op", "inputs", "why"),
    [
        ("NonZero", {"x": (2, 3)}, "size of its result depends on the data; cut the model"),
        ("RoiAlign", {"x": (1, 2, 8, 8), "r": (1, 4), "b": (1,)}, "computed positions"),
        ("DFT", {"x": (1, 8, 1)}, "spectral transform"),
    ],
)
def test_refused_by_name(op: str, inputs: dict[str, tuple[int, ...]], why: str, tmp_path: Path) -> None:
    error = _refusal([helper.make_node(op, list(inputs), ["y"], name="it")], tmp_path, **inputs)
    assert error.problems[0].op == op
    assert why in str(error)


def test_a_pool_whose_shape_counts_windows_behind_the_image(tmp_path: Path) -> None:
    """Three columns for shape inference, two for ONNX Runtime; the shape before it is computed in floats."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Floor", ["f"], ["g"]),
        helper.make_node("Cast", ["g"], ["i"], to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["x", "i"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[1, 1], strides=[3, 3], ceil_mode=1),
    ]
    assert "behind the image" in str(_refusal(nodes, tmp_path, x=(1, 2, 4, 6)))


def test_a_transposed_convolution_cropped_below_its_image(tmp_path: Path) -> None:
    """Shape inference gives up on `output_shape` smaller than the image and leaves two axes."""
    up = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[4, 4])
    assert "output y has shape" in str(_refusal([up], tmp_path, x=(1, 2, 6, 6), w=(2, 3, 3, 3)))


def test_a_resize_that_keeps_the_aspect_ratio(tmp_path: Path) -> None:
    """ONNX Runtime samples by a scale that is not the ratio of the sizes."""
    resize = helper.make_node(
        "Resize", ["x", "", "", "s"], ["y"], mode="linear", keep_aspect_ratio_policy="not_larger"
    )
    path = tmp_path / "m.onnx"
    onnx.save(model_of([resize], {"x": (1, 2, 5, 6)}, {"y": None}, {"s": ints(1, 2, 8, 11)}, 18), path)
    with pytest.raises(UnsupportedError, match="keep_aspect_ratio_policy not_larger"):
        convert(path)


@pytest.mark.parametrize(
    ("op", "indices", "updates", "attributes", "why"),
    [
        ("ScatterND", (2, 2), (2, 5), {}, "no positions along one axis; write a cache with index_copy"),
        ("ScatterElements", (2, 2, 5), (2, 2, 5), {"axis": 1}, "no positions along one axis"),
        ("ScatterND", (2, 1), (2, 4, 5), {"reduction": "add"}, "reduction add"),
    ],
)
def test_computed_indices_that_are_no_positions(
    op: str,
    indices: tuple[int, ...],
    updates: tuple[int, ...],
    attributes: dict[str, object],
    why: str,
    tmp_path: Path,
) -> None:
    model = model_of(
        [helper.make_node(op, ["x", "i", "u"], ["y"], name="it", **attributes)],
        {"x": (3, 4, 5), "u": updates},
        {"y": None},
        {},
        18,
    )
    model.graph.input.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, indices))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=why):
        convert(tmp_path / "m.onnx", calibrate=False)


@pytest.mark.parametrize(
    ("node", "inputs", "remedy"),
    [
        (
            helper.make_node("BatchNormalization", list("xsbmv"), list("yMV"), name="n", training_mode=1),
            {"x": (2, 3, 4, 4), "s": (3,), "b": (3,), "m": (3,), "v": (3,)},
            "export the model for inference",
        ),
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="n"),
            {"x": (1, 2, 4, 4, 4), "w": (2, 2, 3, 3, 3)},
            "of one or two spatial axes",
        ),
    ],
    ids=["training mode", "transposed convolution of video"],
)
def test_a_refusal_has_the_remedy_that_helps(node, inputs, remedy, tmp_path: Path) -> None:
    (problem,) = _refusal([node], tmp_path, **inputs).problems
    assert remedy in problem.remedy and ";" not in problem.reason
