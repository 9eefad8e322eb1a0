"""Firmware inside somebody's project: models in a C++ program, wrong hardware, flags, blobs, debugging."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags, link_flags
from tests.emitters.gemmini.compilers import (
    WARNINGS,
    hardware_flags,
    need,
    run_compiler,
    small_schedule,
    vectors_of,
)
from tests.emitters.gemmini.executed import random_inputs
from tests.emitters.gemmini.host_nets import windows


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emit(small_schedule(), model_name="small", out_dir=tmp_path_factory.mktemp("small") / "firmware")


def _compile(*arguments: str | Path, folder: Path) -> None:
    done = run_compiler(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr


def _expected(graph: Graph) -> bytes:
    vectors = vectors_of(graph)
    return b"".join(vectors[name].tobytes() for name in graph.outputs)


APPLICATION = """
#include "small.h"
#include "windows.h"
#include "small.h"
#include <cstdio>
#include <cstring>
extern "C" { alignas(64) signed char scratch[1 << 16]; }
static_assert(SMALL_ARENA_BYTES <= sizeof scratch && WINDOWS_ARENA_BYTES <= sizeof scratch, "shared");
static_assert(SMALL_TILE_BUFFER_BYTES > 0 && WINDOWS_TILE_BUFFER_BYTES == 0, "only one uses it");
extern "C" { alignas(64) signed char small_tile_buffer[SMALL_TILE_BUFFER_BYTES]; }
static int8_t data[1 << 16];
static void run_windows(const int8_t *in, int8_t *out) { CALL_WINDOWS; }
int main(int, char **argv)
{
    int8_t *const x = data + 1, *const y = data + (1 << 14) + 3; /* any alignment */
    int8_t *const u = data + (1 << 15) + 5, *const v = data + 3 * (1 << 14) + 7;
    std::FILE *file = std::fopen(argv[1], "rb");
    if (file == NULL || std::fread(x, 1, SMALL_INPUT0_BYTES, file) != SMALL_INPUT0_BYTES
        || std::fread(u, 1, WINDOWS_INPUT_BYTES, file) != WINDOWS_INPUT_BYTES) {
        return 1;
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        std::memset(scratch, 85, sizeof scratch); /* nothing is kept between calls */
        std::memset(small_tile_buffer, 85, sizeof small_tile_buffer);
        run_windows(u, v);
        small_run(x, y);
        std::fwrite(y, 1, SMALL_OUTPUT0_BYTES, stdout);
        std::fwrite(v, 1, WINDOWS_OUTPUT_BYTES, stdout);
    }
    return 0;
}
"""


def test_two_models_in_one_program_share_a_buffer(tmp_path: Path) -> None:
    """From other folders, with C++ as the caller; outputs against ONNX Runtime, twice."""
    many = windows()
    schedules = {
        "small": small_schedule(),
        "windows": Schedule(many, load_target("gemmini-default"), {}, singleton_groups(many)),
    }
    graphs = [schedule.graph for schedule in schedules.values()]
    objects: list[Path] = []
    for name, schedule in schedules.items():
        folder = emit(schedule, model_name=name, out_dir=tmp_path / name)
        for source in (f"{name}.c", *(path.name for path in folder.glob("*.S"))):
            objects.append(tmp_path / f"{source}.o")
            flags = ("-std=gnu11", "-O2", "-DFADIFF_EXTERN_BUFFERS", "-I", folder, *hardware_flags(tmp_path))
            _compile(need("gcc"), *flags, "-c", folder / source, "-o", objects[-1], folder=tmp_path)
    offsets = np.cumsum([0] + [many.tensors[name].nbytes for name in (*many.inputs, *many.outputs)]).tolist()
    inputs, all_bytes = offsets[len(many.inputs)], offsets[-1]
    arguments = [f"in + {o}" for o in offsets[: len(many.inputs)]]
    arguments += [f"out + {o - inputs}" for o in offsets[len(many.inputs) : -1]]
    (tmp_path / "application.cpp").write_text(
        APPLICATION.replace("CALL_WINDOWS", f"windows_run({', '.join(arguments)})")
        .replace("WINDOWS_INPUT_BYTES", str(inputs))
        .replace("WINDOWS_OUTPUT_BYTES", str(all_bytes - inputs))
    )
    _compile(
        need("g++"),
        *("-std=c++17", "-pedantic", *WARNINGS),
        *("-I", tmp_path / "small", "-I", tmp_path / "windows", "application.cpp"),
        *objects,
        *("-Wl,--defsym=small_arena=scratch", "-Wl,--defsym=windows_arena=scratch"),
        *link_flags(),
        *("-o", "application"),
        folder=tmp_path,
    )
    given = b"".join(array.tobytes() for graph in graphs for array in random_inputs(graph).values())
    (tmp_path / "inputs.bin").write_bytes(given)
    ran = subprocess.run([tmp_path / "application", tmp_path / "inputs.bin"], capture_output=True, check=True)
    assert ran.stdout == b"".join(_expected(graph) for graph in graphs) * 2


Edit = Callable[[str], str]


def _without(line: str) -> Edit:
    return lambda text: text.replace(f"#define {line}\n", "")


def _with(name: str, value: object) -> Edit:
    return lambda text: re.sub(rf"#define {name} \w+", f"#define {name} {value}", text)


def _typed(name: str, ctype: str) -> Edit:
    return lambda text: re.sub(rf"typedef \w+ {name};", f"typedef {ctype} {name};", text)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_with("DIM", 8), "DIM differs from target gemmini-default"),
        (_with("BANK_NUM", 8), "BANK_NUM differs"),
        (_with("BANK_ROWS", 8192), "scratchpad rows differ"),
        (_with("ACC_ROWS", 512), "ACC_ROWS differs"),
        (_typed("elem_t", "uint8_t"), "elem_t differs"),
        (_typed("elem_t", "int16_t"), "elem_t differs"),
        (_typed("acc_t", "uint32_t"), "acc_t differs"),
        (_typed("acc_scale_t", "int32_t"), "acc_scale_args"),
        (_typed("scale_t", "int8_t"), "mvin_scale_args"),
        (_without("ACC_READ_FULL_WIDTH"), "acc_read_full_width"),
    ],
)
def test_other_hardware_is_refused(firmware: Path, tmp_path: Path, edit: Edit, message: str) -> None:
    """Of every parameter that the program depends on, not just of the array's size."""
    flags = include_flags(load_target("gemmini-default"), tmp_path)
    command = (need("gcc"), "-std=gnu11", *flags, "-fsyntax-only", "small.c")
    _compile(*command, folder=firmware)
    header = tmp_path / "include" / "gemmini_params.h"
    text = header.read_text()
    header.write_text(edit(text))
    assert header.read_text() != text
    done = run_compiler(*command, folder=firmware)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_fast_math_is_refused(firmware: Path, tmp_path: Path, compiler: str) -> None:
    flags = ("-std=gnu11", "-ffast-math", *hardware_flags(tmp_path), "-fsyntax-only", "small.c")
    done = run_compiler(need(compiler), *flags, folder=firmware)
    assert done.returncode != 0
    assert "without -ffast-math" in done.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_blob_of_another_size_is_refused(firmware: Path, tmp_path: Path, compiler: str) -> None:
    """A pointer of a large-file store in its place, say, or the blob of another compilation."""
    command = (need(compiler), "-I", ".", "-c", firmware / "small_weights.S", "-o", "weights.o")
    blob = (firmware / "small_weights.bin").read_bytes()
    assert hashlib.sha256(blob).hexdigest() in (firmware / "small_weights.S").read_text()
    (tmp_path / "small_weights.bin").write_bytes(blob)
    _compile(*command, folder=tmp_path)
    (tmp_path / "small_weights.bin").write_bytes(blob[:-1])
    done = run_compiler(*command, folder=tmp_path)
    assert done.returncode != 0
    assert "it has another size" in done.stderr


def test_main_says_where_an_output_differs(tmp_path: Path) -> None:
    schedule = small_schedule()
    vectors = vectors_of(schedule.graph)
    vectors[schedule.graph.outputs[0]].reshape(-1)[3] ^= 1
    folder = emit(schedule, model_name="small", out_dir=tmp_path / "firmware", test_vectors=vectors)
    sources = ("main.c", "small.c", "small_self_test.c", "small_weights.S")
    flags = ("-std=gnu11", *hardware_flags(tmp_path), *link_flags())
    _compile(need("gcc"), *sources, *flags, "-o", "main", folder=folder)
    ran = subprocess.run([folder / "main"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "small: output 0 differs from byte 3 on\n")


@pytest.mark.parametrize("name", ["features", "load", "math", "test_vectors"])
def test_model_names_hide_no_header_and_no_function(tmp_path: Path, name: str) -> None:
    folder = emit(small_schedule(), model_name=name, out_dir=tmp_path / "firmware")
    user = (
        f'#include <stdio.h>\n#include <math.h>\n#include "{name}_model.h"\nint main(void) {{ return 0; }}\n'
    )
    (tmp_path / "user.c").write_text(user)
    flags = ("-std=gnu11", *WARNINGS, "-I", folder, *hardware_flags(tmp_path), "-fsyntax-only")
    _compile(need("gcc"), *flags, folder / f"{name}_model.c", folder / "main.c", "user.c", folder=tmp_path)


DEBUGGER = """
#include "small.h"
#include <stdio.h>
static int8_t input[SMALL_INPUT0_BYTES], output[SMALL_OUTPUT0_BYTES];
static int show(void *stream, int layer, int phase)
{
    static const struct { const int8_t *at; size_t bytes; } places[SMALL_NUM_LAYERS] = { PLACES };
    if (phase == 2) {
        fwrite(places[layer].at, 1, places[layer].bytes, stream);
    }
    return 0;
}
int main(int argc, char **argv)
{
    FILE *file = fopen(argv[argc - 1], "rb");
    if (file == NULL || fread(input, 1, sizeof input, file) != sizeof input) {
        return 1;
    }
    small_set_hook(show, stdout);
    return small_run(input, output);
}
"""


def test_the_header_says_where_each_layers_output_is(firmware: Path, tmp_path: Path) -> None:
    """An observer that reads the places of the header's table sees what ONNX Runtime computes."""
    graph = small_schedule().graph
    rows = re.findall(r"^ \* +(\d+)  (\w+)  (\w+): (\w+) \((.+)\)$", (firmware / "small.h").read_text(), re.M)
    assert [(int(index), op, name) for index, op, name, *_ in rows] == [
        (i, layer.op, layer.name) for i, layer in enumerate(graph.layers)
    ]
    places, whole = [], []
    for *_, tensor, place in rows:
        if place == "never whole":
            places.append("{0}")
            continue
        symbol, offset = ("output", 0) if place == "output0" else place.rsplit(" ", 1)
        buffer = symbol if symbol == "output" else f"small_{symbol.replace(' ', '_')}"
        places.append(f"{{{buffer} + {offset}, {graph.tensors[tensor].nbytes}}}")
        whole.append(tensor)
    assert "{0}" in places and len(whole) > 3
    (tmp_path / "debugger.c").write_text(DEBUGGER.replace("PLACES", ", ".join(places)))
    _compile(
        need("gcc"),
        *("-std=gnu11", *WARNINGS, "-I", firmware, *hardware_flags(tmp_path)),
        *("debugger.c", firmware / "small.c", firmware / "small_weights.S"),
        *link_flags(),
        *("-o", "debugger"),
        folder=tmp_path,
    )
    inputs = random_inputs(graph)
    (tmp_path / "input.bin").write_bytes(b"".join(array.tobytes() for array in inputs.values()))
    ran = subprocess.run([tmp_path / "debugger", tmp_path / "input.bin"], capture_output=True, check=True)
    computed = run_reference(graph, inputs)
    assert ran.stdout == b"".join(computed[name].tobytes() for name in whole)
