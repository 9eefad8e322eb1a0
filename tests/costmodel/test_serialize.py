from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.adversary.graphs import attention
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.schedule.serialize import (
    Bound,
    ScheduleFileError,
    read_document,
    schedule_from_document,
    to_document,
    write_document,
)
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.samples.graphs import graph_of


@pytest.fixture(scope="module", params=[("resnet18", "exact"), ("mobilenetv1", "layerwise")])
def schedule(request) -> Schedule:
    name, method = request.param
    return optimize(graph_of(name, image_size=64), load_target("gemmini-default"), method=method).schedule


@pytest.fixture(scope="module")
def document(schedule) -> ScheduleDocument:
    return to_document(schedule, evaluate(schedule), generator="test", bound=Bound(1.0, "proven"))


def test_reading_back_gives_the_same_decision(schedule, document, tmp_path):
    write_document(document, tmp_path / "schedule.json")
    again = schedule_from_document(read_document(tmp_path / "schedule.json"))
    assert again.mappings == schedule.mappings
    assert again.groups == schedule.groups
    assert again.target == schedule.target
    assert again.graph.layers == schedule.graph.layers
    assert (again.profile, again.fusion_model) == (schedule.profile, schedule.fusion_model)


def test_tiles_of_some_groups_are_read_back(tmp_path):
    target = load_target("gemmini-default").model_copy(update={"tile_buffer_bytes": 32 * 32})
    schedule = optimize(attention(heads=4, rows=32, keys=32, depth=16), target, method="exact").schedule
    (group,) = schedule.groups
    assert group.tile is not None and group.tile.G == 1
    write_document(to_document(schedule, evaluate(schedule), generator="test"), tmp_path / "schedule.json")
    assert schedule_from_document(read_document(tmp_path / "schedule.json")).groups == schedule.groups


def test_calls_of_earlier_versions_are_read_as_loops(schedule, document, tmp_path):
    path = tmp_path / "schedule.json"
    write_document(document, path)
    text = path.read_text()
    assert '"loop_conv_ws"' in text
    path.write_text(text.replace('"loop_conv_ws"', '"tiled_conv"').replace('"loop_ws"', '"tiled_matmul"'))
    assert schedule_from_document(read_document(path)).mappings == schedule.mappings


def test_the_file_alone_evaluates_to_the_same_cost(schedule, document, tmp_path):
    write_document(document, tmp_path / "schedule.json")
    again = evaluate(schedule_from_document(read_document(tmp_path / "schedule.json")))
    first = evaluate(schedule)
    assert again.edp_uj_cycles == first.edp_uj_cycles == document.totals.edp_uj_cycles
    assert [layer.moves for layer in again.layers] == [layer.moves for layer in first.layers]


def test_traffic_per_operand_sums_to_the_total(document):
    moved = [move.read + move.write for layer in document.layers for move in layer.cost.traffic.dram.values()]
    assert sum(moved) == document.totals.dram_bytes


def test_an_addition_reads_two_operands(document):
    adds = [layer for layer in document.layers if layer.op == "add"]
    size = {tensor.name: tensor.shape for tensor in document.tensors}
    for layer in adds:
        if any(layer.name in group for group in document.fusion.groups if len(group) > 1):
            continue
        elements = 1
        for extent in size[layer.outputs[0]]:
            elements *= extent
        dram, buffer = layer.cost.traffic.dram, layer.cost.traffic.tile_buffer
        for role, direction in (("I", "read"), ("I2", "read"), ("O", "write")):
            moved = [getattr(memory[role], direction) for memory in (dram, buffer) if role in memory]
            assert moved == [elements], (layer.name, role)


def test_trip_counts_cover_the_layer(document):
    for layer in document.layers:
        if layer.mapping is None:
            continue
        for dim, size in {"G": layer.groups, **layer.dims}.items():
            spatial = layer.mapping.spatial
            covered = spatial.rows.get(dim, 1) * spatial.cols.get(dim, 1)
            for trips in layer.mapping.temporal.values():
                covered *= trips.get(dim, 1)
            assert covered >= size, (layer.name, dim)


def test_equal_schedules_give_equal_bytes(document, tmp_path):
    for name in "ab":
        write_document(document, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def broken(document: ScheduleDocument, tmp_path: Path, edit) -> Path:
    content = document.model_dump(mode="json")
    edit(content)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(content))
    return path


def first_core(content: dict) -> dict:
    return next(layer for layer in content["layers"] if layer["mapping"])


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(version=2), "version is 2"),
        (lambda c: c.pop("totals"), "totals"),
        (lambda c: first_core(c).update(colour="red"), "colour"),
        (lambda c: first_core(c)["dims"].update(K=0), "greater than or equal to 1"),
        (lambda c: first_core(c)["dims"].update(Z=3), "dims"),
        (lambda c: first_core(c).update(stride=[0, 1]), "stride"),
        (lambda c: c["target"]["bandwidth"].update(dram_bytes=0), "greater than 0"),
        (lambda c: first_core(c).update(mapping=None), "mapping is missing"),
        (lambda c: c["fusion"]["groups"].pop(), "execution"),
        (lambda c: c.update(model=3), "model: should be a mapping"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(document, tmp_path, edit, says):
    path = broken(document, tmp_path, edit)
    with pytest.raises(ScheduleFileError, match=says) as caught:
        read_document(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_an_older_file_says_by_a_model_that_is_gone(document, tmp_path):
    """How it counted otherwise is left out; its own latency is refused, with what to do."""
    content = json.loads(document.model_dump_json())
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps({**content, "readings": {"rows": [{"group_latency": "sum"}]}}))
    assert read_document(path) == document
    path.write_text(json.dumps({**content, "latency_model": "rtl"}))
    with pytest.raises(ScheduleFileError, match="compile the model again"):
        read_document(path)


@pytest.mark.parametrize(
    ("field", "unused", "used"),
    [
        ("halo", "recompute", "retain"),
        ("prefetch_during", None, "a"),
        ("in_scratchpad", [], ["a"]),
        ("in_accumulator", [], ["a"]),
    ],
)
def test_older_files_are_read_where_they_do_nothing_that_is_gone(document, tmp_path, field, unused, used):
    def older(value):
        return broken(document, tmp_path, lambda c: c["fusion"]["execution"][0].update({field: value}))

    assert read_document(older(unused)) == document
    with pytest.raises(ScheduleFileError, match=field):
        read_document(older(used))


def test_an_older_file_that_names_the_path_of_fused_tensors_is_read(document, tmp_path):
    def with_path(content):
        content["fusion"]["path"] = content["target"]["fusion_path"] = "tile-buffer"

    assert read_document(broken(document, tmp_path, with_path)) == document


def test_layers_that_are_no_graph(document, tmp_path):
    path = broken(document, tmp_path, lambda c: first_core(c).update(name=c["layers"][-1]["name"]))
    with pytest.raises(ScheduleFileError, match="two layers are called"):
        schedule_from_document(read_document(path))


def test_not_json_names_the_line(tmp_path):
    path = tmp_path / "schedule.json"
    path.write_text('{"version": 1,\n oops}')
    with pytest.raises(ScheduleFileError, match=r"schedule\.json:2: not JSON"):
        read_document(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScheduleFileError, match=r"nowhere\.json"):
        read_document(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda m: m["order"].update(L3="KCPQRS"), "order"),
        (lambda m: m["tile"]["L1"].update(K=10**6), "K"),
        (lambda m: m["tile"]["L0"].update(P=7) or m["tile"]["L1"].update(P=1), "P"),
    ],
)
def test_a_mapping_that_is_no_loop_nest(document, tmp_path, edit, says):
    path = broken(document, tmp_path, lambda c: edit(first_core(c)["mapping"]))
    with pytest.raises((ScheduleFileError, ScheduleError), match=says):
        schedule_from_document(read_document(path))


def test_a_schedule_on_hardware_that_is_too_small(document, tmp_path):
    path = broken(document, tmp_path, lambda c: c["target"].update(scratchpad_bytes=1024))
    with pytest.raises(ScheduleError, match="scratchpad"):
        schedule_from_document(read_document(path))


def test_a_schedule_of_another_model_is_refused(document):
    other = graph_of("vgg16")
    with pytest.raises(ScheduleFileError, match="another model"):
        schedule_from_document(document, other)


def test_the_model_keeps_its_weights(schedule, document):
    again = schedule_from_document(document, schedule.graph)
    assert again.graph is schedule.graph
    weights = {layer.weight.tensor for layer in again.graph.layers if isinstance(layer, TensorCoreLayer)}
    assert all(again.graph.tensors[name].data is schedule.graph.tensors[name].data for name in weights)


@pytest.mark.parametrize("operand", ["weight", "output"])
def test_a_layer_that_ends_behind_its_tensors(document, tmp_path, operand):
    """Counting the bytes of an absurd kernel would take minutes."""
    dim = {"weight": "R", "output": "P"}[operand]
    path = broken(document, tmp_path, lambda c: first_core(c)["dims"].update({dim: 2**40}))
    with pytest.raises(ScheduleFileError, match=f"dims its {operand} ends at element .*correct dims"):
        schedule_from_document(read_document(path))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c["tensors"][0].update(scale=float("nan")), "tensors.0.scale"),
        (lambda c: c["tensors"][0].update(scale=float("inf")), "tensors.0.scale"),
        (lambda c: c["tensors"][0].update(scale=-1.0), "tensors.0.scale"),
        (lambda c: first_core(c).update(scale=float("nan")), "scale"),
        (lambda c: first_core(c).update(pads=[-1, 0, 0, 0]), "pads.0"),
        (lambda c: first_core(c).update(pads=[0, 0, 2**40, 0]), "pads.2"),
        (lambda c: first_core(c)["cost"].update(latency_cycles=-1.0), "cost.latency_cycles"),
        (lambda c: first_core(c)["cost"].update(energy_pj=float("nan")), "cost.energy_pj"),
        (lambda c: first_core(c)["cost"]["energy_breakdown"].update(mac=float("inf")), "energy_breakdown"),
        (lambda c: c["totals"].update(edp_uj_cycles=float("-inf")), "totals.edp_uj_cycles"),
        (lambda c: first_core(c).update(outputs=[]), "outputs"),
    ],
)
def test_numbers_that_nothing_can_be(document, tmp_path, edit, says):
    with pytest.raises(ScheduleFileError, match=says):
        read_document(broken(document, tmp_path, edit))


def test_an_input_that_is_no_tensor(document, tmp_path):
    path = broken(document, tmp_path, lambda c: c["tensors"].pop(0))
    with pytest.raises(ScheduleFileError, match="is no tensor"):
        schedule_from_document(read_document(path))


def test_a_host_layer_without_what_it_reads(document, tmp_path):
    path = broken(
        document,
        tmp_path,
        lambda c: next(layer for layer in c["layers"] if not layer["mapping"]).update(inputs=[]),
    )
    with pytest.raises(ScheduleFileError, match="reads 1 or more tensors, not 0"):
        schedule_from_document(read_document(path))
