"""What this machine has of what fadiff needs, and what each part is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from fadiff.converter.folders import cache_folder

TIMEOUT = 20
"""Seconds that a program may take to say its version."""


@dataclass(frozen=True)
class Check:
    """One part: `found` is a version or place, empty where there is none that can be used."""

    name: str
    enables: str
    remedy: str
    required: bool = False
    found: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return bool(self.found) or not self.required


TOOLS = (
    Check("make", "make check, riscv, spike in DIR/firmware", "install make", True),
    Check(
        "riscv64-unknown-elf-gcc",
        "ELF for Spike and boards (make riscv)",
        "apt install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    ),
    Check(
        "riscv64-linux-gnu-gcc",
        "programs for RISC-V Linux (make linux)",
        "apt install gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    ),
    Check("qemu-riscv64", "make linux-check", "apt install qemu-user"),
    Check("cmake", "the firmware as a CMake package", "apt install cmake"),
    Check("spike", "make spike", "build riscv-isa-sim and libgemmini (docs/spike.md)"),
    Check("timeloop-model", "fadiff timeloop run", "build Timeloop, or give --timeloop-model PATH"),
    Check("verilator", "python -m benchmarks rtl: cycles on RTL", "apt install verilator"),
    Check("chromium", "python -m benchmarks screenshots: the report as pictures", "apt install chromium"),
)
EXTRAS = {
    "baselines": "fadiff compare with genetic and Bayesian search",
    "cluster": "fadiff sweep --cluster",
    "dev": "make test",
    "docs": "make site",
    "samples": "fadiff sample: networks to try, trained ones among them",
    "torch": "descent where enumeration leaves layers open, codesign, torch modules as input, samples",
}
"""What the optional packages are for, by the extra that brings them."""


def checks() -> Iterator[Check]:
    """All parts, required ones first."""
    python = ".".join(map(str, sys.version_info[:3]))
    new_enough = python if sys.version_info >= (3, 11) else ""
    yield Check("python", "everything", "install 3.11 or newer", True, new_enough)
    yield compiler()
    yield cache()
    found = [*packages()]
    tools = [_found(tool) for tool in TOOLS]
    yield from sorted([*found, *tools], key=lambda check: not check.required)


def compiler() -> Check:
    """A C compiler that makes a shared object, as verification does."""
    enables, remedy = "fadiff verify: the C runs on the functional model", "install gcc or clang"
    program = shutil.which("cc")
    if program is None:
        return Check("cc", enables, remedy, True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("#include <stdint.h>\nint64_t probe(void) { return 1; }\n")
        command = [
            program,
            "-std=gnu11",
            "-shared",
            "-fPIC",
            "-o",
            str(source.with_suffix(".so")),
            str(source),
        ]
        made = subprocess.run(command, capture_output=True, check=False)
    works = _version(program) if made.returncode == 0 else ""
    remedy = f"{program} makes no shared object: {remedy} and the C library's headers"
    return Check("cc", enables, remedy, True, works)


def cache() -> Check:
    """The folder that keeps what was compiled for this machine."""
    folder = cache_folder()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    found = str(folder) if os.access(parent, os.W_OK) else ""
    remedy = f"make {folder} writable, or set FADIFF_CACHE"
    return Check("cache", "fadiff verify", remedy, True, found)


def packages() -> Iterator[Check]:
    """Python packages that pyproject.toml names, with the versions it asks for."""
    seen: set[str] = set()
    for text in requires("fadiff") or ():
        wanted = Requirement(text)
        extra = next((name for name in EXTRAS if f'extra == "{name}"' in str(wanted.marker)), None)
        if wanted.name in seen or wanted.name == "fadiff" or (wanted.marker and extra is None):
            continue
        seen.add(wanted.name)
        required = extra is None
        enables = "everything" if extra is None else EXTRAS[extra]
        remedy = f"pip install '{wanted.name}{wanted.specifier}'" + (
            "" if extra is None else f", or 'fadiff[{extra}]'"
        )
        try:
            has = version(wanted.name)
        except PackageNotFoundError:
            has = ""
        if has and not wanted.specifier.contains(has, prereleases=True):
            remedy, has = f"{has} is installed: {remedy}", ""
        yield Check(wanted.name, enables, remedy, required, has)


def _found(tool: Check) -> Check:
    """A program with its version, if it is on the path."""
    program = shutil.which(tool.name)
    return tool if program is None else replace(tool, found=_version(program))


def _version(program: str) -> str:
    """The first line that it prints for --version; where it runs, but says none, its path."""
    try:
        said = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return program
    lines = said.stdout.strip().splitlines()
    return lines[0] if said.returncode == 0 and lines else program
