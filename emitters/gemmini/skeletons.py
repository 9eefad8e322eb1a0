"""Jinja2 skeletons: header, main, Makefile, assembly.  The loop nests come from the printer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: Any) -> str:
    """The text of `template` (a file under templates/) with `values` filled in.

    Raises:
        jinja2.UndefinedError: a value that the skeleton uses is missing.
    """
    return _environment().get_template(template).render(**values)
