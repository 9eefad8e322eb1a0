"""Prints compiler flags for C programs that include "include/gemmini.h" and run on the functional model.

    cc program.c $(python -m fadiff.emulator.flags --target gemmini-default) -o program

With --riscv-linux the flags are for a compiler for RISC-V Linux: the model's sources, to become part of
a program that runs where there is no Gemmini (csrc/riscv_linux.c).  With --headers DIR it writes the
headers of the target instead: DIR then serves a RISC-V compiler, where the same macros emit the custom
instructions (`make riscv GEMMINI_ROOT=DIR` in emitted firmware).
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from fadiff.converter.errors import BadInput
from fadiff.converter.folders import cache_folder
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emulator.build import INCLUDE, SOURCES, include_flags, link_flags, write_params
from fadiff.emulator.errors import EmulatorError


def write_headers(target: Target, folder: Path) -> None:
    """Write include/gemmini*.h and rocc-software/src/xcustom.h, complete for `target`, into `folder`.

    Raises:
        EmulatorError: `folder` holds another gemmini.h, Chipyard's perhaps.
    """
    existing, ours = folder / "include" / "gemmini.h", INCLUDE / "include" / "gemmini.h"
    if existing.exists() and existing.read_bytes() != ours.read_bytes():
        raise EmulatorError(f"{folder}: holds another gemmini.h: give a new folder")
    shutil.copytree(INCLUDE, folder, dirs_exist_ok=True)
    write_params(target, folder)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m fadiff.emulator.flags",
        description="Print compiler and linker flags to build a Gemmini program for this machine.",
    )
    parser.add_argument("--target", default="gemmini-default", help="preset name or target YAML")
    parser.add_argument(
        "--headers",
        type=Path,
        metavar="DIR",
        help="write the target's headers to DIR and print an -isystem flag",
    )
    parser.add_argument(
        "--riscv-linux",
        action="store_true",
        help="flags for a compiler for RISC-V Linux, with the model's sources",
    )
    options = parser.parse_args(arguments)
    try:
        target = load_target(options.target)
        if options.headers is not None:
            write_headers(target, options.headers)
            flags = ["-isystem", str(options.headers)]
        else:
            flags = include_flags(target, cache_folder() / "params" / target.name)
            flags += [*map(str, sorted(SOURCES.glob("*.c"))), "-lm"] if options.riscv_linux else link_flags()
    except (BadInput, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(shlex.join(flags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
