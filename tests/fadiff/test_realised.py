"""Compilation puts norms and softmax on the array where that is quicker and no less accurate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fadiff
from fadiff.console import Console
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.realise.choice import Cheaper
from fadiff.realised import Realiser, _gains, most_first
from fadiff.search import SearchOptions

ROWS, WIDTH = 80, 96
FEWEST_CYCLES = SearchOptions(objective="latency")
"""By EDP the norms of so small a model stay on the core: on the array they move more bytes."""


def most_gained(graph: Graph) -> list[str]:
    """Layers that gain cycles, those that gain most first."""
    target = load_target("gemmini-default")
    gains = _gains(graph, target, Cheaper(graph, target, FEWEST_CYCLES))
    return sorted(gains, key=gains.__getitem__, reverse=True)


def judge(
    monkeypatch: pytest.MonkeyPatch,
    converted: Graph,
    names: Sequence[str],
    costs: Callable[[tuple[int, ...]], bool],
) -> None:
    """A dB is lost where these of the layers, by their places in `names`, are something else."""
    before = {layer.name: layer.op for layer in converted.layers}

    def accuracy(_: Realiser, graph: Graph) -> dict[str, float]:
        ops = {layer.name: layer.op for layer in graph.layers}
        changed = tuple(at for at, name in enumerate(names) if ops.get(name) != before[name])
        return {"y": -1.0 if costs(changed) else 0.0}

    monkeypatch.setattr(Realiser, "_accuracy", accuracy)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """norm(x + softmax(norm(x) norm(x)^T) norm(x)), with samples beside it."""
    numbers = np.random.default_rng(0)
    names = {"g": numbers.normal(1, 0.2, WIDTH), "b": numbers.normal(0, 0.2, WIDTH), "s": np.array([0.05])}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1),
        helper.make_node("Transpose", ["n"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["n", "t"], ["m"]),
        helper.make_node("Mul", ["m", "s"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "n"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "g", "b"], ["y"], axis=-1),
    ]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (ROWS, WIDTH)) for n in "xy"]
    constants = [onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in names.items()]
    graph = helper.make_graph(nodes, "attention", value[:1], value[1:], constants)
    path = tmp_path_factory.mktemp("model") / "attention.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    samples = numbers.normal(0, 1, (4, ROWS, WIDTH)).astype(np.float32)
    np.savez(path.with_suffix(".calibration.npz"), x=samples)
    return path


def test_compiled_on_the_array_and_read_back(model: Path, tmp_path: Path) -> None:
    result = fadiff.compile(model, tmp_path / "out", objective="latency", verify=True)
    kinds = {layer.op for layer in result.document.layers}
    assert {"exponentials", "moments"} <= kinds and not kinds & {"softmax", "layer_norm"}
    assert result.verification is not None and result.verification.bit_exact
    assert any("layer_norm and softmax on the array" in note for note in result.document.conversion.notes)
    again = fadiff.compile(model, tmp_path / "again", schedule=tmp_path / "out" / "schedule.json")
    assert again.document.layers == result.document.layers


def test_what_costs_accuracy_stays_on_the_core(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion, target = fadiff.converter.convert(model), load_target("gemmini-default")
    monkeypatch.setattr("fadiff.realised.MOST_LOST_DB", -100.0)  # every layer loses too much then
    kept = Realiser(conversion, Console(verbosity=-1))(target, FEWEST_CYCLES)
    assert kept.graph is conversion.graph
    assert kept.conversion.notes[-1].endswith("so 0 of 3: +0.0 dB")
    assert {record.why for record in kept.records} == {"less accurate"}


def test_one_operator_that_costs_accuracy_leaves_the_other(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax whose exponentials are coarse."""
    conversion, target = fadiff.converter.convert(model), load_target("gemmini-default")
    monkeypatch.setattr("fadiff.optimizer.realise.softmax.EXPONENTIAL", 3)
    found = Realiser(conversion, Console(verbosity=-1))(target, FEWEST_CYCLES)
    kinds = {layer.op for layer in found.graph.layers}
    assert {"moments", "softmax"} <= kinds and "exponentials" not in kinds


def test_what_costs_accuracy_by_itself_is_tried_again_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses that are chance: of four norms the first one alone, the second with the third or fourth, and
    all sets of three."""
    affine = {"g": np.ones(WIDTH, np.float32), "b": np.zeros(WIDTH, np.float32)}
    nodes = [
        helper.make_node("LayerNormalization", [x, "g", "b"], [y], axis=-1) for x, y in pairwise("xcdey")
    ]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (ROWS, WIDTH)) for n in "xy"]
    constants = [onnx.numpy_helper.from_array(v, n) for n, v in affine.items()]
    graph = helper.make_graph(nodes, "norms", value[:1], value[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "norms.onnx")
    conversion = fadiff.converter.convert(tmp_path / "norms.onnx")
    target = load_target("gemmini-default")
    names = most_gained(conversion.graph)

    judge(
        monkeypatch,
        conversion.graph,
        names,
        lambda changed: len(changed) > 2 or changed in ((0,), (1, 2), (1, 3)),
    )
    monkeypatch.setattr("fadiff.realised.MOST_TRIED", 4)  # the sets of three or four that gain most
    found = Realiser(conversion, Console(verbosity=-1))(target, FEWEST_CYCLES)
    assert found.conversion.notes[-1].endswith("so 2 of 4: +0.0 dB")
    assert {record.layer for record in found.records if record.why == "less accurate"} == set(names[2:])


def test_one_that_costs_too_much_beside_all_others_is_left_out(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it would have been taken first, and one that costs nothing been refused beside it."""
    conversion, target = fadiff.converter.convert(model), load_target("gemmini-default")
    names = most_gained(conversion.graph)

    judge(monkeypatch, conversion.graph, names, lambda changed: 0 in changed and len(changed) > 1)
    found = Realiser(conversion, Console(verbosity=-1))(target, FEWEST_CYCLES)
    assert found.conversion.notes[-1].endswith(f"so all but {names[0]}: +0.0 dB")
    assert [record.layer for record in found.records if record.why == "less accurate"] == names[:1]


def test_sets_come_in_the_order_of_what_they_gain() -> None:
    gains = {"a": 5.0, "b": 1.0, "c": 2.5, "d": 4.0}
    found = list(most_first(gains))
    every = [set(names) for size in range(5) for names in combinations(gains, size)]
    assert len(found) == 16 and all(names in every for names in found) and len(set(found)) == 16
    totals = [sum(map(gains.__getitem__, names)) for names in found]
    assert totals == sorted(totals, reverse=True)


def test_what_another_objective_keeps_is_looked_at(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sets that gain most by cycles cost too much, and one after the other would end at less."""
    conversion, target = fadiff.converter.convert(model), load_target("gemmini-default")
    names = most_gained(conversion.graph)
    liked = {objective: {names[0]: 3.0, names[1]: 2.0, names[2]: 2.0} for objective in ("latency", "edp")}
    liked["energy"] = {names[1]: 2.0, names[2]: 2.0}

    judge(monkeypatch, conversion.graph, names, lambda changed: 0 in changed and len(changed) > 1)
    monkeypatch.setattr("fadiff.realised.MOST_TRIED", 3)  # all, and two of the sets of two
    monkeypatch.setattr(
        "fadiff.realised._gains", lambda graph, target, cheaper: liked[cheaper.settings.objective]
    )
    found = Realiser(conversion, Console(verbosity=-1))(target, FEWEST_CYCLES)
    assert found.conversion.notes[-1].endswith(f"so all but {names[0]}: +0.0 dB")
