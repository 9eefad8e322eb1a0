"""Record what the real timeloop-model counts, for machines that do not have it.

    python -m tests.emitters.timeloop.record --timeloop-model PATH > tests/emitters/timeloop/recorded.csv

Seeded random layers of every kind with divisor mappings, and the best mappings of every distinct
layer of three networks, on both paper targets.  The tests compare our predictions with the numbers
in the file; nothing in it comes from our own cost model.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.timeloop import emit
from fadiff.emitters.timeloop.compare import run_model
from fadiff.emitters.timeloop.read.problem import one_layer_graph

TARGETS = ("gemmini-small", "gemmini-large")
PER_TARGET = 60
NETWORKS = ("resnet18", "mobilenetv1", "gpt3-block")
SPACES = {
    "Registers": ("Weights",),
    "Accumulator": ("Outputs",),
    "Scratchpad": ("Weights", "Inputs"),
    "DRAM": ("Weights", "Inputs", "Outputs"),
}
COUNTS = tuple(
    f"{level}.{space}.{what}"
    for level, spaces in SPACES.items()
    for space in spaces
    for what in ("reads", "writes")
)
TILES = ("tile_l2", "tile_l1", "tile_l0", "rows", "cols")
ORDERS = ("order_l3", "order_l2", "order_l1", "order_l0")
COLUMNS = ("layer", "target", "dims", "stride", "dilation", *TILES, *ORDERS, "cycles", "energy_pj", *COUNTS)


def dims_text(dims: Dims) -> str:
    return " ".join(map(str, dims))


def dims_of(text: str) -> Dims:
    return Dims(*map(int, text.split()))


def sizes_of(row: dict[str, str]) -> tuple[Dims, tuple[int, int], tuple[int, int]]:
    """Bounds, stride and dilation of a row."""
    (stride_h, stride_w), (step_h, step_w) = (map(int, row[name].split()) for name in ("stride", "dilation"))
    return dims_of(row["dims"]), (stride_h, stride_w), (step_h, step_w)


def schedule_of(row: dict[str, str]) -> Schedule:
    """The layer and mapping of a row."""
    graph = one_layer_graph("layer", *sizes_of(row))
    tiles = {name: dims_of(row[name]) for name in TILES}
    orders = {name: tuple(row[name]) for name in ORDERS}
    mapping = Mapping(**tiles, **orders)  # type: ignore[arg-type]
    target = load_target(row["target"])
    return Schedule(graph, target, {"layer": mapping}, singleton_groups(graph), profile="dosa")


def random_layer(rng: random.Random) -> Graph:
    kind = rng.choice(("conv", "conv", "conv", "strided", "gemm", "bmm", "depthwise", "grouped"))
    channels, kernels = (8, 12, 16, 24, 32, 64, 96), (1, 2, 3, 5, 7)
    bounds: dict[Dim, int] = {"P": rng.choice((1, 4, 6, 7, 14, 28))}
    if kind in ("bmm", "depthwise", "grouped"):
        bounds["G"] = rng.choice((2, 3, 4, 16, 32))
    if kind != "depthwise":
        bounds |= {"K": rng.choice(channels), "C": rng.choice((1, 3, *channels))}
    stride = dilation = (1, 1)
    if kind not in ("gemm", "bmm"):
        bounds |= {"Q": rng.choice((4, 6, 7, 14)), "R": rng.choice(kernels), "S": rng.choice(kernels)}
        bounds["N"] = rng.choice((1, 1, 1, 2))
        if kind != "conv":
            stride = (rng.choice((1, 2, 3)), rng.choice((1, 2)))
            dilation = (rng.choice((1, 1, 2)), rng.choice((1, 2)))
    return one_layer_graph("layer", Dims(**bounds), stride, dilation)


def random_mapping(rng: random.Random, bounds: Dims, op: str, side: int) -> Mapping:
    def pick(n: int, multiple_of: int = 1, limit: int | None = None) -> int:
        fitting = [i for i in range(multiple_of, n + 1, multiple_of) if n % i == 0]
        return rng.choice([i for i in fitting if limit is None or i <= limit])

    rows = cols = Dims()
    if op == "depthwise":
        cols = Dims(G=pick(bounds.G, limit=side))
    else:
        cols, rows = Dims(K=pick(bounds.K, limit=side)), Dims(C=pick(bounds.C, limit=side))
        if rows.C == bounds.C and rng.random() < 0.3:
            rows = rows.replace({"S": pick(bounds.S, limit=side // bounds.C)})
    block = {d: rows[d] * cols[d] * (pick(bounds[d]) if d in "NPQ" else 1) for d in DIMS}
    l1 = {d: pick(bounds[d], block[d]) for d in DIMS}
    l2 = {d: pick(bounds[d], l1[d]) for d in DIMS}
    orders = [tuple(rng.sample(DIMS, 8)) for _ in range(4)]
    return Mapping(Dims(**l2), Dims(**l1), Dims(**block), rows, cols, *orders)


def random_schedules(seed: int, target: Target, count: int) -> Iterator[Schedule]:
    rng = random.Random(seed)
    while count:
        graph = random_layer(rng)
        layer = graph.tensor_core_layers[0]
        mapping = random_mapping(rng, layer.dims, layer.op, target.side)
        try:
            yield Schedule(graph, target, {"layer": mapping}, singleton_groups(graph), profile="dosa")
            count -= 1
        except ScheduleError:
            continue


def network_schedules(name: str, target: Target) -> Iterator[tuple[str, Schedule]]:
    """The best divisor mapping of every distinct layer, each as a graph of its own."""
    from fadiff.optimizer import optimize
    from fadiff.samples.graphs import graph_of

    graph = graph_of(name)
    found = optimize(graph, target, profile="dosa", method="exact", fusion=False, tiling="divisor")
    seen = set()
    for layer in graph.tensor_core_layers:
        key = (layer.dims, layer.stride, found.schedule.mappings[layer.name])
        if key not in seen:
            seen.add(key)
            alone = one_layer_graph("layer", layer.dims, layer.stride, layer.dilation)
            groups = singleton_groups(alone)
            yield f"{name}.{layer.name}", Schedule(alone, target, {"layer": key[2]}, groups, profile="dosa")


def record(name: str, schedule: Schedule, model: Path) -> dict[str, object]:
    """One row: the layer, the mapping, and Timeloop's numbers."""
    layer, mapping = schedule.graph.tensor_core_layers[0], schedule.mappings["layer"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        emit(schedule, out)
        stats = run_model(model, [out / f for f in ("arch.yaml", "layer.problem.yaml", "layer.mapping.yaml")])
    row: dict[str, object] = {
        "layer": name,
        "target": schedule.target.name,
        "dims": dims_text(layer.dims),
        "stride": "{} {}".format(*layer.stride),
        "dilation": "{} {}".format(*layer.dilation),
        "cycles": stats.cycles,
        "energy_pj": f"{stats.energy_pj:.2f}",
    }
    row |= {name: dims_text(getattr(mapping, name)) for name in TILES}
    row |= {name: "".join(getattr(mapping, name)) for name in ORDERS}
    for name in COUNTS:
        level, space, what = name.split(".")
        row[name] = stats.accesses[level, space][what == "writes"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeloop-model", type=Path, required=True)
    model = parser.parse_args().timeloop_model
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for seed, name in enumerate(TARGETS):
        target = load_target(name)
        for schedule in random_schedules(seed, target, PER_TARGET):
            writer.writerow(record("random", schedule, model))
        for network in NETWORKS:
            for layer, schedule in network_schedules(network, target):
                writer.writerow(record(layer, schedule, model))


if __name__ == "__main__":
    main()
