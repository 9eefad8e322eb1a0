"""Host operators that run on the array instead, where that costs less and is no less accurate.

One step between conversion and search, of every command that searches schedules which the C executes.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING

from fadiff.converter.check.reference import integer_reference, reference_session
from fadiff.converter.folders import scratch_folder
from fadiff.converter.ir.stored import WeightFile, is_large
from fadiff.costmodel.schedule.conversion_record import RealisedRecord
from fadiff.optimizer.realise.choice import CLOSE, EXACT, Cheaper, Tried, Wanted, realised_graph
from fadiff.output_accuracy import Expected, expected_outputs, judged_outputs
from fadiff.vectors import make_vectors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from fadiff.console import Console
    from fadiff.converter import Conversion
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.realise.realised import Realised
    from fadiff.search import SearchOptions
    from fadiff.vectors import TestVectors

MOST_LOST_DB = 0.2
"""Of what a verdict looks at: any output, nine samples in ten of it, or a part of it."""


MOST_TRIED = 16
"""Layers that are judged one after the other."""


@dataclass(frozen=True)
class RealisedModel:
    """A conversion with other layers in place of host operators."""

    conversion: Conversion
    """With those that compute other integers: what a program's tensors are compared with."""
    graph: Graph
    """With those of the same bits, too: what is searched."""
    records: tuple[RealisedRecord, ...] = ()
    """Of every layer for which there is another form, taken or not."""


@dataclass
class Realiser:
    """Puts other layers in place of a conversion's host operators, target by target."""

    conversion: Conversion
    console: Console
    test_inputs: Path | None = None
    """What a verdict judges by; None: the samples that calibrated."""
    given: TestVectors | None = None
    """Vectors that were made before, instead of that file."""
    _known: dict[object, Mapping[str, float]] = field(default_factory=dict, repr=False)

    @cached_property
    def vectors(self) -> TestVectors:
        """The test inputs, or random ones.

        Raises:
            InputError, ModelError: the model has no inputs, or the file does not fit them.
        """
        if self.given is not None:
            return self.given
        return make_vectors(self.conversion, self.test_inputs, seed=0)

    @cached_property
    def _expected(self) -> Expected:
        """What the float model makes of them, once for all graphs."""
        return expected_outputs(replace(self.vectors, conversion=self.conversion))

    def __call__(self, target: Target, search: SearchOptions) -> RealisedModel:
        """What a search for that target is given: the graph as it is where no C executes what is found.

        Layers that compute other integers are judged all together; where they cost anything that a verdict
        looks at more than `MOST_LOST_DB`, all but one, that which gains least cycles first; then one after
        the other, those that gain most first, and those that cost too much once more beside all that did
        not: near the limit much is chance.
        """
        conversion = self.conversion
        if not search.is_executed or not conversion.graph.inputs:
            return RealisedModel(conversion, conversion.graph)
        with self.console.stage("realising host operators"):
            cheaper = Cheaper(conversion.graph, target, search)
            close, notes, refused = self._close(target, cheaper)
            graph = realised_graph(close, target, EXACT, cheaper)
        notes += _notes(cheaper.tried)
        for note in notes:
            self.console.note(note)
        changed = replace(conversion, graph=close, notes=(*conversion.notes, *notes))
        return RealisedModel(changed, graph, _records(cheaper.tried, refused))

    def _close(self, target: Target, cheaper: Cheaper) -> tuple[Graph, list[str], Collection[str]]:
        """The graph with layers of other integers, notes, and the layers for which these cost too much."""
        graph = self.conversion.graph
        names = _candidates(graph, target, cheaper)
        if graph.element_type == "float32" or not names:
            return graph, [], ()
        before = self._accuracy(graph)

        def realised(wanted: Collection[str]) -> tuple[Graph, float]:
            """The graph with some of them, and what its outputs gain, in dB."""
            found = realised_graph(graph, target, CLOSE, _of(wanted, cheaper))
            after = self._accuracy(found)
            return found, min((after[name] - before[name] for name in before if name in after), default=0.0)

        found, gained = realised(names)
        operators = sorted({graph.by_name[name].op for name in names})
        note = f"{' and '.join(operators)} on the array: {gained:+.1f} dB at the outputs"
        if gained >= -MOST_LOST_DB:
            return found, [note], ()
        for name in names[: -MOST_TRIED - 1 : -1]:
            found, without = realised([other for other in names if other != name])
            if without >= -MOST_LOST_DB:
                return found, [f"{note}, so all but {name}: {without:+.1f} dB"], {name}
        kept, last, best = list[str](), 0.0, graph
        for name in 2 * names[:MOST_TRIED]:  # what cost too much beside few others is tried beside all
            if name in kept:
                continue
            found, gained = realised([*kept, name])
            if gained >= -MOST_LOST_DB:
                kept, last, best = [*kept, name], gained, found
        note = f"{note}, so {len(kept)} of {len(names)}: {last:+.1f} dB"
        return best, [note], set(names) - set(kept)

    def _accuracy(self, graph: Graph) -> Mapping[str, float]:
        """What a verdict looks at of a graph's outputs, in dB."""
        layers = tuple((layer.name, layer.op) for layer in graph.layers)
        if layers not in self._known:
            changed = replace(self.vectors, conversion=replace(self.conversion, graph=graph))
            self._known[layers] = _accuracy(changed, self._expected)
        return self._known[layers]


def conversion_as_recorded(conversion: Conversion, document: ScheduleDocument) -> RealisedModel:
    """The conversion with the layers of a schedule in place of host operators."""
    known = {(layer.name, layer.op) for layer in document.layers}

    def recorded(_: Graph, realised: Realised) -> bool:
        return all((layer.name, layer.op) in known for layer in realised.layers)

    close = realised_graph(conversion.graph, document.target, CLOSE, recorded)
    graph = realised_graph(close, document.target, EXACT, recorded)
    return RealisedModel(replace(conversion, graph=close), graph, document.conversion.realised)


def _accuracy(vectors: TestVectors, expected: Expected) -> Mapping[str, float]:
    graph = vectors.conversion.graph
    with scratch_folder() as scratch:
        folder = scratch if is_large(graph) else None
        with WeightFile(folder / "weights.bin") if folder else nullcontext() as file:
            reference = integer_reference(graph, file=file)
        found = judged_outputs(vectors, reference_session(reference, folder), expected)
    figures: dict[str, float | None] = {}
    for output in found:
        figures[output.output], figures[f"{output.output}, nine in ten"] = output.sqnr_db, output.tenth_db
        figures.update({f"{output.output}, {part.part}": part.sqnr_db for part in output.parts})
    return {name: figure for name, figure in figures.items() if figure is not None}


def _notes(tried: Collection[Tried]) -> list[str]:
    """One for each kind of operator and what does its work with the same bits."""
    kinds: dict[tuple[str, str], list[Tried]] = {}
    for one in tried:
        if one.is_cheaper and one.exact:
            kinds.setdefault((one.op, one.form), []).append(one)
    return [
        f"{len(ones)} x {op} as {form}, the same bits: {sum(one.before for one in ones):,.0f} cycles became "
        f"{sum(one.after for one in ones):,.0f}"
        for (op, form), ones in kinds.items()
    ]


def _records(tried: Collection[Tried], refused: Collection[str]) -> tuple[RealisedRecord, ...]:
    def why(one: Tried) -> str:
        if not one.is_cheaper:
            return "not cheaper"
        return "less accurate" if one.layer in refused else "cheaper"

    return tuple(
        RealisedRecord(
            layer=one.layer,
            op=one.op,
            form=one.form,
            cycles_before=round(one.before),
            cycles_after=round(one.after),
            taken=why(one) == "cheaper",
            why=why(one),
        )
        for one in tried
        if isfinite(one.after)
    )


def _of(names: Collection[str], wanted: Wanted) -> Wanted:
    """What is wanted in place of some layers."""
    return lambda graph, found: found.replaced[0] in names and wanted(graph, found)


def _candidates(graph: Graph, target: Target, cheaper: Cheaper) -> list[str]:
    """Layers in whose place something of other integers is wanted, those that gain most cycles first."""
    realised_graph(graph, target, CLOSE, cheaper)
    tried = sorted(cheaper.tried, key=lambda one: one.after - one.before)
    return [one.layer for one in tried if one.is_cheaper and not one.exact]
