"""--plot: one figure as SVG, or with its table as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.output import check_new

if TYPE_CHECKING:
    from markupsafe import Markup


def check_plot(plot: Path | None) -> None:
    """Refuse early what cannot be written.

    Raises:
        InputError: another ending, or no folder to write it in.
    """
    if plot is None:
        return
    if plot.suffix not in (".svg", ".html"):
        raise InputError(f"--plot {plot}: the plot is SVG or HTML: give a name that ends in .svg or .html")
    check_new(plot, force=True)


def write_plot(
    console: Console, plot: Path, picture: Markup, title: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """The picture; in HTML with the rows below it."""
    from fadiff.emitters.report.render import page

    plot.write_text(page(title, picture, rows) if plot.suffix == ".html" else picture, encoding="utf-8")
    console.note(f"wrote {plot}")
