"""Make, CMake, Zephyr and Linux around the emitted firmware; models for two Gemminis in one program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import SOURCES, library
from fadiff.emulator.flags import write_headers
from tests.emitters.gemmini.compilers import WARNINGS, need, run_compiler, small_schedule
from tests.emitters.gemmini.executed import random_inputs
from tests.emitters.gemmini.test_in_a_project import _expected

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Firmware and headers in folders with spaces; nothing of the compile output beside them."""
    schedule = small_schedule()
    folder = tmp_path_factory.mktemp("a b")
    write_headers(schedule.target, folder / "my gemmini")
    inputs = random_inputs(schedule.graph)
    return emit(
        schedule,
        model_name="small",
        out_dir=folder / "my firmware",
        test_vectors=inputs | run_reference(schedule.graph, inputs),
    )


@pytest.fixture
def firmware(emitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emitted, tmp_path / "copied firmware"))


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments, f"PYTHON={sys.executable}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT)


def test_a_copied_folder_checks_itself_and_is_built_again_when_flags_change(firmware: Path) -> None:
    built = [_make(firmware, "check"), _make(firmware, "check"), _make(firmware, "check", "CHECK_LAYERS=1")]
    for done in built:
        assert done.returncode == 0 and "small: all outputs agree" in done.stdout, done.stdout + done.stderr
    assert ["sh host.command" in done.stdout for done in built] == [True, False, True]
    blames = subprocess.run(
        ["make", "check", "PYTHON=false"], cwd=firmware, capture_output=True, text=True, check=False
    )
    assert blames.returncode != 0 and "make check needs FADiff's functional model" in blames.stderr


def test_other_headers_and_flags_build_the_bare_metal_program_again(emitted: Path, firmware: Path) -> None:
    need("riscv64-unknown-elf-gcc")
    root = firmware / "root"
    shutil.copytree(emitted.parent / "my gemmini", root)
    command = ("riscv", f"GEMMINI_ROOT={root}")
    first = _make(firmware, *command)
    if "picolibc" in first.stderr:
        pytest.skip("picolibc is not installed")
    assert first.returncode == 0, first.stderr
    assert "Nothing to be done" not in first.stdout and "small.elf" in first.stdout
    assert "-o small.elf" not in _make(firmware, *command).stdout
    header = root / "include" / "gemmini_params.h"
    header.write_text(header.read_text().replace("ACC_ROWS 1024", "ACC_ROWS 512"))
    again = _make(firmware, *command)
    assert again.returncode != 0 and "ACC_ROWS differs from target" in again.stderr
    missing = _make(firmware, "riscv", "GEMMINI_ROOT=elsewhere")
    assert missing.returncode != 0 and "set GEMMINI_ROOT to the folder" in missing.stderr


def test_a_program_for_linux_runs_in_an_emulator(firmware: Path) -> None:
    """Real custom instructions: illegal there, executed on the functional model by a signal handler."""
    need("riscv64-linux-gnu-gcc")
    need("qemu-riscv64")
    done = _make(firmware, "linux-check", "CHECK_LAYERS=1", "WEIGHTS_FILE=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 layers compared, all agree" in done.stdout and "all outputs agree" in done.stdout
    linux = _make(firmware, "linux", f"GEMMINI_ROOT={firmware / 'root'}")
    assert linux.returncode != 0 and "set GEMMINI_ROOT" in linux.stderr


def test_weights_from_a_file_are_checked(firmware: Path) -> None:
    done = _make(firmware, "check", "WEIGHTS_FILE=1")
    assert done.returncode == 0 and "all outputs agree" in done.stdout, done.stdout + done.stderr
    blob = firmware / "small_weights.bin"
    blob.write_bytes(bytes([blob.read_bytes()[0] ^ 1]) + blob.read_bytes()[1:])
    done = _make(firmware, "check", "WEIGHTS_FILE=1")
    assert done.returncode != 0 and "small_weights.bin is missing, or not the one" in done.stdout
    (firmware / "user.c").write_text(
        '#include "small.h"\nstatic int8_t x[SMALL_INPUT0_BYTES], y[SMALL_OUTPUT0_BYTES];\n'
        "int main(void) { return small_run(x, y) == SMALL_NO_WEIGHTS ? 0 : 1; }\n"
    )
    flags = ("-DFADIFF_WEIGHTS_POINTER", "-isystem", str(firmware.parent / "root"))
    write_headers(small_schedule().target, firmware.parent / "root")
    program = ("user.c", "small.c", "-o", "user", str(library()), f"-Wl,-rpath,{library().parent}", "-lm")
    assert run_compiler(need("gcc"), *flags, *program, folder=firmware).returncode == 0
    assert subprocess.run([firmware / "user"], check=False).returncode == 0


APPLICATION = """
cmake_minimum_required(VERSION 3.16)
project(application LANGUAGES C CXX ASM)
ADD_MODEL
add_executable(application application.cpp)
target_compile_options(application PRIVATE -Wall -Wextra -Wconversion -Werror)
target_link_libraries(application PRIVATE fadiff::small "${MODEL}")
"""
CALLER = """
#include "small.h"
#include <cstdio>
alignas(SMALL_ALIGNMENT) static int8_t x[SMALL_INPUT0_BYTES], y[SMALL_OUTPUT0_BYTES];
int main()
{
    if (std::fread(x, 1, sizeof x, stdin) != sizeof x || small_run(x, y) != 0) {
        return 1;
    }
    return std::fwrite(y, 1, sizeof y, stdout) == sizeof y && small_layers[0].macs > 0 ? 0 : 1;
}
"""


@pytest.mark.parametrize("way", ["add_subdirectory", "find_package"])
def test_cmake(emitted: Path, tmp_path: Path, way: str) -> None:
    need("cmake")
    configure = ("cmake", f"-DGEMMINI_ROOT={emitted.parent / 'my gemmini'}", f"-DMODEL={library()}")
    add = f'add_subdirectory("{emitted}" small)'
    if way == "find_package":
        add = "find_package(small REQUIRED)"
        for command in (
            (*configure, "-S", emitted, "-B", tmp_path / "library"),
            ("cmake", "--build", tmp_path / "library"),
            ("cmake", "--install", tmp_path / "library", "--prefix", tmp_path / "prefix"),
        ):
            subprocess.run(command, check=True, capture_output=True)
        configure = (*configure, f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    (tmp_path / "CMakeLists.txt").write_text(APPLICATION.replace("ADD_MODEL", add))
    (tmp_path / "application.cpp").write_text(CALLER)
    build = tmp_path / "build"
    for command in ((*configure, "-S", tmp_path, "-B", build), ("cmake", "--build", build)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    graph = small_schedule().graph
    (x,) = random_inputs(graph).values()
    ran = subprocess.run([build / "application"], input=x.tobytes(), capture_output=True, check=True)
    assert ran.stdout == _expected(graph)
    refused = subprocess.run(
        ["cmake", "-S", emitted, "-B", tmp_path / "without"], capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0 and "set GEMMINI_ROOT" in refused.stderr


ZEPHYR = """
cmake_minimum_required(VERSION 3.16)
project(zephyr LANGUAGES C ASM)
macro(zephyr_include_directories)
  include_directories(${ARGN})
endmacro()
macro(zephyr_library_named name)
  set(ZEPHYR_CURRENT_LIBRARY ${name})
  add_library(${name} STATIC)
  # what Zephyr's own options bring: another -isystem, and on ARCH_POSIX C that assembly cannot read
  target_compile_options(${name} PRIVATE -isystem "${CMAKE_SOURCE_DIR}" -include posix_cheats.h)
endmacro()
macro(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_compile_definitions)
  target_compile_definitions(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
set(CONFIG_FADIFF_SMALL y)
set(CONFIG_FADIFF_SMALL_GEMMINI_ROOT "AT_ROOT")
include("MODULE/CMakeLists.txt")
"""
CHEATS = """
#ifndef NO_POSIX_CHEATS
void zephyr_app_main(void);
#endif
"""


def test_a_zephyr_module(emitted: Path, tmp_path: Path) -> None:
    """Zephyr's build reads and compiles a module so; functions like Zephyr's stand for its own."""
    import yaml

    module = yaml.safe_load((emitted / "zephyr" / "module.yml").read_text())
    assert module["name"] == "small"
    assert (emitted / module["build"]["kconfig"]).read_text().startswith("config FADIFF_SMALL\n")
    project = ZEPHYR.replace("MODULE", str(emitted / module["build"]["cmake"]))
    (tmp_path / "CMakeLists.txt").write_text(project.replace("AT_ROOT", str(emitted.parent / "my gemmini")))
    (tmp_path / "posix_cheats.h").write_text(CHEATS)
    build = tmp_path / "build"
    for command in ((need("cmake"), "-S", tmp_path, "-B", build), ("cmake", "--build", build)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    symbols = subprocess.run(["nm", build / "libsmall.a"], capture_output=True, text=True, check=True).stdout
    assert " T small_run" in symbols and " R small_weights" in symbols


def _on(target: str) -> Schedule:
    return small_schedule(load_target(target))


TWO = """
#include "wide.h"
#include "narrow.h"
#include <stdio.h>
static int8_t x[WIDE_INPUT0_BYTES], y[WIDE_OUTPUT0_BYTES], z[NARROW_OUTPUT0_BYTES];
int main(void)
{
    if (fread(x, 1, sizeof x, stdin) != sizeof x || wide_run(x, y) != 0 || narrow_run(x, z) != 0) {
        return 1;
    }
    return fwrite(y, 1, sizeof y, stdout) + fwrite(z, 1, sizeof z, stdout) == sizeof y + sizeof z ? 0 : 1;
}
"""


def test_models_for_two_gemminis_in_one_program(tmp_path: Path) -> None:
    """Each with its gemmini_params.h, and here with a functional model of its own."""
    graphs: dict[str, Graph] = {}
    for name, target in (("wide", "gemmini-default"), ("narrow", "gemmini-small")):
        schedule = _on(target)
        graphs[name] = schedule.graph
        folder = emit(schedule, model_name=name, out_dir=tmp_path / name)
        write_headers(schedule.target, tmp_path / f"{name} root")
        flags = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-I", folder, "-isystem", tmp_path / f"{name} root")
        sources = (folder / f"{name}.c", folder / f"{name}_weights.S", *sorted(SOURCES.glob("*.c")))
        command = (*flags, "-Wl,-Bsymbolic", *sources, "-o", f"lib{name}.so", "-lm")
        done = run_compiler(need("gcc"), *command, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    (tmp_path / "two.c").write_text(TWO)
    include = [flag for name in graphs for flag in ("-I", tmp_path / name)]
    libraries = ("-L.", "-lwide", "-lnarrow", f"-Wl,-rpath,{tmp_path}")
    done = run_compiler(need("gcc"), *WARNINGS, *include, "two.c", "-o", "two", *libraries, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (x,) = random_inputs(graphs["wide"]).values()
    ran = subprocess.run([tmp_path / "two"], input=x.tobytes(), capture_output=True, check=True)
    assert ran.stdout == _expected(graphs["wide"]) + _expected(graphs["narrow"])
