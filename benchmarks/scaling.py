"""Search time against network size: ResNet-18 to ResNet-152, one GPT-3 block to many.

Identical layers are solved once, so time should follow the number of distinct layers, not of layers.
Last line: time ratios large / small for both families and methods, and peak memory in MB.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from converter.graph import Graph
from costmodel.target import load_target
from optimizer import optimize
from samples.graphs import graph_of


def main(arguments: list[str]) -> int:
    """Time both families with both methods."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--target", default="gemmini-large")
    parser.add_argument("--profile", choices=("dosa", "hw"), default="dosa")
    parser.add_argument("--methods", default="gradient,exact")
    parser.add_argument("--blocks", type=int, default=96, help="decoder blocks of the large GPT-3")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args(arguments)
    target = load_target(options.target)
    families: dict[str, tuple[Graph, Graph]] = {
        "resnet": (graph_of("resnet18"), graph_of("resnet152")),
        "gpt3": (graph_of("gpt3-block"), graph_of("gpt3-block", layers=options.blocks)),
    }
    figures = []
    rows = ["family,method,layers,seconds,cpu_seconds,edp_uj_cycles"]
    for family, graphs in families.items():
        for method in options.methods.split(","):
            seconds = []
            for graph in graphs:
                before = time.process_time()
                found = optimize(graph, target, profile=options.profile, method=method)
                cpu = time.process_time() - before
                seconds.append(cpu)
                layers = len(graph.tensor_core_layers)
                edp = found.cost.edp_uj_cycles
                rows.append(f"{family},{method},{layers},{found.seconds:.3f},{cpu:.3f},{edp:.6g}")
                print(
                    f"{family:<8}{method:<10}{layers:5} layers {found.seconds:8.1f} s  EDP {edp:.4g}",
                    flush=True,
                )
            figures.append(f"{family}_{method}={seconds[1] / seconds[0]:.3f}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(" ".join(figures) + f" peak_mb={peak:.0f}")
    return 0
