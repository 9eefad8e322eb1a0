"""`fadiff diff`: two builds side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click

from fadiff.commands.options import FILE, PATH, console_options
from fadiff.console import Console, numbers


@click.command()
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@click.option("--html", metavar="FILE.html", type=FILE, help="Write a page instead of the tables.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def diff(console: Console, a: Path, b: Path, html: Path | None, as_json: bool) -> None:
    """Compare the folders A and B of two builds: cycles, bytes, energy, accuracy, and layers that differ.

    \b
    Examples:
      fadiff diff build/before build/after
      fadiff diff build/before build/after --html diff.html
    """
    from fadiff.api.difference import MEASURES
    from fadiff.api.difference import diff as compared
    from fadiff.output import check_new

    if html is not None:
        check_new(html, force=True)
    found = compared(a, b)
    totals = [{**row, "change": _change(row["a"], row["b"])} for row in found.totals]
    layers = [{**row, "change": _change(row["cycles_a"], row["cycles_b"])} for row in found.layers]
    if html is not None:
        from fadiff.emitters.report.render import page

        html.write_text(page(f"{a} and {b}", totals, layers), encoding="utf-8")
        console.note(f"wrote {html}")
    elif as_json:
        console.result(json.dumps(asdict(found), indent=2))
    else:
        rows = ([row["name"], _cell(row["a"]), _cell(row["b"]), row["change"]] for row in totals)
        console.table(("", *numbers(str(a), str(b), "change")), rows)
        if layers:
            columns = [f"{measure} {side}" for measure in MEASURES for side in "ab"]
            console.table(
                ("layer", "op", *numbers(*columns, "change")),
                ([_cell(cell) for cell in row.values()] for row in layers),
            )
        console.result(f"{len(layers)} layers differ")


def _change(a: Any, b: Any) -> str:
    """In percent, of numbers that are there and not equal."""
    if not isinstance(a, int | float) or not isinstance(b, int | float) or a == b or not a:
        return ""
    return f"{100 * (b / a - 1):+.1f} %"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.5g}" if isinstance(value, float) else str(value)
    )
