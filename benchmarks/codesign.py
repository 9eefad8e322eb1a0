"""Co-design against what it has to beat: sweep, random and Bayesian search with exact schedules.

Every method gets equal processor seconds (the machine may be busy with other things), the same designs, the
same exact search of every network on what it looks at.  EDP is the geometric mean over the networks.

`--machine eyeriss-like` does the same with a machine that is no Gemmini, also by `gradient` (`local` is
that without descent): entries and fan-outs half and double, `--each` seconds of search (layers alone, by
local search) for each network on each design.

Last line per method: the median of the seeds over the best median of sweep, random and bayesian.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command import add_out, add_profile, check_known, command, listed
from fadiff.converter import convert
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.nests.machine import Machine
from fadiff.costmodel.nests.sizes import sizes_of
from fadiff.costmodel.target.target import load_target
from fadiff.design_space import without_weights
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.optimizer import Settings
from fadiff.optimizer.codesign.area import Area
from fadiff.optimizer.codesign.designs import Gemminis, Machines
from fadiff.optimizer.codesign.score import GemminiScorer, MachineScorer, Scorer
from fadiff.optimizer.codesign.search import SEARCHES, obstacle_to_method, search
from fadiff.optimizer.mapping_methods import MapOptions
from fadiff.samples.catalog import SAMPLES
from fadiff.samples.export import export

KB = 1024
VALUES = {
    "side": (4, 8, 16, 32, 64),
    "scratchpad_bytes": tuple(2**i * KB for i in range(4, 12)),
    "accumulator_bytes": tuple(2**i * KB for i in range(2, 10)),
    "tile_buffer_bytes": tuple(2**i * KB for i in range(4, 12)),
    "bandwidth.dram_bytes": (4, 8, 16, 32),
}
DRAM_BYTE = 0.05
"""mm^2 per byte and cycle of DRAM: an assumption, so that bandwidth is not free."""
BASELINES = ("sweep", "random", "bayesian")


def main(arguments: list[str]) -> int:
    """Search with every method and seed; CSV of all runs."""
    parser = command("codesign", __doc__)
    parser.add_argument("--models", type=listed, default="resnet18,mobilenetv2,bert-block")
    parser.add_argument("--machine", help="of fadiff map, instead of Gemmini")
    parser.add_argument("--methods", type=listed, help="default: all that choose such hardware")
    parser.add_argument("--area", type=float, default=2.0, help="mm^2")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for each run")
    parser.add_argument("--each", type=float, default=1.0, help="of those, for each network on a machine")
    parser.add_argument("--seeds", type=int, default=3)
    add_profile(parser, "hw")
    add_out(parser)
    options = parser.parse_args(arguments)
    check_known(options.models, SAMPLES, "model")
    named = {name: _graph(name) for name in options.models}
    designs: Gemminis | Machines
    if options.machine:
        machine = machine_of(options.machine)
        designs = Machines(machine, dict(_halves_and_doubles(machine)), Area(), options.area)
    else:
        designs = Gemminis(load_target("gemmini-default"), VALUES, Area(dram_byte=DRAM_BYTE), options.area)
    able = [name for name in SEARCHES if not obstacle_to_method(designs, name)]
    options.methods = options.methods or able
    check_known(options.methods, able, "method")
    print(f"{len(designs.feasible)} designs of at most {options.area:g} mm2", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    reached: dict[str, list[float]] = {}
    rows = []
    for seed in range(options.seeds):
        for method in options.methods:
            run: Scorer[Any]
            if isinstance(designs, Machines):
                each = MapOptions(method="local", fusion=False, time_budget=options.each)
                run = MachineScorer(named, designs, each, options.seconds, clock=time.process_time)
            else:
                graphs = {name: dict.fromkeys(designs.by_side(), graph) for name, graph in named.items()}
                settings = Settings(profile=options.profile)
                run = GemminiScorer(graphs, designs, settings, options.seconds, clock=time.process_time)
            try:
                search(run, method, seed)
            except (ScheduleError, ImportError) as error:
                print(f"{method}: {error}", file=sys.stderr)
                return 1
            best = run.best
            reached.setdefault(method, []).append(best.mean.edp)
            rows.append(
                {
                    "method": method,
                    "seed": seed,
                    "seconds": run.used,
                    "tried": len(run.found),
                    "edp_uj_cycles": best.mean.edp,
                    "area_mm2": best.area_mm2,
                    **designs.changes(best.sizes),
                }
            )
            print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
            with (options.out / "codesign.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    medians = {method: statistics.median(values) for method, values in reached.items()}
    reference = min((medians[m] for m in BASELINES if m in medians), default=float("nan"))
    figures = " ".join(f"{method}={value / reference:.4f}" for method, value in medians.items())
    print(f"area={options.area:g} profile={options.profile} seconds={options.seconds:g} {figures}")
    return 0


def _halves_and_doubles(machine: Machine) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Values of the sizes on chip."""
    for name, size in sizes_of(machine).items():
        if "bandwidth" not in name and size > 1:
            yield name, (int(size) // 2, int(size), 2 * int(size))


def _graph(name: str) -> Graph:
    """A sample network, exported and converted, its constants left out."""
    with tempfile.TemporaryDirectory() as folder:
        written = export(SAMPLES[name], Path(folder) / f"{name}.onnx", options={})
        return without_weights(convert(written.model).graph)
