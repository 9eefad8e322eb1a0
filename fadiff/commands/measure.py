"""`fadiff measure`: cycles on the user's hardware beside the predicted ones."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fadiff.commands.options import PATH, choice, console_options
from fadiff.console import Console, numbers
from fadiff.errors import InputError

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.measurement import Measurement, Unit
    from fadiff.folder import OutputFolder


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
    The result is kept in DIR/measured.json; `report` and `evaluate` show it.

    \b
    Examples:
      fadiff measure build/resnet18 --gemmini-root ~/gemmini-rocc-tests --run './simulator {elf}'
      fadiff measure build/resnet18 --log serial.txt
    """
    from fadiff.costmodel.schedule.measurement import read_profile
    from fadiff.folder import OutputFolder

    if (command is None) == (log is None):
        raise click.UsageError("give --run 'COMMAND {elf}' or --log FILE")
    output = OutputFolder(folder)
    document = output.document
    if log is not None:
        text, source = log.read_text(encoding="utf-8", errors="replace"), str(log)
    else:
        program = elf or _built(console, output, gemmini_root)
        text, source = _console_of(console, cast("str", command), program, timeout), cast("str", command)
    measurement = read_profile(
        text,
        source,
        sha256=document.model.sha256,
        predicted={layer.name: layer.cost.clock_cycles or 0.0 for layer in document.layers},
        total=document.totals.clock_cycles or 0.0,
        unit=cast("Unit", unit),
    )
    output.measurement.write_text(measurement.model_dump_json(indent=1) + "\n", encoding="utf-8")
    output.refresh_report()
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


def _built(console: Console, output: OutputFolder, gemmini_root: Path | None) -> Path:
    """The program with its profile, made by the firmware's own Makefile."""
    if gemmini_root is None:
        raise InputError(
            "--run needs a program: give --elf FILE, or --gemmini-root (the folder that holds "
            "include/gemmini.h) to build it"
        )
    memory = output.memory_map()
    if memory is None:
        raise InputError(f"{output.firmware}: no firmware in it: give the --out folder of fadiff compile")
    model = memory.model
    console.note(f"building {model}_profile.elf")
    made = subprocess.run(
        ["make", "-C", str(output.firmware), "profile", f"GEMMINI_ROOT={gemmini_root.resolve()}"],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        last = (made.stderr or made.stdout).strip().splitlines()[-1:]
        raise InputError(f"{output.firmware}: make profile failed: {''.join(last)}")
    return output.firmware / f"{model}_profile.elf"


def _console_of(console: Console, command: str, elf: Path, timeout: float) -> str:
    """What the command prints; the table, not the exit status, says whether it finished."""
    if "{elf}" not in command:
        raise InputError(f"--run {command!r} has no {{elf}} where the program's path belongs")
    if not elf.is_file():
        raise InputError(f"{elf}: no such program")
    words = [word.replace("{elf}", str(elf.resolve())) for word in shlex.split(command)]
    console.note(f"running {shlex.join(words)}")
    try:
        ran = subprocess.run(words, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise InputError(f"{words[0]}: no such program") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{words[0]}: not finished after {timeout:g} s: give a longer --timeout") from error
    return (ran.stdout + b"\n" + ran.stderr).decode("utf-8", errors="replace")
