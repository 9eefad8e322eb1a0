"""ONNX MaxPool through the command line: numbers of ONNX Runtime, predicted bytes, where each pool runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.cli import main
from fadiff.costmodel.schedule.serialize import read_document


def network(path: Path, pools: list[dict[str, object]], seed: int, size: tuple[int, int], relu: bool) -> Path:
    """A 3x3 convolution (ReLU or not) and a MaxPool with each of the attributes, then a 1x1 convolution."""
    rng = np.random.default_rng(seed)
    nodes, weights, channels, value = [], [], 3, "image"
    for i, attributes in enumerate(pools):
        outputs = int(rng.integers(4, 24))
        scale = np.sqrt(2 / (9 * channels))
        kernel = (rng.standard_normal((outputs, channels, 3, 3)) * scale).astype(np.float32)
        bias = (rng.standard_normal(outputs) / 4).astype(np.float32)
        weights += [numpy_helper.from_array(kernel, f"w{i}"), numpy_helper.from_array(bias, f"b{i}")]
        pads = [1, 1, 1, 1]
        nodes.append(helper.make_node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=pads))
        value = f"c{i}"
        if relu:
            nodes.append(helper.make_node("Relu", [value], [f"r{i}"], f"relu{i}"))
            value = f"r{i}"
        nodes.append(helper.make_node("MaxPool", [value], [f"p{i}"], f"pool{i}", **attributes))
        value, channels = f"p{i}", outputs
    last = (rng.standard_normal((5, channels, 1, 1)) / np.sqrt(channels)).astype(np.float32)
    weights.append(numpy_helper.from_array(last, "w"))
    nodes.append(helper.make_node("Conv", [value, "w"], ["out"], "last"))
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, *size])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 5, "height", "width"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def compiled(model: Path, out: Path, target: str, *options: str) -> dict[str, str]:
    """Compile and verify; the path of the tensor that each pool reads."""
    arguments = ["compile", str(model), "--target", target, "--method", "exact", "--out", str(out)]
    assert main([*arguments, *options, "--verify", "-q"]) == 0
    result = json.loads((out / "verify" / "result.json").read_text())
    assert result["traffic_exact"] and result["agrees"]
    edges = json.loads((out / "schedule.json").read_text())["fusion"]["edges"]
    paths = {edge["consumer"]: edge["path"] for edge in edges if edge["consumer"].startswith("pool")}
    by_name = {layer["name"]: layer for layer in result["layers"]}
    for edge in edges:  # what is pooled on its way is never in memory; the pooled tensor is compared
        if edge["path"] == "store":
            assert by_name[edge["producer"]]["agrees"] is None
            assert by_name[edge["consumer"]]["agrees"]
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_random_pools(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    target = ["gemmini-small", "gemmini-default", "gemmini-fp32"][seed % 3]
    relu = seed % 2 == 0
    pools: list[dict[str, object]] = []
    for _ in range(2):
        kernel, stride = rng.choice([(2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
        attributes: dict[str, object] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
        if relu:
            if rng.random() < 0.7:
                attributes["pads"] = [rng.randint(0, kernel - 1) for _ in range(4)]
            else:
                attributes["ceil_mode"] = 1
        pools.append(attributes)
    model = network(tmp_path / "pools.onnx", pools, seed, (rng.randint(9, 24), rng.randint(9, 24)), relu)
    paths = compiled(model, tmp_path / "out", target)
    assert set(paths.values()) == {"store"}


def test_pools_that_would_not_be_exact_have_a_border_or_run_on_the_core(tmp_path: Path, capfd) -> None:
    """Padding without a ReLU counts as zero in Gemmini: an identity pools the image amid a border; a 5x5
    window does not fit its field."""
    pools = [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [5, 5]},
    ]
    model = network(tmp_path / "pools.onnx", pools, 1, (17, 15), relu=False)
    paths = compiled(model, tmp_path / "out", "gemmini-small", "--objective", "latency")
    assert paths["pool0"] == "store" and paths["pool1"] != "store"
    document = read_document(tmp_path / "out" / "schedule.json")
    assert {"pool0.bordered", "pool0.identity"} <= {layer.name for layer in document.layers}
    assert main(["inspect", str(model), "--explain"]) == 0
    text = capfd.readouterr().out
    assert "pool0 is not pooled as a convolution stores: its padding would count as zero" in text
    assert "pool1 is not pooled as a convolution stores: its window of 5 exceeds 3" in text
    report = (tmp_path / "out" / "report.html").read_text()
    assert "on the core: its window of 5 exceeds 3" in report


def test_the_target_decides(tmp_path: Path) -> None:
    model = network(tmp_path / "pools.onnx", [{"kernel_shape": [2, 2], "strides": [2, 2]}], 3, (16, 16), True)
    assert compiled(model, tmp_path / "with", "gemmini-small") == {"pool0": "store"}
    target = tmp_path / "target.yaml"
    text = (tmp_path / "with" / "target.yaml").read_text()
    assert "has_max_pool: true" in text
    target.write_text(text.replace("has_max_pool: true", "has_max_pool: false"))
    assert "store" not in compiled(model, tmp_path / "without", str(target)).values()


def test_a_profile_without_fused_pools_says_what_to_do(tmp_path: Path, capfd) -> None:
    """Profile dosa knows no pool in the store path: such a schedule is refused, not counted wrongly."""
    model = network(tmp_path / "m.onnx", [{"kernel_shape": [2, 2], "strides": [2, 2]}], 1, (16, 16), True)
    assert compiled(model, tmp_path / "out", "gemmini-default") == {"pool0": "store"}
    capfd.readouterr()
    assert main(["evaluate", str(tmp_path / "out" / "schedule.json"), "--profile", "dosa"]) == 2
    says = capfd.readouterr().err
    assert "pools join no fusion group in profile dosa" in says and "compile with the same --profile" in says
