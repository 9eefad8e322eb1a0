"""Compiles the functional model, emitted firmware, and C programs for the host."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fadiff.converter.folders import cache_folder
from fadiff.costmodel.target.target import Target
from fadiff.emulator.errors import BuildError, NoCompilerError
from fadiff.emulator.params import params_header

HERE = Path(__file__).parent
SOURCES = HERE / "csrc"
INCLUDE = HERE / "headers"
"""Root of include/gemmini.h and rocc-software/src/xcustom.h; gemmini_params.h comes from a target."""

_LIBRARY_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-fvisibility=hidden")
_FIRMWARE_FLAGS = (
    *("-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"),
    "-Wno-error=array-bounds",  # GCC finds them on paths that the loops of a layer never take
)


@cache
def compiler() -> str:
    """The host C compiler: $CC, else cc, gcc or clang.

    Raises:
        NoCompilerError: none is installed.
    """
    chosen = os.environ.get("CC")
    for name in [chosen] if chosen else ["cc", "gcc", "clang"]:
        if path := shutil.which(shlex.split(name)[0]):
            return shlex.join([path, *shlex.split(name)[1:]])
    message = f"no C compiler ({chosen or 'cc, gcc or clang'}) on the path: install one, or set CC"
    raise NoCompilerError(message)


def compile_c(arguments: Sequence[str | Path], output: Path, folder: Path | None = None) -> None:
    """Run the compiler in `folder`; `output` appears complete or not at all.

    Raises:
        BuildError: with the first error line of the compiler.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    command = [*shlex.split(compiler()), *map(str, arguments), "-o", str(partial)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if "error:" in line.lower()] or lines or ["no message"]
            raise BuildError(f"{command[0]} failed: {errors[0].strip()}")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


@cache
def library() -> Path:
    """The functional model as a shared library, compiled once per version of its sources.

    Raises:
        NoCompilerError: none is installed.
    """
    sources = sorted(SOURCES.glob("*.[ch]"))
    content = hashlib.sha256(" ".join((compiler(), *_LIBRARY_FLAGS)).encode())
    for source in sources:
        content.update(source.read_bytes())
    name = f"libfadiff_emulator-{content.hexdigest()[:16]}.so"
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"fadiff-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    if not path.exists():
        compile_c([*_LIBRARY_FLAGS, *(s for s in sources if s.suffix == ".c")], path)
    return path


def write_params(target: Target, folder: Path) -> Path:
    """Write `folder`/include/gemmini_params.h; `folder` then goes on the include path."""
    header = folder / "include" / "gemmini_params.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    text = params_header(target)
    if not header.exists() or header.read_text(encoding="utf-8") != text:
        header.write_text(text, encoding="utf-8")
    return folder


def include_flags(target: Target, folder: Path) -> list[str]:
    """Compiler flags that serve include/gemmini.h for `target`; writes its parameters to `folder`."""
    return ["-isystem", str(write_params(target, folder)), "-isystem", str(INCLUDE)]


def link_flags() -> list[str]:
    """Linker arguments for the functional model."""
    path = library()
    return [str(path), f"-Wl,-rpath,{path.parent}", "-lm"]


def build_firmware(firmware: Path, target: Target, folder: Path, level: str = "-O2") -> Path:
    """Compile `firmware` (all but main.c) for the host into a shared object in `folder`.

    `level` of optimisation: what is run once is sooner compiled and run without any.

    Raises:
        BuildError: a warning or error in the C.
    """
    sources = sorted(p.name for p in firmware.glob("*.[cS]") if p.name != "main.c")
    if not sources:
        raise BuildError(f"{firmware}: no C sources")
    output = folder / f"{firmware.resolve().parent.name or 'firmware'}.so"
    flags = [*_FIRMWARE_FLAGS, level, "-I", ".", *include_flags(target, folder)]
    compile_c([*flags, *sources, *link_flags()], output, firmware)
    return output


def build_program(sources: Sequence[Path], target: Target, output: Path, flags: Sequence[str] = ()) -> None:
    """Compile a C program that includes include/gemmini.h into an executable that runs on the model.

    Raises:
        BuildError: the program does not compile.
    """
    include = include_flags(target, output.parent / f"{output.name}.params")
    compile_c(["-std=gnu11", "-O2", *flags, *include, *(p.resolve() for p in sources), *link_flags()], output)
