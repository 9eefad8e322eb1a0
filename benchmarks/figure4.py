"""Best EDP against wall-clock time of every search method on one network (the paper's Figure 4).

All methods share the exact evaluator; times include everything after the graph is made.  The traces
are written as CSV and PNG after every search.  Last line: for each method the median over seeds of its
final EDP over the best found, and for our searches the median seconds until it is within 1 % of
its final EDP.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

from benchmarks.cells import BUDGETED, SEEDED, Trace, seconds_to, trace_of
from benchmarks.command import add_out, add_profile, check_known, command, listed
from benchmarks.figure import figure
from benchmarks.networks import network
from fadiff.commands.options import METHODS
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize

Traces = dict[str, list[Trace]]
"""By method, one per seed."""


def main(arguments: list[str]) -> int:
    """Run every method and draw its traces; 1 if a method failed, 2 on bad input."""
    parser = command("figure4", __doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--target", default="gemmini-large")
    add_profile(parser)
    parser.add_argument("--methods", type=listed, default=",".join(METHODS))
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each budgeted baseline")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method that draws numbers")
    add_out(parser)
    options = parser.parse_args(arguments)
    check_known(options.methods, METHODS, "method")
    graph, target = network(options.model), load_target(options.target)
    title = f"{options.model} on {options.target}"
    traces: Traces = {}
    failed = 0
    for method in options.methods:
        for seed in range(options.seeds if method in SEEDED else 1):
            try:
                found = optimize(
                    graph,
                    target,
                    profile=options.profile,
                    method=method,
                    seed=seed,
                    time_budget=options.budget if method in BUDGETED else None,
                )
            except (ScheduleError, ValueError, ImportError) as error:
                print(f"{method}: {error}", file=sys.stderr)
                failed = 1
                break
            edp = found.cost.edp_uj_cycles
            print(f"{method:<14}{edp:12.4g} uJ x cycles {found.seconds:8.1f} s", flush=True)
            traces.setdefault(method, []).append(trace_of(found))
            write(traces, title, options.out)
    if not traces:
        return 1
    best = min(trace[-1][1] for seeds in traces.values() for trace in seeds)
    figures = [
        f"{method}={statistics.median(trace[-1][1] for trace in seeds) / best:.4f}"
        for method, seeds in traces.items()
    ]
    for method in ("auto", "gradient"):
        if method in traces:
            seconds = statistics.median(seconds_to(trace, 1.01) for trace in traces[method])
            figures.append(f"{method}_seconds_to_1pc={seconds:.2f}")
    print(f"model={options.model} target={options.target} " + " ".join(figures))
    return failed


def write(traces: Traces, title: str, folder: Path) -> None:
    """figure4.csv and figure4.png of what is there so far."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "figure4.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "seed", "seconds", "edp_uj_cycles"))
        for method, seeds in traces.items():
            for seed, trace in enumerate(seeds):
                writer.writerows((method, seed, *point) for point in trace)
    draw(traces, title, folder / "figure4.png")


def draw(traces: Traces, title: str, path: Path) -> None:
    """A step line per seed, a colour per method, logarithmic in both axes."""
    with figure(path, (7, 4.5)) as (_, ((axis,),)):
        for i, (method, seeds) in enumerate(traces.items()):
            for trace in seeds:
                seconds, edp = zip(*trace, strict=True)
                axis.step(
                    [max(s, 1e-2) for s in seconds],
                    edp,
                    where="post",
                    label=method if trace is seeds[0] else None,
                    color=f"C{i}",
                    linewidth=1,
                )
                axis.plot(max(seconds[-1], 1e-2), edp[-1], "o", color=f"C{i}", markersize=3)
        axis.set(xscale="log", yscale="log", xlabel="seconds", ylabel="EDP (uJ x cycles)", title=title)
        axis.legend(fontsize=8)
