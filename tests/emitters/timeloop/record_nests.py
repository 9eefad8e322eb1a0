"""Record what the real timeloop-model counts of random mappings on our shipped machines.

    python -m tests.emitters.timeloop.record_nests --timeloop-model PATH > recorded_nests.csv
    python -m tests.emitters.timeloop.record_nests --timeloop-model PATH --fused > recorded_fused.csv

Nothing in these files, which are beside this one, comes from our own counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from fadiff.costmodel.nests.machine import OPERANDS, Machine
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.timeloop.compare import run_model
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.emitters.timeloop.read.problem import one_layer_graph
from fadiff.emitters.timeloop.write.machine import machine_architecture, machine_mapping
from fadiff.emitters.timeloop.write.problem import problem
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from fadiff.optimizer.nests.fusion import fused, groups_of
from fadiff.optimizer.nests.space import Space, keeps_of
from tests.emitters.timeloop.record import dims_text, random_layer, sizes_of
from tests.optimizer.graphs import Net, separable

MACHINES = ("eyeriss-like", "simba-like", "nvdla-like", "output-stationary")
PER_MACHINE = 300
COLUMNS = (
    "machine",
    "dims",
    "stride",
    "dilation",
    "keeps",
    "factors",
    "orders",
    "cycles",
    "energy_pj",
    "accesses",
)


@cache
def _machine(name: str) -> Machine:
    return machine_of(name)


def mapping_of(row: dict[str, str]) -> tuple[Machine, Workload, Mappings]:
    """The machine, layer and mapping of a row."""
    machine = _machine(row["machine"])
    workload = Workload(*sizes_of(row))
    letters = row["keeps"].split(" ")
    keeps = tuple(frozenset(o for o in OPERANDS if o in kept) for kept in letters)
    factors = np.array(json.loads(row["factors"]), dtype=np.int64)[None]
    orders = np.array(json.loads(row["orders"]), dtype=np.int64)[None]
    return machine, workload, Mappings(factors, orders, keeps)


def random_mappings(name: str, seed: int, count: int) -> Iterator[tuple[Machine, Workload, Mappings]]:
    machine, rng, generator = machine_of(name), random.Random(seed), np.random.default_rng(seed)
    while count:
        layer = random_layer(rng).tensor_core_layers[0]
        workload = Workload.of(layer)
        found = Space(machine, workload, rng.choice(keeps_of(machine))).random(4, generator)
        yield machine, workload, found[np.array([rng.randrange(4)])]
        count -= 1


def fused_mappings(name: str) -> Iterator[tuple[Machine, Workload, Mappings]]:
    """One of every member of fused groups, with and without halo, at two tiles."""
    machine = machine_of(name)
    net = Net(16, 8)
    halo = net.build(net.conv("b", net.conv("a", net.x, 16, 3), 8, 3))
    for graph in (halo, separable(16, 16, 1)):
        for layers in groups_of(graph, machine):
            for group in list(fused(graph, layers, machine))[:2]:
                for run in group.runs.values():
                    seen = run.on(machine)
                    space = Space(seen, run.workload, keeps_of(seen)[0])
                    yield machine, run.workload, space.random(4, np.random.default_rng(0))[:1]


def record(machine: Machine, workload: Workload, mappings: Mappings, model: Path) -> dict[str, object]:
    layer = one_layer_graph("layer", workload.dims, workload.stride, workload.dilation).tensor_core_layers[0]
    files = {
        "arch": machine_architecture(machine),
        "problem": problem(layer, layer.dims),
        "mapping": machine_mapping(machine, workload, mappings),
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.yaml" for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.write_text(yaml_text(content))
        stats = run_model(model, paths)
    accesses = {
        f"{level}.{space}": counts for (level, space), counts in stats.accesses.items() if any(counts)
    }
    return {
        "machine": machine.name,
        "dims": dims_text(workload.dims),
        "stride": "{} {}".format(*workload.stride),
        "dilation": "{} {}".format(*workload.dilation),
        "keeps": " ".join("".join(o for o in OPERANDS if o in kept) or "-" for kept in mappings.keeps),
        "factors": json.dumps(mappings.factors[0].tolist(), separators=(",", ":")),
        "orders": json.dumps(mappings.orders[0].tolist(), separators=(",", ":")),
        "cycles": stats.cycles,
        "energy_pj": f"{stats.energy_pj:.2f}",
        "accesses": json.dumps(accesses, separators=(",", ":")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeloop-model", type=Path, required=True)
    parser.add_argument("--fused", action="store_true", help="members of fused groups")
    options = parser.parse_args()
    model = options.timeloop_model
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for seed, name in enumerate(MACHINES):
        found = fused_mappings(name) if options.fused else random_mappings(name, seed, PER_MACHINE)
        for machine, workload, mappings in found:
            writer.writerow(record(machine, workload, mappings, model))


if __name__ == "__main__":
    main()
