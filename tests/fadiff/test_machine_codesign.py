"""Sizes of machines that are no Gemminis: `sweep`, `codesign` and `map --size`."""

import csv
import itertools
import json
import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import fadiff as api
from fadiff.converter import convert
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.nests.sizes import Sized, resized, sizes_of
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.relaxed.nests import RelaxedNests
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.optimizer.codesign.area import Area
from fadiff.optimizer.codesign.descent import descend
from fadiff.optimizer.codesign.designs import Machines
from fadiff.optimizer.codesign.score import MachineScorer
from fadiff.optimizer.mapping_methods import MapOptions
from fadiff.optimizer.nests.layer import LayerSearch
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
    assert Area().of_machine(Sized(machine_of("eyeriss-like"), {})) == pytest.approx(
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
        if Area().of_machine(Sized(machine, {})) <= area:
            costs[entries, columns] = api.map_model(model, machine, method="local", fusion=False).best.edp
    assert 1 < len(costs) < len(ENTRIES) * len(COLUMNS)
    out = tmp_path / "best"
    space = design_space(tmp_path, SPACE)
    run = ("codesign", model, "--space", space, "--area", area, "--method", "local", "-o", out)
    ended = fadiff(*run, "--json", "-q")
    assert ended.code == 0, ended.err
    best = json.loads(ended.out)["best"]
    assert (best["buffer.entries"], best["columns.meshX"]) == min(costs, key=costs.__getitem__)
    assert best["edp_uj_cycles"] == pytest.approx(min(costs.values()))
    with (out / "designs.csv").open() as file:
        assert max(float(row["area_mm2"]) for row in csv.DictReader(file)) <= area
    assert "entries: " in (out / "arch.yaml").read_text() and not (out / "target.yaml").exists()


def test_the_relaxed_counts_of_sizes_are_those_of_the_resized_machine():
    base, layer = machine_of("eyeriss-like"), Workload(Dims(K=24, C=8, P=12, Q=12, R=3, S=3))
    space = LayerSearch(base, layer).spaces[0]
    rows = space.random(6, np.random.default_rng(0))
    factors = torch.ones(6, 1, len(base.levels), len(DIMS))
    factors[:, 0, :, [DIMS.index(dim) for dim in layer.active]] = torch.from_numpy(rows.factors).float()
    stays = torch.full((6, 1, len(base.memories), 3), 1 / 3)
    sizes = {"buffer.entries": (2048, 131072), "columns.meshX": (7, 28), "DRAM.shared_bandwidth": (1, 16)}
    model = RelaxedNests(base, [layer], space.keeps)
    model.sized = Sized(base, {name: torch.tensor(3 * both).float()[:, None] for name, both in sizes.items()})
    together = (*model(factors, stays), model.excess(factors))
    for at in range(6):
        machine = resized(base, {name: both[at % 2] for name, both in sizes.items()})
        alone = RelaxedNests(machine, [layer], space.keeps)
        row = slice(at, at + 1)
        expected = (*alone(factors[row], stays[row]), alone.excess(factors[row]))
        for ours, theirs in zip(together, expected, strict=True):
            assert ours[at].item() == pytest.approx(theirs.item(), rel=1e-5)


def test_descent_of_sizes_finds_the_best_of_a_few_designs(model):
    graph = convert(model, calibrate=False).graph
    values = {"buffer.entries": (512, 8192, 131072), "columns.meshX": (2, 14)}
    space = Machines(machine_of("eyeriss-like"), values, Area(), 0.4)
    options = MapOptions(method="local", fusion=False)
    scorer = MachineScorer({"one": graph}, space, options, 1e9)
    costs = {design: scorer(design) for design in space.feasible}
    proposed, steps = descend(scorer.relaxed(), space.feasible[:4], 0, iter(np.linspace(0, 1, 120)).__next__)
    assert steps == 119 and set(proposed) <= set(costs)
    assert costs[proposed[0]] <= 1.1 * min(costs.values()) < 0.8 * max(costs.values())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "base: eyeriss-like\nvary: {buffer.depth: [1]}\n",
            "vary.buffer.depth: codesign chooses only DRAM.",
        ),
        (SPACE.replace("local", "layerwise"), "search.method: 'layerwise' is not one of 'auto'"),
        ("base: gemmini-small\nvary: {side: [8]}\nert: x.yaml\n", "gemmini-small is a Gemmini"),
    ],
)
def test_a_wrong_space_is_one_line(fadiff, tmp_path, model, text, says):
    space = design_space(tmp_path, text)
    ended = fadiff("codesign", model, "--space", space, "--area", 1, "-q")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1


def test_map_takes_a_size(fadiff, model):
    run = ("map", model, "--arch", "eyeriss-like", "--method", "local", "--no-fusion", "-q", "--json")
    small = json.loads(fadiff(*run, "--size", "columns.meshX=7").out)
    assert small["machine"] == "eyeriss-like-7"
    assert small["totals"]["cycles"] > json.loads(fadiff(*run).out)["totals"]["cycles"]
    wrong = fadiff(*run, "--size", "columns.meshY=7")
    assert wrong.code == 2 and "eyeriss-like has no size columns.meshY; it has" in wrong.err
    assert fadiff(*run, "--size", "columns").code == 2
