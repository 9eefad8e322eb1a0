"""What the code writes or decides is what the pages say: generated pages, options, defaults, rewrites."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import re
import runpy
from pathlib import Path
from typing import get_args

import click
import pytest

from fadiff.cli import cli
from fadiff.commands.options import METHODS
from fadiff.converter.rewrites import NAMES
from fadiff.optimizer.cut.settings import MethodName
from fadiff.search import SearchOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = [
    path.parent
    for package in ("converter", "costmodel", "emitters", "emulator", "fadiff", "optimizer")
    for path in sorted((ROOT / package).rglob("__init__.py"))
]
GUIDE = (ROOT / "docs" / "user-guide.md").read_text()


def generated() -> list[tuple[str, str]]:
    """(module that prints it, page) of every line of the recipe of `make docs`."""
    recipe = (ROOT / "Makefile").read_text().split("\ndocs:")[1].split("\n\n")[0].splitlines()[1:]
    return [re.search(r"-m (\S+) > (\S+)$", line).groups() for line in recipe]  # type: ignore[union-attr,misc]


@pytest.mark.parametrize(("module", "page"), generated())
def test_generated_pages_are_current(module, page, capsys):
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    runpy.run_path(spec.origin, run_name="__main__")
    assert capsys.readouterr().out == (ROOT / page).read_text(), f"{page} is out of date: run `make docs`"


def options(command: str) -> dict[str, click.Option]:
    return {p.name: p for p in cli.commands[command].params if isinstance(p, click.Option) and p.name}


def test_the_guide_lists_every_option_of_compile():
    section = GUIDE.split("\n## Compile\n")[1].split("\n## ")[0]
    in_every_command = {"--help", "--help-all", "--quiet", "--verbose", "--json", "--config"}
    for option in options("compile").values():
        long = [name for name in option.opts if name.startswith("--")]
        assert any(name in section for name in long) or in_every_command & {*long}, (
            f"docs/user-guide.md, Compile: add {long}"
        )


def test_methods_are_those_of_the_optimiser():
    assert sorted(get_args(MethodName)) == sorted(METHODS)
    for name in METHODS:
        assert f"`{name}`" in GUIDE, f"docs/user-guide.md: add method {name}"


def test_defaults_of_the_command_line_are_those_of_python():
    defaults = {field.name: field.default for field in dataclasses.fields(SearchOptions)}
    asked = {name: option for name, option in options("compile").items() if name in defaults}
    assert asked.keys() == defaults.keys()
    context = click.Context(cli.commands["compile"])
    given = {
        name: option.process_value(context, option.get_default(context)) for name, option in asked.items()
    }
    assert given == defaults


def test_rewrites_are_listed_where_they_can_be_left_out():
    table = GUIDE.split("| rewrite |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE)) == set(NAMES)
    text = options("compile")["without"].help or ""
    assert all(name in text for name in NAMES)


_NAME = re.compile(r"`((?:fadiff|benchmarks)\.[\w.]+)`")
_PATH = re.compile(
    r"`((?:converter|costmodel|optimizer|emitters|emulator|fadiff|samples|tests|docs)/[\w/.-]*)[`:]"
)


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:n])
        if path.is_dir() or path.with_suffix(".py").is_file():
            found: object = importlib.import_module(".".join(parts[:n]))
            return not parts[n:] or hasattr(found, parts[n])
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_modules_and_files_that_pages_name_are_there(page):
    text = page.read_text()
    assert [name for name in _NAME.findall(text) if not exists(name)] == []
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: ".".join(room.relative_to(ROOT).parts))
def test_rooms_have_the_modules_that_their_first_lines_name(room):
    first = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    named = re.findall(r"`([\w/]+\.py)`", first)
    assert [name for name in named if not (room / name).is_file()] == []
