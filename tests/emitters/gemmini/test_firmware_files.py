"""The emitted files as firmware people look at them: warnings, symbols, determinism, hardware mismatch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.host import Copy, GlobalAveragePool, Moments, Rows
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags, link_flags
from tests.emitters.gemmini.compilers import (
    STRICT,
    WARNINGS,
    hardware_flags,
    need,
    run_compiler,
    small_schedule,
    vectors_of,
)
from tests.emitters.gemmini.host_nets import elementwise, rows, windows

GOLDEN = Path(__file__).parent / "golden"
HOST_NETS = {"elementwise": elementwise, "windows": windows, "rows": rows}


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    schedule = small_schedule()
    vectors = vectors_of(schedule.graph)
    yield emit(
        schedule,
        model_name="small",
        out_dir=tmp_path_factory.mktemp("out") / "firmware",
        test_vectors=vectors,
    )


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(firmware: Path, tmp_path: Path, compiler: str) -> None:
    done = run_compiler(
        need(compiler),
        "-std=gnu11",
        "-O2",
        *STRICT,
        *hardware_flags(tmp_path),
        "-c",
        "small.c",
        "-o",
        tmp_path / "small.o",
        folder=firmware,
    )
    assert done.returncode == 0, done.stderr


def test_no_warnings_bare_metal(firmware: Path, tmp_path: Path) -> None:
    done = run_compiler(
        need("riscv64-unknown-elf-gcc"),
        "-std=gnu11",
        "-O2",
        *STRICT,
        "-march=rv64gc",
        "-mabi=lp64d",
        "-mcmodel=medany",
        "--specs=picolibc.specs",
        *hardware_flags(tmp_path),
        "-c",
        "small.c",
        "-o",
        tmp_path / "small.o",
        folder=firmware,
    )
    if "picolibc" in done.stderr:
        pytest.skip("picolibc is not installed")
    assert done.returncode == 0, done.stderr


def _deepest_stack(callgraph: str, root: str) -> int:
    """Bytes of stack along the deepest path of calls, from gcc's -fcallgraph-info=su; fails on recursion."""
    node = re.compile(r'node: \{ title: "([^"]+)" label: "([^"]*)"')
    sizes = {title: re.search(r"(\d+) bytes \((\w+)", label) for title, label in node.findall(callgraph)}
    edge = re.compile(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"')
    calls: dict[str, set[str]] = {}
    for caller, callee in edge.findall(callgraph):
        calls.setdefault(caller, set()).add(callee)

    def depth(function: str, path: tuple[str, ...] = ()) -> int:
        assert function not in path, f"recursion: {path}"
        found = sizes.get(function)
        assert found is None or found[2] == "static", f"{function} has a frame of variable size"
        below = [depth(callee, (*path, function)) for callee in sorted(calls.get(function, ()))]
        return (int(found[1]) if found else 0) + max(below, default=0)

    return depth(root)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Fused groups and every kind of host layer, dozens of them."""
    target, folder = load_target("gemmini-default"), tmp_path_factory.mktemp("nets")
    graphs = [net() for net in HOST_NETS.values()]
    hosts = [Schedule(graph, target, {}, singleton_groups(graph)) for graph in graphs]
    schedules = enumerate((*hosts, small_schedule()))
    return [emit(schedule, model_name="net", out_dir=folder / str(i)) for i, schedule in schedules]


@pytest.mark.parametrize("optimisation", ["-O0", "-O2"])
def test_stack_stays_below_what_is_promised(nets: list[Path], tmp_path: Path, optimisation: str) -> None:
    """The frame of `run` must not add those of layers up."""
    for folder in nets:
        done = run_compiler(
            need("riscv64-unknown-elf-gcc"),
            "-std=gnu11",
            optimisation,
            *("-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany", "--specs=picolibc.specs"),
            "-fcallgraph-info=su",
            *hardware_flags(tmp_path),
            *("-c", "net.c", "-o", tmp_path / "net.o"),
            folder=folder,
        )
        if "picolibc" in done.stderr:
            pytest.skip("picolibc is not installed")
        assert done.returncode == 0, done.stderr
        promised = re.search(r"NET_STACK_BYTES (\d+)", (folder / "net.h").read_text())
        assert promised
        # Half of it is for what the C library calls on its own (expf, memcpy) and for the caller's ABI.
        assert 0 < _deepest_stack((tmp_path / "net.ci").read_text(), "net_run") <= int(promised[1]) // 2


def test_moments_alone_compile_for_the_core_without_a_warning(tmp_path: Path) -> None:
    """GCC for RISC-V puts rows that are cleared into their only caller, and then looks at their indices."""
    b = GraphBuilder("norm")
    products = b.input("products", (16, 16), dtype="int32")
    sums = b.input("sums", (16, 1), dtype="int32")
    moments = b.tensor("moments", (16, 2, 32), scale=0.1)
    factors = b.tensor("factors", (16,), dtype="float32")
    operator = Moments(Rows(16, 16, 1), 32, 16, 16, 1 / 32, 1.0, 1.0, 1.0)
    b.host("moments", operator, (products, sums), (moments, factors))
    copied, all_of_it = b.tensor("copied", (16, 2, 32), scale=0.1), Access(0, (1,))
    b.host("copied", Copy(Loops((1024,), (all_of_it,), all_of_it)), (moments,), (copied,))
    graph = b.build((copied, factors))
    schedule = Schedule(graph, load_target("gemmini-default"), {}, singleton_groups(graph))
    emit(schedule, model_name="norm", out_dir=tmp_path / "norm")
    done = run_compiler(
        need("riscv64-unknown-elf-gcc"),
        *("-std=gnu11", "-O2", *WARNINGS),
        *("-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany", "--specs=picolibc.specs"),
        *hardware_flags(tmp_path),
        *("-c", "norm.c", "-o", tmp_path / "norm.o"),
        folder=tmp_path / "norm",
    )
    if "picolibc" in done.stderr:
        pytest.skip("picolibc is not installed")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("g++", "c++11"), ("clang", "c99")])
def test_header_needs_no_gemmini(firmware: Path, tmp_path: Path, compiler: str, standard: str) -> None:
    user = tmp_path / f"user.{'cpp' if '+' in standard else 'c'}"
    user.write_text('#include "small.h"\nint main(void) { return SMALL_NUM_INPUTS - 1; }\n')
    done = run_compiler(
        need(compiler),
        f"-std={standard}",
        "-Wpedantic",
        *WARNINGS,
        "-I",
        firmware,
        "-c",
        user,
        "-o",
        tmp_path / "user.o",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("net", ["small", *HOST_NETS])
def test_main_agrees_under_sanitizers(firmware: Path, tmp_path: Path, net: str) -> None:
    """main.c on the functional model, with the model firmware under ASan and UBSan."""
    folder = firmware
    if net != "small":
        graph = HOST_NETS[net]()
        schedule = Schedule(graph, load_target("gemmini-default"), {}, singleton_groups(graph))
        folder = emit(schedule, model_name=net, out_dir=tmp_path / net, test_vectors=vectors_of(graph))
        elements = folder / "runtime" / "elements.h"  # instrumented once, not at each call: 2 s, not 14
        elements.write_text(elements.read_text().replace("__attribute__((always_inline))", ""))
    done = run_compiler(
        need("gcc"),
        "-std=gnu11",
        "-O0",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        *STRICT,
        *hardware_flags(tmp_path),
        "main.c",
        f"{net}.c",
        f"{net}_self_test.c",
        *(path.name for path in folder.glob("*_weights.S")),
        *link_flags(),
        "-o",
        tmp_path / "main",
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(
        [tmp_path / "main"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all outputs agree" in ran.stdout


def test_make_check(firmware: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        ["make", "-s", "check", f"PYTHON={sys.executable}"],
        cwd=firmware,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all outputs agree" in done.stdout


@pytest.mark.parametrize("flags", ["", "-flto"])
def test_make_riscv(firmware: Path, tmp_path: Path, flags: str) -> None:
    """A complete bare-metal program with a console that Spike understands, from distribution packages."""
    need("riscv64-unknown-elf-gcc")
    write_headers = [
        sys.executable,
        "-m",
        "fadiff.emulator.flags",
        "--target",
        "gemmini-default",
        "--headers",
    ]
    root = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([*write_headers, tmp_path / "root"], check=True, capture_output=True, env=root)
    folder = shutil.copytree(firmware, tmp_path / "firmware")
    command = [
        "make",
        "-s",
        "riscv",
        f"GEMMINI_ROOT={tmp_path / 'root'}",
        f"RISCV_CC=riscv64-unknown-elf-gcc {flags}",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "picolibc" in done.stderr:
        pytest.skip("picolibc is not installed")
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", folder / "small.elf"], capture_output=True, text=True, check=True).stdout
    expected = {"tohost", "fromhost", "main"} | ({"small_run"} if not flags else set())  # lto inlines it
    assert expected <= {line.split()[-1] for line in symbols.splitlines()}


def test_public_symbols_carry_the_prefix(firmware: Path, tmp_path: Path) -> None:
    run_compiler(
        need("gcc"),
        "-std=gnu11",
        *hardware_flags(tmp_path),
        "-c",
        "small.c",
        "-o",
        tmp_path / "small.o",
        folder=firmware,
    )
    symbols = subprocess.run(
        ["nm", "-g", "--defined-only", tmp_path / "small.o"], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1].split("_")[0] for line in symbols.splitlines()} == {"small"}


def test_no_allocation_no_io_no_recursion(firmware: Path) -> None:
    code = (firmware / "small.c").read_text()
    assert not re.search(r"\b(malloc|calloc|alloca|free|printf|exit|abort)\s*\(", code)


def test_other_hardware_is_refused_at_compile_time(firmware: Path, tmp_path: Path) -> None:
    wrong = include_flags(load_target("gemmini-large"), tmp_path / "wrong")
    done = run_compiler(
        need("gcc"), "-std=gnu11", *wrong, "-c", "small.c", "-o", tmp_path / "x.o", folder=firmware
    )
    assert done.returncode != 0
    assert "DIM differs from target gemmini-default" in done.stderr


def test_deterministic(firmware: Path, tmp_path: Path) -> None:
    schedule = small_schedule()
    again = emit(
        schedule, model_name="small", out_dir=tmp_path / "again", test_vectors=vectors_of(schedule.graph)
    )
    files = sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for file in files:
        assert (firmware / file).read_bytes() == (again / file).read_bytes(), file


def test_golden(firmware: Path, request: pytest.FixtureRequest) -> None:
    """The C itself, for a reviewer.  FADIFF_UPDATE_GOLDEN=1 rewrites the file."""
    golden = GOLDEN / "small.c"
    code = (firmware / "small.c").read_text()
    if os.environ.get("FADIFF_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(code)
    assert code == golden.read_text(), "set FADIFF_UPDATE_GOLDEN=1 if the change is meant"


def test_names_cannot_break_the_code(tmp_path: Path) -> None:
    from dataclasses import replace

    schedule = small_schedule()
    graph = replace(schedule.graph, name='*/ "evil"\n#error')
    evil = emit(replace(schedule, graph=graph), model_name="int", out_dir=tmp_path / "firmware")
    done = run_compiler(
        need("gcc"),
        "-std=gnu11",
        *WARNINGS,
        *hardware_flags(tmp_path),
        "-c",
        "int_.c",
        "-o",
        tmp_path / "x.o",
        folder=evil,
    )
    assert done.returncode == 0, done.stderr


HOSTILE = (
    "int",
    "while",
    "",
    "a",
    "A",
    "a.",
    "Größe/層 1",
    '*/ #error "x"',
    "n" * 300,
    "n" * 299 + "/",
    "9",
    "EOF",
    "DIM",
)


def test_hostile_node_names(tmp_path: Path) -> None:
    """C keywords, macros, unicode, nothing, very long names, and names that only C finds equal."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from fadiff.converter import convert
    from fadiff.optimizer import optimize

    values = ["x", *(f"{name}@{i}" for i, name in enumerate(HOSTILE))]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32)[:, :, None, None] * 0.5, "main")
    nodes = [
        helper.make_node("Conv", [values[i], "main"], [values[i + 1]], name) for i, name in enumerate(HOSTILE)
    ]
    shape = [1, 8, 4, 4]
    graph = helper.make_graph(
        nodes,
        "signed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, shape)],
        [weight],
    )
    path = tmp_path / "signed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    converted = convert(path, seed=1).graph
    assert len(converted.layers) == len(HOSTILE)
    schedule = optimize(converted, load_target("gemmini-default"), method="layerwise").schedule
    folder = emit(
        schedule, model_name="signed", out_dir=tmp_path / "firmware", test_vectors=vectors_of(converted)
    )
    for compiler in ("gcc", "clang"):
        command = (need(compiler), "-std=gnu11", *WARNINGS, *hardware_flags(tmp_path), "-c", "signed_.c")
        done = run_compiler(*command, "-o", tmp_path / "x.o", folder=folder)
        assert done.returncode == 0, done.stderr
    test_make_check(folder)


def test_model_that_runs_on_the_core_only(tmp_path: Path) -> None:
    """No weights, no Gemmini instruction: still clean, and `make check` still works."""
    builder = GraphBuilder("core")
    x = builder.input("x", (1, 4, 4, 3), scale=0.1)
    y = builder.tensor("y", (1, 1, 1, 3), scale=0.1)
    builder.host("pool", GlobalAveragePool(0.1), (x,), (y,))
    graph = builder.build((y,))
    schedule = Schedule(graph, load_target("gemmini-default"), {}, singleton_groups(graph))
    folder = emit(schedule, model_name="core", out_dir=tmp_path / "core", test_vectors=vectors_of(graph))
    for compiler in ("gcc", "clang"):
        done = run_compiler(
            need(compiler),
            "-std=gnu11",
            *WARNINGS,
            *hardware_flags(tmp_path),
            "-c",
            "core.c",
            "-o",
            tmp_path / "core.o",
            folder=folder,
        )
        assert done.returncode == 0, done.stderr
    test_make_check(folder)
