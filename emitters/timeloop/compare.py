"""Run the user's timeloop-model on emitted files and set its numbers beside ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fadiff.converter.errors import BadInput
from fadiff.converter.folders import scratch_folder
from fadiff.costmodel.count.energy import energy_breakdown
from fadiff.costmodel.count.nest import LayerTraffic, layer_traffic
from fadiff.costmodel.count.timeloop_counts import Count, cycles_at
from fadiff.costmodel.count.traffic import Memory, Move
from fadiff.costmodel.latency.roofline import bandwidths
from fadiff.costmodel.mapping.shape import shape_of, whole
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target
from fadiff.emitters.timeloop.index import Index, IndexEntry
from fadiff.emitters.timeloop.nest import OPERANDS
from fadiff.emitters.timeloop.stats import Accesses, Stats, StatsError, read_stats
from fadiff.emitters.timeloop.write.architecture import word_bytes
from fadiff.emitters.timeloop.write.units import FusedLevel, Unit, units_of

Status = Literal["equal", "estimated", "no form", "differs", "failed"]

ENERGY_TOLERANCE = 1e-3
_NO_MESSAGE = "no error message; run_timeloop.sh keeps what it printed in out/<layer>/log.txt"
TIMEOUT_SECONDS = 600

_LEVEL: dict[Memory, str] = {
    "register": "Registers",
    "accumulator": "Accumulator",
    "scratchpad": "Scratchpad",
    "tile-buffer": "TileBuffer",
    "dram": "DRAM",
}
_SPACE = {"W": "Weights", "I": "Inputs", "O": "Outputs", "psum": "Outputs"}
_HOLDER: dict[FusedLevel, tuple[str, Memory]] = {
    "Scratchpad": ("L2", "scratchpad"),
    "TileBuffer": ("L3", "tile-buffer"),
}


class TimeloopRunError(BadInput, ValueError):
    """timeloop-model cannot be run at all, or the files do not belong to the schedule."""


@dataclass(frozen=True)
class Comparison:
    """One run beside its prediction.  `problem` is set when there is nothing to compare."""

    layer: str
    file: str
    runs: int
    factors: str
    predicted: Stats
    measured: Stats | None
    problem: str = ""

    @property
    def cycles_match(self) -> bool:
        """Whether the cycles are equal."""
        return self.measured is not None and self.measured.cycles == self.predicted.cycles

    @property
    def energy_error(self) -> float:
        """Relative to Timeloop; infinite without a measurement."""
        if self.measured is None:
            return float("inf")
        return abs(self.predicted.energy_pj - self.measured.energy_pj) / self.measured.energy_pj

    @property
    def accesses(self) -> tuple[tuple[str, str, str, int, int], ...]:
        """(level, data space, reads or writes, predicted, Timeloop)."""
        if self.measured is None:
            return ()
        ours, theirs = self.predicted.accesses, self.measured.accesses
        found = []
        levels = [*_LEVEL.values(), *(level for level, _ in (*ours, *theirs))]
        for level in dict.fromkeys(levels):
            for space in OPERANDS:
                for index, what in enumerate(("reads", "writes")):
                    both = [counts.get((level, space), (0, 0))[index] for counts in (ours, theirs)]
                    if any(both):
                        found.append((level, space, what, both[0], both[1]))
        return tuple(found)

    @property
    def differences(self) -> tuple[tuple[str, str, str, int, int], ...]:
        """Those of `accesses` that are not equal."""
        return tuple(row for row in self.accesses if row[3] != row[4])

    @property
    def is_equal(self) -> bool:
        """Counts and cycles equal, energy within 0.1 %."""
        return self.cycles_match and not self.differences and self.energy_error <= ENERGY_TOLERANCE

    @property
    def status(self) -> Status:
        """`equal`; `estimated` where Timeloop only estimates ragged tiles; `no form`; else what is wrong."""
        if self.factors == "none":
            return "no form"
        if self.measured is None:
            return "failed"
        if self.is_equal:
            return "equal"
        return "estimated" if self.factors == "imperfect" else "differs"

    @property
    def passes(self) -> bool:
        """Nothing that Timeloop counts exactly differs, and Timeloop ran."""
        return self.status not in ("failed", "differs")


def predict(unit: Unit, target: Target) -> Stats:
    """What Timeloop should find for a unit: our counts by its rules (profile dosa, sliding window on).

    Fused operands are counted at the level that holds them instead of DRAM.
    """
    shape = shape_of(unit.layer)._replace(dims=unit.dims)
    traffic = layer_traffic(shape, unit.mapping, whole(unit.dims), target, "dosa", sliding_window=True)
    moves = [moved for move in traffic.moves for moved in _relocated(move, unit)]
    accesses: dict[tuple[str, str], tuple[int, int]] = {}
    for move in moves:
        key = (_LEVEL[move.memory], _SPACE[move.role])
        reads, writes = accesses.get(key, (0, 0))
        words = move.bytes // word_bytes(move.memory, target)
        accesses[key] = (reads + words, writes) if move.direction == "read" else (reads, writes + words)
    energy = sum(energy_breakdown(moves, traffic.macs, target).values())
    return Stats(_cycles(accesses, traffic, target), energy, accesses)


def _cycles(accesses: Accesses, traffic: LayerTraffic, target: Target) -> int:
    """The slowest of array and levels, by Timeloop's own arithmetic."""
    compute = traffic.compute_cycles
    worst = compute
    for memory, limit in bandwidths(target, traffic.columns).items():
        level = _LEVEL.get(memory)
        if level is None:
            continue
        instances = traffic.columns if level == "Accumulator" else 1
        moved = [accesses.get((level, space), (0, 0)) for space in OPERANDS]
        counts = [Count(instances, reads // instances, writes // instances, 0) for reads, writes in moved]
        worst = max(worst, cycles_at(counts, compute, limit / instances / word_bytes(memory, target)))
    return worst


def _relocated(move: Move, unit: Unit) -> list[Move]:
    """A DRAM access of a fused operand at the level that holds it."""
    holder = unit.inputs_in if move.role == "I" else unit.outputs_in if move.role in ("O", "psum") else None
    if holder is None or (move.level, move.role) not in (
        ("L3", "I"),
        ("L3", "O"),
        ("L3", "psum"),
        ("L2", "I"),
    ):
        return [move]
    level, memory = _HOLDER[holder]
    if move.role == "I":
        if holder == "Scratchpad":
            return [move] if (move.level, move.direction) == ("L2", "read") else []
        return [move] if move.level == "L2" else [move._replace(level=level, memory=memory)]
    held = [move._replace(level=level, memory=memory)]
    return [*held, move] if move.role == "O" and unit.outputs_also_in_dram else held


def compare(
    schedule: Schedule | None,
    index: Index,
    folder: Path,
    model: Path,
    report: Callable[[Comparison], None] = lambda _: None,
) -> tuple[Comparison, ...]:
    """Run every entry of the index; `report` is called after each.

    What is predicted follows from the schedule; without one it stands in the index.

    Raises:
        TimeloopRunError: the index has other layers than the schedule or is not in the native
            dialect, or the binary does not start.
    """
    if index.dialect != "native":
        raise TimeloopRunError(
            f"{folder / 'index.yaml'}: {index.dialect} dialect; timeloop-model reads the native one "
            "(compile with --timeloop-dialect native or both)"
        )
    units = {} if schedule is None else {unit.file_name: unit for unit in units_of(schedule)}
    results = []
    for entry in index.layers:
        name = entry.problem.removesuffix(".problem.yaml")
        unit = units.get(name)
        if entry.predicted is not None:
            places = ((place.rpartition("."), n) for place, n in entry.predicted.accesses.items())
            counts = {(level, space): n for (level, _, space), n in places}
            predicted = Stats(entry.predicted.cycles, entry.predicted.energy_pj, counts)
        elif schedule is None or unit is None or unit.layer.name != entry.layer:
            raise TimeloopRunError(
                f"{folder / 'index.yaml'}: {name} (layer {entry.layer}) is not in the schedule; compile again"
            )
        else:
            predicted = predict(unit, schedule.target)
        results.append(_compare(predicted, entry, folder, model))
        report(results[-1])
    return tuple(results)


def _compare(predicted: Stats, entry: IndexEntry, folder: Path, model: Path) -> Comparison:
    name = entry.problem.removesuffix(".problem.yaml")
    measured, problem = None, ""
    if entry.mapping is None:
        problem = "; ".join(entry.notes[-1:])
    else:
        files = [folder / name for name in (entry.arch, entry.problem, entry.mapping)]
        missing = [file for file in files if not file.is_file()]
        try:
            measured = None if missing else run_model(model, files)
            problem = f"{missing[0]}: no such file; compile again" if missing else ""
        except StatsError as error:
            problem = str(error)
    return Comparison(entry.layer, name, entry.runs, entry.factors, predicted, measured, problem)


def run_model(model: Path, files: list[Path]) -> Stats:
    """Run timeloop-model on files and read its result.

    Raises:
        StatsError: it wrote no stats (then the message is the first line it complained with), or
            it printed a warning.
        TimeloopRunError: it cannot be started, or runs for more than ten minutes.
    """
    with scratch_folder() as out:
        command = [str(model), *map(str, files), "-o", str(out)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except OSError as error:
            raise TimeloopRunError(f"{model}: cannot be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise TimeloopRunError(f"{model}: no result for {files[-1]} after {TIMEOUT_SECONDS} s") from error
        said = [
            line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "WARNING" in line
        ]
        stats = out / "timeloop-model.stats.txt"
        if not stats.exists():
            said.sort(key=lambda line: "ERROR" not in line)  # the error before the warnings that led to it
            what = said[0] if said else (done.stderr.strip().splitlines() or [_NO_MESSAGE])[-1]
            if "key not found: data-spaces" in what:
                what += " (a release before 2024-02: compile with --timeloop-hyphens)"
            raise StatsError(f"timeloop-model failed (exit {done.returncode}): {what}")
        if said:
            raise StatsError(f"timeloop-model warns: {said[0]}")
        return read_stats(stats)
