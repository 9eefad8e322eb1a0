"""What the core takes for layers that it issues instruction by instruction, from layers timed on RTL.

    python -m benchmarks fit_issue

Every layer of benchmarks/rtl_layers.csv was timed with fences around it.  Least squares on the logarithm of
predicted over measured cycles find prices of costmodel/latency/clock.py for each of two kinds: BLOCK, BOX and
ROW_COMMAND of single instructions, TILED_COMMAND and TILE of tiles as LOOP_WS lays them out.  They are found
for all layers of the kind, and for those of all programs but one; printed beside each layer are what it takes
by those written in the source and by those of the other programs.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.command import command
from benchmarks.rtl import MEASURED, converted
from benchmarks.rtl_schedules import SCHEDULES, read_decisions, recalled
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.latency.clock import (
    BLOCK,
    BOX,
    ROW_COMMAND,
    TILE,
    TILED_COMMAND,
    LayerCounts,
    clock_of,
    layer_cycles,
)
from fadiff.costmodel.latency.clock_work import Issued, NestWork
from fadiff.costmodel.mapping.mapping import Issue
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target, load_target

LAYERS = MEASURED.with_name("rtl_layers.csv")
WHOLE = MEASURED.parent / "whole_networks" / SCHEDULES.name
Prices = Sequence[float]
"""In commands."""
WRITTEN: dict[Issue, dict[str, float]] = {
    "instructions": {"block": BLOCK, "box": BOX, "row_command": ROW_COMMAND},
    "core_ws": {"tiled_command": TILED_COMMAND, "tile": TILE},
}
"""By who issues a layer."""


class Sample(NamedTuple):
    """A layer that was timed."""

    program: str
    layer: str
    target: Target
    issue: Issue
    issued: Issued
    counts: LayerCounts
    warm: float

    def cycles(self, prices: Prices) -> float:
        """By these prices of its kind."""
        counts = self.counts
        if self.issue == "core_ws":
            command, tile = prices
            tiles = counts.tiles * (counts.tiles > 1)
            stores = (counts.row_commands * ROW_COMMAND - TILE * tiles) / TILED_COMMAND
            rows = (command * stores + tile * tiles) / ROW_COMMAND
            commands = command * counts.commands / TILED_COMMAND
        else:
            block, box, row = prices
            commands, rows = self.issued.commands(block, box), counts.row_commands * row / ROW_COMMAND
        return float(
            layer_cycles(counts._replace(commands=commands, row_commands=rows), clock_of(self.target))
        )


def samples() -> list[Sample]:
    """All layers of the table, under the schedules that they had."""
    decisions, schedules = read_decisions() | read_decisions(WHOLE), dict[str, Schedule]()
    found = []
    for line in timed_layers():
        decision, target = line["decision"], load_target(line["target"])
        if decision not in schedules:
            with tempfile.TemporaryDirectory() as scratch:
                graph = converted(line["program"], target, Path(scratch))[0].graph
            schedules[decision] = recalled(decisions[decision], graph, target)
        work, counts = _work(schedules[decision], line["layer"])
        issue = schedules[decision].mappings[line["layer"]].issue
        found.append(Sample(line["program"], line["layer"], target, issue, work, counts, float(line["warm"])))
    return found


def timed_layers() -> list[dict[str, str]]:
    """Lines of the table."""
    with LAYERS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _work(schedule: Schedule, name: str) -> tuple[Issued, LayerCounts]:
    graph, layer = schedule.graph, schedule.graph.by_name[name]
    [group] = [group for group in schedule.groups if name in group.layers]
    plan = plan_group(graph, group)
    assert isinstance(layer, TensorCoreLayer)
    nest = LoopNest(shape_of(layer), schedule.mappings[name], plan[name].computed)
    work = NestWork(nest, schedule.target, graph.weight_bytes)
    placement = placement_of(graph, group, plan, layer)
    return work.issued(placement), work.counts(placement, schedule.mappings[name].issue)


def fit(data: Sequence[Sample]) -> Prices:
    """The prices that fit these layers best."""
    measured = np.array([sample.warm for sample in data])

    def residual(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        prices = np.exp(logarithms).tolist()
        found: NDArray[np.float64] = np.log(np.array([sample.cycles(prices) for sample in data]) / measured)
        return found

    written = list(WRITTEN[data[0].issue].values())
    found: list[float] = np.exp(least_squares(residual, np.log(written)).x).tolist()
    return found


def main(arguments: list[str]) -> int:
    """Print the fits and every layer."""
    command("fit_issue", __doc__).parse_args(arguments)
    data = samples()
    for issue, written in WRITTEN.items():
        report([sample for sample in data if sample.issue == issue], written)
    return 0


def report(data: Sequence[Sample], written: dict[str, float]) -> None:
    """Of layers of one kind, with the prices in the source."""
    others = {
        program: fit([sample for sample in data if sample.program != program])
        for program in dict.fromkeys(sample.program for sample in data)
    }
    for name, prices in {
        "all": fit(data),
        **{f"not {name}": found for name, found in others.items()},
    }.items():
        named = zip(written, prices, strict=True)
        print(f"{name}:", *(f"{price}={commands:.2f}" for price, commands in named), "commands")
    errors = []
    for sample in data:
        by_source = sample.cycles(list(written.values())) / sample.warm
        by_others = sample.cycles(others[sample.program]) / sample.warm
        errors.append(abs(by_others - 1))
        place = f"{sample.program:<16} {sample.layer:<30} {sample.warm:>7,.0f}"
        print(f"{place} written={by_source:.2f} other={by_others:.2f}")
    print(f"layers={len(data)} held_out_median_error={np.median(errors):.3f} worst={max(errors):.3f}")
