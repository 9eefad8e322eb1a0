"""Options that say how to read a model."""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from typing import Any, cast, get_args

import rich_click as click

from fadiff.commands.options import FILE, Command, choice, switch_off, together
from fadiff.errors import InputError
from fadiff.keywords import InputType, InputTypes


def _parse_dims(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    dims = []
    for value in values:
        name, _, given = value.partition("=")
        size = {"true": "1", "false": "0"}.get(given.lower(), given)
        if not name or not size.isdigit():
            raise click.BadParameter(
                f"{value!r}: write NAME=VALUE with a whole number, True or False, such as batch=1"
            )
        dims.append((name, int(size)))
    return tuple(dims)


def _listed(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in (given or "").split(","))))


def _parse_types(context: click.Context, parameter: click.Parameter, given: str) -> InputTypes:
    """One type for all, or types by name."""
    found: dict[str, InputType] = {}
    for entry in filter(None, (part.strip() for part in given.split(","))):
        name, _, kind = entry.rpartition("=")
        if kind not in get_args(InputType):
            types = ", ".join(get_args(InputType))
            raise click.BadParameter(f"{entry!r}: write one of {types}, or NAME=TYPE")
        found[name] = cast(InputType, kind)
    if len(found) == 1 and "" in found:
        return found[""]
    if "" in found or not found:
        raise click.BadParameter(f"{given!r}: write one type for all, or NAME=TYPE for each")
    return found


def _parse_states(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for value in values:
        output, separator, into = value.partition("=")
        if not output or not separator or not into:
            raise click.BadParameter(f"{value!r}: write OUTPUT=INPUT, such as hn=h")
        pairs.append((output, into))
    return tuple(pairs)


def _check_rewrites(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    if values:  # (the converter is imported only where it is needed)
        from fadiff.converter.rewrites import check_names

        try:
            check_names(values)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return values


quantize_options = together(
    choice(
        "--quantize",
        ["auto", "int8", "none"],
        "auto: float models become int8 on an int8 target; quantised ones stay.",
    ),
    click.option(
        "--calibration",
        type=FILE,
        metavar="FILE.npz",
        help="Typical inputs: one array per model input, samples along the first axis.  "
        "[default: MODEL.calibration.npz, else random]",
    ),
)
dim_option = click.option(
    "--dim",
    "dims",
    metavar="NAME=VALUE",
    callback=_parse_dims,
    multiple=True,
    help="Size of a symbolic dimension (batch=1), or value of a whole input (rate=16000, use_cache=False, "
    "mask=1). A past of length 0 is left out.",
)
cut_options = together(
    click.option(
        "--inputs",
        metavar="TENSOR[,TENSOR...]",
        callback=_listed,
        help="Begin at these tensors (`fadiff inspect --cuts` lists where).",
    ),
    click.option(
        "--outputs",
        metavar="TENSOR[,TENSOR...]",
        callback=_listed,
        help="End at these tensors.",
    ),
)
state_options = together(
    click.option(
        "--state",
        "states",
        metavar="OUT=IN",
        multiple=True,
        callback=_parse_states,
        help="This output is that input of the next run: kept in the firmware.  "
        "[default: guessed by name and shape]",
    ),
    click.option(
        "--context",
        metavar="ROWS",
        type=click.IntRange(min=1),
        help="Caches that grow from run to run (an output is an input with new rows behind it) get so many "
        "rows, and new ones are written at the input cache_position.",
    ),
    switch_off("--no-state", "guess_states", "Guess no state by names such as h and hn, past and present."),
)
keep_float_option = together(
    click.option(
        "--keep-float",
        metavar="LAYER|STATE[,...]|auto",
        callback=_listed,
        help="Layers and states in float32, where int8 loses the model; auto: until --min-sqnr holds on "
        "held-out calibration samples, products as --wide where that is enough.",
    ),
    click.option(
        "--wide",
        metavar="LAYER[,...]",
        callback=_listed,
        help="Products that read and write float32, too, but run on the array: 16-bit activations as two "
        "int8 products, int8 weights with a scale per output channel.",
    ),
    click.option(
        "--input-type",
        metavar="TYPE|NAME=TYPE[,...]",
        default="int8",
        show_default=True,
        callback=_parse_types,
        help="What the firmware takes for float inputs: int8, integers that the caller makes as the header "
        "says; uint8, pixels as they come; int32, whole numbers (positions, time steps), of which tables are "
        "made; float32, the numbers themselves, which the core normalises and rounds.",
    ),
)
without_option = click.option(
    "--without",
    metavar="REWRITE",
    multiple=True,
    callback=_check_rewrites,
    help="Leave out a rewrite of the model: equalise-channels, choose-ranges, "
    "correct-biases, round-weights, shift-zeros, border-zeros, channel-scales, "
    "fold-epilogues, fold-chains, fold-norms, fold-inputs, absorb-movement, write-in-place or "
    "drop-padding-taps (`fadiff inspect --explain` shows what they do).",
)


def one_reading(function: Command) -> Command:
    """Pass what the options say of how to read the model as `reading`, one fadiff.pipeline.ModelOptions."""

    @wraps(function)
    def run(*arguments: Any, dims: tuple[tuple[str, int], ...], **options: Any) -> Any:
        from fadiff.pipeline import ModelOptions

        given = {
            field.name: options.pop(field.name) for field in fields(ModelOptions) if field.name in options
        }
        return function(*arguments, reading=ModelOptions(dims=bound_dims(dims), **given), **options)

    return cast(Command, run)


def bound_dims(dims: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """The --dim options as a mapping.

    Raises:
        InputError: one dimension bound to two sizes.
    """
    bound: dict[str, int] = {}
    for name, size in dims:
        if bound.setdefault(name, size) != size:
            raise InputError(f"--dim {name}: bound to both {bound[name]} and {size}: give it once")
    return bound
