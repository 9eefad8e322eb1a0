"""`fadiff map`'s layers beside timeloop-mapper's, at equal CPU, on machines of Timeloop's public exercises.

    python -m benchmarks mapper --exercises DIR --timeloop BUILD --machines eyeriss_like,simba_like

DIR is a checkout of timeloop-accelergy-exercises, BUILD the folder with timeloop-mapper and timeloop-model.
Both see the same architecture, constraints and energies; the mapper is `random_pruned` for EDP on one thread
and is interrupted after so many CPU seconds a layer; ours has as many.  Every mapping of ours runs in
timeloop-model as well (`equal`).
"""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.command import add_out, command, listed
from benchmarks.networks import network
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.nests.machine import Machine
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.timeloop.compare import run_model
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.emitters.timeloop.read.problem import one_layer_graph
from fadiff.emitters.timeloop.stats import StatsError, read_stats
from fadiff.emitters.timeloop.write.machine import machine_architecture, machine_mapping
from fadiff.emitters.timeloop.write.problem import problem
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from fadiff.optimizer.mapping_methods import method_of
from fadiff.optimizer.nests.layer import Found, LayerSearch

DESIGNS = Path("workspace/example_designs/example_designs")
MAPPER = {
    "algorithm": "random_pruned",
    "optimization_metrics": ["edp"],
    "num_threads": 1,
    "timeout": 2_000_000_000,
    "victory_condition": 2_000_000_000,
    "live_status": False,
    "diagnostics": False,
}
TICKS = os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    """Print and write a table, a row for each machine and distinct layer."""
    parser = command("mapper", __doc__)
    parser.add_argument("--exercises", type=Path, required=True, help="checkout of the exercises")
    parser.add_argument("--timeloop", type=Path, required=True, help="folder with Timeloop's binaries")
    parser.add_argument("--machines", type=listed, default=["eyeriss_like"], help="designs, comma-separated")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time a layer of each (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser)
    options = parser.parse_args(arguments)
    layers = {Workload.of(x): x for x in network(options.network).tensor_core_layers if x.op != "gemm"}
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "mapper.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(
            ("machine", "layer", "dims", "stride", "mapper", "ours", "bound", "proven", "equal", "ratio")
        )
        for name in options.machines:
            design = options.exercises / DESIGNS / name
            recorded = design / "ref_outputs" / "default_problem"
            machine = machine_of(str(design / "arch.yaml"), (), recorded / "timeloop-mapper.ERT.yaml")
            ratios = []
            for workload, layer in reversed(layers.items()):
                theirs = mapped_by_timeloop(recorded, workload, options.timeloop, options.seconds)
                search = LayerSearch(
                    machine, workload, "edp", options.seconds, options.seed, time.process_time
                )
                method_of("auto")(search)
                found = search.found()
                equal = agrees(machine, workload, found, options.timeloop / "timeloop-model")
                ratio = found.edp / theirs
                ratios += [ratio] if ratio else []
                edps = (f"{value:.4g}" for value in (theirs, found.edp, found.bound))
                dims = (str(workload.dims), workload.stride[0])
                row = (name, layer.name, *dims, *edps, found.proven, equal, f"{ratio:.3f}")
                table.writerow(row)
                file.flush()
                print(*row, flush=True)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
            print(f"{name}: {len(ratios)} of {len(layers)} found by both, ratio {mean:.3f} (geometric mean)")
    return 0


def mapped_by_timeloop(recorded: Path, workload: Workload, timeloop: Path, seconds: float) -> float:
    """EDP in uJ x cycles of what timeloop-mapper finds; infinite if nothing."""
    content: dict[str, Any] = yaml.safe_load((recorded / "parsed-processed-input.yaml").read_text())
    keep = ("architecture", "architecture_constraints", "problem", "globals")
    content = {key: content[key] for key in keep if key in content}
    content |= yaml.safe_load((recorded / "timeloop-mapper.ERT.yaml").read_text())
    content["mapper"] = MAPPER
    instance, dims = content["problem"]["instance"], workload.dims
    instance |= {"M": dims.K, **{d: dims[d] for d in ("N", "C", "P", "Q", "R", "S")}}
    (instance["Wstride"], instance["Hstride"]) = workload.stride
    (instance["Wdilation"], instance["Hdilation"]) = workload.dilation
    with TemporaryDirectory() as folder:
        (Path(folder) / "all.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        said = (Path(folder) / "said.txt").open("w")
        running = subprocess.Popen(
            [timeloop.resolve() / "timeloop-mapper", "all.yaml"], cwd=folder, stdout=said, stderr=said
        )
        while running.poll() is None and _cpu_seconds(running.pid) < seconds:
            time.sleep(0.1)
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
        try:
            stats = read_stats(Path(folder) / "timeloop-mapper.stats.txt")
        except StatsError:
            return math.inf
    return stats.energy_pj * 1e-6 * stats.cycles


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def agrees(machine: Machine, workload: Workload, found: Found, model: Path) -> bool:
    """Whether timeloop-model gives the same cycles and energy."""
    graph = one_layer_graph("layer", workload.dims, workload.stride, workload.dilation)
    layer = graph.tensor_core_layers[0]
    assert isinstance(layer, TensorCoreLayer)
    files = {
        "arch": machine_architecture(machine),
        "problem": problem(layer, layer.dims),
        "mapping": machine_mapping(machine, workload, found.mapping),
    }
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.yaml" for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.write_text(yaml_text(content))
        stats = run_model(model, paths)
    return stats.cycles == found.cycles and math.isclose(stats.energy_pj, found.energy, rel_tol=1e-5)
