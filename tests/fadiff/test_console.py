"""What people see on a terminal of any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console as RichConsole
from rich.table import Table

from fadiff.console import Console


@pytest.mark.parametrize("width", [30, 80])
def test_tables_cut_neither_names_nor_numbers(width):
    name, operator, number = "layer1_0.body.0.1.Conv", "global_average_pool", "123,456,789"
    table = Table("layer", "operator", box=None)
    table.add_column("bytes", justify="right")
    table.add_row(name, operator, number)
    shown = StringIO()
    Console(out=RichConsole(file=shown, width=width, force_terminal=True, color_system=None)).table(table)
    text = shown.getvalue()
    assert number in text and (name in text or width < 70)
    assert all(len(line) <= width for line in text.splitlines())
    shown_once = "".join(("layer", "operator", "bytes", name, operator, number))
    assert sorted("".join(text.split())) == sorted(shown_once), "every character is there"
