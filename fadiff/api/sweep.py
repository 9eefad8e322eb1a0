"""`sweep`: which hardware for these models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fadiff.console import Console
from fadiff.costmodel.nests.machine import Machine
from fadiff.design_space import (
    Result,
    base_hardware,
    designs,
    explore,
    key,
    named_search,
    read_space,
    without_weights,
)
from fadiff.optimizer.mapping_methods import MapOptions
from fadiff.output import check_new
from fadiff.pipeline import ModelOptions, convert_with, realiser
from fadiff.sweep_table import SweepTable
from fadiff.workers import workers

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import ElementType, Graph
    from fadiff.costmodel.schedule.schedule import LatencyModel
    from fadiff.design_space import Design, Search
    from fadiff.optimizer.codesign.area import Area
    from fadiff.realised import Realiser


@dataclass(frozen=True)
class Sweep:
    """One record per model and design, in the order of the space; one that failed has its `problem`."""

    rows: list[dict[str, Any]]
    latency: LatencyModel | None
    """How cycles were counted; None: as Timeloop does."""

    @property
    def dots(self) -> list[tuple[float, float, str]]:
        """Area in mm^2, EDP and name of every point that has a schedule."""
        described = ("model", "edp_uj_cycles", "energy_uj", "latency_cycles", "latency_error", "problem")
        return [
            (
                row["area_mm2"],
                row["edp_uj_cycles"],
                ", ".join([row["model"], *(f"{n} {v}" for n, v in row.items() if n not in described)]),
            )
            for row in self.rows
            if row["edp_uj_cycles"] is not None
        ]


def sweep(
    space: str | Path,
    models: Sequence[str | Path],
    *,
    dims: Mapping[str, int] | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Sweep:
    """Search every model on every design of a space.

    Args:
        space: YAML file (`fadiff.design_space`).
        models: ONNX files.
        dims: Sizes of symbolic dimensions.
        jobs: Processes on this machine.
        cluster: Address of a Dask scheduler to run on instead.
        out: CSV file for the rows, as they come; one that is there already is completed.
        force: Begin that file anew.
        console: Where progress goes.

    Raises:
        InputError: the space, a model, or the CSV file cannot be used.
    """
    console = console or Console(verbosity=-1)
    space, files = Path(space), [Path(model) for model in models]
    table_file, bound = None if out is None else Path(out), dims or {}
    described = read_space(space)
    area = described.area
    base = base_hardware(described, space)
    search = named_search(described.search, space, base)
    designed = list(designs(described, space, base))
    if table_file is not None:
        check_new(table_file, force=True)
    points = [(model, design, key(model, design, search, bound)) for model in files for design in designed]
    columns = list(_row("", designed[0], Result(), search, area))
    with SweepTable(table_file, columns, force=force) as table:
        left = [point for point in points if point[2] not in table.rows]
        if done := len(points) - len(left):
            console.note(f"{out} has {done} of {len(points)} points already")
        realisers, reading = {}, ModelOptions(dims=bound)
        for model, element in dict.fromkeys((model, _element(design)) for model, design, _ in left):
            with console.stage(f"converting {model.name} ({element})"):
                calibrate = not isinstance(base, Machine)  # (Timeloop counts no integers)
                conversion = convert_with(model, reading, console, element=element, calibrate=calibrate)
            quiet = Console(verbosity=-1)  # (else a note for every design)
            realisers[model, element] = realiser(conversion, model, reading, quiet)
        with console.stage(f"realising host operators on {len(designed)} designs"):
            work = [
                (_graph(realisers[model, _element(design)], design, search), design, search)
                for model, design, _ in left
            ]
        with (
            console.stage(f"searching {len(designed)} designs x {len(files)} models"),
            workers(jobs, cluster) as submit,
        ):
            for count, (index, ended) in enumerate(submit(explore, work), start=1):
                model, design, point = left[index]
                result = ended if isinstance(ended, Result) else Result.failed(ended)
                table.add(point, _row(model.stem, design, result, search, area))
                console.update(f"{count} of {len(work)}: {model.stem} {design.changes}")
        table.sort([point for _, _, point in points])
        rows = [
            _row(model.stem, design, Result.of_row(table.rows[point]), search, area)
            for model, design, point in points
        ]
    if out is not None:
        console.note(f"wrote {out}")
    if failed := sum("internal error" in row["problem"] for row in rows):
        console.warn(f"{failed} of {len(rows)} points ended with an internal error: see the column problem")
    return Sweep(rows, None if isinstance(search, MapOptions) else search.latency)


def _graph(realise: Realiser, design: Design, search: Search) -> Graph:
    """What is searched on a design; any graph for one that cannot exist."""
    if design.hardware is None or isinstance(design.hardware, Machine) or isinstance(search, MapOptions):
        return without_weights(realise.conversion.graph)
    return without_weights(realise(design.hardware, search).graph)


def _element(design: Design) -> ElementType:
    hardware = design.hardware
    return "int8" if hardware is None or isinstance(hardware, Machine) else hardware.element_type


def _row(model: str, design: Design, result: Result, search: Search, area: Area) -> dict[str, Any]:
    from fadiff.costmodel.latency.clock import error_against_rtl

    hardware, error = design.hardware, ""
    if hardware is not None and not isinstance(hardware, Machine) and not isinstance(search, MapOptions):
        error = error_against_rtl(search.latency, hardware)
    return {
        "model": model,
        **design.changes,
        "area_mm2": None if hardware is None else round(area.of(hardware), 4),
        "edp_uj_cycles": result.edp_uj_cycles,
        "energy_uj": result.energy_uj,
        "latency_cycles": result.latency_cycles,
        "latency_error": error,
        "problem": result.problem,
    }
