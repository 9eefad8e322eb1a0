"""Random inputs lie where the first operators of the model expect them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.inputs import suggested_spans
from tests.converter.oracle import model_of

IMAGE = (1, 3, 4, 4)


def _constants() -> dict[str, np.ndarray]:
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    each = {"mean": mean, "std": deviation, "mean255": 255 * mean, "std255": 255 * deviation}
    out = {name: array.reshape(3, 1, 1).astype(np.float32) for name, array in each.items()}
    numbers = {
        "255": 255,
        "1/255": 1 / 255,
        "127.5": 127.5,
        "one": 1,
        "half": 0.5,
        "five": 5.0,
        "hundred": 100.0,
    }
    return {**out, **{name: np.array(number, np.float32) for name, number in numbers.items()}}


def _chain(*steps: tuple[str, str]) -> list[NodeProto]:
    values = ["x", *(f"v{i}" for i in range(len(steps)))]
    return [
        helper.make_node(op, [values[i], constant], [values[i + 1]]) for i, (op, constant) in enumerate(steps)
    ] + [helper.make_node("Relu", [values[-1]], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (_chain(("Div", "255")), (0, 255)),
        (_chain(("Mul", "1/255"), ("Sub", "mean"), ("Div", "std")), (0, 255)),
        (_chain(("Sub", "mean255"), ("Div", "std255")), (0, 255)),
        (_chain(("Div", "127.5"), ("Sub", "one")), (0, 255)),
        (_chain(("Sub", "mean"), ("Div", "std")), (0, 1)),
        (_chain(("Sub", "hundred"), ("Div", "five")), (85, 115)),
        (_chain(), None),
    ],
    ids=["1/255", "255 mean std", "mean std 255", "127.5", "mean std", "else", "none"],
)
def test_ranges_that_normalisations_suggest(
    nodes: list[NodeProto], expected: tuple[float, float] | None
) -> None:
    used = {value for node in nodes for value in node.input}
    constants = {name: array for name, array in _constants().items() if name in used}
    model = onnx.shape_inference.infer_shapes(model_of(nodes, {"x": IMAGE}, {"y": IMAGE}, constants))
    assert suggested_spans(program_of(model)).get("x") == (pytest.approx(expected) if expected else None)


def test_a_batch_normalisation_tells_mean_and_deviation() -> None:
    numbers = {"s": [1, 1, 1], "b": [0, 0, 0], "m": [10, 20, 30], "v": [100, 100, 100]}
    constants = {name: np.array(values, np.float32) for name, values in numbers.items()}
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])]
    model = onnx.shape_inference.infer_shapes(model_of(nodes, {"x": IMAGE}, {"y": IMAGE}, constants))
    assert suggested_spans(program_of(model))["x"] == pytest.approx((-20, 60), abs=0.01)


def test_bytes_that_become_floats_are_pixels() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    model = model_of(nodes, {"x": IMAGE}, {"y": IMAGE})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    assert suggested_spans(program_of(onnx.shape_inference.infer_shapes(model)))["x"] == (0, 255)
