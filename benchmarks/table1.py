"""EDP of every search method on the networks of the paper's Table 1, under one evaluator.

Every figure is in uJ x cycles and the median over seeds.  `mapping` is the gain of the exact
layer-wise schedule over DOSA's, `fusion` the gain of the exact fused one over the layer-wise one;
`paper` repeats the gradient search under the literature's fusion model (its schedules cannot be
executed where that model deletes refetches).  Last line per model and target: ratios of the gradient
search to layer-wise, DOSA, exact and the proven fusion bound, and its seconds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bounds import fusion_bound
from benchmarks.networks import TABLE1, network
from converter.graph import Graph
from costmodel.target import Target, load_target
from optimizer import SearchResult, optimize
from optimizer.problem import MethodName

METHODS: tuple[MethodName, ...] = (
    "gradient",
    "exact",
    "layerwise",
    "dosa",
    "genetic",
    "bayesian",
    "random",
    "gemmini-auto",
)
BUDGETED: tuple[MethodName, ...] = ("dosa", "genetic", "bayesian", "random")
SEEDED: tuple[MethodName, ...] = ("gradient", *BUDGETED)


def main(arguments: list[str]) -> int:
    """Print the table and write it as CSV; 1 if a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks table1", description=__doc__)
    parser.add_argument("--models", default=",".join(TABLE1), help="comma-separated (default: all)")
    parser.add_argument("--targets", default="gemmini-large,gemmini-small")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--profile", choices=("dosa", "hw"), default="dosa")
    parser.add_argument("--tiling", choices=("ragged", "divisor"), default="ragged")
    parser.add_argument(
        "--no-row-packing", action="store_true", help="one kernel tap at a time on the array rows"
    )
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each budgeted baseline")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args(arguments)
    methods = options.methods.split(",")
    failed = 0
    rows: list[dict[str, object]] = []
    for target_name in options.targets.split(","):
        for model in options.models.split(","):
            try:
                figures = cell(network(model), load_target(target_name), methods, options)
            except ValueError as error:
                print(f"{model} on {target_name}: {error}", file=sys.stderr)
                failed += 1
                continue
            rows.append({"model": model, "target": target_name, **figures})
            show(rows[-1])
    if rows:
        options.out.mkdir(parents=True, exist_ok=True)
        names = list(dict.fromkeys(name for row in rows for name in row))
        with (options.out / "table1.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    return 1 if failed else 0


def cell(
    graph: Graph, target: Target, methods: list[MethodName], options: argparse.Namespace
) -> dict[str, float]:
    """All figures of one model on one target."""

    def search(method: MethodName, seed: int = 0, fusion_model: str = "sound") -> SearchResult:
        return optimize(
            graph,
            target,
            profile=options.profile,
            method=method,
            fusion_model=fusion_model,  # type: ignore[arg-type]
            tiling=options.tiling,
            row_packing=not options.no_row_packing,
            seed=seed,
            time_budget=options.budget if method in BUDGETED else None,
        )

    row: dict[str, float] = {}
    for method in methods:
        runs = [search(method, seed) for seed in range(options.seeds if method in SEEDED else 1)]
        row[method] = statistics.median(run.cost.edp_uj_cycles for run in runs)
        row[f"{method}_seconds"] = statistics.median(run.seconds for run in runs)
    if "gradient" in row:
        row["gradient_paper"] = search("gradient", fusion_model="paper").cost.edp_uj_cycles
        row["ratio_bound"] = row["gradient"] / fusion_bound(graph, target, options.profile)
        for other in methods:
            if other != "gradient":
                row[f"ratio_{other}"] = row["gradient"] / row[other]
        row["seconds"] = row["gradient_seconds"]
    if {"layerwise", "dosa", "exact"} <= set(row):
        row["mapping"] = row["layerwise"] / row["dosa"]
        row["fusion"] = row["exact"] / row["layerwise"]
    return row


def show(row: Mapping[str, object]) -> None:
    """One block per cell; the last line is `key=value`."""
    print(f"\n{row['model']} on {row['target']}")
    for name, figure in row.items():
        if f"{name}_seconds" in row:
            print(f"  {name:<14} {figure:12.4g} uJ x cycles {row[f'{name}_seconds']:8.1f} s")
    for name, text in (("gradient_paper", "gradient, paper's fusion model"),):
        if name in row:
            print(f"  {text:<31} {row[name]:12.4g}")
    keys = [k for k in row if k.startswith("ratio_") or k in ("seconds", "mapping", "fusion")]
    print(
        f"model={row['model']} target={row['target']} " + " ".join(f"{k}={row[k]:.4f}" for k in keys),
        flush=True,
    )
