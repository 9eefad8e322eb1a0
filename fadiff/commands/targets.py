"""`fadiff targets`: list, show, import, export, check and calibrate hardware descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import PATH, console_options, file_option, verbosity_options
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK, InputError
from fadiff.output import check_new

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.measurement import Measurement
    from fadiff.costmodel.schedule.schedule import Schedule
    from fadiff.costmodel.target.target import Target


@click.group()
@verbosity_options
def targets() -> None:
    """List, show, import, export, check and calibrate hardware descriptions.

    \b
    Examples:
      fadiff targets list
      fadiff targets show gemmini-large
      fadiff targets import gemmini_params.h -o mine.yaml
      fadiff targets check mine.yaml --params gemmini_params.h
      fadiff targets export gemmini-large -o gemmini_params.h
      fadiff targets calibrate mine.yaml build/resnet18 build/bert -o calibrated.yaml
    """


@targets.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def list_targets(console: Console, as_json: bool) -> None:
    """The shipped presets.

    \b
    Example:
      fadiff targets list --json
    """
    from fadiff.costmodel.target.target import load_target, preset_names
    from fadiff.emitters.timeloop.machines import machine_names

    presets = [load_target(name) for name in preset_names()]
    if as_json:
        console.result(json.dumps([_summary(target) for target in presets], indent=2))
        return
    rows = (
        (
            target.name,
            f"{target.side} x {target.side}",
            f"{target.scratchpad_bytes // 1024} KB",
            f"{target.accumulator_bytes // 1024} KB",
            target.element_type,
        )
        for target in presets
    )
    console.table(("name", "array", "scratchpad", "accumulator", "elements"), rows)
    console.result(f"machines for fadiff map --arch: {', '.join(machine_names())}")


@targets.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, with derived values.")
@console_options
def show(console: Console, name: str, as_json: bool) -> None:
    """Every parameter of a preset or target file, as YAML: a start for a file of your own.

    \b
    Example:
      fadiff targets show gemmini-default > mine.yaml
    """
    from fadiff.costmodel.target.target import load_target, target_yaml

    target = load_target(name)
    if as_json:
        console.result(json.dumps({**target.model_dump(), "derived": _derived(target)}, indent=2))
        return
    console.result(target_yaml(target).rstrip())
    for key, value in _derived(target).items():
        console.result(f"# {key}: {value:g}")


@targets.command("import")
@click.argument("header", metavar="gemmini_params.h", type=PATH)
@click.option("--name", help="Name of the target.  [default: from its sizes]")
@file_option("YAML file to write.", required=False)
@console_options
def import_target(console: Console, header: Path, name: str | None, out: Path | None, force: bool) -> None:
    """Make a target from the gemmini_params.h of your hardware.

    \b
    Example:
      fadiff targets import gemmini_params.h -o mine.yaml
    """
    from fadiff.costmodel.target.params_header import target_from_header, unsaid
    from fadiff.costmodel.target.target import target_yaml

    target = target_from_header(header, name)
    text = f"# From {header.name}.\n{target_yaml(target)}"
    if out is not None:
        _check_ending(out)
    _write(console, text, out, force=force)
    console.note("The header does not say these; check them against your configuration:")
    for line in unsaid(target):
        console.note(f"  {line}")


@targets.command("export")
@click.argument("name", metavar="TARGET")
@file_option("Header to write.", required=False)
@console_options
def export_target(console: Console, name: str, out: Path | None, force: bool) -> None:
    """Write the gemmini_params.h of a target, for simulators and programs.

    It says what the generator would say of such hardware. For hardware that exists take the header that was
    generated with it: this one is what the target assumes.

    \b
    Examples:
      fadiff targets export gemmini-large -o gemmini_params.h
    """
    from fadiff.costmodel.target.target import load_target
    from fadiff.emulator.params import params_header

    _write(console, params_header(load_target(name)), out, force=force)


@targets.command()
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--params",
    type=PATH,
    metavar="gemmini_params.h",
    help="Also compare with this header.",
)
@console_options
def check(console: Console, file: Path, params: Path | None) -> int:
    """Validate a target file, and compare it with a gemmini_params.h.

    Exits 2 when the file is no valid target, 1 when it disagrees with the header.

    \b
    Example:
      fadiff targets check mine.yaml --params gemmini_params.h
    """
    from fadiff.costmodel.target.params_header import HEADER_FIELDS, target_from_header
    from fadiff.costmodel.target.target import load_target

    target = load_target(file)
    if params is not None:
        header = target_from_header(params)
        wrong = [f for f in HEADER_FIELDS if getattr(target, f) != getattr(header, f)]
        for field in wrong:
            console.result(
                f"{file}: {field} is {getattr(target, field)}, but {params} says {getattr(header, field)}"
                + _remedy(field, target)
            )
        if wrong:
            return CHECK_FAILED
    console.result(
        f"{file}: ok: {target.name}, {target.side} x {target.side} {target.element_type}, "
        f"{target.scratchpad_rows} scratchpad rows, {target.accumulator_rows} accumulator rows"
    )
    return OK


@targets.command()
@click.argument("name", metavar="TARGET")
@click.argument("folders", metavar="DIR...", type=PATH, nargs=-1, required=True)
@file_option("YAML file to write.", required=True)
@console_options
def calibrate(console: Console, name: str, folders: tuple[Path, ...], out: Path, force: bool) -> int:
    """Fit the clock of a target to what `fadiff measure` found in output folders.

    The file is TARGET with coefficients of its own, and with the error of predictions for layers that the
    fit did not see. Exits 1, writing nothing, where such layers are predicted no better than before; 2 where
    there are too few layers.

    \b
    Example:
      fadiff targets calibrate gemmini-default build/resnet18 build/bert -o mine.yaml
    """
    from fadiff.costmodel.schedule.calibration import TooLittleData, calibrate, samples_of
    from fadiff.costmodel.target.target import load_target, target_yaml

    target = load_target(name)
    _check_ending(out)
    check_new(out, force=force)
    samples = [sample for folder in folders for sample in samples_of(*_measured(folder, target))]
    try:
        found = calibrate(target, samples)
    except TooLittleData as error:
        raise InputError(f"{', '.join(map(str, folders))}: {error}") from error
    for label, off in (("before", found.before), ("after", found.after)):
        console.result(
            f"{label:<7} median error {100 * off.median_error:.1f} %, nine in ten below "
            f"{100 * off.p90_error:.1f} %, {off.layers} layers"
            + (", each left out of its fit" if label == "after" else "")
        )
    if not found.helps:
        console.result(f"not written: layers left out of the fit are predicted no better than by {name}")
        return CHECK_FAILED
    out.write_text(f"# {name}, calibrated.\n{target_yaml(found.target)}", encoding="utf-8")
    console.note(f"wrote {out}")
    return OK


def _write(console: Console, text: str, out: Path | None, *, force: bool) -> None:
    """To a new file, or else to the terminal."""
    if out is None:
        console.result(text.rstrip())
        return
    check_new(out, force=force)
    out.write_text(text, encoding="utf-8")
    console.note(f"wrote {out}")


def _check_ending(out: Path) -> None:
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"{out}: a target file ends in .yaml")


def _remedy(field: str, target: Target) -> str:
    """What to do where the header lacks a macro of optional hardware that the target counts on."""
    from fadiff.costmodel.target.params_header import OPTIONAL_MACROS

    if field not in OPTIONAL_MACROS or not getattr(target, field):
        return ""
    return (
        f": if the hardware lacks it, set {field}: false in the target; if not, the header is older than "
        f"the hardware (that of gemmini-rocc-tests is): generate it, or add #define {OPTIONAL_MACROS[field]}"
    )


def _measured(folder: Path, target: Target) -> tuple[Schedule, Measurement]:
    """What an output folder's program is and took, on this target."""
    from fadiff.costmodel.schedule.serialize import schedule_from_document
    from fadiff.folder import OutputFolder

    output = OutputFolder(folder)
    measurement = output.measured()
    if measurement is None:
        raise InputError(f"{folder}: nothing measured: run fadiff measure {folder} first")
    if measurement.unit != "cycles":
        raise InputError(f"{folder}: {measurement.unit} were measured, which say nothing about time")
    schedule = schedule_from_document(output.document)
    sizes = ("side", "scratchpad_bytes", "accumulator_bytes", "element_type")
    for size in sizes:
        if getattr(schedule.target, size) != getattr(target, size):
            raise InputError(
                f"{folder}: {size} is {getattr(schedule.target, size)}, but {getattr(target, size)} in "
                f"{target.name}: measure programs for this target"
            )
    return schedule, measurement


def _summary(target: Target) -> dict[str, object]:
    return target.model_dump(
        include={"name", "side", "scratchpad_bytes", "accumulator_bytes", "element_type"}
    )


def _derived(target: Target) -> dict[str, float]:
    return {
        "scratchpad_rows": target.scratchpad_rows,
        "accumulator_rows": target.accumulator_rows,
        "accumulator_word_pj": target.accumulator_word_pj,
        "scratchpad_byte_pj": target.scratchpad_byte_pj,
        "tile_buffer_byte_pj": target.tile_buffer_byte_pj,
        "scratchpad_bytes_per_cycle": target.scratchpad_bytes_per_cycle,
    }
