"""Small recurrent models: LSTM, GRU and RNN nodes, and bodies of Loop and Scan."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.converter.oracle import model_of, weights

BATCH, WIDTH = 2, 8
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def cell(op: str, steps: int, direction: str = "forward") -> onnx.ModelProto:
    """x [steps, BATCH, WIDTH] to all states y and the last one h."""
    count = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * WIDTH
    values = {
        "W": weights(1, count, rows, WIDTH) / 3,
        "R": weights(2, count, rows, WIDTH) / 3,
        "B": weights(3, count, 2 * rows) / 4,
    }
    outputs = {"y": (steps, count, BATCH, WIDTH), "h": (count, BATCH, WIDTH)}
    linear = {"linear_before_reset": 1} if op == "GRU" else {}
    node = helper.make_node(
        op, ["x", *values], [*outputs], name="cell", hidden_size=WIDTH, direction=direction, **linear
    )
    return model_of([node], {"x": (steps, BATCH, WIDTH)}, outputs, values)


def loop(op: str, steps: int) -> onnx.ModelProto:
    """s = tanh(s w + x_t), x_t of a Scan; Loop: s = tanh(s w + x), all states collected; w in the body."""
    state, shape = ("s", "out", "kept"), (BATCH, WIDTH)
    read = helper.make_tensor_value_info("x_t" if op == "Scan" else "x", TensorProto.FLOAT, shape)
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["product"]),
        helper.make_node("Add", ["product", read.name], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["out"]),
        helper.make_node("Identity", ["out"], ["kept"]),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in state]
    w = numpy_helper.from_array(weights(7, WIDTH, WIDTH) / 3, "w")
    if op == "Scan":
        body = helper.make_graph(nodes, "body", [infos[0], read], infos[1:], [w])
        node = helper.make_node("Scan", ["s0", "x"], ["last", "y"], name="scan", body=body, num_scan_inputs=1)
        inputs, constants = {"x": (steps, *shape), "s0": shape}, {}
    else:
        count = helper.make_tensor_value_info("i", TensorProto.INT64, ())
        go = [helper.make_tensor_value_info(name, TensorProto.BOOL, ()) for name in ("go", "going")]
        nodes.append(helper.make_node("Identity", ["go"], ["going"]))
        body = helper.make_graph(nodes, "body", [count, go[0], infos[0]], [go[1], *infos[1:]], [w])
        node = helper.make_node("Loop", ["n", "", "s0"], ["last", "y"], name="loop", body=body)
        inputs, constants = {"x": shape, "s0": shape}, {"n": np.int64(steps)}
    outputs = {"last": shape, "y": (steps, *shape)}
    return model_of([node], inputs, outputs, constants)


def chain(count: int) -> onnx.ModelProto:
    """h = tanh(h w_i): looks like a recurrence, but every step has weights of its own."""
    constants = {f"w{i}": weights(i, WIDTH, WIDTH) * (1 + i) / 3 for i in range(count)}
    nodes = [
        node
        for i in range(count)
        for node in (
            helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"a{i}"]),
            helper.make_node("Tanh", [f"a{i}"], [f"h{i + 1}"]),
        )
    ]
    shape = (BATCH, WIDTH)
    return model_of(nodes, {"h0": shape}, {f"h{count}": shape}, constants)
