"""`fadiff verify`: run the emitted C and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fadiff.commands.options import console_options
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK

if TYPE_CHECKING:
    from emulator import VerifyReport


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, per layer.")
@console_options
def verify(console: Console, folder: Path, as_json: bool) -> int:
    """Build DIR/firmware for this machine, run it on the functional model of Gemmini, and compare.

    Every layer output is compared bit for bit with the integer reference in ONNX Runtime, every byte
    moved with the prediction. Exits 1 on any difference, and names the first.

    \b
    Example:
      fadiff verify build/resnet18 --json
    """
    from fadiff.folder import OutputFolder
    from fadiff.pipeline import verify_folder

    output = OutputFolder(folder)
    report = verify_folder(output, console)
    output.refresh_report()
    if as_json:
        console.result(json.dumps(report.as_dict(), indent=2))
    else:
        print_verification(console, report)
    return OK if report.passed else CHECK_FAILED


def print_verification(console: Console, report: VerifyReport) -> None:
    """The outcome in a few lines; shared with `fadiff compile --verify`."""
