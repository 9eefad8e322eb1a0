"""`fadiff compare`: search methods side by side, same evaluator, same budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fadiff.commands.options import (
    FILE,
    METHODS,
    console_options,
    model_argument,
    search_options,
    target_option,
)
from fadiff.commands.reading import cut_options, dim_option, one_reading, quantize_options, state_options
from fadiff.console import Console, numbers
from fadiff.errors import InputError
from fadiff.output import check_new

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.schedule import LatencyModel
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer import SearchResult
    from fadiff.pipeline import ModelOptions


@click.command()
@model_argument
@target_option()
@click.option("--methods", default=",".join(METHODS), show_default=True, help="Comma-separated.")
@quantize_options
@search_options
@dim_option
@cut_options
@state_options
@click.option("--plot", metavar="FILE.svg", type=FILE, help="EDP against time.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
@one_reading
def compare(
    console: Console,
    model: Path,
    target: Target,
    methods: str,
    reading: ModelOptions,
    plot: Path | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Run several search methods on MODEL.onnx and list what each found.

    All methods are scored by the same exact evaluator under the same rules and time budget.  One that finds
    no schedule is left out, with a warning that says why.

    \b
    Examples:
      fadiff compare resnet18.onnx --target gemmini-large --time-budget 20
      fadiff compare resnet18.onnx --methods auto,layerwise,gemmini-auto --plot curves.svg
    """
    from fadiff.costmodel.group.fusion import ScheduleError
    from fadiff.pipeline import read_model
    from fadiff.search import SearchOptions, find_schedule

    wanted = {name.strip() for name in methods.split(",") if name.strip()}
    chosen = [name for name in METHODS if name in wanted]
    if len(chosen) != len(wanted) or not chosen:
        raise InputError(f"--methods {methods}: choose from {', '.join(METHODS)}")
    if plot is not None:
        if plot.suffix != ".svg":
            raise InputError(f"--plot {plot}: the plot is SVG: give a name that ends in .svg")
        check_new(plot, force=True)
    given = [SearchOptions(**search, method=name) for name in chosen]
    able = [options for options in given if not options.obstacle]
    if not able:
        raise InputError(given[0].obstacle)
    for options in given:
        if options.obstacle:
            console.warn(f"{options.obstacle} (left out)")
    conversion = read_model(model, target, reading, console)
    found: dict[str, SearchResult] = {}
    refused: dict[str, list[str]] = {}
    for options in able:
        try:
            found[options.method] = find_schedule(conversion.graph, target, options, console)
        except (InputError, ScheduleError) as error:  # an extra is missing, or its tiles do not fit
            refused.setdefault(str(error), []).append(options.method)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in refused.items()]
    if not found:
        raise InputError("; ".join(reasons))
    for reason in reasons:
        console.warn(f"{reason} (left out)")
    if plot is not None:
        from fadiff.emitters.report.charts import method_curves

        curves = {
            name: [
                *((point.seconds, point.best_edp) for point in result.history),
                (result.seconds, result.cost.edp_uj_cycles),  # all that methods without steps have
            ]
            for name, result in found.items()
        }
        plot.write_text(method_curves(curves), encoding="utf-8")
        console.note(f"wrote {plot}")
    rows = _rows(found, able[0].latency)
    if as_json:
        console.result(json.dumps(rows, indent=2))
    else:
        _print(console, rows)
        console.result(f"latency by the {able[0].latency} model: {rows[0]['latency_error']}")


def _rows(found: dict[str, SearchResult], latency: LatencyModel) -> list[dict[str, Any]]:
    from fadiff.costmodel.latency.clock import error_against_rtl

    best = min(result.cost.edp_uj_cycles for result in found.values())
    return [
        {
            "method": name,
            "edp_uj_cycles": result.cost.edp_uj_cycles,
            "ratio_to_best": result.cost.edp_uj_cycles / best if best else 1.0,  # dosa: the core is free
            "energy_uj": result.cost.energy_pj * 1e-6,
            "latency_cycles": result.cost.latency_cycles,
            "latency_error": error_against_rtl(latency, result.schedule.target),
            "fused_groups": sum(len(group.layers) > 1 for group in result.schedule.groups),
            "seconds": result.seconds,
        }
        for name, result in sorted(found.items(), key=lambda item: item[1].cost.edp_uj_cycles)
    ]


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    columns = numbers("EDP uJ x cycles", "x best", "energy uJ", "cycles", "fused groups", "seconds")
    lines = (
        (
            row["method"],
            f"{row['edp_uj_cycles']:.4e}",
            f"{row['ratio_to_best']:.3f}",
            f"{row['energy_uj']:,.1f}",
            f"{row['latency_cycles']:,}",
            str(row["fused_groups"]),
            f"{row['seconds']:.1f}",
        )
        for row in rows
    )
    console.table(("method", *columns), lines)
