"""What the files say: hand-computed cases, fusion, names, dialects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.adversary.graphs import attention
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.resident_tensors import with_resident_tensors
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.timeloop import emit
from fadiff.emitters.timeloop.read.problem import one_layer_graph
from fadiff.emitters.timeloop.write.units import FileNames
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from fadiff.optimizer import optimize
from fadiff.samples.graphs import graph_of
from tests.emitters.timeloop.examples import MAPPING, PROBLEM, hand_schedule

SMALL, LARGE = load_target("gemmini-small"), load_target("gemmini-large")


def load(path: Path) -> dict[str, object]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def loops(path: Path) -> dict[tuple[str, str], dict[str, object]]:
    return {(d["target"], d["type"]): d for d in load(path)["mapping"]}  # type: ignore[attr-defined]


def test_factors_orders_bypass_and_split_are_the_hand_written_ones(tmp_path: Path) -> None:
    emit(hand_schedule(), tmp_path)
    written = loops(tmp_path / "layer.mapping.yaml")
    by_hand = {(d["target"], d["type"]): d for d in yaml.safe_load(MAPPING)["mapping"]}
    assert written.keys() == by_hand.keys()
    for key, directive in by_hand.items():
        for field in ("factors", "keep", "bypass", "split"):
            assert written[key].get(field) == directive.get(field), (key, field)
    assert written["DRAM", "temporal"]["permutation"] == "CKNPQRS"
    assert load(tmp_path / "layer.problem.yaml")["problem"]["instance"] == {  # type: ignore[index]
        **yaml.safe_load(PROBLEM)["problem"]["instance"],
        "Hdilation": 1,
        "Wdilation": 1,
    }


def test_the_architecture_has_the_sizes_bandwidths_and_energies_of_the_target(tmp_path: Path) -> None:
    emit(hand_schedule(), tmp_path)
    arch = load(tmp_path / "arch.yaml")
    text = (tmp_path / "arch.yaml").read_text()
    assert "{entries: 8192, word_bits: 8, block_size: 1, instances: 1, shared_bandwidth: 32}" in text
    assert (
        "{entries: 128, word_bits: 32, block_size: 1, instances: 16, meshX: 16, shared_bandwidth: 2}" in text
    )
    tables = {t["name"]: t["actions"][0]["energy"] for t in arch["ERT"]["tables"]}  # type: ignore[index]
    assert tables == {
        "system.Registers": 0.48746172,
        "system.Accumulator": 1.99025,
        "system.Scratchpad": 0.69104,
        "system.DRAM": 100,
        "system.MACC": 0.5608,
    }


@pytest.mark.parametrize(("profile", "strides"), [("hw", (1, 2)), ("dosa", (2, 2))])
def test_pixels_that_a_kernel_of_one_skips_are_counted_as_the_profile_does(
    tmp_path: Path, profile: Profile, strides: tuple[int, int]
) -> None:
    graph = one_layer_graph("layer", Dims(K=16, C=16, P=8, Q=8, S=3), (2, 2), (1, 1))
    block = Dims(K=16, C=16)
    mapping = Mapping(
        Dims(K=16, C=16, P=8, Q=8, S=3), Dims(K=16, C=16, P=8, Q=8), block, Dims(C=16), Dims(K=16)
    )
    schedule = Schedule(graph, SMALL, {"layer": mapping}, singleton_groups(graph), profile=profile)
    (entry,) = emit(schedule, tmp_path).layers
    instance = load(tmp_path / "layer.problem.yaml")["problem"]["instance"]  # type: ignore[index]
    assert (instance["Hstride"], instance["Wstride"]) == strides
    assert any("kernel of 1" in note for note in entry.notes) == (profile == "hw")


def test_two_emissions_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        emit(hand_schedule(), tmp_path / name, "both")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert files
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_hyphenated_keys_for_old_releases(tmp_path: Path) -> None:
    emit(hand_schedule(), tmp_path, hyphenated=True)
    text = "".join((tmp_path / name).read_text() for name in ("arch.yaml", "layer.problem.yaml"))
    for key in ("word-bits", "block-size", "data-spaces", "read-write"):
        assert f"{key}:" in text and f"{key.replace('-', '_')}:" not in text
    assert "shared_bandwidth:" in text  # has an underscore in every release


def test_front_end_dialect(tmp_path: Path) -> None:
    emit(hand_schedule(), tmp_path, "frontend")
    arch = (tmp_path / "arch.yaml").read_text()
    nodes = [line.strip() for line in arch.splitlines() if line.strip().startswith("- !")]
    assert nodes[0] == "- !Container {name: system}"
    assert len(nodes) == 9
    directives = {(d["target"], d["type"]): d for d in load(tmp_path / "layer.mapping.yaml")["mapping"]}  # type: ignore[attr-defined]
    columns = directives["PECols", "spatial"]
    assert columns["factors"] == ["N=1", "K=16", "C=1", "P=1", "Q=1", "R=1", "S=1"]
    assert columns["permutation"][0] == "S" and columns["split"] == 7
    assert ("DRAM", "dataspace") in directives
    assert (tmp_path / "run_timeloop.py").exists()


def test_no_aliases_and_one_letter_names_stay_strings() -> None:
    shared = ["N", "K"]
    text = yaml_text({"a": shared, "b": shared})
    assert "&" not in text and "*" not in text
    assert yaml.safe_load(text) == {"a": ["N", "K"], "b": ["N", "K"]}


def test_file_names_are_safe_and_unique_even_without_case() -> None:
    names = FileNames()
    given = ["/model/Conv 1", "/model/conv_1", "../../etc/passwd", "", "a" * 300]
    taken = [names.unique(name) for name in given]
    assert taken[:4] == ["model_Conv_1", "model_conv_1_2", "etc_passwd", "layer"]
    assert len(taken[4]) == 100
    assert len({name.lower() for name in taken}) == len(taken)


def fused_pair(target: Target, profile: Profile) -> Schedule:
    """MobileNet with its first depthwise and pointwise layers fused in 4 x 8 group tiles."""
    graph = graph_of("mobilenetv1")
    mappings = {}
    for layer in graph.tensor_core_layers:
        d = layer.dims
        cols = Dims(G=16) if layer.op == "depthwise" else Dims(K=8)
        rows = Dims(C=min(d.C, 16))
        block = Dims(G=cols.G, K=cols.K, C=rows.C)
        mappings[layer.name] = Mapping(block, block, block, rows, cols)
    kernel = Dims(G=16, R=3, S=3)
    mappings["dw1"] = Mapping(kernel, kernel, Dims(G=16), Dims(), Dims(G=16))
    block, tile = Dims(K=8, C=16), Dims(K=64, C=32, P=28)
    mappings["pw1"] = Mapping(tile, block, block, Dims(C=16), Dims(K=8))
    groups = []
    for group in singleton_groups(graph):
        if group.layers == ("dw1",):
            groups.append(FusionGroup(("dw1", "pw1"), GroupTile(N=1, P=28, Q=14)))
        elif group.layers != ("pw1",):
            groups.append(group)
    return Schedule(graph, target, mappings, tuple(groups), profile=profile)


@pytest.mark.parametrize(
    ("profile", "holder", "arch"),
    [("dosa", "Scratchpad", "arch.yaml"), ("hw", "TileBuffer", "arch.fused.yaml")],
)
def test_a_fused_intermediate_bypasses_dram_on_both_sides(
    tmp_path: Path, profile: Profile, holder: str, arch: str
) -> None:
    index = emit(fused_pair(LARGE, profile), tmp_path)
    entries = {entry.layer: entry for entry in index.layers}
    for layer, space in (("dw1", "Outputs"), ("pw1", "Inputs")):
        entry = entries[layer]
        assert (entry.runs, entry.arch) == (4 * 8, arch)
        assert entry.mapping is not None
        written = loops(tmp_path / entry.mapping)
        assert space in written[holder, "bypass"]["keep"]  # type: ignore[operator]
        assert written["DRAM", "bypass"]["bypass"] == [space]
        assert "bypassed at DRAM" in (tmp_path / entry.mapping).read_text()
        assert load(tmp_path / entry.problem)["problem"]["instance"]["P"] == 28  # type: ignore[index]
    assert entries["conv1"].arch == "arch.yaml" and entries["conv1"].runs == 1
    assert (tmp_path / "arch.fused.yaml").exists() == (holder == "TileBuffer")


@pytest.mark.parametrize(
    ("profile", "holder", "arch"),
    [("dosa", "Scratchpad", "arch.yaml"), ("hw", "TileBuffer", "arch.fused.yaml")],
)
def test_a_tensor_resident_across_groups_bypasses_dram_on_both_sides(
    tmp_path: Path, profile: Profile, holder: str, arch: str
) -> None:
    plain = fused_pair(LARGE.model_copy(update={"tile_buffer_bytes": 1 << 20}), profile)
    tensor = plain.graph.by_name["pw12"].outputs[0]
    groups = with_resident_tensors(plain.graph, plain.groups, [tensor])
    tile, block = Dims(K=8, C=512), Dims(K=8, C=16)  # results are final when they leave the accumulator
    mappings = {**plain.mappings, "pw12": Mapping(tile, tile, block, Dims(C=16), Dims(K=8))}
    schedule = replace(plain, groups=groups, mappings=mappings)
    reader = plain.graph.consumers(tensor)[0].name
    entries = {entry.layer: entry for entry in emit(schedule, tmp_path).layers}
    for layer, space in (("pw12", "Outputs"), (reader, "Inputs")):
        entry = entries[layer]
        assert (entry.runs, entry.arch) == (1, arch)
        assert entry.mapping is not None
        written = loops(tmp_path / entry.mapping)
        assert space in written[holder, "bypass"]["keep"]  # type: ignore[operator]
        assert written["DRAM", "bypass"]["bypass"] == [space]


def test_heads_that_run_one_by_one_are_runs_of_a_layer_of_one(tmp_path: Path) -> None:
    graph = attention(heads=4, rows=64, keys=32, depth=16)
    target = LARGE.model_copy(update={"tile_buffer_bytes": 32 * 32})
    schedule = optimize(graph, target, method="exact").schedule
    assert schedule.groups[0].tile == GroupTile(1, 32, 1, G=1)
    for entry in emit(schedule, tmp_path).layers:
        assert entry.runs == 4 * 2
        problem = load(tmp_path / str(entry.problem))["problem"]
        assert problem["instance"].get("G", 1) == 1 and problem["instance"]["P"] == 32  # type: ignore[index]
