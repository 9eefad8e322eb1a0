"""`fadiff timeloop`: hold our counts against the user's own Timeloop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fadiff.commands.options import console_options
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK, InputError

if TYPE_CHECKING:
    from emitters.timeloop.compare import Comparison


@click.group()
def timeloop() -> None:
    """Run Timeloop on the files of an output folder.

    \b
    Example:
      fadiff timeloop run build/resnet18 --timeloop-model ~/timeloop/build/timeloop-model
    """


@timeloop.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--timeloop-model", "model", type=click.Path(path_type=Path), help="The binary.  [default: on PATH]"
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def run(console: Console, folder: Path, model: Path | None, as_json: bool) -> int:
    """Run timeloop-model on every layer of DIR and compare cycles, energy and access counts.

    Exits 1 when a layer with perfect factors differs.
    """
    from costmodel.serialize import schedule_from_document
    from emitters.timeloop.compare import compare
    from emitters.timeloop.index import read_index
    from fadiff.folder import OutputFolder

    output = OutputFolder(folder)
    schedule = schedule_from_document(output.document)
    index = read_index(output.timeloop / "index.yaml")
    binary = _binary(model)
    with console.stage(f"running timeloop-model on {len(index.layers)} layers"):
        results = compare(schedule, index, output.timeloop, binary, lambda done: console.update(done.layer))
    if as_json:
        console.result(json.dumps([_row(result) for result in results], indent=2))
    else:
        _print(console, results)
    return OK if all(result.passes for result in results) else CHECK_FAILED


def _binary(model: Path | None) -> Path:
    found = shutil.which(str(model or "timeloop-model"))
    if found is None:
        raise InputError(
            f"{model}: no such program"
            if model
            else "timeloop-model is not on PATH: install Timeloop, or give --timeloop-model PATH"
        )
    return Path(found)


def _row(result: Comparison) -> dict[str, object]:
    return {
        "layer": result.layer,
        "runs": result.runs,
        "factors": result.factors,
        "cycles": {
            "predicted": result.predicted.cycles,
            "timeloop": result.measured.cycles if result.measured else None,
        },
        "energy_pj": {
            "predicted": result.predicted.energy_pj,
            "timeloop": result.measured.energy_pj if result.measured else None,
        },
        "differences": [
            {"level": level, "tensor": space, "access": what, "predicted": ours, "timeloop": theirs}
            for level, space, what, ours, theirs in result.differences
        ],
        "problem": result.problem,
        "passes": result.passes,
    }


def _print(console: Console, results: tuple[Comparison, ...]) -> None:
    from rich.table import Table

    table = Table("layer", "factors", box=None)
    for heading in ("cycles", "Timeloop", "energy uJ", "Timeloop"):
        table.add_column(heading, justify="right")
    table.add_column("access counts")
    for result in results:
        measured = result.measured
        table.add_row(
            result.layer,
            result.factors,
            f"{result.predicted.cycles:,}",
            f"{measured.cycles:,}" if measured else "-",
            f"{result.predicted.energy_pj * 1e-6:,.3f}",
            f"{measured.energy_pj * 1e-6:,.3f}" if measured else "-",
            result.problem or (f"{len(result.differences)} differ" if result.differences else "equal"),
        )
    console.table(table)
    equal = sum(result.is_equal for result in results)
    console.result(f"{equal} of {len(results)} layers equal")
