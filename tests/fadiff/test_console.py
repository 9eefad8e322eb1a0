"""What people see on a terminal of any width."""

from __future__ import annotations

import re
import time
from io import StringIO

import pytest
from rich.console import Console as RichConsole

from fadiff.console import Console, numbers, print_error


@pytest.mark.parametrize("width", [30, 80])
def test_tables_cut_neither_names_nor_numbers(width):
    name, operator, number = "layer1_0.body.0.1.Conv", "global_average_pool", "123,456,789"
    shown = StringIO()
    console = Console(out=RichConsole(file=shown, width=width, force_terminal=True, color_system=None))
    console.table(["layer", "operator", *numbers("bytes")], [(name, operator, number)])
    text = shown.getvalue()
    assert number in text and (name in text or width < 70)
    assert all(len(line) <= width for line in text.splitlines())
    shown_once = "".join(("layer", "operator", "bytes", name, operator, number))
    assert sorted("".join(text.split())) == sorted(shown_once), "every character is there"


@pytest.mark.parametrize("width", [30, 100])
def test_progress_on_a_terminal_is_one_line_with_percent_and_time_left(width, monkeypatch):
    monkeypatch.setattr("fadiff.console.PATIENCE", 0.0)
    shown = StringIO()
    console = Console(
        err=RichConsole(file=shown, width=width, force_terminal=True, color_system=None, soft_wrap=True)
    )
    with console.stage("verifying"):
        console.update(
            "3 of 12 test vectors, each of which has a name that is far too long for a narrow terminal"
        )
        console._live.refresh()
    drawn = [re.sub(r"\x1b\[\S*?[a-zA-Z]", "", line) for line in re.split(r"[\r\n]", shown.getvalue())]
    assert max(map(len, drawn)) <= width
    assert any(re.search(r"… .*25 % about 0 s left", line) for line in drawn)


def test_a_silent_stage_says_how_long_it_has_been_at_work(capfd, monkeypatch):
    monkeypatch.setattr("fadiff.console.PATIENCE", 0.05)
    console = Console()
    with console.stage("thinking"):
        time.sleep(0.5)
    beats = [
        line for line in capfd.readouterr().err.splitlines() if re.fullmatch(r"  thinking \(\d+ s\)", line)
    ]
    assert 1 <= len(beats) <= 4, "further and further apart"


def test_names_cannot_rule_the_terminal(capfd):
    console = Console(verbosity=1)
    name = "\x1b[2Jconv\u202e\r"
    with console.stage(name):
        console.update(name)
    console.note(name)
    console.warn(name)
    console.result(f"{name}\nsecond line")
    console.table(["layer"], [(name,)])
    print_error(name)
    out, err = capfd.readouterr()
    assert (out + err).count("\\x1b[2Jconv\\u202e\\r") >= 7
    assert all(char.isprintable() or char == "\n" for char in out + err)
    assert "\nsecond line" in out
