"""`fadiff compile --prefetch` from ONNX to verified C."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def network(path: Path) -> Path:
    """A convolution bound by the array, then two that wait for their weights."""
    rng = np.random.default_rng(3)
    nodes, weights, value = [], [], "image"
    for i, (outputs, inputs, kernel) in enumerate([(64, 64, 5), (256, 64, 1), (64, 256, 1)]):
        scale = np.sqrt(2 / (inputs * kernel**2))
        w = (rng.standard_normal((outputs, inputs, kernel, kernel)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(
            helper.make_node("Conv", [value, f"w{i}"], [f"y{i}"], f"conv{i}", pads=[kernel // 2] * 4)
        )
        value = f"y{i}"
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 64, 20, 20])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 64, 20, 20])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_first_weights_load_early_and_all_is_as_predicted(fadiff, tmp_path):
    model, found = network(tmp_path / "net.onnx"), {}
    for switch in ("--no-prefetch", "--prefetch"):
        out = tmp_path / switch
        common = ("--target", "gemmini-large", "--method", "exact", "--no-fusion", "--out", out, "-q")
        assert fadiff("compile", model, switch, *common, "--verify").code == 0
        found[switch] = json.loads((out / "schedule.json").read_text())
        result = json.loads((out / "verify" / "result.json").read_text())
        assert result["agrees"] and result["traffic_exact"]
    late, early = found["--no-prefetch"], found["--prefetch"]
    assert [run["prefetch_during"] for run in late["fusion"]["execution"]] == [None] * 3
    during = [run["prefetch_during"] for run in early["fusion"]["execution"]]
    assert during[0] is None and during[1] == early["layers"][0]["name"]
    assert early["totals"]["edp_uj_cycles"] < late["totals"]["edp_uj_cycles"]
    # Layers that load early are not mapped again for hardware loops, which may move more bytes.
    assert early["totals"]["dram_bytes"] <= late["totals"]["dram_bytes"]
    assert early["totals"]["gap"] >= 0 and early["totals"]["bound_kind"] == "relaxed"
    rows = {(r["latency_model"], r["group_latency"]): r["latency_cycles"] for r in early["readings"]["rows"]}
    assert rows["roofline", "executed"] == early["totals"]["latency_cycles"] < rows["roofline", "sum"]
    # The file executes again as it is.
    again = (
        "compile",
        model,
        "--schedule",
        tmp_path / "--prefetch" / "schedule.json",
        "--out",
        tmp_path / "b",
    )
    assert fadiff(*again, "-q").code == 0
    written = json.loads((tmp_path / "b" / "schedule.json").read_text())
    assert written["fusion"] == early["fusion"]
