"""`fadiff timeloop`: hold our counts against the user's own Timeloop, and take its mappings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import PATH, console_options, file_option, verbosity_options
from fadiff.console import Columns, Console, numbers
from fadiff.errors import CHECK_FAILED, OK, InputError, naming
from fadiff.output import check_new

if TYPE_CHECKING:
    from fadiff.emitters.timeloop.compare import Comparison


@click.group()
@verbosity_options
def timeloop() -> None:
    """Run Timeloop on the files of an output folder, or bring mappings back from it.

    \b
    Examples:
      fadiff timeloop run build/resnet18 --timeloop-model ~/timeloop/build/timeloop-model
      fadiff timeloop import build/resnet18/schedule.json fc=timeloop-mapper.map.yaml -o mine.json
    """


@timeloop.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--timeloop-model",
    "model",
    type=PATH,
    metavar="PATH",
    help="The binary.  [default: timeloop-model on PATH]",
)
@click.option("--accesses", is_flag=True, help="Also print the accesses of every level and tensor.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, with all accesses.")
@console_options
def run(console: Console, folder: Path, model: Path | None, accesses: bool, as_json: bool) -> int:
    """Run timeloop-model on every layer of DIR and compare cycles, energy and accesses with ours.

    DIR is what `fadiff compile` or `fadiff map` wrote.  Predicted are our counts by Timeloop's rules (see
    docs/timeloop.md), whatever the schedule's profile.  Exits 1 when a layer with perfect factors differs or
    Timeloop fails on one.  Ragged tiles are imperfect factors, which Timeloop only estimates: shown, not
    judged.

    \b
    Examples:
      fadiff compile net.onnx --tiling divisor --out build/net
      fadiff timeloop run build/net
      fadiff map net.onnx --arch eyeriss-like --out build/eyeriss && fadiff timeloop run build/eyeriss
    """
    from fadiff.costmodel.schedule.serialize import schedule_from_document
    from fadiff.emitters.timeloop.compare import compare
    from fadiff.emitters.timeloop.index import read_index
    from fadiff.folder import OutputFolder

    schedule, files = None, folder
    if not (folder / "index.yaml").is_file():  # not of fadiff map
        output = OutputFolder(folder)
        with naming(folder):
            schedule, files = schedule_from_document(output.document), output.timeloop
    index = read_index(files / "index.yaml")
    binary = _binary(model)
    with console.stage(f"running timeloop-model on {len(index.layers)} problems"):
        results = compare(schedule, index, files, binary, lambda done: console.update(done.layer))
    if as_json:
        console.result(json.dumps([_row(result) for result in results], indent=2))
    else:
        _print(console, results)
        _print_accesses(console, results, everything=accesses)
    return OK if all(result.passes for result in results) else CHECK_FAILED


@timeloop.command("import")
@click.argument("schedule", metavar="SCHEDULE.json", type=PATH)
@click.argument("layers", metavar="LAYER=MAP.yaml...", nargs=-1, required=True)
@file_option("schedule.json to write.", required=True)
@console_options
def import_mappings(
    console: Console, schedule: Path, layers: tuple[str, ...], out: Path, force: bool
) -> None:
    """Put mappings from timeloop-mapper, CoSA or your own head into a schedule.

    Each MAP.yaml is a mapping of the problem that fadiff emitted for LAYER.  The result can be
    scored with `fadiff evaluate` and turned into C with `fadiff compile MODEL.onnx --schedule`.

    \b
    Example:
      fadiff timeloop import build/resnet18/schedule.json fc.Gemm=map.yaml -o mine.json
    """
    from fadiff.costmodel.schedule.evaluate import evaluate
    from fadiff.costmodel.schedule.serialize import read_document, schedule_from_document, write_document
    from fadiff.emitters.timeloop.read.schedule import with_mappings
    from fadiff.solved import describe

    check_new(out, force=force)
    files: dict[str, Path] = {}
    for text in layers:
        name, separator, path = text.partition("=")
        if not separator or not path:
            raise click.UsageError(f"{text!r}: write LAYER=MAP.yaml")
        files[name] = Path(path)
    document = read_document(schedule)
    with naming(schedule):
        before = schedule_from_document(document)
    after = with_mappings(before, files)
    written = describe(after)
    write_document(written.model_copy(update={"conversion": document.conversion}), out)
    ours, theirs = (evaluate(s).edp_uj_cycles for s in (before, after))
    console.result(f"{out}: {len(files)} of {len(before.mappings)} mappings replaced")
    console.result(f"EDP {theirs:.4e} uJ x cycles, before {ours:.4e} ({theirs / ours:.3f} x)")


def _binary(model: Path | None) -> Path:
    found = shutil.which(str(model or "timeloop-model"))
    if found is None:
        raise InputError(
            f"{model}: no such program"
            if model
            else "timeloop-model is not on PATH: install Timeloop, or give --timeloop-model PATH"
        )
    return Path(found)


def _row(result: Comparison) -> dict[str, object]:
    measured = result.measured
    return {
        "layer": result.layer,
        "file": result.file,
        "runs": result.runs,
        "factors": result.factors,
        "status": result.status,
        "cycles": {"predicted": result.predicted.cycles, "timeloop": measured and measured.cycles},
        "energy_pj": {"predicted": result.predicted.energy_pj, "timeloop": measured and measured.energy_pj},
        "accesses": [
            {"level": level, "tensor": tensor, "access": what, "predicted": ours, "timeloop": theirs}
            for level, tensor, what, ours, theirs in result.accesses
        ],
        "problem": result.problem,
    }


def _print(console: Console, results: tuple[Comparison, ...]) -> None:
    columns: Columns = (
        "layer",
        *numbers("runs", "cycles", "Timeloop", "energy uJ", "Timeloop"),
        "accesses",
        "",
    )
    rows = []
    for result in results:
        measured = result.measured
        differ, total = len(result.differences), len(result.accesses)
        rows.append(
            (
                result.file,
                str(result.runs),
                f"{result.predicted.cycles:,}",
                f"{measured.cycles:,}" if measured else "-",
                f"{result.predicted.energy_pj * 1e-6:,.3f}",
                f"{measured.energy_pj * 1e-6:,.3f}" if measured else "-",
                "-" if not measured else f"{differ} of {total} differ" if differ else f"{total} equal",
                result.problem or result.status,
            )
        )
    console.table(columns, rows)
    counted = [result.status for result in results]
    summary = ", ".join(f"{counted.count(status)} {status}" for status in dict.fromkeys(counted))
    console.result(f"{len(results)} problems: {summary}")


def _print_accesses(console: Console, results: tuple[Comparison, ...], *, everything: bool) -> None:
    """Words read and written, all instances; only what differs unless asked."""
    rows = [
        (result.file, level, tensor, what, f"{ours:,}", f"{theirs:,}")
        for result in results
        for level, tensor, what, ours, theirs in result.accesses
        if everything or (ours != theirs and result.status == "differs")
    ]
    if rows:
        console.result("")
        console.table(("layer", "level", "tensor", "access", *numbers("predicted", "Timeloop")), rows)
