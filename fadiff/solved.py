"""A converted model with its schedule, and the record of both: what every output folder is written from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from fadiff.console import Console
from fadiff.errors import naming

if TYPE_CHECKING:
    from fadiff.converter import Conversion
    from fadiff.costmodel.schedule.conversion_record import ConversionRecord, FloatRecord, ReachRecord
    from fadiff.costmodel.schedule.document import ScheduleDocument, SearchRecord
    from fadiff.costmodel.schedule.schedule import Schedule
    from fadiff.costmodel.schedule.serialize import Bound
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer import SearchResult
    from fadiff.realised import Realiser
    from fadiff.search import DramLimit, SearchOptions
    from fadiff.vectors import TestVectors


@dataclass(frozen=True)
class Solved:
    """A model with its schedule, what is to be said of it, and what its program is compared with."""

    schedule: Schedule
    document: ScheduleDocument
    vectors: TestVectors


def solve(
    realise: Realiser, target: Target, search: SearchOptions, max_dram_bytes: DramLimit, console: Console
) -> Solved:
    """Search the schedule of a converted model.

    Raises:
        InputError, ScheduleError: the method cannot search these rules, or nothing is legal.
    """
    from fadiff.search import decide

    realised = realise(target, search)
    searched = replace(realised.conversion, graph=realised.graph)
    conversion, found = decide(searched, target, search, max_dram_bytes, console)
    # with the search's notes; layers of the same bits are checked against those that they replace
    conversion = replace(conversion, graph=realised.conversion.graph)
    vectors = replace(realise.vectors, conversion=conversion)
    record = front_end_record(vectors, console).model_copy(update={"realised": realised.records})
    return Solved(found.schedule, describe_search(found, record), vectors)


def as_given(realise: Realiser, given: ScheduleDocument, file: str, console: Console) -> Solved:
    """A converted model with the schedule of a file."""
    from fadiff.costmodel.schedule.serialize import schedule_from_document
    from fadiff.realised import conversion_as_recorded

    realised = conversion_as_recorded(realise.conversion, given)
    with naming(file):
        schedule = schedule_from_document(given, realised.graph)
    vectors = replace(realise.vectors, conversion=realised.conversion)
    record = front_end_record(vectors, console).model_copy(update={"realised": realised.records})
    return Solved(schedule, _describe_given(given, schedule, record), vectors)


def front_end_record(vectors: TestVectors, console: Console) -> ConversionRecord:
    """What the front end did, with the signal to noise that quantisation leaves in every tensor."""
    from fadiff.costmodel.schedule.conversion_record import ConversionRecord, QuantizationRecord
    from fadiff.costmodel.schedule.verdict import is_poor
    from fadiff.original import compare_with_file
    from fadiff.sensitivity import sensitivity

    conversion = vectors.conversion
    if conversion.graph.element_type == "float32":
        return ConversionRecord(notes=(*conversion.notes, *conversion.warnings))
    with console.stage("comparing int8 with float"):
        found = sensitivity(vectors)
        original = compare_with_file(vectors)
    if original:
        console.note(original)
    return ConversionRecord(
        notes=tuple(filter(None, (*conversion.notes, *conversion.warnings, found.note, original))),
        doubts=conversion.doubts,
        quantization=tuple(
            QuantizationRecord(tensor=name, sqnr_db=round(ratio, 2)) for name, ratio in found.sqnr_db.items()
        ),
        accuracy=found.accuracy,
        kept_float=_kept_float(conversion),
        reach=_reach(conversion) if is_poor(found.accuracy) else None,
        runtime_steps=found.runtime_steps,
    )


def _reach(conversion: Conversion) -> ReachRecord | None:
    from fadiff.costmodel.schedule.conversion_record import ReachRecord

    reach = conversion.reach
    if reach is None or reach.before_db is None or reach.after_db is None:
        return None
    return ReachRecord(before_db=reach.before_db, after_db=reach.after_db)


def _kept_float(conversion: Conversion) -> FloatRecord | None:
    from fadiff.costmodel.schedule.conversion_record import FloatRecord

    graph, mixed = conversion.graph, conversion.mixed
    kept = (x for x in graph.layers if x.op.startswith("float_") or graph.is_kept_float(x))
    layers = tuple(layer.name for layer in kept)
    states = tuple(s.input for s in graph.states if graph.tensors[s.input].dtype == "float32")
    if not layers:
        return None
    return FloatRecord(layers=layers, states=states, before_db=mixed.before_db, after_db=mixed.after_db)


def describe(
    schedule: Schedule,
    *,
    bound: Bound | None = None,
    search: SearchRecord | None = None,
    conversion: ConversionRecord | None = None,
) -> ScheduleDocument:
    """schedule.json of a schedule, costed here."""
    from fadiff.costmodel.schedule.evaluate import evaluate
    from fadiff.costmodel.schedule.serialize import to_document

    return to_document(
        schedule,
        evaluate(schedule),
        generator=f"fadiff {version('fadiff')}",
        bound=bound,
        search=search,
        conversion=conversion,
    )


def _describe_given(
    given: ScheduleDocument, schedule: Schedule, conversion: ConversionRecord
) -> ScheduleDocument:
    """schedule.json of a schedule that was given; how it was found stays only if its cost is what it was."""
    document = describe(schedule, conversion=conversion)
    if document.totals.edp_uj_cycles != given.totals.edp_uj_cycles:
        return document
    return document.model_copy(update={"search": given.search})


def describe_search(found: SearchResult, conversion: ConversionRecord | None = None) -> ScheduleDocument:
    """schedule.json of what a search found, with its history and bound."""
    from fadiff.costmodel.schedule.document import HistoryPoint, SearchRecord
    from fadiff.costmodel.schedule.serialize import Bound

    settings = found.settings
    record = SearchRecord(
        method=settings.method,
        objective=settings.objective,
        tiling=settings.tiling,
        seed=settings.seed,
        seconds=round(found.seconds, 3),
        steps=found.steps,
        automatic_dram_bytes=found.automatic_bytes,
        unfused_dram_bytes=found.unfused_bytes,
        history=tuple(
            HistoryPoint(seconds=round(point.seconds, 3), step=point.step, edp_uj_cycles=point.best_edp)
            for point in found.history
        ),
    )
    has_bound = settings.objective == "edp" and found.lower_bound > 0
    bound = Bound(found.lower_bound, found.bound) if has_bound else None
    return describe(found.schedule, bound=bound, search=record, conversion=conversion)
