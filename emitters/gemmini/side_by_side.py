"""Prints what the core computes while Gemmini runs a layer: parts of host operators after each tile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group.side_by_side import layer_on_gemmini, parts_of
from fadiff.emitters.gemmini.constants import C_TYPES
from fadiff.emitters.gemmini.expression import mul, plus
from fadiff.emitters.gemmini.host import description, host_call
from fadiff.emitters.gemmini.memory import Memory
from fadiff.emitters.gemmini.operands import pointer
from fadiff.emitters.gemmini.plan import GroupPlan, LayerPlan
from fadiff.emitters.gemmini.printer import CPrinter

TILES = "tiles"
"""C variable that counts the tiles that Gemmini has been given."""


@dataclass(frozen=True)
class Beside:
    """The host operators of a group whose layers run side by side.

    The function of the layer on Gemmini has a parameter for every tensor in `parameters`.
    """

    graph: Graph
    memory: Memory
    tables: Mapping[str, str]
    layers: tuple[HostLayer, ...]
    on_gemmini: int
    """Index of the other layer,"""
    tiles: int
    """and how many calls of the loop unit run it."""

    @classmethod
    def of(
        cls, graph: Graph, memory: Memory, group: GroupPlan, plan: LayerPlan, tables: Mapping[str, str]
    ) -> Beside:
        """Of a group, `plan` of its layer on Gemmini."""
        layers = tuple(
            layer for name in group.group.layers if isinstance(layer := graph.by_name[name], HostLayer)
        )
        tiles = math.prod(plan.form.mapping.trips("L3", plan.nest.full))
        index = graph.index[layer_on_gemmini(graph, group.group).name]
        return cls(graph, memory, tables, layers, index, tiles)

    @property
    def parameters(self) -> dict[str, str]:
        """C parameter of each tensor in memory that the operators read or write."""
        names = dict.fromkeys(name for layer in self.layers for name in (*layer.inputs, *layer.outputs))
        variable = [name for name in names if self.graph.tensors[name].data is None]
        return {name: f"tensor{i}" for i, name in enumerate(variable)}

    @property
    def signature(self) -> list[str]:
        """These parameters with their types."""
        written = {name for layer in self.layers for name in layer.outputs}
        types = {name: C_TYPES[self.graph.tensors[name].dtype] for name in self.parameters}
        return [
            f"{'' if name in written else 'const '}{types[name]} *{parameter}"
            for name, parameter in self.parameters.items()
        ]

    def declare(self, c: CPrinter) -> None:
        """Counters of tiles and parts."""
        names = [TILES, *(self._done(layer) for layer in self.layers)]
        c.line(f"int32_t {', '.join(f'{name} = 0' for name in names)};")

    def print(self, c: CPrinter) -> None:
        """After a tile: the parts that are due."""
        c.line(f"{TILES}++;")
        c.call("observe", self.on_gemmini, 1)
        for layer in self.layers:
            index, parts, done = self.graph.index[layer.name], parts_of(layer), self._done(layer)
            pointers = {
                name: plus(self._first(name), mul(done, parts.steps.get(name, 0)))
                for name in (*layer.inputs, *layer.outputs)
            }
            call = host_call(self.graph, parts.layer, pointers, self.tables)
            due = f"{TILES} * {parts.count} / {self.tiles}"
            c.comment(description(layer))
            with c.block(f"for (; {done} < {due}; {done}++)"):
                c.call("observe", index, 0)
                c.call(call.function, *call.arguments)
                c.call("observe", index, 1)
        c.call("observe", self.on_gemmini, 0)

    def _first(self, name: str) -> str:
        """C expression of the first element of a tensor."""
        return self.parameters.get(name) or pointer(self.memory.tensors[name], self.graph.tensors[name])

    def _done(self, layer: HostLayer) -> str:
        """C variable that counts the parts of a layer that are done."""
        return f"done_{self.graph.index[layer.name]}"
