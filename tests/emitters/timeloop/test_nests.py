"""Mappings on machines that are no Gemmini: counts against timeloop-model's, reading machines, search."""

import csv
import itertools
import json
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.nests.count import Nests
from fadiff.costmodel.nests.machine import (
    OPERANDS,
    FanOut,
    LoopLimits,
    Machine,
    MachineError,
    Memory,
)
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.timeloop.compare import compare
from fadiff.emitters.timeloop.index import read_index
from fadiff.emitters.timeloop.machines import FOLDER, machine_names, machine_of
from fadiff.emitters.timeloop.read.machine import read_machine
from fadiff.emitters.timeloop.read.yaml_lines import TimeloopFormatError
from fadiff.emitters.timeloop.write.layers import predicted
from fadiff.emitters.timeloop.write.machine import machine_architecture
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from fadiff.errors import is_bad_input
from fadiff.optimizer.mapping_methods import method_of
from fadiff.optimizer.nests.auto import auto, exact
from fadiff.optimizer.nests.bound import NOBODY, Bound, Partial
from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.local import local_search
from fadiff.optimizer.nests.space import Space, keeps_of
from tests.emitters.timeloop.examples import program
from tests.emitters.timeloop.record_nests import MACHINES, PER_MACHINE, mapping_of

with (Path(__file__).parent / "recorded_nests.csv").open() as file:
    RECORDED = list(csv.DictReader(file))


def obstacle(machine: Machine, workload: Workload, mappings: Mappings, row: int = 0) -> str:
    """Why a row is no mapping of the layer on the machine, whatever fits; empty if it is."""
    factors = mappings.factors[row]
    for at, dim in enumerate(workload.active):
        if int(np.prod(factors[:, at])) != workload.dims[dim]:
            return f"factors of {dim} multiply to {int(np.prod(factors[:, at]))}, not {workload.dims[dim]}"
    for level, own in zip(machine.levels, factors, strict=True):
        for at, dim in enumerate(workload.active):
            exact = level.limits.exact.get(dim)
            if own[at] > level.limits.largest(dim) or (exact is not None and own[at] != exact):
                return f"{level.name}: factor {own[at]} of {dim} is not allowed"
        if isinstance(level, FanOut) and own.prod() > level.size:
            return f"{level.name}: {own.prod()} parts along {level.axis}, where there are {level.size}"
    return ""


LINKED = {"eyeriss-like": 1, "simba-like": 1, "nvdla-like": 0, "output-stationary": 0}
"""Recorded mappings in which Timeloop lets neighbours hand on inputs that their windows share; we count that
each is given its own by the memory above."""


@pytest.mark.parametrize("name", MACHINES)
def test_counts_cycles_and_energy_are_timeloops(name: str) -> None:
    rows = [row for row in RECORDED if row["machine"] == name]
    assert len(rows) == PER_MACHINE
    linked = 0
    for row in rows:
        machine, workload, mappings = mapping_of(row)
        assert obstacle(machine, workload, mappings) == ""
        nests = Nests(machine, workload, mappings)
        assert nests.fits.all()
        recorded = json.loads(row["accesses"])
        found = {place: list(words) for place, words in predicted(nests).accesses.items()}
        assert int(nests.cycles[0]) == int(row["cycles"])
        if found == recorded:
            assert nests.energy[0] == pytest.approx(float(row["energy_pj"]), rel=1e-6, abs=0.1)
            continue
        linked += 1
        other = {place for place in found if found[place] != recorded[place]}
        assert all(place.endswith("Inputs") for place in other)
        assert nests.energy[0] > float(row["energy_pj"])
    assert linked == LINKED[name]


def test_counts_of_fused_layers_are_timeloops() -> None:
    """What is handed over passes the outermost memory by."""
    with (Path(__file__).parent / "recorded_fused.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        nests = Nests(*mapping_of(row))
        counts = predicted(nests)
        assert {place: list(words) for place, words in counts.accesses.items()} == json.loads(row["accesses"])
        assert counts.cycles == int(row["cycles"])
        assert counts.energy_pj == pytest.approx(float(row["energy_pj"]), rel=1e-6, abs=0.1)
        assert any(len(kept) < 3 for kept in nests.mappings.keeps[:1])
    assert {row["machine"] for row in rows} == set(MACHINES)


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_is_the_same_in_both_dialects(name: str, tmp_path: Path) -> None:
    """Shipped files are of the front end's dialect; what we write is native, and has no limits of loops."""
    machine = machine_of(name)
    content = machine_architecture(machine)
    for key, text in content.items():
        (tmp_path / f"{key}.yaml").write_text(yaml_text({key: text}))
    read = read_machine(tmp_path / "architecture.yaml", (), tmp_path / "ERT.yaml")
    assert [type(level) for level in read.levels] == [type(level) for level in machine.levels]
    for ours, theirs in zip(machine.levels, read.levels, strict=True):
        if isinstance(ours, FanOut):
            assert isinstance(theirs, FanOut) and (ours.axis, ours.size) == (theirs.axis, theirs.size)
        else:
            assert isinstance(theirs, Memory)
            for field in ("name", "words", "block", "word_bits", "read_pj", "update_pj", "shared_bandwidth"):
                assert getattr(ours, field) == getattr(theirs, field)
    assert read.mac_pj == machine.mac_pj


ALL = frozenset(OPERANDS)
TINY = Machine(
    "tiny",
    (
        Memory("DRAM", ALL, read_pj=50, write_pj=50, update_pj=50, shared_bandwidth=2),
        Memory("buffer", frozenset(), ALL, 24, read_pj=2, write_pj=2, update_pj=2, shared_bandwidth=4),
        FanOut("elements", "X", 3, LoopLimits({"C": 1})),
        Memory("sums", frozenset("O"), words=2, read_pj=0.2, write_pj=0.2, update_pj=0.2),
    ),
    1.0,
)


def test_the_best_of_all_mappings_is_found_and_proven() -> None:
    """Against every placement of factors and every order, priced one by one."""
    workload = Workload(Dims(K=6, C=4, P=3))
    best = np.inf
    levels = len(TINY.levels)
    splits = [
        [
            f
            for f in itertools.product(*[[d for d in range(1, n + 1) if n % d == 0]] * levels)
            if np.prod(f) == n
        ]
        for n in workload.bounds
    ]
    factors = np.array([np.array(f).T for f in itertools.product(*splits)])
    orders = [list(p) for p in itertools.permutations(range(3))]
    for keeps in keeps_of(TINY):
        for order in itertools.product(orders, orders):  # the last memory's order changes nothing that counts
            rows = np.tile(np.array([*order, orders[0]]), (len(factors), 1, 1))
            nests = Nests(TINY, workload, Mappings(factors, rows, keeps))
            allowed = factors[:, 2, workload.active.index("C")] == 1
            edp = nests.edp[nests.fits & allowed]
            best = min(best, edp.min())
    for method, is_proven in ((auto, True), (exact, True), (local_search, False)):
        search = LayerSearch(TINY, workload)
        method(search)
        found = search.found()
        assert found.edp == pytest.approx(best)
        assert found.proven == is_proven
        assert obstacle(TINY, workload, found.mapping) == ""


@pytest.mark.parametrize("name", MACHINES)
def test_no_mapping_is_below_the_bound_of_any_of_its_levels(name: str) -> None:
    for number, row in enumerate([row for row in RECORDED if row["machine"] == name][::15]):
        machine, workload, one = mapping_of(row)
        rows = Space(machine, workload, one.keeps).random(32, np.random.default_rng(number))
        nests = Nests(machine, workload, rows)
        for objective, cost in (("edp", nests.edp), ("energy", nests.energy), ("latency", nests.cycles)):
            bound = Bound(machine, workload, rows.keeps, objective)
            stays = np.full((len(rows), len(bound.places)), NOBODY)
            for memory, level in enumerate(bound.places):
                for at, order in enumerate(rows.orders[:, memory]):
                    loops = [dim for dim in order if rows.factors[at, level, dim] > 1]
                    stays[at, memory] = bound.left_in_place[loops[0]] if loops else NOBODY
            for level in range(len(machine.levels) + 1):
                decided = rows.factors.copy()
                decided[:, :level] = 1
                assert (bound(Partial(level, decided, stays)) <= cost * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["gradient", "genetic", "bayesian", "random"])
def test_other_methods_search_the_same_mappings(name: Literal["gradient", "genetic"]) -> None:
    workload = Workload(Dims(K=6, C=4, P=3))
    method = method_of(name)
    search = LayerSearch(TINY, workload, seconds=0.3, clock=time.process_time)
    method(search)
    found = search.found()
    assert obstacle(TINY, workload, found.mapping) == ""
    assert found.evaluated > len(search.spaces) and found.edp <= search.values(search.spaces[0].outermost)[0]


def test_the_relaxed_model_is_exact_at_integers() -> None:
    torch = pytest.importorskip("torch")
    from fadiff.costmodel.relaxed.nests import RelaxedNests

    workload = Workload(Dims(K=24, C=12, P=14, N=2))
    for name in MACHINES:
        machine = machine_of(name)
        space = Space(machine, workload, keeps_of(machine)[0])
        rows = space.random(50, np.random.default_rng(1))
        stays = np.zeros((50, len(machine.memories), 3), dtype=np.float32)
        for row, memory in np.ndindex(*stays.shape[:2]):
            level = machine.places[memory]
            loops = [dim for dim in rows.orders[row, memory] if rows.factors[row, level, dim] > 1]
            left = Bound(machine, workload, space.keeps, "edp").left_in_place
            if loops:
                stays[row, memory, left[loops[0]]] = 1
        # Loops that leave the same operand in place stand together.
        for row, memory in np.ndindex(*stays.shape[:2]):
            first = int(stays[row, memory].argmax())
            rows.orders[row, memory] = sorted(rows.orders[row, memory], key=lambda dim: left[dim] != first)
        factors = torch.ones(50, 1, len(machine.levels), len(DIMS))
        active = [DIMS.index(dim) for dim in workload.active]
        factors[:, 0, :, active] = torch.from_numpy(rows.factors).float()
        energy, cycles = RelaxedNests(machine, [workload], space.keeps)(
            factors, torch.from_numpy(stays)[:, None]
        )
        nests = Nests(machine, workload, rows)
        assert energy[:, 0].numpy() == pytest.approx(nests.energy, rel=1e-4)
        assert np.ceil(cycles[:, 0].numpy() * (1 - 1e-6)) == pytest.approx(nests.cycles, rel=1e-5, abs=1)


def test_what_no_tile_fits_is_said() -> None:
    small = Machine("small", (*TINY.levels[:-1], Memory("sums", ALL, words=2)), 1.0)
    with pytest.raises(MachineError, match="sums has 2 words, the smallest tiles of K4 C4 need 3: "):
        LayerSearch(small, Workload(Dims(K=4, C=4)))


def test_random_mappings_are_legal() -> None:
    machine = machine_of("simba-like")
    workload = Workload(Dims(K=24, C=12, P=14, Q=7, R=3, S=3))
    space = Space(machine, workload, keeps_of(machine)[0])
    found = space.random(50, np.random.default_rng(1))
    assert {obstacle(machine, workload, found, row) for row in range(50)} == {""}
    assert Nests(machine, workload, found).fits.all()
    assert len(np.unique(found.factors, axis=0)) > 25


@pytest.mark.parametrize(
    "change, message",
    [
        (("class: SRAM", "class: cabinet"), r"bad.yaml:\d+: .*class 'cabinet' of buffer is not known"),
        ((", read_energy: 2.5", ""), r"no energy of buffer's read: give an energy reference table"),
        (("entries: 131072, ", ""), r"buffer has no size; give entries, depth or sizeKB"),
        (("factors: [N=1, C=1", "factors: [Z=1, C=1"), r"no dimension Z; layers have G N K C P Q R S"),
        (
            ("keep: [Inputs, Outputs]", "keep: [Images]"),
            r"no operand Images; there are Weights, Inputs",
        ),
        (("class: intmac", "class: SRAM"), r"the last component must multiply"),
        (("entries: 131072", "entries: 0"), r"bad.yaml:\d+: .*entries: 0; give a positive number"),
        (("version: 0.4", "version: 9.9"), r"bad.yaml:4: .*9.9 is not read; write one of 0.2, 0.3, 0.4"),
        (("meshX: 14", "mesh: 14"), r"bad.yaml:17: .*no mesh; a fan-out has meshX and meshY"),
        (
            ("shared_bandwidth: 32", "shared_bandwith: 32"),
            r"bad.yaml:13: .*shared_bandwith is not read; write shared_bandwidth, or leave it out",
        ),
        (
            ("bypass: [Weights]", "bypass: [Inputs]"),
            r"bad.yaml:14: .*Inputs is kept and bypassed; take it out of one of the two",
        ),
        (
            ("entries: 131072", "width: 12, depth: 4"),
            r"buffer reads 1.5 words at once; let width be a multiple of word_bits",
        ),
        (
            (
                "update_energy: 64.0}",
                "update_energy: 64.0}\n    constraints: {dataspace: {bypass: [Weights]}}",
            ),
            r"DRAM is outermost and bypasses Weights, kept nowhere else; take it out of `bypass`",
        ),
    ],
)
def test_bad_machines_are_one_line(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    text = (FOLDER / "eyeriss-like.yaml").read_text()
    assert change[0] in text
    (tmp_path / "bad.yaml").write_text(text.replace(*change, 1))
    with pytest.raises((TimeloopFormatError, MachineError), match=message):
        read_machine(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    "text, message",
    [
        (None, r"more.yaml: cannot read: No such file"),
        (
            "problem: {}",
            r"more.yaml: it constrains nothing; list `targets:` under `architecture_constraints:`",
        ),
        (
            "constraints: [{target: cellar, type: temporal}]",
            r"more.yaml:1: .*no level cellar; there are DRAM",
        ),
    ],
)
def test_constraints_that_say_nothing_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    if text is not None:
        more.write_text(text)
    with pytest.raises(TimeloopFormatError, match=message):
        machine_of("tpu-like", [more])


def test_a_misspelt_machine_is_told_the_shipped_ones() -> None:
    with pytest.raises(TimeloopFormatError, match=r"eyeris-like: no such file, .* these are eyeriss-like, "):
        machine_of("eyeris-like")


def test_a_network_is_mapped_by_the_command(tmp_path: Path) -> None:
    import onnx
    from click.testing import CliRunner

    from fadiff.cli import cli
    from fadiff.console import Console

    weights = np.ones((4, 2, 3, 3), np.float32)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Conv", ["a", "v"], ["b"], name="second"),
        onnx.helper.make_node("Softmax", ["b"], ["y"], name="third"),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [value("x", 1, [1, 2, 6, 6])],
        [value("y", 1, [1, 4, 6, 6])],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(weights[:, :1, :1, :1].repeat(4, 1), "v"),
        ],
    )
    model = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), model)
    out = tmp_path / "out"
    command = ["map", str(model), "--arch", "tpu-like", "--out", str(out), "--json"]
    done = CliRunner().invoke(cli, command, obj=Console(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    layer, second = summary["layers"]
    assert [group["layers"] for group in summary["fused"]] == [[layer["name"], second["name"]]]
    assert summary["fused"][0]["bytes_saved"] == 2 * 4 * 6 * 6
    assert summary["totals"]["edp_uj_cycles"] < summary["unfused"]["edp_uj_cycles"]
    entries = read_index(out / "index.yaml").layers
    assert all("fused with" in entry.notes[0] and "saves 288 bytes" in entry.notes[0] for entry in entries)
    assert "DRAM\n  type: bypass\n  keep: [Weights, Inputs]\n" in (out / entries[0].mapping).read_text()
    assert {d: n for d, n in layer["dims"].items() if n > 1} == {
        "K": 4,
        "C": 2,
        "P": 6,
        "Q": 6,
        "R": 3,
        "S": 3,
    }
    assert layer["edp_uj_cycles"] >= layer["bound"] * (1 - 1e-9) > 0
    assert len(summary["not_mapped"]) == 1
    with (out / "layers.csv").open() as file:
        row, _ = csv.DictReader(file)
    assert int(row["cycles"]) == layer["cycles"]
    assert row["mapping"].startswith("DRAM")
    assert (out / "run_timeloop.sh").stat().st_mode & 0o100
    page = (out / "report.html").read_text()
    assert 'aria-label="Roofline' in page and "bytes saved" in page and "third" in page
    assert page.count('class="box array"') == 2
    ran = compare(None, read_index(out / "index.yaml"), out, program(tmp_path / "model", "exit 1"))
    assert [result.status for result in ran] == ["failed", "failed"]
    assert ran[0].predicted.cycles == layer["cycles"]
    assert ran[0].predicted.accesses["buffer", "Outputs"] == (0, 4 * 36)
    assert ("DRAM", "Outputs") not in ran[0].predicted.accesses
    assert CliRunner().invoke(cli, command, obj=Console()).exit_code != 0  # nothing is written over
    small = tmp_path / "small.yaml"
    small.write_text((FOLDER / "tpu-like.yaml").read_text().replace("entries: 4194304", "entries: 1"))
    done = CliRunner().invoke(cli, ["map", str(model), "--arch", str(small)], obj=Console())
    assert is_bad_input(done.exception)
    assert "small.yaml: buffer has 1 words, the smallest tiles of K4" in str(done.exception)
