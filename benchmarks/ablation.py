"""What each degree of freedom of a schedule is worth: exact search with one of them taken away.

Rows: everything; no fusion (then nothing stays on chip between layers); pairs only; no residual adds and
host operators in groups (profile hw); no tensor on chip from one group to later ones; no max pooling in
the store path (profile hw, networks with max pools); weights streamed for every group tile instead of
kept; divisor tiles only (profile dosa); no row packing.  Every row is optimal for its space, so ratios are
the value of the freedom and not of the search.

Last line: EDP of each row over that of the full space.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from benchmarks.command import add_out, add_profile, command
from benchmarks.networks import network
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.cut.exact import exact
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.layer.space import Rules


def main(arguments: list[str]) -> int:
    """Print the ablation of one network on one target and write it as CSV; 1 if a row failed."""
    parser = command("ablation", __doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--target", default="gemmini-large")
    add_profile(parser, "hw")
    add_out(parser)
    options = parser.parse_args(arguments)
    graph, target = network(options.model), load_target(options.target)
    full = Problem(graph, Rules(target, options.profile))
    edp: dict[str, float] = {}
    failed = 0
    for name, problem in without_one(full).items():
        try:
            schedule = problem.schedule(exact(problem)[0])
        except ScheduleError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
            continue
        edp[name] = value = problem.cost(schedule).edp_uj_cycles
        print(f"{name:<18}{value:12.4g} uJ x cycles  x {value / edp['full']:.4f}", flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        lines = [f"{row},{value:.6g}" for row, value in edp.items()]
        table = options.out / f"ablation-{options.model}-{options.target}.csv"
        table.write_text("\n".join(["row,edp_uj_cycles", *lines]) + "\n", encoding="utf-8")
    print(" ".join(f"{name}={value / edp['full']:.4f}" for name, value in edp.items()))
    return failed


def without_one(full: Problem) -> dict[str, Problem]:
    """The full problem, and it with one freedom less."""
    rules = full.rules
    cases = {
        "full": full,
        "no_fusion": replace_problem(full, fusion=False),
        "pairs_only": replace_problem(full, most_members=2),
        "no_adds_in_groups": replace_problem(full, fuses_adds=False),
        "no_residency": replace_problem(full, residency=False),
        "weights_streamed": replace_problem(full, rules=replace(rules, keep_weights=False)),
        "no_row_packing": replace_problem(full, rules=replace(rules, row_packing=False)),
    }
    if rules.counting.has_tile_buffer and any(layer.op == "max_pool" for layer in full.graph.layers):
        on_core = rules.target.model_copy(update={"has_max_pool": False})
        cases["no_store_pooling"] = replace_problem(full, rules=replace(rules, target=on_core))
    if rules.profile == "dosa":
        cases["divisor_tiles"] = replace_problem(full, rules=replace(rules, tiling="divisor"))
    return cases


def replace_problem(problem: Problem, **changes: object) -> Problem:
    """A fresh search that differs in `changes`."""
    return replace(problem, history=[], **changes)  # type: ignore[arg-type]
