"""Host operators that run on the array instead, where that is quicker and no less accurate."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from fadiff.converter.ir.weight_file import WeightFile, is_large
from fadiff.converter.scratch_folder import scratch_folder
from fadiff.optimizer.realise.choice import quicker_on, realised_graph
from fadiff.output_accuracy import output_accuracy
from fadiff.vectors import TestVectors

if TYPE_CHECKING:
    from fadiff.console import Console
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.realise.realised import Realised

MOST_LOST_DB = 0.2
"""Of the signal to noise of any output."""


def realised_vectors(vectors: TestVectors, target: Target, console: Console) -> TestVectors:
    """The vectors, of a conversion with other layers in place of host operators where the clock finds these
    quicker; the same if an output then loses accuracy."""
    graph = vectors.conversion.graph
    if graph.element_type == "float32":
        return vectors
    with console.stage("realising host operators"):
        found = realised_graph(graph, target, quicker_on(target))
        if found is graph:
            return vectors
        realised = _with_graph(vectors, found)
        before, after = _accuracy(vectors), _accuracy(realised)
    moved = sum(
        layer.name not in found.by_name or layer.op != found.by_name[layer.name].op for layer in graph.layers
    )
    gained = min((after[name] - before[name] for name in before if name in after), default=0.0)
    kept = gained < -MOST_LOST_DB
    note = f"{moved} norms and softmaxes as products with a scale per row: {gained:+.1f} dB at the outputs"
    note += ", so they stay on the core" if kept else ""
    console.note(note)
    return _with_graph(vectors, graph if kept else found, note)


def vectors_as_recorded(vectors: TestVectors, document: ScheduleDocument) -> TestVectors:
    """The vectors, of a conversion that has the layers of a schedule in place of host operators."""
    known = {(layer.name, layer.op) for layer in document.layers}

    def recorded(_: Graph, realised: Realised) -> bool:
        return all((layer.name, layer.op) in known for layer in realised.layers)

    return _with_graph(vectors, realised_graph(vectors.conversion.graph, document.target, recorded))


def _with_graph(vectors: TestVectors, graph: Graph, *notes: str) -> TestVectors:
    conversion = vectors.conversion
    return replace(vectors, conversion=replace(conversion, graph=graph, notes=(*conversion.notes, *notes)))


def _accuracy(vectors: TestVectors) -> dict[str, float]:
    """Signal to noise of every output of the integers, in dB."""
    from fadiff.converter.check.reference import integer_reference, reference_session

    graph = vectors.conversion.graph
    with scratch_folder() as scratch:
        folder = scratch if is_large(graph) else None
        with WeightFile(folder / "weights.bin") if folder else nullcontext() as file:
            reference = integer_reference(graph, file=file)
        found = output_accuracy(vectors, reference_session(reference, folder))
    return {one.output: one.sqnr_db for one in found.outputs if one.sqnr_db is not None}
