"""Speed and memory of the exact, the batched and the differentiable cost model on ResNet-18."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.command import add_out, command
from benchmarks.figure import figure
from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.group.nodes import Edge, Node
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, shape_of
from fadiff.costmodel.relaxed.model import ORDERS, RelaxedModel, RelaxedPoint
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.schedule.evaluate import clear_cache, evaluate
from fadiff.costmodel.schedule.schedule import Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.samples.graphs import resnet18

REPEATS = 30


def main(arguments: list[str]) -> int:
    """Print timings; 0 unless a measurement fails."""
    parser = command("costmodel", __doc__)
    parser.add_argument("--target", default="gemmini-large")
    parser.add_argument("--restarts", type=int, default=64)
    parser.add_argument("--mappings", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the tensors are small")
    add_out(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    target = load_target(options.target)
    graph = resnet18()
    shapes = list(dict.fromkeys(shape_of(layer) for layer in graph.tensor_core_layers))
    figures: dict[str, float] = {}

    schedule = Schedule(graph, target, simple_mappings(graph, target), singleton_groups(graph), "hw")
    figures["exact_warm_ms"] = 1e3 * best_seconds(lambda: evaluate(schedule))
    figures["exact_cold_ms"] = 1e3 * best_seconds(lambda: evaluate(schedule), before=clear_cache)

    batch = random_mappings(shapes[1], target, options.mappings)
    for profile in ("hw", "dosa"):
        seconds = best_seconds(lambda p=profile: evaluate_columns(shapes[1], batch, target, p), repeats=3)  # type: ignore[misc]
        figures[f"batch_{profile}_s"] = seconds

    steps: dict[int, float] = {}
    for restarts in sorted({8, 16, 32, options.restarts, 2 * options.restarts}):
        steps[restarts] = 1e3 * best_seconds(relaxed_step(shapes, target, restarts, "hw"))
    figures["relaxed_hw_ms"] = steps[options.restarts]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = relaxed_step(shapes, target, options.restarts, "dosa")
    figures["relaxed_dosa_ms"] = 1e3 * best_seconds(step)
    figures["peak_memory_mb"] = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024

    print(f"ResNet-18, {len(graph.tensor_core_layers)} layers, {len(shapes)} distinct, {target.name}")
    print(f"  evaluate one schedule, everything new      {figures['exact_cold_ms']:8.3f} ms")
    print(f"  evaluate one schedule, again               {figures['exact_warm_ms']:8.3f} ms")
    print(f"  {options.mappings} mappings of one layer, hw       {figures['batch_hw_s']:8.3f} s")
    print(f"  {options.mappings} mappings of one layer, dosa     {figures['batch_dosa_s']:8.3f} s")
    for restarts, milliseconds in steps.items():
        print(f"  forward + backward, {restarts:4d} restarts, hw      {milliseconds:8.2f} ms")
    plot(options.out, steps)
    print(" ".join(f"{name}={value:.4g}" for name, value in figures.items()))
    return 0


def best_seconds(
    run: Callable[[], object], *, before: Callable[[], object] | None = None, repeats: int = REPEATS
) -> float:
    """Fastest wall time of a call, after two calls to warm up (what else runs only ever adds)."""
    times = []
    for index in range(repeats + 2):
        if before:
            before()
        gc.disable()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        gc.enable()
        if index == 1:
            times.clear()
    return min(times)


def simple_mappings(graph: Graph, target: Target) -> dict[str, Mapping]:
    """A legal mapping of every layer: one array block of channels, pixels cut until they fit."""
    mappings = {}
    for layer in graph.tensor_core_layers:
        d = layer.dims
        cols, rows = min(d.K, target.side), min(d.C, target.side)
        q = min(d.Q, 8)
        l1 = Dims(K=cols, C=rows, Q=q)
        mappings[layer.name] = Mapping(l1, l1, l1, Dims(C=rows), Dims(K=cols))
    return mappings


def random_mappings(shape: LayerShape, target: Target, count: int) -> MappingColumns:
    """Random nested tiles, ragged, in three loop orders."""
    generator = np.random.default_rng(0)
    bounds = np.array(list(shape.dims))
    l2 = generator.integers(1, bounds + 1, size=(count, 8))
    l1 = generator.integers(1, l2 + 1)
    l0 = generator.integers(1, l1 + 1)
    rows, cols = np.ones_like(l0), np.ones_like(l0)
    c, k = DIMS.index("C"), DIMS.index("K")
    l0[:, [DIMS.index(d) for d in "GRS"]] = 1
    rows[:, c] = l0[:, c] = np.minimum(l0[:, c], target.side)
    cols[:, k] = l0[:, k] = np.minimum(l0[:, k], target.side)
    order = generator.integers(0, len(ORDERS), count)
    l2, l1, l0, rows, cols = (tile.T.copy() for tile in (l2, l1, l0, rows, cols))
    return MappingColumns(l2, l1, l0, rows, cols, [(o.l3, o.l2, o.l1) for o in ORDERS], order)


def relaxed_step(
    shapes: list[LayerShape], target: Target, restarts: int, profile: Profile
) -> Callable[[], None]:
    """One forward and backward pass over all restarts and layers, a fusable edge between neighbours."""
    edges = [Edge(i, i + 1) for i in range(len(shapes) - 1)]
    model = RelaxedModel([Node(shape) for shape in shapes], edges, target, profile)
    torch.manual_seed(0)
    size = (restarts, len(shapes), 8)
    shares = [torch.rand(size, requires_grad=True) for _ in range(3)]
    order = torch.rand(restarts, len(shapes), len(ORDERS), requires_grad=True)
    sigma = torch.rand(restarts, len(edges), requires_grad=True)
    log_bounds = torch.log(model.bounds)
    on_rows = torch.tensor([d == "C" for d in DIMS])
    on_cols = torch.tensor([d == "K" for d in DIMS])

    def step() -> None:
        l2 = torch.exp(shares[0] * log_bounds)
        l1 = torch.exp(shares[0] * shares[1] * log_bounds)
        l0 = torch.exp(shares[0] * shares[1] * shares[2] * log_bounds)
        block = l0.clamp(max=target.side)
        rows = torch.where(on_rows, block, torch.ones_like(l0))
        cols = torch.where(on_cols, block, torch.ones_like(l0))
        point = RelaxedPoint(l2, l1, l0, rows, cols, torch.softmax(order, -1), torch.sigmoid(sigma))
        cost = model(point)
        loss = torch.log(cost.total_energy_pj) + torch.log(cost.total_latency_cycles)
        loss = loss + torch.stack(list(cost.penalties.values())).sum(dim=0)
        loss.sum().backward()  # type: ignore[no-untyped-call]

    return step


def plot(folder: Path, steps: dict[int, float]) -> None:
    """Step time against restarts."""
    path = folder / "fadiff.costmodel.png"
    with figure(path, (4.5, 3.4)) as (_, ((axis,),)):
        axis.plot(list(steps), list(steps.values()), marker="o")
        axis.set_xlabel("restarts")
        axis.set_ylabel("forward + backward (ms)")
        axis.set_ylim(bottom=0)
    print(f"figure: {path}")
