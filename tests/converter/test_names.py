"""Nodes may have no name, or that of another: layers have names of their own all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from tests.converter.oracle import check, model_of, weights


@pytest.mark.parametrize(
    "names",
    [
        ("", "Conv_0", ""),
        ("Conv_1", "", "Conv_2"),
        ("", "", ""),
        ("same", "same", "same"),
        ("", "Conv", "Conv_1"),
    ],
)
def test_every_node_is_found_whatever_it_is_called(names: tuple[str, str, str], tmp_path: Path) -> None:
    """Weights and biases reach the layer of their own node: the int8 model is near the float one."""
    first, second, third = names
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name=first),
        helper.make_node("Conv", ["a", "w2", "b2"], ["b"], name=second),
        helper.make_node("Sigmoid", ["b"], ["s"], name=third),
        helper.make_node("Tanh", ["a"], ["t"], name=third),
        helper.make_node("Conv", ["s", "w3"], ["c"], name=third),
        helper.make_node("Conv", ["t", "w3"], ["d"], name=third),
        helper.make_node("Add", ["c", "d"], ["y"], name=first),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "b1": weights(2, 4),
        "w2": weights(3, 4, 4, 1, 1),
        "b2": weights(4, 4),
        "w3": weights(5, 6, 4, 1, 1),
    }
    checked = check(model_of(nodes, {"x": (1, 3, 5, 6)}, {"y": None}, constants), tmp_path)
    layers = [layer.name for layer in checked.conversion.graph.layers]
    assert len(set(layers)) == len(layers) == 7
    assert checked.lsb_to_quantized <= 1 and checked.sqnr_db > 25
