"""`verify` on real firmware, whole and with one thing broken at a time."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fadiff.cli import main
from fadiff.emitters.memory_map import MemoryMapError
from fadiff.emulator import BuildError, EmulatorError, FirmwareError, pool, verify
from tests.fadiff.models import small_network

MICROSOFT = "com.microsoft"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A residual network whose tensors stay on chip from group to group on gemmini-small."""
    return compile_small(tmp_path_factory.mktemp("compiled"))


def compile_small(folder: Path, *options: str) -> Path:
    model = small_network(folder / "small.onnx")
    out = folder / "out"
    arguments = ["compile", model, "--target", "gemmini-small", "--out", out, "--method", "exact", "-q"]
    assert main([*(str(a) for a in arguments), *options]) == 0
    return out


@pytest.fixture
def folder(compiled: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    copy = tmp_path / "out"
    shutil.copytree(compiled, copy)
    return copy


def memory_map(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "firmware" / "memory_map.json").read_text())
    return content


def rewrite(path: Path, pattern: str, replacement: str, count: int = 0) -> None:
    """Edit a file; the pattern must occur."""
    text, replaced = re.subn(pattern, replacement, path.read_text(), count=count)
    assert replaced
    path.write_text(text)


def source(folder: Path) -> Path:
    return folder / "firmware" / f"{memory_map(folder)['model']}.c"


@pytest.mark.parametrize("processes", [1, 2])
def test_right_numbers_and_predicted_bytes(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(pool, "ALONE", 0 if processes == 2 else pool.ALONE)
    report = verify(compiled)
    assert report.error is None
    assert report.passed and report.bit_exact and report.traffic_exact and report.meaning_kept
    assert report.vectors == 16
    assert report.top1_agreement == 1.0
    assert report.sqnr_db is not None and report.sqnr_db > 25
    names = [layer.name for layer in report.layers]
    assert names == ["first", "second", "residual", "pool", "classifier"]
    document = json.loads(json.dumps(report.as_dict()))
    assert {"bit_exact", "traffic_exact", "top1_agreement", "sqnr_db", "layers"} <= set(document)
    measured = {"dram_bytes", "instructions", "estimated_cycles", "peak_spad_rows", "peak_acc_rows"}
    assert measured <= set(document["measured"])
    assert document["measured"]["dram_bytes"] == document["predicted"]["dram_bytes"] > 0
    assert {"name", "bit_exact", "max_lsb_diff", "dram_bytes"} <= set(document["layers"][0])
    assert document["measured"]["peak_spad_rows"] <= 512


def test_fused_intermediates_are_compared_tile_by_tile(tmp_path: Path) -> None:
    fused = compile_small(tmp_path, "--no-residency")
    layers = {layer["name"]: layer for layer in memory_map(fused)["layers"]}
    assert layers["first"]["tiles"], "the schedule no longer fuses: choose another model"
    report = verify(fused, vectors=1)
    assert {layer.name: layer.bit_exact for layer in report.layers}["first"] is True


def test_tensors_that_stay_on_chip_are_compared_whole(compiled: Path) -> None:
    places = memory_map(compiled)["tensors"]
    resident = {name for name, place in places.items() if place["symbol"] == "tile_buffer"}
    assert resident, "the schedule keeps no tensor on chip: choose another model"
    writers = {layer["name"] for layer in memory_map(compiled)["layers"] if resident & set(layer["outputs"])}
    report = verify(compiled, vectors=1)
    assert {layer.bit_exact for layer in report.layers if layer.name in writers} == {True}
    for layer in report.layers:
        if layer.name in writers - {"pool"}:  # which runs on the core
            assert "tile-buffer O" in layer.traffic and "dram O" not in layer.traffic


def test_a_flipped_weight_names_the_first_layer_that_diverges(folder: Path) -> None:
    layers = {layer["name"]: layer for layer in memory_map(folder)["layers"]}
    weights = next(r for r in layers["second"]["regions"] if r["role"] == "W")
    blob = folder / "firmware" / f"{memory_map(folder)['model']}_weights.bin"
    content = bytearray(blob.read_bytes())
    for at in range(weights["offset"], weights["offset"] + weights["bytes"]):
        content[at] = (-content[at]) & 0xFF if content[at] != 0x80 else 0x80
    blob.write_bytes(content)
    report = verify(folder, vectors=2)
    exact = {layer.name: layer.bit_exact for layer in report.layers}
    assert exact["first"] is True and exact["second"] is False
    assert report.first_divergence is not None
    assert report.first_divergence["layer"] == "second"
    assert report.first_divergence["expected"] != report.first_divergence["actual"]
    assert not report.bit_exact and not report.passed
    assert report.traffic_exact, "the same bytes move"


def test_a_wrong_prediction_names_the_layer(folder: Path) -> None:
    path = folder / "schedule.json"
    schedule = json.loads(path.read_text())
    layer = next(layer for layer in schedule["layers"] if layer["name"] == "classifier")
    layer["cost"]["traffic"]["dram"]["W"]["read"] += 1
    path.write_text(json.dumps(schedule))
    report = verify(folder, vectors=1)
    assert [layer.name for layer in report.layers if not layer.traffic_exact] == ["classifier"]
    assert report.bit_exact and not report.traffic_exact and not report.passed


def test_numbers_that_are_exact_but_mean_something_else(folder: Path) -> None:
    path = folder / "verify" / "quantized.onnx"
    model = onnx.load(path)
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["before" if name == output.name else name for name in node.output]
    model.graph.node.append(helper.make_node("Neg", ["before"], [output.name]))
    onnx.save(model, path)
    path = folder / "verify" / "float_outputs.npz"
    with np.load(path) as floats:
        negated = {name: -floats[name] for name in floats.files}
    np.savez(path, **negated)
    report = verify(folder, vectors=1)
    assert report.bit_exact and not report.meaning_kept and not report.passed
    assert report.runtime_sqnr_db is not None and report.runtime_sqnr_db < 0


def test_layers_that_differ_by_a_step_may_amplify_it(compiled: Path) -> None:
    """A text detector (a public file): 370 of 595,704 values a step apart, outputs 4 dB."""
    report = verify(compiled, vectors=1)
    assert report.runtime_steps == 0
    for steps, db, kept in ((1, 4.0, True), (2, 4.0, False), (None, 4.0, False), (1, 0.0, False)):
        judged = {"runtime_steps": steps, "runtime_sqnr_db": db, "sqnr_db": None}
        assert report.model_copy(update=judged).meaning_kept is kept


def test_a_missing_fence(folder: Path) -> None:
    rewrite(folder / "firmware" / "runtime" / "fence.h", r"gemmini_fence\(\);", ";")
    report = verify(folder, vectors=1)
    assert report.error is not None and not report.passed
    assert "fence" in report.error
    assert "layer" in report.error


def test_dram_outside_the_map(folder: Path) -> None:
    path = folder / "firmware" / "memory_map.json"
    content = memory_map(folder)
    layer = next(layer for layer in content["layers"] if layer["name"] == "classifier")
    next(region for region in layer["regions"] if region["role"] == "W")["bytes"] -= 1
    path.write_text(json.dumps(content))
    report = verify(folder, vectors=1)
    assert report.error is not None
    assert "layer classifier" in report.error and "outside every DRAM region" in report.error


def test_a_program_that_never_ends(folder: Path) -> None:
    rewrite(source(folder), r"(int \w+_run\([^;{]*\)\s*\{)", r"\1 for (volatile int i = 0; i == 0;) { }", 1)
    report = verify(folder, vectors=1, time_limit=2)
    assert report.error == "the firmware did not finish in 2 seconds"


def test_the_next_verification_has_the_same_worker_and_a_machine_of_its_own(
    compiled: Path, folder: Path
) -> None:
    assert verify(compiled, vectors=1).passed
    (before,) = pool._idle
    rewrite(source(folder), r"(int \w+_run\([^;{]*\)\s*\{)", r"\1 *(volatile int *)0 = 1;", 1)
    assert "crashed" in str(verify(folder, vectors=1).error)
    assert verify(compiled, vectors=1).passed
    assert pool._idle == [before]


def test_a_worker_has_the_functional_model_that_the_firmware_has(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever its own environment says that one is kept."""
    pool._stop_all()
    monkeypatch.setenv("FADIFF_CACHE", str(tmp_path / "elsewhere"))
    assert verify(compiled, vectors=1).passed
    assert not (tmp_path / "elsewhere").exists()


def test_a_warning_in_the_c_is_an_error(folder: Path) -> None:
    rewrite(source(folder), r"\Z", "static int never_used(void) { return 1; }\n", 1)
    with pytest.raises(BuildError, match="never_used"):
        verify(folder, vectors=1)


@pytest.mark.parametrize("name", ["verify/reference.onnx", "verify/inputs.npz", "firmware/memory_map.json"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises((FirmwareError, MemoryMapError), match=Path(name).name):
        verify(folder, vectors=1)


def test_damaged_vectors(folder: Path) -> None:
    (folder / "verify" / "inputs.npz").write_bytes(b"PK not really")
    with pytest.raises(FirmwareError, match=r"inputs.npz: not an .npz file"):
        verify(folder, vectors=1)


def test_a_damaged_memory_map_names_the_field(folder: Path) -> None:
    content = memory_map(folder)
    content["layers"][0]["kind"] = "tensor-corn"
    (folder / "firmware" / "memory_map.json").write_text(json.dumps(content))
    with pytest.raises(MemoryMapError, match=r"memory_map.json: layers.0.kind"):
        verify(folder, vectors=1)


def test_one_tensor_read_as_both_operands(tmp_path: Path) -> None:
    """Scores of a sequence with itself: addresses do not tell input from weights, only their sum is known."""
    nodes = [
        onnx.helper.make_node("Transpose", ["x"], ["xt"], "turn", perm=[0, 2, 1]),
        onnx.helper.make_node("MatMul", ["x", "xt"], ["y"], "gram"),
    ]
    float32 = onnx.TensorProto.FLOAT
    ends = [
        onnx.helper.make_tensor_value_info(n, float32, s) for n, s in (("x", [1, 24, 40]), ("y", [1, 24, 24]))
    ]
    graph = onnx.helper.make_graph(nodes, "gram", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "gram.onnx")
    out = tmp_path / "out"
    assert (
        main(["compile", str(tmp_path / "gram.onnx"), "--out", str(out), "--method", "layerwise", "-q"]) == 0
    )
    report = verify(out, vectors=1)
    assert report.passed
    (layer,) = (layer for layer in report.layers if layer.name == "gram")
    both = layer.traffic["dram I+W"]["read"]
    assert both.measured == both.predicted == 2 * 24 * 40


def test_a_linear_layer_of_three_axes_in_a_new_opset(tmp_path: Path) -> None:
    """ONNX Runtime fuses MatMul and Add to what it then refuses, if they are quantised in opset 21."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
        onnx.helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    generator = np.random.default_rng(0)
    constants = [
        onnx.numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (32, 16)), ("b", (16,)))
    ]
    float32 = onnx.TensorProto.FLOAT
    ends = [
        onnx.helper.make_tensor_value_info(n, float32, s) for n, s in (("x", [1, 9, 32]), ("y", [1, 9, 16]))
    ]
    graph = onnx.helper.make_graph(nodes, "linear", ends[:1], ends[1:], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "linear.onnx")
    out = tmp_path / "out"
    arguments = ["compile", str(tmp_path / "linear.onnx"), "--out", str(out), "--method", "layerwise", "-q"]
    assert main(arguments) == 0
    assert verify(out, vectors=1).passed


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network for two images at once: same names, other sizes."""
    folder = tmp_path_factory.mktemp("another")
    model = small_network(folder / "small.onnx", batch=2)
    out = folder / "out"
    arguments = ["compile", model, "--target", "gemmini-small", "--out", out, "--method", "layerwise", "-q"]
    assert main([str(a) for a in arguments]) == 0
    return out


def test_verification_data_of_another_compilation(folder: Path, another: Path) -> None:
    shutil.rmtree(folder / "verify")
    shutil.copytree(another / "verify", folder / "verify")
    with pytest.raises(EmulatorError, match=r"reference\.onnx: .*two compilations; compile the model again"):
        verify(folder, vectors=1)


@pytest.mark.parametrize(
    "file", ["memory_map.json", "small.c", "small.h", "small_weights.S", "small_weights.bin"]
)
def test_half_of_a_folder_says_which_file_is_missing(folder: Path, file: str) -> None:
    (folder / "firmware" / file).unlink()
    with pytest.raises(FirmwareError, match=rf"firmware/{re.escape(file)}: no such file: compile the model"):
        verify(folder, vectors=1)


def test_a_schedule_of_another_model(folder: Path) -> None:
    rewrite(folder / "schedule.json", '"name": "classifier"', '"name": "head"')
    with pytest.raises(FirmwareError, match=r"schedule\.json: .*two compilations"):
        verify(folder, vectors=1)


def test_a_network_that_amplifies_rounding_is_judged_by_the_float_model(tmp_path: Path) -> None:
    """Attention with weights of one (a public file): a large constant drowns what the last norm needs."""
    node = helper.make_node
    ones = {"gamma": (16,), "w": (16, 48), "b": (48,), "w_out": (16, 16), "b_out": (16,)}
    graph = helper.make_graph(
        [
            node("SkipLayerNormalization", ["x", "y", "gamma", "gamma"], ["n"], "first", domain=MICROSOFT),
            node("Attention", ["n", "w", "b"], ["a"], "attention", domain=MICROSOFT, num_heads=2),
            node("MatMul", ["a", "w_out"], ["m"], "project"),
            node(
                "SkipLayerNormalization",
                ["m", "n", "gamma", "gamma", "b_out"],
                ["z"],
                "last",
                domain=MICROSOFT,
            ),
        ],
        "ones",
        [helper.make_tensor_value_info(name, 1, (1, 3, 16)) for name in "xy"],
        [helper.make_tensor_value_info("z", 1, (1, 3, 16))],
        [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in ones.items()],
    )
    opsets = [helper.make_opsetid("", 16), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "ones.onnx")
    out = tmp_path / "out"
    arguments = ["compile", str(tmp_path / "ones.onnx"), "--out", str(out), "--method", "exact", "-q"]
    assert main(arguments) == 0
    report = verify(out)
    assert report.runtime_sqnr_db is not None and report.runtime_sqnr_db < 6
    assert report.bit_exact and report.meaning_kept and report.passed


def test_a_constant_of_three_beside_a_whole_image(tmp_path: Path) -> None:
    """An image less its mean (a public file): gcc took the dense branch, never run there, for an overrun."""
    image, constant = (1, 3, 64, 64), np.array([120, 110, 100], np.float32).reshape(3, 1, 1)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["f"], "cast", to=1), helper.make_node("Sub", ["f", "mean"], ["y"])],
        "normalise",
        [helper.make_tensor_value_info("x", 2, image)],
        [helper.make_tensor_value_info("y", 1, image)],
        [numpy_helper.from_array(constant, "mean")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    out = tmp_path / "out"
    assert main(["compile", str(tmp_path / "m.onnx"), "--out", str(out), "--method", "exact", "-q"]) == 0
    assert verify(out, vectors=1).passed
