"""Schedules of programs that were timed on RTL, kept because a later search decides otherwise.

Layers that were one call of gemmini.h then are read as loops over the same tiles.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fadiff.converter.ir.graph import Graph, Layer, TensorCoreLayer
from fadiff.costmodel.schedule.document import MappingRecord
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.group_records import FusionRecord
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.optimizer.realise.choice import CLOSE, EXACT, realised_graph
from fadiff.optimizer.realise.realised import Realised

SCHEDULES = Path(__file__).parent / "rtl_schedules.json"
"""By digest: the layers, the mapping of each on the array, how additions are issued, and the groups."""

Decisions = dict[str, dict[str, Any]]


def read_decisions(path: Path = SCHEDULES) -> Decisions:
    """All that are kept; none where there is no file."""
    found: Decisions = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write_decisions(decisions: Decisions, path: Path = SCHEDULES) -> None:
    """One line each, sorted."""
    lines = (f" {json.dumps(name)}: {json.dumps(decisions[name])}" for name in sorted(decisions))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def decision_of(schedule: Schedule) -> dict[str, Any]:
    """What `recalled` reads."""
    document = to_document(schedule, evaluate(schedule), generator="")
    return {
        "layers": {layer.name: _kind(layer) for layer in schedule.graph.layers},
        "mappings": {
            layer.name: layer.mapping.model_dump(mode="json", exclude={"by_core"})
            for layer in document.layers
            if layer.mapping is not None
        },
        "additions": {layer.name: layer.issue for layer in document.layers if layer.issue is not None},
        "fusion": document.fusion.model_dump(mode="json"),
    }


def recalled(decision: dict[str, Any], graph: Graph, target: Target) -> Schedule:
    """The schedule of a kept decision, on the graph as converted, with the same layers on the array.

    Raises:
        ScheduleFileError, ScheduleError: the graph has other layers now, or the decision is illegal on it.
    """
    layers = decision.get("layers", {})  # none where nothing was in the place of others

    def recorded(_: Graph, realised: Realised) -> bool:
        return all(layers.get(layer.name) == _kind(layer) for layer in realised.layers)

    for realisations in (CLOSE, EXACT):
        graph = realised_graph(graph, target, realisations, recorded)
    any_schedule = automatic_schedule(graph, target, row_packing=True)
    document = to_document(any_schedule, evaluate(any_schedule), generator="")
    layers = tuple(
        layer.model_copy(update={"mapping": MappingRecord.model_validate(decision["mappings"][layer.name])})
        if layer.name in decision["mappings"]
        else layer.model_copy(update={"issue": decision["additions"].get(layer.name)})
        for layer in document.layers
    )
    fusion = FusionRecord.model_validate(decision["fusion"])
    return schedule_from_document(document.model_copy(update={"layers": layers, "fusion": fusion}), graph)


def _kind(layer: Layer) -> list[str | int]:
    return [layer.op, *(layer.dims if isinstance(layer, TensorCoreLayer) else ())]
