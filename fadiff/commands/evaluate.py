"""`fadiff evaluate`: the exact cost of a given schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fadiff.commands.options import console_options, target_option
from fadiff.console import Console

if TYPE_CHECKING:
    from costmodel.evaluate import NetworkCost
    from costmodel.schedule import LatencyModel, Profile, Schedule
    from costmodel.target import Target


@click.command()
@click.argument("schedule", metavar="SCHEDULE.json", type=click.Path(path_type=Path))
@target_option(None, show_default=False, help="Other hardware.  [default: the schedule's own]")
@click.option(
    "--profile", type=click.Choice(["hw", "dosa"]), help="Other counting.  [default: the schedule's own]"
)
@click.option("--latency", type=click.Choice(["roofline", "rtl"]), help="[default: the schedule's own]")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, per layer.")
@console_options
def evaluate(
    console: Console,
    schedule: Path,
    target: Target | None,
    profile: str | None,
    latency: str | None,
    as_json: bool,
) -> None:
    """Exact energy, latency and DRAM bytes of SCHEDULE.json, on its target or another.

    A schedule that does not fit the other target is refused with the constraint that breaks (exit code 2).

    \b
    Examples:
      fadiff evaluate build/resnet18/schedule.json
      fadiff evaluate schedule.json --target gemmini-small --json
    """
    from dataclasses import replace

    from costmodel.evaluate import evaluate as exact_cost
    from costmodel.serialize import read_document, schedule_from_document

    document = read_document(schedule)
    decision = schedule_from_document(document)
    decision = replace(
        decision,
        target=target or decision.target,
        profile=cast("Profile", profile or decision.profile),
    )
    model = cast("LatencyModel", latency or document.latency_model)
    cost = exact_cost(decision, latency=model)
    if as_json:
        console.result(json.dumps(_summary(decision, cost), indent=2))
    else:
        _print(console, decision, cost)


def _dram_bytes(cost: NetworkCost, layer: str) -> int:
    return sum(read + write for read, write in cost.dram_traffic(layer).values())


def _summary(schedule: Schedule, cost: NetworkCost) -> dict[str, object]:
    return {
        "model": schedule.graph.name,
        "target": schedule.target.name,
        "profile": schedule.profile,
        "fusion_model": schedule.fusion_model,
        "energy_pj": cost.energy_pj,
        "latency_cycles": cost.latency_cycles,
        "edp_uj_cycles": cost.edp_uj_cycles,
        "layers": [
            {
                "name": layer.name,
                "energy_pj": layer.energy_pj,
                "latency_cycles": layer.latency_cycles,
                "bound": layer.bound,
                "dram_bytes": _dram_bytes(cost, layer.name),
            }
            for layer in cost.layers
        ],
    }


def _print(console: Console, schedule: Schedule, cost: NetworkCost) -> None:
    from rich.table import Table

    table = Table("layer", "limit", box=None)
    for heading in ("energy uJ", "cycles", "DRAM B"):
        table.add_column(heading, justify="right")
    for layer in cost.layers:
        table.add_row(
            layer.name,
            layer.bound,
            f"{layer.energy_pj * 1e-6:,.2f}",
            f"{layer.latency_cycles:,}",
            f"{_dram_bytes(cost, layer.name):,}",
        )
    console.table(table)
    console.result(
        f"{schedule.graph.name} on {schedule.target.name}, profile {schedule.profile}: "
        f"{cost.energy_pj * 1e-6:,.1f} uJ x {cost.latency_cycles:,} cycles "
        f"= {cost.edp_uj_cycles:.4e} uJ x cycles"
    )
