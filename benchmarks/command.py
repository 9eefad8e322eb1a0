"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from fadiff.errors import InputError

RESULTS = Path("benchmark-results")


def command(benchmark: str, text: str | None) -> argparse.ArgumentParser:
    """Parser of `python -m benchmarks BENCHMARK`, whose help is `text`, the module's, as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {benchmark}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_profile(parser: argparse.ArgumentParser, default: str = "dosa") -> None:
    """--profile: what is counted."""
    parser.add_argument("--profile", choices=("dosa", "hw"), default=default)


def add_out(parser: argparse.ArgumentParser) -> None:
    """--out: the folder for tables and figures."""
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"folder to write to (default: {RESULTS})")


def listed(text: str) -> list[str]:
    """The parts of a comma-separated option."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse an unknown name before hours are spent on the rest.

    Raises:
        InputError: a name that is not among the `known`; the message lists these.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InputError(f"unknown {what} {name!r}: choose from {', '.join(known)}")
