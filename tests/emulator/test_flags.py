"""Flags and headers for programs that users build themselves."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fadiff.emulator.build import compiler
from fadiff.emulator.flags import main

PROGRAM = """
#include "include/gemmini.h"
int main(void) {
  static elem_t in[DIM][DIM], out[DIM][DIM];
  in[DIM - 1][0] = 3;
  gemmini_config_ld(DIM * sizeof(elem_t));
  gemmini_config_st(DIM * sizeof(elem_t));
  gemmini_mvin(in, 0);
  gemmini_mvout(out, 0);
  gemmini_fence();
  return out[DIM - 1][0] == 3 && DIM == 32 ? 0 : 1;
}
"""


def test_flags_build_a_program_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    assert main(["--target", "gemmini-large"]) == 0
    flags = shlex.split(capsys.readouterr().out)
    command = [*shlex.split(compiler()), "main.c", *flags, "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


def test_an_unknown_target_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "gemmini-huge"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown target 'gemmini-huge'")


def test_parts_for_different_hardware_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "part.c").write_text('#include "include/gemmini.h"\n')
    for source, target in (("main", "gemmini-large"), ("part", "gemmini-default")):
        assert main(["--target", target]) == 0
        flags = shlex.split(capsys.readouterr().out)
        compile_only = [*shlex.split(compiler()), "-c", f"{source}.c", *(f for f in flags if ".so" not in f)]
        subprocess.run(compile_only, cwd=tmp_path, check=True)
    subprocess.run(
        [*shlex.split(compiler()), "main.o", "part.o", *flags, "-o", "main"], cwd=tmp_path, check=True
    )
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "compiled with different gemmini_params.h" in ran.stderr


@pytest.mark.parametrize("compiler", ["riscv64-unknown-elf-gcc", "clang"])
def test_headers_serve_a_riscv_compiler(
    compiler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The macros become the custom instructions of the instruction-set reference: opcode 0x7b, funct3 3."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    (tmp_path / "main.c").write_text(
        '#include "rocc-software/src/xcustom.h"\n'
        "void f(uint64_t a, uint64_t b) { ROCC_INSTRUCTION_0_R_R(3, a, b, 2) }\n"
    )
    assert main(["--target", "gemmini-large", "--headers", str(tmp_path / "root")]) == 0
    flags = shlex.split(capsys.readouterr().out)
    assert "#define DIM 32" in (tmp_path / "root" / "include" / "gemmini_params.h").read_text()
    command = [compiler, "-march=rv64gc", "-mabi=lp64d", "-O2", "-ffreestanding", *flags]
    if compiler == "clang":
        command.append("--target=riscv64-unknown-elf")
    subprocess.run([*command, "-c", "main.c", "-o", "main.o"], cwd=tmp_path, check=True)
    a0, a1 = 10, 11
    instruction = 2 << 25 | a1 << 20 | a0 << 15 | 3 << 12 | 0x7B
    assert instruction.to_bytes(4, "little") in (tmp_path / "main.o").read_bytes()


def test_headers_do_not_replace_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "include" / "gemmini.h"
    theirs.parent.mkdir()
    theirs.write_text("/* Chipyard's */")
    assert main(["--headers", str(tmp_path)]) == 2
    assert "holds another gemmini.h" in capsys.readouterr().err
    assert theirs.read_text() == "/* Chipyard's */"
