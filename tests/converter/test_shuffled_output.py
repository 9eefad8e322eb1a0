from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.converter.oracle import check


def test_a_channel_shuffle_just_before_the_output(tmp_path: Path) -> None:
    """Strides can say the shuffle, an order of whole axes cannot: the output needs its copy."""
    constants = {
        "w": np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 1, 3, 3),
        "split": np.array([1, 2, 2, 6, 5], np.int64),
        "whole": np.array([1, 4, 6, 5], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=4, pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "split"], ["halves"]),
        helper.make_node("Transpose", ["halves"], ["swapped"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["swapped", "whole"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shuffle",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert check(model, tmp_path).lsb_to_quantized <= 1
