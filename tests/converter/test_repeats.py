"""Equal steps of a recurrence are found, and stay equal in int8: one scale, one table, one bias for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from converter.ir.repeats import Operation, Repeat, find_repeats, shared_roles
from tests.converter.oracle import Checked, check, model_of, weights

BATCH, WIDTH = 2, 8
GOOD_DB = 20.0
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _steps(count: int, state: str = "h0") -> list[Operation]:
    """a_t = f(x_t, h_t); h_t+1 = g(a_t, w)."""
    found = []
    for t in range(count):
        found.append(Operation("f", (f"x{t}", state), (f"a{t}",)))
        found.append(Operation("g", (f"a{t}", "w"), (state := f"h{t + 1}",)))
    return found


def _slices(count: int) -> list[Operation]:
    return [Operation("slice", ("x",), (f"x{t}",)) for t in range(count)]


def test_steps_are_found_with_what_comes_before_and_behind() -> None:
    operations = [
        Operation("first", ("x",), ("h0",)),
        *_slices(5),
        *_steps(5),
        Operation("last", ("h5",), ("y",)),
    ]
    assert find_repeats(operations) == (Repeat(1, 1, 5), Repeat(6, 2, 5))


def test_steps_may_read_backwards() -> None:
    assert find_repeats([*_slices(4)[::-1], *_steps(4)]) == (Repeat(0, 1, 4), Repeat(4, 2, 4))


def test_two_steps_are_no_loop() -> None:
    assert not find_repeats([*_slices(2), *_steps(2)])


def test_other_weights_make_other_steps() -> None:
    kinds = [
        Operation((op.kind, i // 2) if op.kind == "g" else op.kind, op.reads, op.writes)
        for i, op in enumerate(_steps(6))
    ]
    assert not find_repeats(kinds)


def test_steps_that_read_an_older_state_are_no_steps_of_one_loop() -> None:
    operations = [*_slices(6), *_steps(6)]
    skipping = Operation("f", ("x3", "h1"), ("a3",))  # (not h3)
    operations[6 + 2 * 3] = skipping
    assert Repeat(6, 2, 6) not in find_repeats(operations)


def test_what_steps_read_in_one_place_has_one_role() -> None:
    operations = [Operation("first", ("x",), ("h0",)), *_slices(4), *_steps(4)]
    roles = shared_roles(operations)
    assert {roles[f"h{t}"] for t in range(5)} == {"h0"}
    assert {roles[f"a{t}"] for t in range(4)} == {"a0"}
    assert len(set(roles.values())) == 3


def _cell(op: str, steps: int, direction: str) -> onnx.ModelProto:
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


def _constants(checked: Checked) -> int:
    return sum(tensor.data is not None for tensor in checked.conversion.graph.tensors.values())


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_constants_of_a_recurrence_do_not_grow_with_its_steps(
    op: str, direction: str, tmp_path: Path
) -> None:
    few, many = (check(_cell(op, steps, direction), tmp_path) for steps in (6, 15))
    assert _constants(few) == _constants(many)
    assert min(few.sqnr_db, many.sqnr_db) > GOOD_DB


def test_judged_samples_leave_steps_equal(tmp_path: Path) -> None:
    """Corrections of biases and zero points are found step by step, and shared."""
    samples = [{"x": weights(10 + i, 12, BATCH, WIDTH)} for i in range(12)]
    few = check(_cell("GRU", 6, "forward"), tmp_path, calibration=[{"x": s["x"][:6]} for s in samples])
    many = check(_cell("GRU", 12, "forward"), tmp_path, calibration=samples)
    assert _constants(many) <= _constants(few) + 1  # (ranges may be chosen differently)
    assert many.sqnr_db > GOOD_DB


def test_steps_of_other_weights_share_no_scale(tmp_path: Path) -> None:
    """A chain of products looks like a recurrence, but its weights are its own."""
    count = 6
    constants = {f"w{i}": weights(i, WIDTH, WIDTH) * (1 + i) / 3 for i in range(count)}
    nodes = [
        node
        for i in range(count)
        for node in (
            helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"a{i}"]),
            helper.make_node("Tanh", [f"a{i}"], [f"h{i + 1}"]),
        )
    ]
    model = model_of(nodes, {"h0": (BATCH, WIDTH)}, {f"h{count}": (BATCH, WIDTH)}, constants)
    graph = check(model, tmp_path).conversion.graph
    scales = {tensor.scale for name, tensor in graph.tensors.items() if name.startswith("a")}
    assert len(scales) == count


def _loop(op: str, steps: int) -> onnx.ModelProto:
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


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_bodies_of_loops_are_steps(op: str, tmp_path: Path) -> None:
    few, many = (check(_loop(op, steps), tmp_path) for steps in (6, 15))
    assert _constants(few) == _constants(many)
    assert min(few.sqnr_db, many.sqnr_db) > GOOD_DB
