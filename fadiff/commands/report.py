"""`fadiff report`: rebuild report.html."""

from __future__ import annotations

from pathlib import Path

import click

from fadiff.commands.options import PATH, console_options
from fadiff.console import Console


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@console_options
def report(console: Console, folder: Path) -> None:
    """Rebuild DIR/report.html from the schedule and the last verification.

    \b
    Example:
      fadiff report build/resnet18
    """
    from fadiff.folder import OutputFolder

    console.result(str(OutputFolder(folder).refresh_report()))
