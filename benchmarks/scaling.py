"""Search time against network size: ResNet-18 to ResNet-152, one GPT-3 block to many.

Identical layers and identical groups are solved once, so time should follow the number of distinct
layers, not of layers.  Times are processor seconds, the median of runs; every network is searched in a
process of its own, libraries loaded before, so that peak memory is the search's.  Last line: time
ratios large / small per family and method, and the largest peak memory in MB.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from benchmarks.command import add_out, add_profile, check_known, command, listed
from fadiff.commands.options import METHODS
from fadiff.costmodel.schedule.schedule import Profile
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.settings import MethodName
from fadiff.samples.graphs import graph_of

HEADER = "family,method,layers,wall_seconds,cpu_seconds,edp_uj_cycles,peak_mb"


class Measured(NamedTuple):
    """One network under one method."""

    layers: int
    wall_seconds: float
    cpu_seconds: float
    edp: float
    peak_mb: float


def main(arguments: list[str]) -> int:
    """Time both families with every method."""
    parser = command("scaling", __doc__)
    parser.add_argument("--target", default="gemmini-large")
    add_profile(parser)
    parser.add_argument("--methods", type=listed, default="auto,gradient,exact")
    parser.add_argument("--families", type=listed, default="resnet,gpt3")
    parser.add_argument("--blocks", type=int, default=96, help="decoder blocks of the large GPT-3")
    parser.add_argument("--runs", type=int, default=3)
    add_out(parser)
    options = parser.parse_args(arguments)
    known = {
        "resnet": (("resnet18", 1), ("resnet152", 1)),
        "gpt3": (("gpt3-block", 1), ("gpt3-block", options.blocks)),
    }
    check_known(options.families, known, "family")
    check_known(options.methods, METHODS, "method")
    load_target(options.target)
    figures = []
    rows = [HEADER]
    peak = 0.0
    context = multiprocessing.get_context("spawn")
    for family in options.families:
        for method in options.methods:
            seconds = []
            for name, blocks in known[family]:
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    job = pool.submit(
                        measure, name, blocks, options.target, options.profile, method, options.runs
                    )
                    found = job.result()
                seconds.append(found.cpu_seconds)
                peak = max(peak, found.peak_mb)
                rows.append(
                    f"{family},{method},{found.layers},{found.wall_seconds:.3f},{found.cpu_seconds:.3f},"
                    f"{found.edp:.6g},{found.peak_mb:.0f}"
                )
                options.out.mkdir(parents=True, exist_ok=True)
                (options.out / "scaling.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
                print(
                    f"{family:<8}{method:<10}{found.layers:5} layers {found.wall_seconds:8.1f} s"
                    f" {found.cpu_seconds:8.1f} processor s  EDP {found.edp:.4g}  {found.peak_mb:.0f} MB",
                    flush=True,
                )
            figures.append(f"{family}_{method}={seconds[1] / seconds[0]:.3f}")
    print(" ".join(figures) + f" peak_mb={peak:.0f}")
    return 0


def measure(
    name: str, blocks: int, target_name: str, profile: Profile, method: MethodName, runs: int
) -> Measured:
    """Search one network `runs` times."""
    import fadiff.optimizer.gradient.descent  # noqa: F401 - loads torch

    options = {"layers": blocks} if blocks > 1 else {}
    graph, target = graph_of(name, **options), load_target(target_name)
    wall, cpu = [], []
    for _ in range(runs):
        before = time.process_time()
        found = optimize(graph, target, profile=profile, method=method)
        cpu.append(time.process_time() - before)
        wall.append(found.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(
        len(graph.tensor_core_layers),
        statistics.median(wall),
        statistics.median(cpu),
        found.cost.edp_uj_cycles,
        peak,
    )
