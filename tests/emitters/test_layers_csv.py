"""layers.csv says what schedule.json says, one line per layer."""

from __future__ import annotations

import csv
import io

from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.serialize import to_document
from fadiff.emitters.layers_csv import layers_csv
from tests.costmodel.schedules import alone, residual


def rows_of(document: ScheduleDocument) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(layers_csv(document))))


def test_sums_are_the_totals() -> None:
    schedule = alone(residual(), ("A", "S"))
    document = to_document(schedule, evaluate(schedule), generator="test")
    rows = rows_of(document)
    assert [row["layer"] for row in rows] == [layer.name for layer in document.layers]
    assert sum(int(row["dram_bytes"]) for row in rows) == document.totals.dram_bytes
    assert sum(int(row["macs"]) for row in rows) == document.totals.macs
    assert abs(sum(float(row["energy_pj"]) for row in rows) - document.totals.energy_pj) <= len(rows)
    assert all(bool(row["accumulator_tile"]) == (int(row["macs"]) > 0) for row in rows)


def test_no_spreadsheet_takes_a_name_for_a_formula() -> None:
    schedule = alone(residual(), ())
    document = to_document(schedule, evaluate(schedule), generator="test")
    evil = document.layers[0].model_copy(update={"name": "=HYPERLINK(1)"})
    groups = (("=HYPERLINK(1)",), *document.fusion.groups[1:])
    fusion = document.fusion.model_copy(update={"groups": groups})
    layers = (evil, *document.layers[1:])
    rows = rows_of(document.model_copy(update={"layers": layers, "fusion": fusion}))
    assert rows[0]["layer"] == "'=HYPERLINK(1)"
