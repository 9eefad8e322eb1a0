"""The main job end to end: compile, verify, and everything that reads an output folder."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fadiff.cli import main
from fadiff.console import Console
from fadiff.costmodel.target.target import Target
from fadiff.pipeline import compile
from fadiff.search import SearchOptions
from tests.fadiff.models import scalars_and_nine_axes, small_network

TARGET = "gemmini-small"
FAST = ("--method", "layerwise")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_network(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def compiled(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("compiled") / "out"
    assert main(["compile", str(model), "--target", TARGET, "--out", str(out), "--verify", "-q"]) == 0
    return out


def test_scalars_and_nine_axes(tmp_path, capsys):
    model, out = scalars_and_nine_axes(tmp_path / "scalars.onnx"), tmp_path / "out"
    assert main(["compile", str(model), "--target", TARGET, "--out", str(out), *FAST, "--verify", "-q"]) == 0
    assert "bit-exact" in capsys.readouterr().out
    assert "SCALARS_OUTPUT0_SHAPE {1}" in (out / "firmware" / "scalars.h").read_text()


def document(folder: Path) -> dict:
    return json.loads((folder / "schedule.json").read_text())


def test_the_folder_has_what_the_readme_promises(compiled):
    assert sorted(p.name for p in compiled.iterdir()) == [
        "firmware",
        "layers.csv",
        "report.html",
        "schedule.json",
        "target.yaml",
        "timeloop",
        "verify",
    ]
    firmware = {p.name for p in (compiled / "firmware").iterdir()}
    assert firmware >= {
        "small.c",
        "small.h",
        "small_weights.S",
        "small_weights.bin",
        "main.c",
        "Makefile",
        "memory_map.json",
        "test_vectors.h",
        "test_vectors.bin",
    }
    assert (compiled / "timeloop" / "index.yaml").is_file()


def test_what_was_measured_is_bit_exact_and_as_predicted(compiled):
    result = json.loads((compiled / "verify" / "result.json").read_text())
    assert result["bit_exact"] and result["traffic_exact"]
    assert result["vectors"] == 16
    assert result["measured"]["dram_bytes"] == document(compiled)["totals"]["dram_bytes"]
    assert {layer["name"] for layer in result["layers"]} == {
        layer["name"] for layer in document(compiled)["layers"]
    }


def test_verify_again_from_the_folder_alone(fadiff, compiled, tmp_path):
    moved = tmp_path / "moved"
    compiled.rename(moved)
    try:
        ended = fadiff("verify", moved, "--json")
    finally:
        moved.rename(compiled)
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["bit_exact"] is True and report["traffic_exact"] is True
    assert set(report) >= {"top1_agreement", "sqnr_db", "measured", "predicted", "layers"}
    assert set(report["measured"]) >= {
        "dram_bytes",
        "instructions",
        "estimated_cycles",
        "peak_spad_rows",
        "peak_acc_rows",
    }
    assert set(report["layers"][0]) >= {"name", "bit_exact", "max_lsb_diff", "dram_bytes"}


def test_verifying_a_folder_that_cannot_be_written(fadiff, compiled, monkeypatch):
    """Permissions do not hold for root, so the write itself fails."""
    write = Path.write_text

    def refuse(path: Path, *arguments: object, **options: object) -> int:
        if path.is_relative_to(compiled):
            raise PermissionError(13, "Permission denied", str(path))
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", refuse)
    ended = fadiff("verify", compiled, "--json")
    assert ended.code == 0 and json.loads(ended.out)["passed"]
    assert "not kept in the folder" in ended.err and "Permission denied" in ended.err


def test_c_that_does_not_compile_is_a_bug_of_ours_only_where_we_just_wrote_it(
    fadiff, model, compiled, tmp_path, monkeypatch
):
    """A machine without a compiler, or an edited folder, is for the user to mend."""
    from fadiff.emulator import build

    def firmware_of_somebody(folder: Path) -> None:
        for source in (folder / "firmware").glob("*.c"):
            source.write_text(source.read_text() + "static int never_used(void) { return 1; }\n")

    edited = tmp_path / "edited"
    shutil.copytree(compiled, edited)
    firmware_of_somebody(edited)
    assert fadiff("verify", edited).code == 2

    wrong = ("-Dvoid=nothing", *build._FIRMWARE_FLAGS)
    monkeypatch.setattr(build, "_FIRMWARE_FLAGS", wrong)
    words = ("compile", model, "--target", TARGET, *FAST, "--verify")
    ended = fadiff(*words, "--out", tmp_path / "ours")
    assert ended.code == 3 and "the C just written does not compile" in ended.err

    monkeypatch.setenv("CC", "no-such-compiler")
    build.compiler.cache_clear()
    ended = fadiff(*words, "--out", tmp_path / "theirs")
    monkeypatch.undo()
    build.compiler.cache_clear()
    assert ended.code == 2 and "no C compiler (no-such-compiler)" in ended.err


def test_a_wrong_weight_is_caught_and_named(fadiff, compiled, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(compiled, broken)
    weights = broken / "firmware" / "small_weights.bin"
    content = bytearray(weights.read_bytes())
    content[40] ^= 0x55
    weights.write_bytes(content)
    ended = fadiff("verify", broken)
    assert ended.code == 1
    assert "FAILED" in ended.out and "first" in ended.out
    assert "differs" in (broken / "report.html").read_text()


def test_a_wrong_prediction_is_caught(fadiff, compiled, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(compiled, broken)
    content = document(broken)
    layer = next(layer for layer in content["layers"] if layer["cost"]["traffic"]["dram"].get("W"))
    layer["cost"]["traffic"]["dram"]["W"]["read"] += 1
    (broken / "schedule.json").write_text(json.dumps(content))
    ended = fadiff("verify", broken)
    assert ended.code == 1 and layer["name"] in ended.out


def test_evaluate_agrees_with_compile(fadiff, compiled):
    ended = fadiff("evaluate", compiled / "schedule.json", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["edp_uj_cycles"] == document(compiled)["totals"]["edp_uj_cycles"]


def test_evaluate_under_a_profile_that_keeps_other_tensors_on_chip(fadiff, compiled):
    assert any(group["resident_tensors"] for group in document(compiled)["fusion"]["execution"])
    ended = fadiff("evaluate", compiled / "schedule.json", "--profile", "dosa", "--json")
    assert ended.code == 0, ended.err
    assert "counted without the tensors that stay on chip" in ended.err
    found = json.loads(ended.out)
    assert found["profile"] == "dosa" and found["dram_bytes"] > document(compiled)["totals"]["dram_bytes"]


def test_evaluate_on_hardware_that_is_too_small(fadiff, compiled, tmp_path):
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text("name: tiny\nside: 16\nscratchpad_bytes: 512\naccumulator_bytes: 1024\n")
    ended = fadiff("evaluate", compiled / "schedule.json", "--target", tiny)
    assert (
        ended.code == 2
        and f"{compiled / 'schedule.json'} on tiny: " in ended.err
        and "scratchpad" in ended.err
    )


def test_a_tile_edited_by_hand(fadiff, model, compiled, tmp_path):
    """It is scored, executed and not said to be what the search found; one that cannot be is refused."""
    content = document(compiled)
    layer = next(layer for layer in content["layers"] if layer["mapping"] and layer["dims"]["P"] > 1)
    tiles = layer["mapping"]["tile"]
    for level in ("L2", "L1", "L0"):
        tiles[level]["P"] = 1
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(content))
    scored = json.loads(fadiff("evaluate", edited, "--json").out)
    out = tmp_path / "out"
    ended = fadiff("compile", model, "--schedule", edited, "--out", out, "--verify", "-q")
    assert ended.code == 0, ended.err
    assert document(out)["totals"]["edp_uj_cycles"] == scored["edp_uj_cycles"]
    assert scored["edp_uj_cycles"] > content["totals"]["edp_uj_cycles"]
    assert content["search"] is not None and document(out)["search"] is None
    tiles["L1"]["P"] = 2
    edited.write_text(json.dumps(content))
    for command in (("evaluate", edited), ("compile", model, "--schedule", edited, "--out", tmp_path / "no")):
        ended = fadiff(*command)
        assert ended.code == 2 and f"error: {edited}: layer {layer['name']}: mapping: P: tiles" in ended.err


def test_executing_a_given_schedule(fadiff, model, compiled, tmp_path):
    out = tmp_path / "again"
    ended = fadiff("compile", model, "--schedule", compiled / "schedule.json", "--out", out, "--verify", "-q")
    assert ended.code == 0, ended.err
    assert document(out)["layers"] == document(compiled)["layers"]
    firmware = Path("firmware", "small.c")
    assert (out / firmware).read_bytes() == (compiled / firmware).read_bytes()


def test_a_schedule_fits_the_model_calibrated_otherwise(fadiff, model, compiled, tmp_path):
    """Other scales, the same layers."""
    images = np.random.default_rng(3).standard_normal((4, 1, 8, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "bright.npz", image=30 * np.abs(images))
    given = ("--schedule", compiled / "schedule.json", "--calibration", tmp_path / "bright.npz")
    ended = fadiff("compile", model, *given, "--out", tmp_path / "out", "--verify", "-q")
    assert ended.code == 0, ended.err
    scales = [
        {tensor["name"]: tensor["scale"] for tensor in document(folder)["tensors"]}
        for folder in (compiled, tmp_path / "out")
    ]
    assert scales[0] != scales[1]
    mappings = [
        [layer["mapping"] for layer in document(folder)["layers"]] for folder in (compiled, tmp_path / "out")
    ]
    assert mappings[0] == mappings[1]


def test_a_schedule_of_another_model_is_refused(fadiff, compiled, tmp_path):
    other = tmp_path / "other.onnx"
    changed = onnx.load(small_network(other))
    changed.graph.node[0].name = "renamed"
    onnx.save(changed, other)
    ended = fadiff("compile", other, "--schedule", compiled / "schedule.json", "--out", tmp_path / "out")
    assert ended.code == 2 and "another model" in ended.err


def test_equal_runs_give_equal_bytes(fadiff, model, compiled, tmp_path):
    out = tmp_path / "again"
    assert fadiff("compile", model, "--target", TARGET, "--out", out, "-q").code == 0
    for path in sorted(p for p in compiled.rglob("*") if p.is_file()):
        relative = path.relative_to(compiled)
        if relative.name in ("result.json", "report.html", "schedule.json"):
            continue  # these say how long the search took, or what was measured
        assert path.read_bytes() == (out / relative).read_bytes(), relative
    first, again = document(compiled), document(out)
    for content in (first, again):
        content["search"].pop("seconds")
        content["search"].pop("history")
    assert first == again


@pytest.mark.parametrize("rules", [("--profile", "dosa"), ("--profile", "dosa", "--fusion-model", "paper")])
def test_rules_for_comparison_emit_no_c(fadiff, model, tmp_path, rules):
    out = tmp_path / "out"
    ended = fadiff("compile", model, "--target", TARGET, "--out", out, *rules, *FAST)
    assert ended.code == 0 and "no C" in ended.out
    assert not (out / "firmware").exists()
    assert "not yet" not in (out / "report.html").read_text()
    verified = fadiff("verify", out)
    assert verified.code == 2 and "--profile hw" in verified.err


def test_report_is_rebuilt(fadiff, compiled):
    before = (compiled / "report.html").read_bytes()
    (compiled / "report.html").unlink()
    ended = fadiff("report", compiled)
    assert ended.code == 0 and ended.out.strip() == str(compiled / "report.html")
    assert (compiled / "report.html").read_bytes() == before


def test_commands_to_copy_are_quoted(fadiff, model, tmp_path):
    out = tmp_path / "with a space"
    ended = fadiff("compile", model, "--target", TARGET, *FAST, "--out", out, "-q")
    assert f"fadiff verify '{out}'" in ended.out


def test_report_of_a_foreign_folder(fadiff, tmp_path):
    ended = fadiff("report", tmp_path)
    assert ended.code == 2 and "schedule.json" in ended.err


def test_progress_goes_to_stderr_and_results_to_stdout(fadiff, model, tmp_path):
    ended = fadiff("compile", model, "--target", TARGET, "--out", tmp_path / "a", "--json", *FAST)
    totals = json.loads(ended.out)["totals"]
    assert totals["edp_uj_cycles"] > 0
    assert "converting" in ended.err and "searching" in ended.err
    quiet = fadiff("compile", model, "--target", TARGET, "--out", tmp_path / "b", "--json", "-q", *FAST)
    assert "converting" not in quiet.err


def test_inspect(fadiff, model):
    ended = fadiff("inspect", model, "--json")
    assert ended.code == 0
    summary = json.loads(ended.out)
    expected = 144 * 24 * 8 * 9 + 144 * 24 * 24 * 9 + 10 * 24
    assert summary["totals"]["macs"] == expected
    table = fadiff("inspect", model)
    assert table.code == 0 and f"{expected:,} MACs" in table.out


def test_evaluate_counts_what_compile_wrote(fadiff, compiled):
    """With the error of its latency."""
    schedule = compiled / "schedule.json"
    plain = json.loads(fadiff("evaluate", schedule, "--json").out)
    written = json.loads(schedule.read_text())
    assert written["totals"]["latency_cycles"] == written["totals"]["clock_cycles"] == plain["latency_cycles"]
    assert "% against RTL" in written["latency_error"] and "% against RTL" in plain["latency_error"]
    assert "% against RTL" in (compiled / "report.html").read_text()


def test_cycles_are_fewest_where_they_are_asked_for(fadiff, model, tmp_path):
    cycles = {}
    for objective in ("edp", "latency"):
        options = ("--objective", objective, "--out", tmp_path / objective, *FAST)
        ended = fadiff("compile", model, "--target", TARGET, *options)
        assert ended.code == 0, ended.err
        cycles[objective] = document(tmp_path / objective)["totals"]["latency_cycles"]
    assert cycles["latency"] <= cycles["edp"]


def test_bounds_without_fusion_say_so(fadiff, model, tmp_path):
    ended = fadiff("compile", model, "--target", TARGET, "--out", tmp_path / "out", *FAST)
    assert "(proven for schedules without fusion)" in ended.out


def test_no_tensor_stays_on_chip_when_that_is_switched_off(fadiff, model, tmp_path):
    edp, staying = [], []
    for switch in ((), ("--no-residency",)):
        out = tmp_path / f"out{len(switch)}"
        fadiff("compile", model, "--target", TARGET, "--method", "exact", "--out", out, *switch)
        found = document(out)
        edp.append(found["totals"]["edp_uj_cycles"])
        staying.append({t for group in found["fusion"]["execution"] for t in group["resident_tensors"]})
    assert staying[0] and not staying[1]
    assert edp[0] < edp[1]


def test_compare_lists_methods_by_what_they_reach(fadiff, model, tmp_path):
    plot = tmp_path / "curves.svg"
    methods = ("layerwise", "exact", "gemmini-auto")
    options = ("--target", TARGET, "--methods", ",".join(methods), "--plot", plot, "--json", "-q")
    ended = fadiff("compare", model, *options)
    rows = json.loads(ended.out)
    assert [row["edp_uj_cycles"] for row in rows] == sorted(row["edp_uj_cycles"] for row in rows)
    assert {row["method"] for row in rows} == set(methods)
    assert rows[0]["ratio_to_best"] == 1.0
    drawn = plot.read_text()
    assert drawn.startswith("<svg")
    named = [name for name in re.findall(r">([a-z-]+)</text>", drawn) if name in methods]
    assert named == [row["method"] for row in rows], "the legend has the best first"
    for method in methods:
        assert drawn.count(f"<title>{method}</title>") == 2, "a curve, and a dot at its end"


def test_a_model_without_products_costs_nothing_in_profile_dosa(fadiff, tmp_path):
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 2, 4, 4]) for n in "xy"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Sigmoid", ["x"], ["y"])], "host", [values[0]], [values[1]]
    )
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "host.onnx")
    options = (tmp_path / "host.onnx", "--profile", "dosa", "--time-budget", 0.1)
    ended = fadiff("compare", *options, "--plot", tmp_path / "curves.svg", "--json", "-q")
    assert {(row["edp_uj_cycles"], row["ratio_to_best"]) for row in json.loads(ended.out)} == {(0.0, 1.0)}
    assert "RuntimeWarning" not in ended.err
    assert fadiff("compile", *options, "--out", tmp_path / "out").code == 0


def test_compare_refuses_a_plot_before_the_search(fadiff, model, tmp_path):
    for name, says in (
        ("curves.png", "give a name that ends in .svg"),
        ("no/curves.svg", "there is no folder"),
    ):
        ended = fadiff("compare", model, "--plot", tmp_path / name)
        assert ended.code == 2 and says in ended.err


def test_methods_that_cannot_search_the_papers_fusion_model(fadiff, model, tmp_path):
    paper = (model, "--target", TARGET, "--profile", "dosa", "--fusion-model", "paper", "-q")
    ended = fadiff("compare", *paper, "--methods", "layerwise,genetic", "--json")
    assert [row["method"] for row in json.loads(ended.out)] == ["layerwise"]
    assert "genetic searches executable fusion only" in ended.err
    for command in (
        ("compare", *paper, "--methods", "random"),
        ("compile", *paper, "--method", "bayesian", "--out", tmp_path / "out"),
    ):
        ended = fadiff(*command)
        assert ended.code == 2 and "executable fusion only: use fusion model sound" in ended.err
    assert not (tmp_path / "out").exists()


def test_compare_leaves_out_methods_that_find_no_schedule(fadiff, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymoo", None)
    tiny, plot = tmp_path / "tiny.yaml", tmp_path / "curves.svg"
    tiny.write_text(
        "name: tiny\nside: 8\nscratchpad_banks: 1\nscratchpad_bytes: 128\naccumulator_bytes: 8192\n"
    )
    options = (model, "--target", tiny, "--plot", plot, "--json", "-q", "--methods")
    ended = fadiff("compare", *options, "gemmini-auto,layerwise,genetic")
    assert ended.code == 0
    assert [row["method"] for row in json.loads(ended.out)] == ["layerwise"]
    assert "<title>layerwise</title>" in plot.read_text()
    left_out = [line for line in ended.err.splitlines() if "left out" in line]
    assert len(left_out) == 2
    assert "genetic" in left_out[0] and "fadiff[baselines]" in left_out[0]
    assert "gemmini-auto: classifier: scratchpad overflows" in left_out[1]

    plot.unlink()
    ended = fadiff("compare", *options, "gemmini-auto,genetic")
    assert ended.code == 2 and not ended.out and not plot.exists()
    assert "gemmini-auto: classifier: scratchpad overflows" in ended.err and "fadiff[baselines]" in ended.err


def test_compare_refuses_an_unknown_method(fadiff, model):
    ended = fadiff("compare", model, "--methods", "layerwise,magic")
    assert ended.code == 2 and "gradient" in ended.err


def test_python_api(model, tmp_path, monkeypatch):
    import fadiff

    search = fadiff.SearchOptions(method="layerwise")
    result = fadiff.compile(model, tmp_path / "out", target=TARGET, search=search, verify=True)
    assert result.document.totals.edp_uj_cycles > 0
    assert result.verification is not None and result.verification.bit_exact
    schedule = fadiff.schedule_from_document(fadiff.read_document(tmp_path / "out" / "schedule.json"))
    assert fadiff.evaluate(schedule).edp_uj_cycles == result.document.totals.edp_uj_cycles


def test_the_console_is_silent_for_python_callers(model, tmp_path, capfd):
    from fadiff.pipeline import compile as compile_model
    from fadiff.search import SearchOptions

    search = SearchOptions(method="layerwise")
    compile_model(model, tmp_path / "out", target=TARGET, search=search, console=Console(verbosity=-1))
    captured = capfd.readouterr()
    assert captured.out == "" and "converting" not in captured.err


def test_inspect_explains_what_became_of_the_nodes(fadiff, model):
    plain, explained = fadiff("inspect", model), fadiff("inspect", model, "--explain")
    assert plain.code == explained.code == 0
    folded = "1 Relu folded into Conv"
    assert folded in explained.out and folded not in plain.out
    assert any(folded in line for line in json.loads(fadiff("inspect", model, "--json").out)["rewrites"])


def test_memories_too_small_for_the_automatic_tiles_leave_dram_bytes_unlimited(tmp_path: Path) -> None:
    target = Target(name="tiny", side=8, scratchpad_bytes=256, accumulator_bytes=8192)
    search = SearchOptions(method="layerwise")
    result = compile(
        small_network(tmp_path / "m.onnx"),
        tmp_path / "out",
        target=target,
        search=search,
        max_dram_bytes="gemmini-auto",
        verify=True,
    )
    assert any("automatic tiles do not fit" in note for note in result.document.conversion.notes)
    assert result.verification is not None and result.verification.passed
