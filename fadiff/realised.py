"""Host operators that run on the array instead, where that is quicker and no less accurate."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from fadiff.converter.ir.weight_file import WeightFile, is_large
from fadiff.converter.scratch_folder import scratch_folder
from fadiff.optimizer.realise.choice import CLOSE, EXACT, Quicker, Taken, Wanted, realised_graph
from fadiff.output_accuracy import output_accuracy
from fadiff.vectors import make_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from fadiff.console import Console
    from fadiff.converter import Conversion
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.realise.realised import Realised

MOST_LOST_DB = 0.2
"""Of the signal to noise of any output."""


def realised_conversion(conversion: Conversion, target: Target, console: Console) -> Conversion:
    """The conversion with other layers in place of host operators where the clock finds these quicker.

    Those that compute other integers are judged on the samples that calibrated, all together, then of each
    operator alone: the first that cost no output more than `MOST_LOST_DB` are taken.
    """
    graph = conversion.graph
    if graph.element_type == "float32" or not graph.inputs:
        return conversion
    with console.stage("realising host operators"):
        quicker, best = Quicker(target), graph
        every = _changes(graph, target, quicker)
        if not every:
            return conversion
        before, notes = _accuracy(conversion), []
        for operators in dict.fromkeys((every, *(frozenset({operator}) for operator in sorted(every)))):
            found = realised_graph(graph, target, CLOSE, _of(operators, quicker))
            after = _accuracy(replace(conversion, graph=found))
            gained = min((after[name] - before[name] for name in before if name in after), default=0.0)
            note = f"{' and '.join(sorted(operators))} on the array: {gained:+.1f} dB at the outputs"
            if gained >= -MOST_LOST_DB:
                notes.append(note)
                best = found
                break
            notes.append(f"{note}, so not taken")
    for note in notes:
        console.note(note)
    return replace(conversion, graph=best, notes=(*conversion.notes, *notes))


def realised_exactly(conversion: Conversion, target: Target, *, fusion: bool, console: Console) -> Conversion:
    """The conversion with other layers of the same bits in place of host operators, where the clock finds
    them quicker."""
    quicker = Quicker(target, fusion)
    with console.stage("realising host operators"):
        graph = realised_graph(conversion.graph, target, EXACT, quicker)
    notes = _notes(conversion.graph, quicker.taken)
    for note in notes:
        console.note(note)
    return replace(conversion, graph=graph, notes=(*conversion.notes, *notes))


def _notes(graph: Graph, taken: Sequence[Taken]) -> list[str]:
    """One for each kind of operator and what does its work."""
    kinds: dict[tuple[str, str], list[Taken]] = {}
    for one in taken:
        ops = {graph.by_name[name].op for name in one.realised.replaced}
        kinds.setdefault((" and ".join(sorted(ops)), one.realised.form), []).append(one)
    return [
        f"{len(ones)} x {op} as {form}, the same bits: {sum(one.before for one in ones):,.0f} cycles became "
        f"{sum(one.after for one in ones):,.0f}"
        for (op, form), ones in kinds.items()
    ]


def conversion_as_recorded(conversion: Conversion, document: ScheduleDocument) -> tuple[Conversion, Graph]:
    """The conversion with the layers of a schedule in place of host operators, but for those of the same
    bits; and the graph with these, too."""
    known = {(layer.name, layer.op) for layer in document.layers}

    def recorded(_: Graph, realised: Realised) -> bool:
        return all((layer.name, layer.op) in known for layer in realised.layers)

    close = realised_graph(conversion.graph, document.target, CLOSE, recorded)
    return replace(conversion, graph=close), realised_graph(close, document.target, EXACT, recorded)


def _of(operators: Set[str], wanted: Wanted) -> Wanted:
    """What is wanted in place of some operators."""
    return lambda graph, found: graph.by_name[found.replaced[0]].op in operators and wanted(graph, found)


def _changes(graph: Graph, target: Target, wanted: Wanted) -> frozenset[str]:
    """Operators in whose place something is wanted."""
    operators = set()

    def look(graph: Graph, found: Realised) -> bool:
        if wanted(graph, found):
            operators.add(graph.by_name[found.replaced[0]].op)
        return False

    realised_graph(graph, target, CLOSE, look)
    return frozenset(operators)


def _accuracy(conversion: Conversion) -> dict[str, float]:
    """Signal to noise of every output of the integers, in dB."""
    from fadiff.converter.check.reference import integer_reference, reference_session

    graph = conversion.graph
    with scratch_folder() as scratch:
        folder = scratch if is_large(graph) else None
        with WeightFile(folder / "weights.bin") if folder else nullcontext() as file:
            reference = integer_reference(graph, file=file)
        found = output_accuracy(make_vectors(conversion, None, 0), reference_session(reference, folder))
    return {one.output: one.sqnr_db for one in found.outputs if one.sqnr_db is not None}
