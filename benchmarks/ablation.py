"""What each degree of freedom of a schedule is worth: exact search with one of them taken away.

Rows: everything; no fusion; pairs only; no residual adds in groups (profile hw); weights streamed for
every group tile instead of kept; divisor tiles only; no row packing.  Every row is optimal for its
space, so ratios are the value of the freedom and not of the search.  Last line: EDP of each row over
that of the full space.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.networks import network
from costmodel.target import load_target
from optimizer.exact import exact
from optimizer.problem import Problem
from optimizer.space import Rules


def main(arguments: list[str]) -> int:
    """Print the ablation of one network on one target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ablation", description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--target", default="gemmini-large")
    parser.add_argument("--profile", choices=("dosa", "hw"), default="hw")
    options = parser.parse_args(arguments)
    try:
        graph, target = network(options.model), load_target(options.target)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rules = Rules(target, options.profile)
    full = Problem(graph, rules)
    cases = {
        "full": full,
        "no_fusion": replace_problem(full, fusion=False),
        "pairs_only": replace_problem(full, most_members=2),
        "no_adds_in_groups": replace_problem(full, fuses_adds=False),
        "weights_streamed": replace_problem(full, rules=replace(rules, keep_weights=False)),
        "divisor_tiles": replace_problem(full, rules=replace(rules, tiling="divisor")),
        "no_row_packing": replace_problem(full, rules=replace(rules, row_packing=False)),
    }
    edp = {}
    for name, problem in cases.items():
        partition, _, _ = exact(problem)
        edp[name] = problem.cost(problem.schedule(partition)).edp_uj_cycles
        print(f"{name:<18}{edp[name]:12.4g} uJ x cycles  x {edp[name] / edp['full']:.4f}", flush=True)
    print(" ".join(f"{name}={value / edp['full']:.4f}" for name, value in edp.items()))
    return 0


def replace_problem(problem: Problem, **changes: object) -> Problem:
    """A fresh search that differs in `changes`."""
    return replace(problem, history=[], **changes)  # type: ignore[arg-type]
