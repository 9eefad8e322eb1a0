"""Sizes of machines that are no Gemminis: `sweep`, `codesign` and `map --size`."""

import csv
import itertools
import json
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fadiff as api
from fadiff.costmodel.nests.sizes import resized, sizes_of
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.optimizer.codesign.area import Area
from tests.fadiff.models import design_space

ENTRIES, COLUMNS = (512, 131072), (7, 14)
SPACE = f"""
base: eyeriss-like
vary:
  buffer.entries: {list(ENTRIES)}
  columns.meshX: {list(COLUMNS)}
search: {{method: local, fusion: false}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """One 3 x 3 convolution of 8 to 14 channels on 6 x 6."""
    weights = np.random.default_rng(0).standard_normal((14, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 14, 6, 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_energies_follow_the_size_of_their_memory_only():
    base = machine_of("eyeriss-like")
    larger = resized(base, {"buffer.entries": 4 * 131072, "rows.meshY": 6})
    for before, after in zip(base.memories, larger.memories, strict=True):
        times = 2 if before.name == "buffer" else 1
        assert after.read_pj == pytest.approx(times * before.read_pj)
        assert after.write_pj == pytest.approx(times * before.write_pj)
    assert larger.multipliers == 14 * 6 and sizes_of(larger)["buffer.entries"] == 524288
    assert not any(math.isinf(size) for size in sizes_of(base).values())


def test_the_area_counted_by_hand():
    """14 x 12 elements, each with 24 + 384 bytes and 16 sums of 16 bits; a buffer of 128 KB."""
    kilobytes = 128 + 168 * (24 + 384 + 32) / 1024
    assert Area().of_machine(machine_of("eyeriss-like")) == pytest.approx(
        0.01384 + 0.0004045 * 168 + 0.002604 * kilobytes
    )


def test_a_sweep_has_what_map_finds_for_every_size(fadiff, tmp_path, model):
    table = tmp_path / "sweep.csv"
    run = ("sweep", design_space(tmp_path, SPACE), model, "-o", table, "--json", "-q")
    ended = fadiff(*run)
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)
    assert [(r["buffer.entries"], r["columns.meshX"]) for r in rows] == list(
        itertools.product(ENTRIES, COLUMNS)
    )
    for row in rows[::3]:
        sizes = {name: row[name] for name in ("buffer.entries", "columns.meshX")}
        found = api.map_model(model, "eyeriss-like", sizes=sizes, method="local", fusion=False)
        assert row["edp_uj_cycles"] == pytest.approx(found.best.edp)
    written = table.read_bytes()
    assert fadiff(*run).out == ended.out and table.read_bytes() == written


def test_codesign_finds_the_best_of_all_designs(fadiff, tmp_path, model):
    area = 0.35
    costs = {}
    for entries, columns in itertools.product(ENTRIES, COLUMNS):
        sizes = {"buffer.entries": entries, "columns.meshX": columns}
        machine = resized(machine_of("eyeriss-like"), sizes)
        if Area().of_machine(machine) <= area:
            costs[entries, columns] = api.map_model(model, machine, method="local", fusion=False).best.edp
    assert 1 < len(costs) < len(ENTRIES) * len(COLUMNS)
    out = tmp_path / "best"
    space = design_space(tmp_path, SPACE)
    ended = fadiff("codesign", model, "--space", space, "--area", area, "-o", out, "--json", "-q")
    assert ended.code == 0, ended.err
    best = json.loads(ended.out)["best"]
    assert (best["buffer.entries"], best["columns.meshX"]) == min(costs, key=costs.__getitem__)
    assert best["edp_uj_cycles"] == pytest.approx(min(costs.values()))
    with (out / "designs.csv").open() as file:
        assert max(float(row["area_mm2"]) for row in csv.DictReader(file)) <= area
    assert "entries: " in (out / "arch.yaml").read_text() and not (out / "target.yaml").exists()


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        (
            "base: eyeriss-like\nvary: {buffer.depth: [1]}\n",
            (),
            "vary.buffer.depth: codesign chooses only DRAM.",
        ),
        (
            SPACE,
            ("--method", "gradient"),
            "--method gradient: descent has the sizes of Gemminis only; choose",
        ),
        (SPACE.replace("local", "layerwise"), (), "search.method: 'layerwise' is not one of 'auto'"),
        ("base: gemmini-small\nvary: {side: [8]}\nert: x.yaml\n", (), "gemmini-small is a Gemmini"),
    ],
)
def test_a_wrong_space_is_one_line(fadiff, tmp_path, model, text, more, says):
    space = design_space(tmp_path, text)
    ended = fadiff("codesign", model, "--space", space, "--area", 1, *more, "-q")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1


def test_map_takes_a_size(fadiff, model):
    run = ("map", model, "--arch", "eyeriss-like", "--method", "local", "--no-fusion", "-q", "--json")
    small = json.loads(fadiff(*run, "--size", "columns.meshX=7").out)
    assert small["machine"] == "eyeriss-like-7"
    assert small["totals"]["cycles"] > json.loads(fadiff(*run).out)["totals"]["cycles"]
    wrong = fadiff(*run, "--size", "columns.meshY=7")
    assert wrong.code == 2 and "eyeriss-like has no size columns.meshY; it has" in wrong.err
    assert fadiff(*run, "--size", "columns").code == 2
