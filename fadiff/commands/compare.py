"""`fadiff compare`: search methods side by side, same evaluator, same budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rich_click as click

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

if TYPE_CHECKING:
    from fadiff.costmodel.target.target import Target
    from fadiff.keywords import RulesKeywords
    from fadiff.optimizer.cut.settings import MethodName
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
@click.option("--plot", metavar="FILE.svg|html", type=FILE, help="EDP against time.")
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
    from fadiff.api.comparison import compare as compared
    from fadiff.commands.plots import check_plot, write_plot

    wanted = [name.strip() for name in methods.split(",") if name.strip()]
    check_plot(plot)
    found = compared(
        model,
        cast("list[MethodName]", wanted),
        target=target,
        console=console,
        **vars(reading),
        **cast("RulesKeywords", search),
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        console.warn(f"{', '.join(names)}: {reason} (left out)")
    rows = found.rows
    if plot is not None:
        from fadiff.emitters.report.charts import method_curves

        write_plot(console, plot, method_curves(found.curves), f"{found.model}: search methods", rows)
    if as_json:
        console.result(json.dumps(rows, indent=2))
    else:
        _print(console, rows)
        model_of = next(iter(found.results.values())).settings.latency
        console.result(f"latency by the {model_of} model: {rows[0]['latency_error']}")


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
