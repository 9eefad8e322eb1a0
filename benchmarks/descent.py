"""How far descent alone is from the final schedule: decoded, neither polished nor certified.

Per model and target the EDP of descent over that of the whole search (without tensors on chip between
groups, which descent does not look for), and where the difference is: mappings of unfused layers, of fused
ones (at the group tile of descent), the group tile, and which layers are fused.  The four factors multiply
to the ratio.  Last line per cell: `key=value`.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import numpy as np

from benchmarks.command import add_profile, command, listed
from benchmarks.networks import TABLE1, network
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort, descend
from fadiff.optimizer.gradient.joint import gradient
from fadiff.optimizer.group.hull import GroupHull, merge
from fadiff.optimizer.group.residency import PlacedGroup
from fadiff.optimizer.layer.space import Rules


class Losses(NamedTuple):
    """Factors between the EDP of descent and of the final schedule; processor seconds of descent."""

    unfused: float
    members: float
    tile: float
    fusion: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Descent over final."""
        return self.unfused * self.members * self.tile * self.fusion


def main(arguments: list[str]) -> int:
    """Print every cell."""
    parser = command("descent", __doc__)
    parser.add_argument(
        "--models", type=listed, default=",".join(TABLE1), help="comma-separated (default: all)"
    )
    parser.add_argument("--targets", type=listed, default="gemmini-large,gemmini-small")
    add_profile(parser)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    targets = [load_target(name) for name in options.targets]
    graphs = {name: network(name) for name in options.models}
    ratios = []
    for target in targets:
        for name, graph in graphs.items():
            losses = measure(graph, target, options.profile, options.seeds)
            ratios.append(losses.ratio)
            factors = " ".join(f"{key}={value:.4f}" for key, value in losses._asdict().items())
            print(
                f"model={name} target={target.name} descent_over_final={losses.ratio:.4f} {factors}",
                flush=True,
            )
    print(f"median_descent_over_final={statistics.median(ratios):.4f} greatest={max(ratios):.4f}")
    return 0


def measure(graph: Graph, target: Target, profile: str, seeds: int) -> Losses:
    """Medians over seeds."""
    rules = Rules(target, "hw" if profile == "hw" else "dosa")
    final = Problem(graph, rules, residency=False)
    partition = gradient(final).partition
    least = final.cost(final.schedule(partition)).edp_uj_cycles
    runs = []
    for seed in range(seeds):
        problem = Problem(graph, rules, seed=seed, residency=False)
        before = time.process_time()
        found = descend(problem, Effort()).best
        seconds = time.process_time() - before
        assert found is not None  # fusion model sound
        runs.append(losses_of(problem, found.argmin, least, seconds))
    return Losses(*(statistics.median(values) for values in zip(*runs, strict=True)))


def losses_of(problem: Problem, partition: Partition, least: float, seconds: float) -> Losses:
    """What the parts of a schedule cost against doing each of them exactly, one after the other."""
    cost = problem.cost(problem.schedule(partition))
    hulls = dict(problem.alone)
    groups = {problem.candidates[c.group.layers]: c for c in partition if len(c.group.layers) > 1}
    for first, way in groups.items():
        members = [cost.by_name[name] for name in way.group.layers]
        energy, latency = sum(m.energy_pj for m in members), sum(m.latency_cycles for m in members)
        same = way.renamed(first)
        hulls[PlacedGroup(first)] = GroupHull(np.array([energy]), np.array([float(latency)]), (same,))
    steps = [cost.edp_uj_cycles, edp_of(problem, hulls)]
    for whole in (False, True):
        for first, way in groups.items():
            tile = way.group.tile
            assert tile is not None
            better = problem.price_group(first, None if whole else [tile])
            hulls[PlacedGroup(first)] = merge([hulls[PlacedGroup(first)], better])
        steps.append(edp_of(problem, hulls))
    decoded, mapped, at_tile, at_best = steps
    return Losses(decoded / mapped, mapped / at_tile, at_tile / at_best, at_best / least, seconds)


def edp_of(problem: Problem, hulls: dict[PlacedGroup, GroupHull]) -> float:
    """EDP in uJ x cycles of the best cuts into groups that have a hull."""
    best = problem.off_chip.optimum(hulls, "edp")
    return best.energy * best.latency * 1e-6
