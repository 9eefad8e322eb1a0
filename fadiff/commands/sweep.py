"""`fadiff sweep`: which hardware for these models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fadiff.commands.options import FILE, PATH, cache_option, console_options, named_search_options
from fadiff.commands.reading import bound_dims, dim_option
from fadiff.console import Console
from fadiff.output import check_new
from fadiff.workers import workers

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import ElementType
    from fadiff.costmodel.schedule.schedule import LatencyModel
    from fadiff.design_space import Design, Result


@click.command()
@click.argument("space", metavar="SPACE.yaml", type=PATH)
@click.argument("models", metavar="MODEL.onnx...", nargs=-1, required=True, type=PATH)
@dim_option
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Local processes.")
@click.option(
    "--cluster", metavar="ADDRESS", help="Run on this Dask scheduler instead (needs fadiff[cluster])."
)
@click.option(
    "-o",
    "--out",
    metavar="FILE.csv",
    type=FILE,
    help="All results as CSV, row by row as they come; a file that is there already is completed.",
)
@click.option("--force", is_flag=True, help="Begin the CSV file anew.")
@cache_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def sweep(
    console: Console,
    space: Path,
    models: tuple[Path, ...],
    dims: tuple[tuple[str, int], ...],
    jobs: int,
    cluster: str | None,
    out: Path | None,
    force: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Search MODEL.onnx on every design of SPACE.yaml and list EDP, energy and latency.

    A point that fails is a row with its problem. With --out a sweep that was ended, however, goes on where it
    was when it is started again. Layers that designs have in common are solved once.

    \b
    A design space:
      base: gemmini-default
      vary:
        side: [8, 16, 32]
        scratchpad_bytes: [131072, 262144]
      search: {time_budget: 5}
    \b
    Example:
      fadiff sweep space.yaml resnet18.onnx vgg16.onnx --jobs 4 -o sweep.csv
    """
    from fadiff.converter import convert
    from fadiff.design_space import Result, designs, explore, key, read_space, without_weights
    from fadiff.sweep_table import SweepTable

    described = read_space(space)
    search = named_search_options(described.search, space)
    designed = list(designs(described, space))
    if out is not None:
        check_new(out, force=True)
    bound = bound_dims(dims)
    points = [(model, design, key(model, design, search, bound)) for model in models for design in designed]
    columns = list(_row("", designed[0], Result(), search.latency))
    layers = known = 0
    with SweepTable(out, columns, force=force) as table:
        left = [point for point in points if point[2] not in table.rows]
        if done := len(points) - len(left):
            console.note(f"{out} has {done} of {len(points)} points already")
        graphs = {}
        for model, element in dict.fromkeys((model, _element(design)) for model, design, _ in left):
            with console.stage(f"converting {model.name} ({element})"):
                conversion = convert(model, element=element, dims=bound, progress=console.update)
                graphs[model, element] = without_weights(conversion.graph)
        work = [(graphs[model, _element(design)], design, search, cache) for model, design, _ in left]
        with (
            console.stage(f"searching {len(designed)} designs x {len(models)} models"),
            workers(jobs, cluster) as submit,
        ):
            for count, (index, ended) in enumerate(submit(explore, work), start=1):
                model, design, point = left[index]
                result = ended if isinstance(ended, Result) else Result.failed(ended)
                layers, known = layers + result.layers, known + result.known
                table.add(point, _row(model.stem, design, result, search.latency))
                console.update(f"{count} of {len(work)}: {model.stem} {design.changes}")
        table.sort([point for _, _, point in points])
        rows = [
            _row(model.stem, design, Result.of_row(table.rows[point]), search.latency)
            for model, design, point in points
        ]
    if known:
        console.note(f"{known:,} of {layers:,} layers were solved before: {cache} (--no-cache: not used)")
    if out is not None:
        console.note(f"wrote {out}")
    if failed := sum("internal error" in row["problem"] for row in rows):
        console.warn(f"{failed} of {len(rows)} points ended with an internal error: see the column problem")
    if as_json:
        console.result(json.dumps(rows, indent=2))
    else:
        _print(console, rows)
        for error in dict.fromkeys(row["latency_error"] for row in rows if row["latency_error"]):
            console.result(f"latency by the {search.latency} model: {error}")


def _element(design: Design) -> ElementType:
    return design.target.element_type if design.target else "int8"


def _row(model: str, design: Design, result: Result, latency: LatencyModel) -> dict[str, Any]:
    from fadiff.costmodel.latency.clock import error_against_rtl

    return {
        "model": model,
        **design.changes,
        "edp_uj_cycles": result.edp_uj_cycles,
        "energy_uj": result.energy_uj,
        "latency_cycles": result.latency_cycles,
        "latency_error": error_against_rtl(latency, design.target) if design.target else "",
        "problem": result.problem,
    }


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    shown = [key for key in rows[0] if key != "latency_error"]
    best_first = sorted(rows, key=lambda r: (r["model"], r["edp_uj_cycles"] or float("inf")))
    console.table(shown, ([_cell(row[key]) for key in shown] for row in best_first))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value if value is not None else "")
