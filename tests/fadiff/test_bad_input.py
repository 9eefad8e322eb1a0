"""Whatever is wrong with the input: exit code 2, one line with file, place and remedy, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.fadiff.models import small_network, with_external_data, with_unsupported_nodes


@pytest.fixture
def refused(fadiff, tmp_path):
    """Compile `model` with `options`, and check everything that all refusals have in common."""

    def run(model: Path, *options: object) -> str:
        out = tmp_path / "deep" / "out"
        before = sorted(p.name for p in tmp_path.iterdir())
        ended = fadiff("compile", model, "--out", out, "-q", *options)
        assert ended.code == 2, ended
        assert ended.out == ""
        lines = [line for line in ended.err.splitlines() if not line.startswith("warning:")]
        assert len(lines) == 1, ended.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in ended.err
        assert sorted(p.name for p in tmp_path.iterdir()) == before, "something was left behind"
        return lines[0]

    return run


def test_a_file_that_does_not_exist(refused, tmp_path):
    assert "nowhere.onnx" in refused(tmp_path / "nowhere.onnx")


def test_a_folder_instead_of_a_file(refused, tmp_path):
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    assert "folder.onnx" in refused(folder)


def test_a_truncated_file(refused, tmp_path):
    path = small_network(tmp_path / "net.onnx")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    message = refused(path)
    assert "net.onnx" in message and "truncated" in message and "again" in message


def test_the_papers_fusion_model_of_what_is_executed(refused, tmp_path):
    rules = ("--fusion-model", "paper")
    assert "use profile dosa" in refused(small_network(tmp_path / "net.onnx"), *rules)


@pytest.mark.parametrize("content", [b"", b"GIF89a, not a network", b"\x00" * 64, b"{}"])
def test_not_an_onnx_file(refused, tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    message = refused(path)
    assert "net.onnx" in message and "not an ONNX" in message


def test_all_unsupported_nodes_at_once(refused, tmp_path):
    message = refused(with_unsupported_nodes(tmp_path / "odd.onnx"))
    assert "odd.onnx" in message
    for word in ("determinant", "Det", "coffee", "MakeCoffee", "org.example"):
        assert word in message


def test_an_unbound_symbolic_batch_says_how_to_bind_it(refused, tmp_path):
    message = refused(small_network(tmp_path / "net.onnx", batch="batch"))
    assert "net.onnx" in message and "image" in message and "--dim batch=1" in message


def test_a_dimension_that_the_model_does_not_have(refused, tmp_path):
    message = refused(small_network(tmp_path / "net.onnx"), "--dim", "sequence=4")
    assert "sequence" in message


def test_a_dimension_bound_twice(refused, tmp_path):
    model = small_network(tmp_path / "net.onnx", batch="batch")
    assert "batch" in refused(model, "--dim", "batch=1", "--dim", "batch=2")


def test_short_external_data(refused, tmp_path):
    path = with_external_data(tmp_path / "net.onnx")
    data = tmp_path / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:100])
    assert "net.onnx.data" in refused(path)


def test_calibration_data_without_the_input(refused, tmp_path):
    np.savez(tmp_path / "calibration.npz", other=np.zeros((1, 8, 12, 12), np.float32))
    message = refused(small_network(tmp_path / "net.onnx"), "--calibration", tmp_path / "calibration.npz")
    assert "calibration.npz" in message and "image" in message and "other" in message


@pytest.mark.parametrize("option", ["--calibration", "--test-inputs"])
def test_data_of_the_wrong_shape(refused, tmp_path, option):
    np.savez(tmp_path / "data.npz", image=np.zeros((2, 3, 5, 5), np.float32))
    message = refused(small_network(tmp_path / "net.onnx"), option, tmp_path / "data.npz")
    assert "data.npz" in message and "image" in message and "12" in message


@pytest.mark.parametrize("option", ["--calibration", "--test-inputs"])
def test_data_that_is_no_npz_file(refused, tmp_path, option):
    (tmp_path / "data.npz").write_text("not a zip file")
    message = refused(small_network(tmp_path / "net.onnx"), option, tmp_path / "data.npz")
    assert "data.npz" in message and "numpy.savez" in message and "pickle" not in message
    np.save(tmp_path / "data.npy", np.zeros((1, 8, 12, 12), np.float32))
    message = refused(small_network(tmp_path / "net.onnx"), option, tmp_path / "data.npy")
    assert "data.npy" in message and "numpy.savez" in message


@pytest.mark.parametrize("factor", [1, 255, 1 / 255])
def test_test_inputs_of_another_size_than_calibration_are_pointed_out(fadiff, tmp_path, factor):
    """Pixels from 0 to 255 in one file, from 0 to 1 in the other: it was int8 that was said to fail."""
    image = np.random.default_rng(0).random((4, 8, 12, 12), dtype=np.float32)
    image[0, 0, 0, 0] = 1
    model = small_network(tmp_path / "net.onnx")
    np.savez(tmp_path / "net.calibration.npz", image=image * np.float32(factor))
    np.savez(tmp_path / "net.inputs.npz", image=image)
    ended = fadiff("compile", model, "--out", tmp_path / "out", "--method", "layerwise", "-q")
    warned = [line for line in ended.err.splitlines() if "in the calibration data" in line]
    assert len(warned) == (factor != 1)
    assert all("net.inputs.npz: image reaches 1, in the calibration data" in line for line in warned)


def test_an_unknown_target_lists_the_presets(refused, tmp_path):
    message = refused(small_network(tmp_path / "net.onnx"), "--target", "gemmini-huge")
    assert "gemmini-huge" in message and "gemmini-large" in message and "gemmini_params.h" in message


def test_a_layer_that_does_not_fit_the_target(refused, tmp_path):
    target = tmp_path / "tiny.yaml"
    target.write_text("name: tiny\nside: 16\nscratchpad_bytes: 32\naccumulator_bytes: 16384\n")
    message = refused(small_network(tmp_path / "net.onnx"), "--target", target)
    assert "scratchpad" in message or "accumulator" in message


@pytest.mark.parametrize("rules", [("--profile", "dosa"), ("--profile", "dosa", "--fusion-model", "paper")])
def test_verifying_rules_that_emit_no_c(refused, tmp_path, rules):
    message = refused(small_network(tmp_path / "net.onnx"), *rules, "--verify")
    assert "--profile hw" in message and "--fusion-model sound" in message


def test_an_existing_folder_is_refused_before_the_work(fadiff, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    model = small_network(tmp_path / "net.onnx")
    for options, says in (((), "--force"), (("--force",), "not an output folder")):
        ended = fadiff("compile", model, "--out", out, *options)
        assert ended.code == 2 and says in ended.err and "converting" not in ended.err
    assert (out / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile",),
        ("compile", "net.onnx", "--dim", "batch"),
        ("compile", "net.onnx", "--method", "magic"),
        ("compile", "net.onnx", "--time-budget", "nan"),
        ("transmogrify",),
    ],
)
def test_usage_errors_exit_two(fadiff, arguments):
    ended = fadiff(*arguments)
    assert ended.code == 2 and "Traceback" not in ended.err


def test_a_method_whose_package_is_missing_names_the_extra(fadiff, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymoo", None)
    ended = fadiff("compare", small_network(tmp_path / "net.onnx"), "--methods", "genetic", "-q")
    assert ended.code == 2 and "fadiff[baselines]" in ended.err and "bug" not in ended.err


def test_folders_where_something_else_belongs(fadiff, tmp_path):
    for command in ("verify", "report"):
        missing, other = fadiff(command, tmp_path / "missing"), fadiff(command, tmp_path)
        assert missing.code == other.code == 2
        assert "no such folder" in missing.err and "no schedule.json in it" in other.err
    ended = fadiff("evaluate", tmp_path)
    assert ended.code == 2 and "give the schedule.json in it" in ended.err


def test_an_internal_error_says_how_to_report_it(fadiff, tmp_path, monkeypatch):
    from fadiff import search

    def broken(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(search, "find_schedule", broken)
    model = small_network(tmp_path / "net.onnx")
    ended = fadiff("compile", model, "--out", tmp_path / "out", "-q")
    assert ended.code == 3
    assert "surprise" in ended.err and "report" in ended.err and "Traceback" not in ended.err
    verbose = fadiff("compile", model, "--out", tmp_path / "out", "-v")
    assert verbose.code == 3 and "Traceback" in verbose.err
    assert not (tmp_path / "out").exists()


def test_a_folder_or_nothing_as_model(refused, tmp_path):
    assert "not a file" in refused(tmp_path)
    assert "no such file" in refused(tmp_path / "missing.onnx")


def test_a_size_of_zero_is_called_that(refused, tmp_path):
    message = refused(small_network(tmp_path / "net.onnx", batch=0))
    assert "size 0" in message and "--dim image.0=1" in message


def test_a_graph_without_outputs(refused, tmp_path):
    model = onnx.load(small_network(tmp_path / "net.onnx"))
    del model.graph.output[:]
    onnx.save(model, tmp_path / "net.onnx")
    assert "no outputs" in refused(tmp_path / "net.onnx")


def test_weights_that_are_no_numbers(refused, tmp_path):
    model = onnx.load(small_network(tmp_path / "net.onnx"))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w1")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0, 0, 0] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(array, "w1"))
    onnx.save(model, tmp_path / "net.onnx")
    assert "NaN" in refused(tmp_path / "net.onnx")


def test_a_value_defined_twice_is_named(refused, tmp_path):
    model = onnx.load(small_network(tmp_path / "net.onnx"))
    model.graph.node.append(model.graph.node[1])
    onnx.save(model, tmp_path / "net.onnx")
    assert "r1" in refused(tmp_path / "net.onnx")


@pytest.mark.parametrize("option", ["--calibration", "--test-inputs"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1j])
def test_data_that_is_no_finite_number(refused, tmp_path, option, value):
    np.savez(tmp_path / "data.npz", image=np.full((2, 1, 8, 12, 12), value))
    message = refused(small_network(tmp_path / "net.onnx"), option, tmp_path / "data.npz")
    assert "data.npz" in message and "image" in message


def test_a_target_file_that_is_no_text(refused, tmp_path):
    (tmp_path / "target.yaml").write_bytes(b"\xff\xfe\x00\x01")
    message = refused(small_network(tmp_path / "net.onnx"), "--target", tmp_path / "target.yaml")
    assert "target.yaml" in message and "not a text file" in message


def test_a_model_that_needs_more_memory_than_there_is(refused, tmp_path):
    model = small_network(tmp_path / "net.onnx", batch="batch")
    assert "memory" in refused(model, "--dim", "batch=99999999999")


def test_a_limit_on_bytes_that_nothing_reaches(refused, tmp_path):
    model = small_network(tmp_path / "net.onnx")
    message = refused(model, "--method", "layerwise", "--max-dram-bytes", "12")
    assert "12 bytes" in message and "fewest" in message
