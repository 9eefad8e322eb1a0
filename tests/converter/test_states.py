"""States: found by name, of one scale at both ends, and as good after fifty steps as after ten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, Cut, ModelError, State, convert
from fadiff.converter.check.reference import integer_reference, reference_session
from fadiff.converter.check.storage import from_storage, to_storage
from fadiff.converter.lower.driver import _input_order
from tests.converter.oracle import model_of, weights
from tests.converter.programs import program
from tests.stateful import NETS, STEPS, TOKENS, cached_convolution, gru, sequence, session_of, steps_of


def _converted(net: str, folder: Path, **options: object) -> tuple[Path, Conversion]:
    path = NETS[net](folder / f"{net}.onnx")
    return path, convert(path, calibration=steps_of(path, 1, 60), **options)


@pytest.mark.parametrize("net", NETS)
def test_integers_keep_up_with_the_float_model_for_fifty_steps(net: str, tmp_path: Path) -> None:
    path, conversion = _converted(net, tmp_path)
    graph = conversion.graph
    assert any("guessed by name" in note for note in conversion.notes)
    float_session = session_of(path)
    session = reference_session(integer_reference(graph))
    tensors = graph.tensors
    pairs = [(tensors[s.output].onnx_name, tensors[s.input].onnx_name) for s in graph.states]
    shapes = {node.name: node.shape for node in float_session.get_inputs()}
    floats = {name: np.zeros(shapes[name], np.float32) for _, name in pairs}
    integers = {s.input: np.zeros(tensors[s.input].shape, np.int8) for s in graph.states}
    (result,) = graph.results
    arguments = {name: tensors[name].onnx_name or name for name in graph.arguments}
    signal, noise = np.zeros(STEPS), np.zeros(STEPS)
    for step, given in enumerate(steps_of(path, 2)):
        names = [output.name for output in float_session.get_outputs()]
        wanted = dict(zip(names, float_session.run(names, {**given, **floats}), strict=True))
        floats = {into: wanted[output] for output, into in pairs}
        names = [output.name for output in session.get_outputs()]
        stored = {name: to_storage(tensors[name], given[value]) for name, value in arguments.items()}
        found = session.run(names, {**stored, **integers})
        found = dict(zip(names, found, strict=True))
        integers = {s.input: found[s.output].reshape(tensors[s.input].shape) for s in graph.states}
        y = from_storage(tensors[result], found[result], wanted["y"].shape)
        signal[step], noise[step] = np.sum(wanted["y"] ** 2), np.sum((wanted["y"] - y) ** 2)

    def sqnr_db(steps: slice) -> float:
        return 10 * float(np.log10(signal[steps].sum() / noise[steps].sum()))

    full = TOKENS if net.startswith("cache_") else 0  # (the mean of ten tokens is smaller than one of them)
    early, late = sqnr_db(slice(full, full + 10)), sqnr_db(slice(40, 50))
    assert early > 20
    assert late > early - 3


@pytest.mark.parametrize("net", NETS)
def test_both_ends_of_a_state_are_stored_alike(net: str, tmp_path: Path) -> None:
    conversion = _converted(net, tmp_path)[1]
    graph = conversion.graph
    inputs = conversion.float_model.graph.input
    shapes = {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in inputs}
    assert len(graph.states) == (2 if net.startswith(("decoder", "cache_")) else 1)
    for state in graph.states:
        output, into = graph.tensors[state.output], graph.tensors[state.input]
        assert output.scale == into.scale
        value = np.random.default_rng(0).standard_normal(shapes[into.onnx_name]).astype(np.float32)
        np.testing.assert_array_equal(to_storage(output, value).ravel(), to_storage(into, value).ravel())
        assert not {state.output, state.input} & {*graph.arguments, *graph.results}


@pytest.mark.parametrize(
    ("output", "into", "paired"),
    [
        ("hn", "h", True),
        ("stateN", "state", True),
        ("state_out", "state_in", True),
        ("present.0.key", "past_key_values.0.key", True),
        ("new_memory", "memory", True),
        ("conv_cache_out", "conv_cache", True),
        ("hidden_1", "hidden_0", True),
        ("x_out", "x_in", False),
        ("image_out", "image", False),
        ("past", "present", False),
        ("cn", "h", False),
    ],
)
def test_pairs_are_guessed_by_names(output: str, into: str, paired: bool, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", [into, "w"], [output], "keep"),
        helper.make_node("MatMul", ["frame", "w"], ["y"], "fc"),
    ]
    path = tmp_path / "m.onnx"
    shape = (1, 4)
    onnx.save(
        model_of(nodes, {"frame": shape, into: shape}, {"y": shape, output: shape}, {"w": weights(0, 4, 4)}),
        path,
    )
    states = convert(path, calibrate=False).graph.states
    assert bool(states) == paired
    assert convert(path, calibrate=False, guess_states=False).graph.states == ()


def test_another_scale_at_the_other_end_is_changed_by_a_table(tmp_path: Path) -> None:
    """The output is half the input: the scale of one follows from that of the other, they cannot share it."""
    nodes = [
        helper.make_node("Mul", ["state", "half"], ["state_out"], "halve"),
        helper.make_node("MatMul", ["state", "w"], ["m"], "fc"),
        helper.make_node("Add", ["m", "x"], ["y"], "sum"),
    ]
    constants = {"half": np.float32(0.5), "w": weights(0, 4, 4)}
    path = tmp_path / "m.onnx"
    shape = (1, 4)
    model = model_of(nodes, {"x": shape, "state": shape}, {"y": shape, "state_out": shape}, constants)
    onnx.save(model, path)
    graph = convert(path).graph
    (state,) = graph.states
    assert graph.tensors[state.output].scale == graph.tensors[state.input].scale
    assert [layer.op for layer in graph.producers(state.output)] == ["lookup"]


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([State("hnn", "h")], "did you mean hn?"),
        ([State("hn", "hh")], "did you mean h?"),
        ([State("y", "h")], "shapes and types differ: y is"),
        ([State("hn", "h"), State("hn", "h")], "output hn is named twice"),
        ([State("hn", "h"), State("y", "x")], "every input would be a state"),
    ],
)
def test_states_that_cannot_be(states: list[State], said: str, tmp_path: Path) -> None:
    path = gru(tmp_path / "gru.onnx")
    if "every" in said:  # x and y of one shape
        path = cached_convolution(tmp_path / "c.onnx")
        states = [State("cache_out", "cache"), State("y", "x")]
    with pytest.raises(ModelError) as caught:
        convert(path, calibrate=False, states=states)
    assert said in str(caught.value)


def test_calibration_data_may_bring_the_states(tmp_path: Path) -> None:
    path = gru(tmp_path / "gru.onnx")
    samples = [{"x": x, "h": np.full((1, 1, 24), 0.5, np.float32)} for x in sequence(path, 1, 6)]
    conversion = convert(path, calibration=samples)
    assert not conversion.consecutive
    assert all(np.all(sample["h"] == 0.5) for sample in conversion.samples)


def test_a_cut_and_a_state_go_together(tmp_path: Path) -> None:
    path = gru(tmp_path / "gru.onnx")
    graph = convert(path, cut=Cut(outputs=("frames", "hn")), states=[State("hn", "h")], calibrate=False).graph
    assert [graph.tensors[name].onnx_name for name in graph.results] == ["frames"]
    assert len(graph.states) == 1


@pytest.mark.parametrize("past", [None, 0.01], ids=["from zero", "recorded"])
def test_a_state_holds_all_of_a_scaled_value(past: float | None, tmp_path: Path) -> None:
    """The scale of three times x follows from that of x; calibration saw no such state, or none at all."""
    nodes = [
        helper.make_node("Mul", ["x", "three"], ["state_out"], "triple"),
        helper.make_node("Add", ["state", "x"], ["y"], "sum"),
    ]
    path = tmp_path / "m.onnx"
    shape = (1, 4)
    ends = {"x": shape, "state": shape}, {"y": shape, "state_out": shape}
    onnx.save(model_of(nodes, *ends, {"three": np.float32(3)}), path)
    x = np.array([[0.1, -0.2, 0.3, -0.4]], np.float32)
    kept = {} if past is None else {"state": np.full(shape, past, np.float32)}
    graph = convert(path, calibration=[{"x": x, **kept}]).graph
    (state,) = graph.states
    given = {graph.tensors[name].onnx_name: name for name in graph.inputs}
    stored = {given["x"]: to_storage(graph.tensors[given["x"]], x), state.input: np.zeros(shape, np.int8)}
    session = reference_session(integer_reference(graph))
    (found,) = session.run([state.output], stored)
    value = from_storage(graph.tensors[state.output], found, shape)
    np.testing.assert_allclose(value, 3 * x, atol=0.015)


@pytest.mark.parametrize(("states", "order"), [(["past"], (1, 0, 2)), (["new"], (0, 1, 2)), ([], (0, 1, 2))])
def test_rows_of_a_cache_are_outermost(states: list[str], order: tuple[int, ...]) -> None:
    """Of a single one, too; an input that is no state is stored as it is."""
    net = program(
        "t = Transpose <perm = [1, 0, 2]> (past) y = ScatterND (t, at, new)",
        "float[2,5,3] past, float[1,2,3] new, int64[1,1] at",
        "float[5,2,3] y",
    )
    net = replace(net, states=tuple(State("y", name) for name in states))
    assert _input_order(net, "past") == order


@pytest.mark.parametrize("larger", ["past_key", "past_value"])
def test_caches_with_one_scale_get_the_largest_that_is_common(larger: str, tmp_path: Path) -> None:
    """Both hold the same rows, and so share a scale; other entries say two of them."""
    path = NETS["cache_scatter_nd"](tmp_path / "net.onnx")
    model = onnx.load(path)
    turn = next(node for node in model.graph.node if node.name == "value_turn")
    turn.input[0] = "key"
    onnx.save(model, path)
    samples = steps_of(path, 1, 20)
    own = _scales(convert(path, calibration=samples))
    assert own["past_key"] == own["past_value"]
    common = {name: own[name] * (1.5 if name == larger else 1.25) for name in own}
    found = _scales(convert(path, calibration=samples, common_scales=common))
    assert found == pytest.approx(dict.fromkeys(own, common[larger]))


def _scales(conversion: Conversion) -> dict[str | None, float | None]:
    tensors = (conversion.graph.tensors[state.input] for state in conversion.graph.states)
    return {tensor.onnx_name: tensor.scale for tensor in tensors}
