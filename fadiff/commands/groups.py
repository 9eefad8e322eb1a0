"""How `--help` shows commands and options: in groups, rare options only with `--help-all`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rich_click as click
from rich.text import Text

COMMANDS = {
    "From a model to a chip": ("compile", "verify", "accuracy", "measure", "inspect", "report", "diff"),
    "Schedules": ("compare", "evaluate", "timeloop", "map"),
    "Hardware": ("targets", "sweep", "codesign"),
    "This program": ("doctor", "sample", "completion"),
}
OPTIONS = {
    "Options": ("", "sliding-window"),  # of this command alone
    "Files": (
        "target out output force data schedule plot html trace json",
        "timeloop-dialect timeloop-hyphens",
    ),
    "Model": ("dim entry inputs outputs state", "context no-state without"),
    "Integers": ("calibration quantize keep-float", "wide input-type"),
    "Search": (
        "method methods objective time-budget no-fusion",
        "seed no-residency max-dram-bytes tiling no-row-packing profile fusion-model relaxation",
    ),
    "Check": ("verify test-inputs min-sqnr metric", "min-top1"),
    "Every command": ("config quiet verbose help help-all version", ""),
}
"""Usual ones, and rare ones: hidden where a command has more than `FEW`."""
FEW = 20
LOOK = {
    "theme": "default-slim",
    "text_markup": None,
    "default_string": r"\[default: {}]",
    "text_paragraph_linebreaks": "\n\n",
    "padding_helptext_first_line": (0, 0, 1, 0),
}


class _Formatter(click.RichHelpFormatter):
    """Keeps the indentation of examples."""

    def rich_text(self, text: Any, style: Any = "") -> Any:
        """A paragraph, or lines that are to stay."""
        return self.highlighter(Text(text.strip("\n"), style)) if isinstance(text, str) else text


class _Context(click.RichContext):
    formatter_class = _Formatter


def grouped(group: click.RichGroup) -> None:
    """Give all commands of the program their groups of options, and `--help-all` where some are rare."""
    group.context_settings["rich_help_config"] = LOOK
    for command in _commands(group):
        command.context_class = _Context
        click.help_option("-h", "--help", help="Show this text.")(command)
        if len(command.params) > FEW:
            command.params.append(HELP_ALL)
        _show(command, rare=len(command.params) <= FEW)
    group.panels += [click.RichCommandPanel(name, [*names]) for name, names in COMMANDS.items()]


def _commands(command: click.Command) -> Iterator[click.RichCommand]:
    if isinstance(command, click.RichCommand):
        yield command
    if isinstance(command, click.RichGroup):
        for one in command.commands.values():
            yield from _commands(one)


def _show(command: click.RichCommand, *, rare: bool) -> None:
    """Options that `--help` is to show, by group."""
    shown: dict[str, list[str]] = {name: [] for name in OPTIONS}
    for option in command.params:
        if isinstance(option, click.Option):
            group, is_rare = _place({name.lstrip("-") for name in option.opts})
            option.hidden = is_rare and not rare
            shown[group] += [] if option.hidden else option.opts[:1]
    command.panels = [click.RichOptionPanel(name, options) for name, options in shown.items()]


def _place(names: set[str]) -> tuple[str, bool]:
    """The group of an option, and whether it is rare."""
    places = (
        (group, i == 1) for group, both in OPTIONS.items() for i in (0, 1) if names & {*both[i].split()}
    )
    return next(places, ("Options", False))


def _help_all(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given and isinstance(context.command, click.RichCommand):
        _show(context.command, rare=True)
        click.echo(context.get_help())
        _show(context.command, rare=False)
        context.exit()


HELP_ALL = click.RichOption(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    help="Show this text with all options.",
)
