"""Prints compiler flags for C programs that include "include/gemmini.h" and run on the functional model.

cc program.c $(python -m emulator.flags --target gemmini-default) -o program
"""

from __future__ import annotations

import argparse
import shlex
import sys

from costmodel.target import TargetError, load_target
from emulator.build import cache_dir, include_flags, link_flags
from emulator.errors import EmulatorError


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m emulator.flags",
        description="Print compiler and linker flags to build a Gemmini program for this machine.",
    )
    parser.add_argument("--target", default="gemmini-default", help="preset name or target YAML")
    options = parser.parse_args(arguments)
    try:
        target = load_target(options.target)
        flags = [*include_flags(target, cache_dir() / "params" / target.name), *link_flags()]
    except (TargetError, EmulatorError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(shlex.join(flags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
