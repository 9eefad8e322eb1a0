"""Host operators that run on the array instead, where that costs less and is no less accurate.

One step between conversion and search, of every command that searches schedules which the C executes.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from heapq import heappop, heappush
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, get_args

from fadiff.converter.check.reference import integer_reference, reference_session
from fadiff.converter.folders import scratch_folder
from fadiff.converter.ir.stored import WeightFile, is_large
from fadiff.costmodel.schedule.conversion_record import RealisedRecord
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.realise.choice import CLOSE, EXACT, Cheaper, Tried, Wanted, realised_graph
from fadiff.output_accuracy import Expected, expected_outputs, judged_outputs
from fadiff.vectors import make_vectors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
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
"""Sets of layers that are judged, and layers that are judged one after the other."""


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

        Of layers that compute other integers a set is taken that costs nothing that a verdict looks at more
        than `MOST_LOST_DB`: of such sets the one that gains most by the objective.  Where not all of them may
        be, much is chance, so what other objectives take is looked at, too.
        """
        conversion = self.conversion
        if not search.is_executed or not conversion.graph.inputs:
            return RealisedModel(conversion, conversion.graph)
        with self.console.stage("realising host operators"):
            cheaper = Cheaper(conversion.graph, target, search)
            close, notes, refused = self._close(target, search, cheaper)
            graph = realised_graph(close, target, EXACT, cheaper)
        notes += _notes(cheaper.tried)
        for note in notes:
            self.console.note(note)
        changed = replace(conversion, graph=close, notes=(*conversion.notes, *notes))
        return RealisedModel(changed, graph, _records(cheaper.tried, refused))

    def _close(
        self, target: Target, search: SearchOptions, cheaper: Cheaper
    ) -> tuple[Graph, list[str], Collection[str]]:
        """The graph with layers of other integers, notes, and the layers for which these cost too much."""
        graph = self.conversion.graph
        gains = _gains(graph, target, cheaper)
        if graph.element_type == "float32" or not gains:
            return graph, [], ()
        before, every = self._accuracy(graph), frozenset(gains)

        def realised(names: Collection[str]) -> Graph:
            return realised_graph(graph, target, CLOSE, _of(names, cheaper))

        @cache  # (a run of the whole reference, and starts have sets in common)
        def gained(names: frozenset[str]) -> float:
            """By the outputs, in dB."""
            after = self._accuracy(realised(names))
            return min((after[name] - before[name] for name in before if name in after), default=0.0)

        def is_kept(names: frozenset[str]) -> bool:
            return gained(names) >= -MOST_LOST_DB

        def first(sets: Iterable[frozenset[str]]) -> frozenset[str]:
            return next(filter(is_kept, islice(sets, MOST_TRIED)), frozenset())

        def grown(names: frozenset[str]) -> frozenset[str]:
            for name in 2 * sorted(gains, key=gains.__getitem__, reverse=True)[:MOST_TRIED]:
                # what costs too much beside few others is tried beside all
                if name not in names and is_kept(names | {name}):
                    names |= {name}
            return names

        kept = first(most_first(gains))
        if not kept:
            starts = [kept, first(every - {name} for name in sorted(gains, key=gains.__getitem__))]
            for objective in (other for other in get_args(Objective) if other != search.objective):
                liked = _gains(graph, target, Cheaper(graph, target, replace(search, objective=objective)))
                starts.append(first(most_first({name: liked[name] for name in liked if name in every})))
            kept = max(
                map(grown, dict.fromkeys(starts)),
                key=lambda names: sum(gain for name, gain in gains.items() if name in names),
            )
        operators = sorted({graph.by_name[name].op for name in gains})
        note = f"{' and '.join(operators)} on the array: {gained(every):+.1f} dB at the outputs"
        if kept != every:
            which = (
                f"{len(kept)} of {len(every)}" if len(every - kept) > 1 else f"all but {min(every - kept)}"
            )
            note += f", so {which}: {gained(kept):+.1f} dB"
        return realised(kept), [note], every - kept

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


def _gains(graph: Graph, target: Target, cheaper: Cheaper) -> dict[str, float]:
    """Layers in whose place something of other integers is wanted, and what that gains by the objective."""
    realised_graph(graph, target, CLOSE, cheaper)
    return {one.layer: one.gain for one in cheaper.tried if one.is_cheaper and not one.exact}


def most_first(gains: Mapping[str, float]) -> Iterator[frozenset[str]]:
    """Sets of some that gain something, in the order of what they gain together: all of them first."""
    names = sorted(gains, key=gains.__getitem__)
    lost = [gains[name] for name in names]
    queue: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while queue:
        less, left_out = heappop(queue)
        yield frozenset(gains) - {names[i] for i in left_out}
        last = left_out[-1] if left_out else -1
        if last + 1 < len(names):
            heappush(queue, (less + lost[last + 1], (*left_out, last + 1)))
            if left_out:
                heappush(queue, (less + lost[last + 1] - lost[last], (*left_out[:-1], last + 1)))
