"""Which layers, host operators mostly, become others: those whose programs the clock finds shorter so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.pooling import convolution_of
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.activations import realised_activation
from fadiff.optimizer.realise.average_pools import realised_average_pool
from fadiff.optimizer.realise.channel_products import realised_channel_product
from fadiff.optimizer.realise.linear_maps import realised_linear_map
from fadiff.optimizer.realise.max_pools import realised_max_pool
from fadiff.optimizer.realise.merged_columns import with_merged_columns
from fadiff.optimizer.realise.norms import realised_norm
from fadiff.optimizer.realise.ramps import realised_ramps
from fadiff.optimizer.realise.realised import Realised, with_realised
from fadiff.optimizer.realise.softmax import realised_softmax
from fadiff.optimizer.realise.space_to_depth import in_space_to_depth
from fadiff.optimizer.realise.sums import realised_sum
from fadiff.optimizer.realise.tables_of_products import realised_table_of_product
from fadiff.optimizer.search import optimize

Realisation = Callable[[Graph, Layer, Target], Realised | None]
"""What may do a layer's work on a target, or None."""
Wanted = Callable[[Graph, Realised], bool]
"""Whether layers are to take the place of those in a graph."""

LEAST_GAIN = 0.9
"""Of the cycles before."""
EXACT: tuple[Realisation, ...] = (
    realised_sum,
    realised_average_pool,
    realised_channel_product,
    realised_max_pool,
    realised_table_of_product,
    in_space_to_depth,
    with_merged_columns,
)
"""The same bits."""
CLOSE: tuple[Realisation, ...] = (
    realised_norm,
    realised_softmax,
    realised_linear_map,
    realised_activation,
    realised_ramps,
)
"""As near to the float function, with other roundings."""


def realised_graph(
    graph: Graph, target: Target, realisations: Sequence[Realisation], wanted: Wanted
) -> Graph:
    """The graph with others in place of every layer for which they are wanted.

    Of several realisations of a layer the first that is wanted counts.
    """
    for layer in graph.layers:
        if graph.by_name.get(layer.name) is not layer or not layer.inputs:
            continue  # (a fill reads nothing)
        for realisation in realisations:
            realised = realisation(graph, layer, target)
            if realised is not None and wanted(graph, realised):
                graph = with_realised(graph, realised)
                break
    return graph


@dataclass(frozen=True)
class Tried:
    """What may do a layer's work, and the cycles of its layers and of those before, each alone."""

    layer: str
    op: str
    """Of the first layer replaced."""
    form: str
    exact: bool
    before: float
    after: float

    @property
    def is_quicker(self) -> bool:
        """Whether it takes clearly fewer cycles: other layers may fit their neighbours less well."""
        return self.after < LEAST_GAIN * self.before


class Quicker:
    """Wanted are layers whose programs, each layer alone, take clearly fewer cycles by the clock.

    Pools that the stores of a convolution do take none, if layers may be fused.
    """

    def __init__(self, target: Target, *, fusion: bool = True) -> None:
        self.target, self.fusion = target, fusion
        self._tried: dict[tuple[str, str], Tried] = {}
        self._known: dict[object, tuple[float, float]] = {}

    @property
    def tried(self) -> tuple[Tried, ...]:
        """All that it was asked for, once."""
        return tuple(self._tried.values())

    def __call__(self, graph: Graph, realised: Realised) -> bool:
        """Whether they are wanted in a graph."""
        replaced, layers = [graph.by_name[name] for name in realised.replaced], realised.layers
        names = (name for layer in replaced for name in (*layer.inputs, *layer.outputs))
        shapes = tuple(graph.tensors[name].shape for name in names)
        pooled = tuple(map(_kind, self._pools(graph, replaced)))
        key = (tuple(map(_kind, replaced)), pooled, tuple(map(_kind, layers)), shapes)
        if key not in self._known:
            changed = with_realised(graph, realised)
            self._known[key] = self._cycles(graph, replaced), self._cycles(changed, layers)
        first = replaced[0]
        tried = Tried(first.name, first.op, realised.form, realised.exact, *self._known[key])
        self._tried[first.name, realised.form] = tried
        return tried.is_quicker

    def _cycles(self, graph: Graph, layers: Sequence[Layer]) -> float:
        """Of the layers alone, by the clock, as they would be issued, and pools that their stores may do."""
        if self.fusion:
            layers = [layer for layer in layers if convolution_of(graph, layer) is None]
        pools = self._pools(graph, layers)
        layers = [*layers, *pools]
        written = {name for layer in layers for name in layer.outputs}
        read = dict.fromkeys(name for layer in layers for name in layer.inputs)
        given = [name for name in read if name not in written and not graph.tensors[name].constant]
        tensors = {name: graph.tensors[name] for name in (*read, *written)}
        part = Graph(graph.name, tensors, tuple(layers), tuple(given), layers[-1].outputs)
        try:
            method = "exact" if pools else "layerwise"
            schedule = optimize(part, self.target, method=method, residency=False).schedule
        except ScheduleError:  # memories too small for it
            return math.inf
        return sum(program_cycles(schedule).values())

    def _pools(self, graph: Graph, layers: Sequence[Layer]) -> list[Layer]:
        """Max pools that stores of these layers may do."""
        if not self.fusion:
            return []
        readers = [reader for layer in layers for name in layer.outputs for reader in graph.consumers(name)]
        return [reader for reader in readers if convolution_of(graph, reader) in layers]


def _kind(layer: Layer) -> object:
    """What tells its cycles from those of others of the same shapes."""
    if isinstance(layer, HostLayer):
        return layer.operator
    return (
        layer.dims,
        layer.op,
        layer.stride,
        layer.pads,
        layer.row_scale is None,
        layer.channel_scale is None,
    )
