"""Best EDP against wall-clock time of every search method on one network (the paper's Figure 4).

All methods share the exact evaluator; times include everything after the graph is made.  Writes the
traces as CSV and a PNG.  Last line: for each method its final EDP over the exact optimum, and for
the gradient search the seconds until it is within 1 % of its final EDP.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from benchmarks.networks import network
from benchmarks.table1 import BUDGETED, METHODS
from costmodel.target import load_target
from optimizer import SearchResult, optimize

Trace = list[tuple[float, float]]


def main(arguments: list[str]) -> int:
    """Run every method once and draw its trace."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks figure4", description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--target", default="gemmini-large")
    parser.add_argument("--profile", choices=("dosa", "hw"), default="dosa")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each budgeted baseline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args(arguments)
    try:
        graph, target = network(options.model), load_target(options.target)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results: dict[str, SearchResult] = {}
    for method in options.methods.split(","):
        results[method] = optimize(
            graph,
            target,
            profile=options.profile,
            method=method,
            seed=options.seed,
            time_budget=options.budget if method in BUDGETED else None,
        )
        found = results[method]
        print(f"{method:<14}{found.cost.edp_uj_cycles:12.4g} uJ x cycles {found.seconds:8.1f} s", flush=True)
    traces = {method: trace_of(result) for method, result in results.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "figure4.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "seconds", "edp_uj_cycles"))
        writer.writerows((method, *point) for method, trace in traces.items() for point in trace)
    draw(traces, f"{options.model} on {options.target}", options.out / "figure4.png")
    best = min(result.cost.edp_uj_cycles for result in results.values())
    figures = [f"{method}={result.cost.edp_uj_cycles / best:.4f}" for method, result in results.items()]
    if "gradient" in traces:
        figures.append(f"gradient_seconds_to_1pc={seconds_to(traces['gradient'], 1.01):.2f}")
    print(" ".join(figures))
    return 0


def trace_of(result: SearchResult) -> Trace:
    """(seconds, best EDP so far), ending with the returned schedule."""
    points = [(point.seconds, point.best_edp) for point in result.history]
    return [*points, (result.seconds, result.cost.edp_uj_cycles)]


def seconds_to(trace: Trace, factor: float) -> float:
    """When the trace is first within `factor` of its end."""
    return next(seconds for seconds, edp in trace if edp <= factor * trace[-1][1])


def draw(traces: dict[str, Trace], title: str, path: Path) -> None:
    """One step line per method, logarithmic in both axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for method, trace in traces.items():
        seconds, edp = zip(*trace, strict=True)
        axes.step([max(s, 1e-2) for s in seconds], edp, where="post", label=method, marker="o", markersize=2)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="EDP (uJ x cycles)", title=title)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
