"""`fadiff doctor`: what is installed, what is missing, and what for."""

from __future__ import annotations

import json
from dataclasses import asdict

import rich_click as click

from fadiff.commands.options import console_options
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def doctor(console: Console, as_json: bool) -> int:
    """Check this machine: compiler, packages, optional tools, and what each of them enables.

    Exits with 1 if something that is required is missing or too old.

    \b
    Example:
      fadiff doctor --json
    """
    from rich.markup import escape

    from fadiff.checkup import checks

    found = list(checks())
    missing = [check for check in found if not check.ok]
    if as_json:
        console.result(json.dumps([{**asdict(check), "ok": check.ok} for check in found], indent=2))
        return CHECK_FAILED if missing else OK
    rows = []
    for check in found:
        state = "ok" if check.found else "MISSING" if check.required else "-"
        rows.append((state, check.name, escape(check.found or check.remedy), check.enables))
    console.table(("", "part", "found", "what for"), rows)
    if missing:
        console.result(f"missing: {', '.join(check.name for check in missing)}")
        return CHECK_FAILED
    console.result("all that is required is there; - marks what is optional and not installed")
    return OK
