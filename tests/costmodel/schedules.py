"""Small schedules made by hand."""

from __future__ import annotations

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.resident_tensors import with_resident_tensors
from fadiff.costmodel.schedule.schedule import Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from tests.costmodel.networks import add, conv, graph, whole_tile

TARGET = Target(name="t", side=16, scratchpad_bytes=256 * 1024, accumulator_bytes=64 * 1024)
LARGE = load_target("gemmini-large")


def residual() -> Graph:
    """x -> a -> A -> b -> B; s = A + B; c reads s.  A is read twice, s once."""
    layers = [
        conv("a", "x", "A", 16, 16, 8, 8),
        conv("b", "A", "B", 16, 16, 8, 8, 3, 1, 1),
        add("sum", "A", "B", "S"),
        conv("c", "S", "y", 16, 16, 8, 8),
    ]
    return graph(layers, ("x",), ("y",))


def alone(g: Graph, resident: tuple[str, ...], target: Target = TARGET, profile: Profile = "hw") -> Schedule:
    """Every layer alone, in one tile."""
    mappings = {layer.name: whole_tile(layer.dims) for layer in g.tensor_core_layers}
    groups = with_resident_tensors(g, singleton_groups(g), resident)
    return Schedule(g, target, mappings, groups, profile)
