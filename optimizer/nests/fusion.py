"""Fusion groups on any machine: tensors that layers hand over in a memory on chip that all multipliers share.

A group walks equal tiles of its last member's output, as on Gemmini (costmodel/group/fusion.py: regions, halo
recomputed).  Every member runs once per tile, on the largest region that a tile needs of it, as a layer of
its own on a machine that keeps what is handed over (`Machine.holding`): so all counts stay Timeloop's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.fusion import GroupPlanner, Member, ScheduleError
from fadiff.costmodel.mapping.decision import GroupTile
from fadiff.costmodel.mapping.tiling import Interval
from fadiff.costmodel.nests.machine import OPERANDS, Machine, Memory, Operand
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.group.candidates import candidate_groups, signature
from fadiff.optimizer.group.residency import Layers
from fadiff.optimizer.group.tiles import groups_per_tile
from fadiff.optimizer.layer.candidates import divisors, halved

MOST_MEMBERS = 3
"""Layers of the largest group, host operators on rows not counted."""


@dataclass(frozen=True)
class Run:
    """What a layer does `times` over: a workload, alone all of it and once.

    `held` operands lie in the shared memory, those of them `inside` in no other; `reserved` words of it wait.
    """

    workload: Workload
    times: int = 1
    held: frozenset[Operand] = frozenset()
    inside: frozenset[Operand] = frozenset()
    reserved: int = 0

    @property
    def once(self) -> Run:
        """A single one."""
        return replace(self, times=1)

    def on(self, machine: Machine) -> Machine:
        """The machine as the run sees it; raises as `Machine.holding`."""
        return machine.holding(self.held, self.inside, self.reserved) if self.held else machine


@dataclass(frozen=True)
class FusedGroup:
    """A group at one tile: its layers that are loop nests, with their runs."""

    tile: GroupTile
    runs: Mapping[str, Run]


def groups_of(graph: Graph, machine: Machine) -> dict[Layers, Layers]:
    """Groups that may hand tensors over: {layers: the first identical group}.

    Host operators in them read and write nothing outside, as what they move is counted nowhere.
    """
    found: dict[Layers, Layers] = {}
    first: dict[object, Layers] = {}
    for layers in candidate_groups(graph, MOST_MEMBERS, pools=False) if machine.shared is not None else ():
        hosts = [graph.by_name[n] for n in layers if not isinstance(graph.by_name[n], TensorCoreLayer)]
        written = {tensor for name in layers for tensor in graph.by_name[name].outputs}
        inside = all(
            {tensor for tensor in host.inputs if not graph.tensors[tensor].constant} <= written
            and not written.intersection(host.outputs).intersection(graph.outputs)
            and all(reader.name in layers for tensor in host.outputs for reader in graph.consumers(tensor))
            and host.name != layers[-1]
            for host in hosts
        )
        if inside and len(layers) - len(hosts) > 1:
            found[layers] = first.setdefault(signature(graph, layers), layers)
    return found


def fused(graph: Graph, layers: Layers, machine: Machine) -> Iterator[FusedGroup]:
    """A group at every tile for which there is room, largest first; nothing if it cannot run."""
    try:
        planner = GroupPlanner(graph, layers)
    except ScheduleError:
        return
    assert machine.shared is not None
    shared = machine.levels[machine.shared]
    assert isinstance(shared, Memory)
    n, p, q = planner.size
    for some in groups_per_tile(graph, layers):
        for batch in dict.fromkeys((n, 1)):
            for height in halved(p, divisors(p)):
                tile = GroupTile(batch, height, q, some)
                try:
                    yield FusedGroup(tile, dict(_runs(graph, planner, tile, shared.words)))
                except ScheduleError:
                    continue


def _runs(graph: Graph, planner: GroupPlanner, tile: GroupTile, room: float) -> Iterator[tuple[str, Run]]:
    """Of the members that are loop nests.

    Raises:
        ScheduleError: the tile does not suit the group, or what is handed over has more than `room` words.
    """
    plan = planner.plan(tile)
    times = math.prod(map(len, plan[planner.last].grid))
    waiting: dict[str, int] = {}
    for at, name in enumerate(planner.layers):
        layer, member = graph.by_name[name], plan[name]
        to_come = planner.layers[at:]
        waiting = {
            tensor: words
            for tensor, words in waiting.items()
            if any(reader.name in to_come for reader in graph.consumers(tensor))
        }
        if member.writes_inside:
            waiting[layer.outputs[0]] = math.prod(map(_largest, member.held_grid))
        words = sum(waiting.values())
        if isinstance(layer, TensorCoreLayer):
            run = _run(layer, member, times, words)
            words = run.reserved + sum(run.workload.words(operand) for operand in run.held)
            yield name, run
        if words > room:
            raise ScheduleError(f"{name}: {words} words are handed over, there is room for {room}")


def _run(layer: TensorCoreLayer, member: Member, times: int, waiting: int) -> Run:
    if member.fused_inputs - {layer.input.tensor}:
        raise ScheduleError(f"{layer.name}: its weights are handed over")
    region = {dim: _largest(axis) for dim, axis in zip("GKNPQ", member.computed, strict=True)}
    workload = Workload(layer.dims.replace(region), layer.stride, layer.dilation)  # type: ignore[arg-type]
    given: frozenset[Operand] = frozenset("I" if member.fused_inputs else "")  # type: ignore[arg-type]
    made: frozenset[Operand] = frozenset("O" if member.writes_inside else "")  # type: ignore[arg-type]
    held = given | made
    inside = held if not member.writes_outside else given
    reserved = max(0, waiting - sum(workload.words(operand) for operand in held))
    return Run(workload, times, held, inside, reserved)


def least(machine: Machine, workload: Workload) -> tuple[float, float]:
    """pJ and cycles of any mapping at least: each product once, and each word of the outermost memory."""
    outermost = machine.memories[0]
    once: dict[Operand, float] = {"W": workload.words("W"), "I": 0, "O": workload.words("O")}
    if max(workload.stride) == 1:  # windows that do not overlap may skip inputs
        once["I"] = min(workload.words("I"), workload.dims.product)
    reads, writes = (sum(once[o] for o in some if o in outermost.keeps) for some in (OPERANDS[:2], "O"))
    energy = (reads * outermost.read_pj + writes * outermost.update_pj) / outermost.block
    cycles = max(
        workload.dims.product / machine.multipliers,
        (reads + writes) / outermost.shared_bandwidth,
        reads / outermost.read_bandwidth,
        writes / outermost.write_bandwidth,
    )
    return energy / outermost.cluster + workload.dims.product * machine.mac_pj, cycles


def _largest(intervals: tuple[Interval, ...]) -> int:
    return max(stop - start for start, stop in intervals)
