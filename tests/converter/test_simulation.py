"""The quantised model in ONNX Runtime, against its definition in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.qdq import written
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import quantise
from tests.converter.oracle import weights
from tests.converter.programs import model, program

W, V = weights(1, 4, 4), weights(2, 4, 4)
LARGEST = {"x": 2.0, "a": 3.0, "b": 4.0, "c": 5.0, "d": 6.0, "y": 7.0}
DIAMOND = "a = MatMul (x, w) b = MatMul (a, v) c = MatMul (b, w) d = MatMul (b, v) y = Add (c, d)"


def _rounded(array: np.ndarray, name: str) -> np.ndarray:
    """As int8 of the range of a value."""
    step = LARGEST[name] / 127
    return np.asarray(np.clip(np.rint(array / step), -128, 127) * step)


def _weight(array: np.ndarray) -> np.ndarray:
    step = np.abs(array).max() / 127
    return np.asarray(np.rint(array / step) * step)


def _simulated(floats: str, values: str) -> tuple[Simulation, list[np.ndarray], np.ndarray]:
    """Of the diamond with some layers in float: what values are, and the input."""
    net = program(DIAMOND, w=W, v=V)
    steps = [replace(step, is_float=step.output in floats) for step in plan(net)]
    ranges = {name: (-size, size) for name, size in LARGEST.items()}
    plain = quantise(net, steps, ranges)
    simulation = Simulation(net, steps, plain)
    x = weights(3, 2, 4)
    (found,) = simulation.run(plain, [{"x": x}], list(values))
    return simulation, [found[name] for name in values], x


def test_every_stored_value_is_rounded_and_nothing_else() -> None:
    simulation, (a, y), x = _simulated("", "ay")
    w, v = _weight(W), _weight(V)
    wanted = _rounded(_rounded(x, "x") @ w, "a")
    np.testing.assert_allclose(a, wanted, atol=1e-5)
    b = _rounded(wanted @ v, "b")
    # (a sum of unlike scales has the coarser of its operands')
    operands = [np.clip(np.rint(part * 127 / 6), -128, 127) * 6 / 127 for part in (b @ w, b @ v)]
    np.testing.assert_allclose(y, _rounded(sum(operands), "y"), atol=0.056)
    assert set(simulation.written.pairs) == set("xabcdy")
    assert simulation.written.exact("a") == "a.float" and simulation.written.exact("x") == "x"


def test_layers_in_float_read_floats_of_each_other() -> None:
    """b is int8 for d alone, which is no layer in float; c's operand b and its weights are exact."""
    simulation, (a, b, c, d), x = _simulated("bc", "abcd")
    wanted = _rounded(_rounded(x, "x") @ _weight(W), "a")
    np.testing.assert_allclose(a, wanted, atol=1e-5)
    exact = wanted @ V
    np.testing.assert_allclose(b, _rounded(exact, "b"), atol=1e-5)
    assert np.abs(c - _rounded(exact @ W, "c")).max() < 1e-5 + 6 / 127
    assert np.abs(d - _rounded(_rounded(exact, "b") @ _weight(V), "d")).max() < 1e-5
    reads = {node.output[0]: list(node.input) for node in simulation.model.graph.node}
    writers = {name: reads[simulation.written.exact(name)] for name in "abcd"}
    assert writers["a"] == ["x.dq", "w.dq"] and writers["b"] == ["a", "v"]
    assert writers["c"] == ["b.float", "w"] and writers["d"] == ["b", "v.dq"]


def test_another_quantisation_runs_in_the_same_session() -> None:
    simulation, (a,), x = _simulated("", "a")
    ranges = {name: (-size / 2, size / 2) for name, size in LARGEST.items()}
    other = quantise(simulation.program, simulation.steps, ranges)
    (found,) = simulation.run(other, [{"x": x}], ["a"])
    narrow = np.clip(np.rint(x / (1 / 127)), -128, 127) / 127
    wanted = np.clip(np.rint(narrow @ _weight(W) / (1.5 / 127)), -128, 127) * 1.5 / 127
    np.testing.assert_allclose(found["a"], wanted, atol=1e-5)
    assert len(simulation._sessions) == 1 and np.abs(found["a"] - a).max() > 0.1


@pytest.mark.parametrize("taken", ["a.scale", "a.q", "w.dq"])
def test_names_that_are_taken_are_not_given_again(taken: str) -> None:
    net = model(DIAMOND.replace("d =", "d0 = Relu (b) d ="), w=W, v=V)
    net.graph.node[3].output[0] = taken
    renamed = program_of(net)
    steps = plan(renamed)
    ranges = dict.fromkeys((*LARGEST, taken), (-1.0, 1.0))
    found = written(renamed, steps, quantise(renamed, steps, ranges))
    names = [name for pair in found.pairs.values() for name in (pair.scale, pair.zero, pair.integers)]
    outputs = [out for node in found.model.graph.node for out in node.output]
    assert len(set(names)) == len(names) and len(set(outputs)) == len(outputs)
    assert taken not in (*names, *found.constants.values())
