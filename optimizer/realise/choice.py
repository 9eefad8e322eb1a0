"""Which host operators become other layers: those whose programs the clock finds shorter so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.finish.issue import with_issues
from fadiff.optimizer.realise.norms import realised_norm
from fadiff.optimizer.realise.realised import Realised, with_realised
from fadiff.optimizer.realise.softmax import realised_softmax
from fadiff.optimizer.search import optimize

Realisation = Callable[[Graph, HostLayer, Target], Realised | None]
"""What may do a host operator's work on a target, or None."""
Wanted = Callable[[Graph, Realised], bool]
"""Whether layers are to take the place of those in a graph."""

REALISATIONS: tuple[Realisation, ...] = (realised_norm, realised_softmax)
"""Of a layer the first that is wanted counts."""


def realised_graph(graph: Graph, target: Target, wanted: Wanted) -> Graph:
    """The graph with other layers in place of every host operator for which they are wanted."""
    for layer in graph.layers:
        if not isinstance(layer, HostLayer) or graph.by_name.get(layer.name) is not layer:
            continue
        for realisation in REALISATIONS:
            realised = realisation(graph, layer, target)
            if realised is not None and wanted(graph, realised):
                graph = with_realised(graph, realised)
                break
    return graph


def quicker_on(target: Target) -> Wanted:
    """Wanted are layers whose programs, each layer alone, take fewer cycles by the clock."""
    known: dict[object, bool] = {}

    def wanted(graph: Graph, realised: Realised) -> bool:
        before, after = [graph.by_name[name] for name in realised.replaced], realised.layers
        names = (name for layer in before for name in (*layer.inputs, *layer.outputs))
        shapes = tuple(graph.tensors[name].shape for name in names)
        key = (tuple(map(_kind, before)), tuple(map(_kind, after)), shapes)
        if key not in known:
            changed = with_realised(graph, realised)
            known[key] = _cycles(changed, after, target) < _cycles(graph, before, target)
        return known[key]

    return wanted


def _kind(layer: Layer) -> object:
    return layer.operator if isinstance(layer, HostLayer) else layer.dims


def _cycles(graph: Graph, layers: Sequence[Layer], target: Target) -> float:
    """Of the layers alone, by the clock, as they would be issued."""
    written = {name for layer in layers for name in layer.outputs}
    read = dict.fromkeys(name for layer in layers for name in layer.inputs)
    given = [name for name in read if name not in written and not graph.tensors[name].constant]
    tensors = {name: graph.tensors[name] for name in (*read, *written)}
    part = Graph(graph.name, tensors, tuple(layers), tuple(given), layers[-1].outputs)
    schedule = optimize(part, target, method="layerwise").schedule
    return sum(program_cycles(with_issues(schedule, None, "edp", residency=False)).values())
