"""Arguments and options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click
from click.shell_completion import CompletionItem

from fadiff.config_file import OPTION
from fadiff.console import Console

if TYPE_CHECKING:
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.cut.partition import Objective
    from fadiff.optimizer.cut.settings import MethodName

Command = TypeVar("Command", bound=Callable[..., Any])

METHODS: tuple[MethodName, ...] = (
    "auto",
    "gradient",
    "layerwise",
    "dosa",
    "genetic",
    "bayesian",
    "random",
    "gemmini-auto",
    "exact",
)
OBJECTIVES: tuple[Objective, ...] = ("edp", "energy", "latency")
DEFAULT_TARGET = "gemmini-default"


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def choice(
    name: str, values: Sequence[str], text: str, metavar: str | None = None
) -> Callable[[Command], Command]:
    """An option with one of some values, the first of them by default."""
    kind = click.Choice(values)
    return click.option(name, type=kind, default=values[0], show_default=True, help=text, metavar=metavar)


def switch_off(name: str, parameter: str, text: str) -> Callable[[Command], Command]:
    """A flag that makes a parameter False, which is True without it."""
    return click.option(name, parameter, flag_value=False, default=True, help=text)


def file_option(text: str, *, required: bool) -> Callable[[Command], Command]:
    """Add -o, the one file that a command writes (where it need not be given: else stdout), and --force."""
    text = text if required else f"{text}  [default: stdout]"
    return together(
        click.option("-o", "--out", type=FILE, required=required, help=text),
        click.option("--force", is_flag=True, help="Replace the file."),
    )


def _set_verbosity(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given and isinstance(context.obj, Console):
        context.obj.verbosity = 1 if parameter.name == "verbose" else -1


def _flag(*names: str, text: str) -> Callable[[Command], Command]:
    """Eager: an error in a later option already knows whether a traceback is wanted."""
    return click.option(
        *names, is_flag=True, is_eager=True, expose_value=False, callback=_set_verbosity, help=text
    )


verbosity_options = together(
    _flag("-q", "--quiet", text="No progress; errors, warnings and results only."),
    _flag("-v", "--verbose", text="More progress, and the traceback of an error."),
)
"""-q and -v, of a command and of the program: before or after the command."""
console_options: Callable[[Callable[..., Any]], Callable[..., Any]] = together(
    verbosity_options,
    click.option(
        OPTION,
        type=click.Path(dir_okay=False),
        metavar="FILE",
        expose_value=False,
        help="YAML file of options, such as `time-budget: 20`; those typed here win.",
    ),
    click.make_pass_decorator(Console, ensure=True),
)
"""-q, -v and --config; passes the Console as first argument."""


def _load_target(context: click.Context, parameter: click.Parameter, value: str | None) -> Target | None:
    """A TargetError is already one clear line."""
    from fadiff.pipeline import as_target

    return None if value is None else as_target(value)


def _check_number(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds")
    return value


def _complete_target(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Presets, and files that may describe a target."""
    from fadiff.costmodel.target.target import preset_names

    presets = [CompletionItem(name) for name in preset_names() if name.startswith(typed)]
    return [*presets, CompletionItem(typed, type="file")]


def model_argument(function: Command) -> Command:
    """MODEL.onnx; whether it can be read is the converter's to say."""
    return click.argument("model", metavar="MODEL.onnx", type=PATH)(function)


def target_option(default: str | None = DEFAULT_TARGET, **attributes: Any) -> Callable[[Command], Command]:
    """--target: preset, YAML or header."""
    return click.option(
        "--target",
        callback=_load_target,
        shell_complete=_complete_target,
        metavar="NAME|FILE",
        default=default,
        **{
            "show_default": True,
            "help": "Preset (`fadiff targets list`), target .yaml, or gemmini_params.h.",
            **attributes,
        },
    )


accuracy_options = together(
    click.option(
        "--min-sqnr",
        type=float,
        callback=_check_number,
        metavar="DB",
        help="Fail below this signal to noise against the float model.  [default: 10]",
    ),
    click.option(
        "--min-top1",
        type=click.FloatRange(0, 100),
        metavar="PERCENT",
        help="Fail where fewer answers are the float model's.  [default: 90]",
    ),
)
"""When the integers count as another model than the float one."""
search_options = together(
    choice("--objective", OBJECTIVES, "What to minimise; edp: energy x latency."),
    switch_off("--no-fusion", "fusion", "Every layer on its own, nothing on chip between layers."),
    switch_off("--no-residency", "residency", "Keep no tensor on chip from one fusion group to later ones."),
    choice(
        "--profile",
        ["hw", "dosa"],
        "hw: as the hardware does, in cycles of the emitted C. dosa: to compare with published numbers.",
    ),
    choice(
        "--fusion-model",
        ["sound", "paper"],
        "sound: only fusion that can be executed. paper: the literature's optimistic count (profile dosa).",
    ),
    choice(
        "--tiling",
        ["ragged", "divisor"],
        "divisor: only tiles that divide the layer, for tools that need them (profile dosa).",
    ),
    switch_off(
        "--no-row-packing", "row_packing", "Never put kernel taps on array rows (layers with few channels)."
    ),
    choice(
        "--relaxation",
        ["log", "paper"],
        "Trainable tiles of method gradient: distance of logarithms, or linear as in the paper.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0, max=2**63 - 1),
        metavar="N",
        default=0,
        show_default=True,
        help="Equal seeds give equal schedules, unless time runs out.",
    ),
    click.option(
        "--time-budget",
        type=click.FloatRange(min=0, min_open=True),
        callback=_check_number,
        metavar="SECONDS",
        help="Search time.  [default: until done, at most minutes]",
    ),
)
"""Everything that decides what the search does, except the method: fields of `optimizer.Settings`."""
