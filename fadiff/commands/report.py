"""`fadiff report`: rebuild report.html."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fadiff.commands.options import FILE, PATH, console_options
from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.output import check_new


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--trace", metavar="FILE.json", type=FILE, help="Also write the timeline as a trace for ui.perfetto.dev."
)
@console_options
def report(console: Console, folder: Path, trace: Path | None) -> None:
    """Rebuild DIR/report.html from the schedule and the last verification.

    \b
    Examples:
      fadiff report build/resnet18
      fadiff report build/resnet18 --trace resnet18.json
    """
    from fadiff.emitters.trace import trace as traced
    from fadiff.folder import OutputFolder

    output = OutputFolder(folder)
    if trace is not None:
        if not output.document.is_executable:
            raise InputError(f"{folder}: no program is emitted for these rules: there is no timeline")
        check_new(trace, force=True)
        trace.write_text(traced(output.document), encoding="utf-8")
        console.note(f"wrote {trace}")
    console.result(str(output.refresh_report()))
