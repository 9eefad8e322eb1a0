"""Read what timeloop-model found: `timeloop-model.stats.txt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEADING = re.compile(r"^=== (\S+) ===$")
_SPACE = re.compile(r"^ {4}(Weights|Inputs|Outputs):$")
_VALUE = re.compile(r"^\s+([A-Z][A-Za-z ()/-]*?)\s*: ([0-9.]+)")

_ENERGY = ("Energy (total)", "Leakage energy (total)")

Accesses = Mapping[tuple[str, str], tuple[int, int]]
"""{(level, data space): (words read, words written)}, all instances; fills and updates are writes."""


class StatsError(ValueError):
    """A stats file without the expected lines."""


@dataclass(frozen=True)
class Stats:
    """Result of one run: cycles, energy in picojoules, accesses per level and data space."""

    cycles: int
    energy_pj: float
    accesses: Accesses = field(default_factory=dict)


def read_stats(path: Path) -> Stats:
    """Parse a stats file.

    Raises:
        StatsError: the file is missing or lacks cycles or levels.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StatsError(f"{path}: cannot read: {error.strerror}") from error
    levels = lines[: lines.index("Networks")] if "Networks" in lines else lines
    level = space = ""
    values: dict[tuple[str, str, str], float] = {}
    for line in levels:
        if heading := _HEADING.match(line):
            level, space = heading[1], ""
        elif found := _SPACE.match(line):
            space = found[1]
        elif (value := _VALUE.match(line)) and level:
            values[level, space, value[1]] = float(value[2])
    totals = [line.split()[1] for line in lines if line.startswith("Cycles: ")]
    if not totals or not values:
        raise StatsError(f"{path}: no `Cycles:` line or no levels: not a stats file of timeloop-model")
    accesses = {}
    for name, operand, key in values:
        if operand and key == "Utilized instances (max)":
            instances = values[name, operand, key]
            reads, fills, updates = (
                round(instances * values[name, operand, f"Scalar {what} (per-instance)"])
                for what in ("reads", "fills", "updates")
            )
            accesses[name, operand] = (reads, fills + updates)
    # The summary line has two decimals of a microjoule, too few for small layers; the levels have more.
    energy = sum(value for (_, _, key), value in values.items() if key in _ENERGY)
    return Stats(int(totals[0]), energy, accesses)
