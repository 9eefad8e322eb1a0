"""`fadiff evaluate`: the exact cost of a given schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import rich_click as click

from fadiff.commands.options import PATH, console_options, target_option
from fadiff.console import Console, numbers

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.evaluate import NetworkCost
    from fadiff.costmodel.schedule.schedule import Profile, Schedule
    from fadiff.costmodel.target.target import Target


@click.command()
@click.argument("schedule", metavar="[SCHEDULE.json]", type=PATH, required=False)
@target_option(None, show_default=False, help="Other hardware.  [default: the schedule's own]")
@click.option(
    "--profile",
    type=click.Choice(["hw", "dosa"]),
    help="Other counting.  [default: the schedule's own; dosa for Timeloop files]",
)
@click.option(
    "--timeloop-mapping",
    type=PATH,
    metavar="MAP.yaml",
    help="Instead of a schedule: a Timeloop mapping (native or front-end dialect) ...",
)
@click.option(
    "--timeloop-problem",
    type=PATH,
    metavar="PROB.yaml",
    help="... and its problem.  Needs --target.",
)
@click.option(
    "--sliding-window/--no-sliding-window",
    default=None,
    help="Keep what consecutive input tiles share, as Timeloop does; Gemmini reloads them. "
    "[default: on for Timeloop files under profile dosa]",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, per layer.")
@console_options
def evaluate(
    console: Console,
    schedule: Path | None,
    target: Target | None,
    profile: str | None,
    timeloop_mapping: Path | None,
    timeloop_problem: Path | None,
    sliding_window: bool | None,
    as_json: bool,
) -> None:
    """Exact energy, latency and DRAM bytes of SCHEDULE.json, on its target or another.

    A schedule that does not fit the other target is refused with the constraint that breaks (exit code 2).

    \b
    Examples:
      fadiff evaluate build/resnet18/schedule.json
      fadiff evaluate schedule.json --target gemmini-small --json
      fadiff evaluate --timeloop-mapping MAP.yaml --timeloop-problem PROB.yaml --target gemmini-large
    """
    from fadiff.api.evaluation import schedule_from_file
    from fadiff.costmodel.schedule.evaluate import evaluate as exact_cost

    if schedule is not None and not (timeloop_mapping or timeloop_problem):
        asked = cast("Profile | None", profile)
        decision = schedule_from_file(schedule, target, asked, console)
    elif timeloop_mapping and timeloop_problem and target and schedule is None:
        from fadiff.emitters.timeloop.read.schedule import schedule_from_files

        counting = cast("Profile", profile or "dosa")
        decision = schedule_from_files(timeloop_mapping, timeloop_problem, target, counting)
    else:
        raise click.UsageError(
            "give SCHEDULE.json, or --timeloop-mapping, --timeloop-problem and --target together"
        )
    if sliding_window is None:
        sliding_window = timeloop_mapping is not None and decision.profile == "dosa"
    cost = exact_cost(decision, sliding_window=sliding_window)
    if as_json:
        console.result(json.dumps(_summary(decision, cost), indent=2))
    else:
        _print(console, decision, cost)
        _print_measured(console, schedule)


def _print_measured(console: Console, schedule: Path | None) -> None:
    """What `fadiff measure` found, where the schedule still lies in its folder."""
    from fadiff.commands.measure import print_measurement
    from fadiff.folder import OutputFolder

    measured = None if schedule is None else OutputFolder(schedule.parent).measured()
    if measured is not None:
        console.result(f"measured by {measured.source}:")
        print_measurement(console, measured)


def _summary(schedule: Schedule, cost: NetworkCost) -> dict[str, object]:
    from fadiff.costmodel.latency.clock import error_against_rtl

    return {
        "model": schedule.graph.name,
        "target": schedule.target.name,
        "profile": schedule.profile,
        "fusion_model": schedule.fusion_model,
        "energy_pj": cost.energy_pj,
        "latency_model": schedule.latency,
        "latency_error": error_against_rtl(schedule.latency, schedule.target),
        "latency_cycles": cost.latency_cycles,
        "edp_uj_cycles": cost.edp_uj_cycles,
        "dram_bytes": cost.dram_bytes,
        "layers": [
            {
                "name": layer.name,
                "energy_pj": layer.energy_pj,
                "latency_cycles": layer.latency_cycles,
                "bound": layer.bound,
                "dram_bytes": layer.total_bytes("dram"),
            }
            for layer in cost.layers
        ],
    }


def _print(console: Console, schedule: Schedule, cost: NetworkCost) -> None:
    from fadiff.costmodel.latency.clock import error_against_rtl
    from fadiff.emitters.report.text import limit

    rows = (
        (
            layer.name,
            limit(layer.bound) if layer.latency_cycles else "",
            f"{layer.energy_pj * 1e-6:,.2f}",
            f"{layer.latency_cycles:,}",
            f"{layer.total_bytes('dram'):,}",
        )
        for layer in cost.layers
    )
    console.table(("layer", "limit", *numbers("energy uJ", "cycles", "DRAM B")), rows)
    console.result(
        f"{schedule.graph.name} on {schedule.target.name}, profile {schedule.profile}, "
        f"{schedule.fusion_model} fusion: {cost.energy_pj * 1e-6:,.1f} uJ x {cost.latency_cycles:,} cycles "
        f"= {cost.edp_uj_cycles:.4e} uJ x cycles, {cost.dram_bytes:,} DRAM bytes "
        "(all modelled)\n"
        f"latency by the {schedule.latency} model: {error_against_rtl(schedule.latency, schedule.target)}"
    )
