"""`fadiff sweep`: which hardware for these models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fadiff.commands.options import FILE, PATH, console_options
from fadiff.commands.reading import bound_dims, dim_option
from fadiff.console import Console

if TYPE_CHECKING:
    from fadiff.api.sweep import Sweep


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
@click.option(
    "--plot", metavar="FILE.svg|html", type=FILE, help="EDP against area, and the front of the best designs."
)
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
    plot: Path | None,
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
    The base may be a machine of `fadiff map`, its sizes named like buffer.entries or rows.meshY.
    \b
    Examples:
      fadiff sweep space.yaml resnet18.onnx vgg16.onnx --jobs 4 -o sweep.csv
      fadiff sweep space.yaml resnet18.onnx --plot front.html
    """
    from fadiff.api.sweep import sweep as swept
    from fadiff.commands.plots import check_plot, write_plot

    check_plot(plot)
    found = swept(
        space,
        models,
        dims=bound_dims(dims),
        jobs=jobs,
        cluster=cluster,
        out=out,
        force=force,
        console=console,
    )
    if plot is not None:
        from fadiff.emitters.report.charts import front_plot

        write_plot(console, plot, front_plot(found.dots), f"{space.stem}: hardware", found.rows)
    if as_json:
        console.result(json.dumps(found.rows, indent=2))
    else:
        _print(console, found)


def _print(console: Console, found: Sweep) -> None:
    shown = [key for key in found.rows[0] if key != "latency_error"]
    best_first = sorted(found.rows, key=lambda r: (r["model"], r["edp_uj_cycles"] or float("inf")))
    console.table(shown, ([_cell(row[key]) for key in shown] for row in best_first))
    for error in dict.fromkeys(row["latency_error"] for row in found.rows if row["latency_error"]):
        console.result(f"latency by the {found.latency} model: {error}")


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value if value is not None else "")
