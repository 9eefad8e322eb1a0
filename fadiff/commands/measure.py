"""`fadiff measure`: cycles on the user's hardware beside the predicted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import rich_click as click

from fadiff.commands.options import PATH, choice, console_options
from fadiff.console import Console, numbers

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.measurement import Measurement, Unit


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--run",
    "command",
    metavar="'COMMAND {elf}'",
    help="Runs the program and prints its console: a Verilator or FireSim simulation, an FPGA script, Spike.",
)
@click.option("--log", type=PATH, metavar="FILE", help="A console log instead, kept before.")
@click.option(
    "--elf",
    type=PATH,
    metavar="FILE",
    help="Built before with -DFADIFF_PROFILE.  [default: make profile in DIR/firmware]",
)
@click.option(
    "--gemmini-root",
    type=PATH,
    metavar="ROOT",
    help="Holds include/gemmini.h and rocc-software/, for make profile.",
)
@click.option(
    "--timeout", type=float, default=3600.0, show_default=True, help="Seconds the command may take."
)
@choice(
    "--unit",
    ["cycles", "instructions"],
    "What the machine's cycle counter counts: Spike counts instructions.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, per layer.")
@console_options
def measure(
    console: Console,
    folder: Path,
    command: str | None,
    log: Path | None,
    elf: Path | None,
    gemmini_root: Path | None,
    timeout: float,
    unit: str,
    as_json: bool,
) -> None:
    """Run DIR's firmware on hardware and show measured beside predicted cycles, layer by layer.

    The program runs three times: cold, warm, and once with a fence around every layer for the cycles of each.
    The result is kept in DIR/measured.json; `report` and `evaluate` show it. `make profile` takes your memory
    map from the environment: RISCV_FLAGS, by default 512 MB for code and constants at 0x80000000 and 512 MB
    for data at 0xa0000000, RISCV_CC, and RISCV_RUNTIME for another console (head of DIR/firmware/Makefile).

    \b
    Examples:
      fadiff measure build/resnet18 --gemmini-root ~/gemmini-rocc-tests --run './simulator {elf}'
      fadiff measure build/resnet18 --log serial.txt
    """
    from fadiff.api.measurement import measure as measured

    if (command is None) == (log is None):
        raise click.UsageError("give --run 'COMMAND {elf}' or --log FILE")
    measurement = measured(
        folder,
        run=command,
        log=log,
        elf=elf,
        gemmini_root=gemmini_root,
        timeout=timeout,
        unit=cast("Unit", unit),
        console=console,
    )
    if as_json:
        console.result(json.dumps({**measurement.model_dump(), "error": measurement.error}, indent=2))
    else:
        print_measurement(console, measurement)


def print_measurement(console: Console, measurement: Measurement) -> None:
    """Measured beside predicted, per layer and in all; shared with `fadiff evaluate`."""
    unit = measurement.unit
    columns = numbers("calls", f"measured {unit}", "predicted cycles", "predicted / measured")
    rows = []
    for layer in measurement.layers:
        ratio = f"{layer.predicted / layer.measured:.2f}" if layer.measured and layer.predicted else ""
        rows.append((layer.name, str(layer.calls), f"{layer.measured:,}", f"{layer.predicted:,.0f}", ratio))
    console.table(("layer", *columns), rows)
    console.result(f"cold run    {measurement.cold:,} {unit}")
    console.result(f"warm run    {measurement.warm:,} {unit}")
    console.result(
        f"predicted   {measurement.predicted:,.0f} cycles"
        + (f", {100 * measurement.error:+.1f} % of the warm run" if unit == "cycles" else "")
    )
    if unit == "instructions":
        console.result(
            "instructions are what the core retired: no time, and no floor of one on Gemmini's side"
        )
