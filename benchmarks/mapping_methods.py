"""Methods of `fadiff map` at equal CPU: single layers, and whole networks with fusion, over several seeds.

    python -m benchmarks mapping_methods --seconds 3 --seeds 5
    python -m benchmarks mapping_methods --networks resnet18,bert-block.onnx --seconds 15

A row has the geometric mean of the EDP over seeds, the geometric mean of its ratio to that of the first
method, seed by seed, and the worst one.  What is `proven` cannot be bettered.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from typing import get_args

import numpy as np

from benchmarks.command import add_out, check_known, command, listed
from benchmarks.networks import network
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.nests.count import Floats
from fadiff.costmodel.nests.machine import Machine
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.optimizer.mapping_methods import MapOptions, MethodName, method_of
from fadiff.optimizer.nests.layer import PROVEN, LayerSearch

MACHINES = "eyeriss-like,simba-like,nvdla-like,tpu-like"
LAYERS = {
    "3x3 64 of 56": Workload(Dims(K=64, C=64, P=56, Q=56, R=3, S=3)),
    "1x1 256 of 14 / 2": Workload(Dims(K=256, C=128, P=14, Q=14), (2, 2)),
    "depthwise 144 of 28": Workload(Dims(G=144, P=28, Q=28, R=3, S=3)),
    "product 128 x 768 x 768": Workload(Dims(K=768, C=768, P=128)),
}


def main(arguments: list[str]) -> int:
    """Print and write a table, a row for each machine, problem and method."""
    parser = command("mapping_methods", __doc__)
    parser.add_argument("--methods", type=listed, default=list(get_args(MethodName)))
    parser.add_argument("--machines", type=listed, default=listed(MACHINES))
    parser.add_argument(
        "--networks", type=listed, default=[], help="whole networks, fused, instead of layers"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each search (default: 3)")
    parser.add_argument("--seeds", type=int, default=5)
    add_out(parser)
    options = parser.parse_args(arguments)
    check_known(options.methods, get_args(MethodName), "method")
    for name in options.methods:
        method_of(name)  # loads what it needs before the clock runs
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "mapping_methods.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("machine", "problem", "method", "edp", "ratio", "worst", "proven"))
        for arch in options.machines:
            machine = machine_of(arch)
            for problem in options.networks or LAYERS:
                first: Floats | None = None
                for name in options.methods:
                    found = list(_runs(machine, problem, name, options.seconds, options.seeds))
                    edps = np.array([edp for edp, _ in found])
                    first = edps if first is None else first
                    ratios = edps / first
                    figures = (f"{_mean(edps):.4g}", f"{_mean(ratios):.3f}", f"{ratios.max():.3f}")
                    proven = sum(proven for _, proven in found)
                    row = (arch, problem, name, *figures, f"{proven} of {len(found)}")
                    table.writerow(row)
                    print(*row, sep="  ", flush=True)
                file.flush()
    return 0


def _mean(values: Floats) -> float:
    """Geometric."""
    return float(np.exp(np.log(values).mean()))


def _runs(
    machine: Machine, problem: str, name: MethodName, seconds: float, seeds: int
) -> Iterator[tuple[float, bool]]:
    """EDP of every seed, and whether it is proven."""
    method = method_of(name)
    for seed in range(seeds):
        if problem in LAYERS:
            search = LayerSearch(machine, LAYERS[problem], "edp", seconds, seed, time.process_time)
            method(search)
            found = search.found()
            yield found.edp, found.proven
        else:
            graph, clock = network(problem), time.process_time
            mapped = MapOptions("edp", name, seconds, seed=seed).search(graph, machine, clock=clock)
            yield mapped.best.edp, mapped.best.edp <= mapped.bound * PROVEN
