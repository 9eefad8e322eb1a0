"""`fadiff compile`: the main job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fadiff.commands import options
from fadiff.commands.reading import (
    cut_options,
    dim_option,
    keep_float_option,
    one_reading,
    quantize_options,
    state_options,
    without_option,
)
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK, InputError
from fadiff.folder import OutputFolder

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.schedule.verdict import Verdict
    from fadiff.costmodel.target.target import Target
    from fadiff.emitters.memory_map import MemoryMap
    from fadiff.entries import Entry
    from fadiff.pipeline import CompileResult, ModelOptions

POOR_SQNR_DB = 15.0
"""Below this many decibels a tensor is worth a look: its noise is over a sixth of its signal."""
SENSITIVE_LAYERS = 5
BOUND = {
    "proven": "proven: no schedule of the canonical space is below the bound",
    "unfused": "proven for schedules without fusion",
    "relaxed": "relaxed: no schedule of this search space is below the bound, perhaps none reaches it",
    "sequential": "of schedules that run one layer after the other, as this one does not",
    None: "",
}
"""What a lower bound rests on."""


def _parse_limit(context: click.Context, parameter: click.Parameter, given: str) -> int | str | None:
    if given == "none":
        return None
    if given == "gemmini-auto":
        return given
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise click.BadParameter(f"{given!r}: give a number of bytes, gemmini-auto or none")
    return int(given)


Sizes = dict[str, list[int]]
"""Of one entry by dimension; of one dimension there may be several."""


def _parse_entries(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, Sizes], ...]:
    entries = []
    for value in values:
        name, _, sizes = value.partition(":")
        bound: Sizes = {}
        for part in filter(None, sizes.split(",")):
            named, equals, size = part.rpartition("=")
            dim = named if equals else next(reversed(bound), "")
            if not dim or not size.isdigit():
                raise click.BadParameter(f"{value!r}: write NAME:DIM=SIZE[,DIM=SIZE], such as decode:seq=1")
            bound.setdefault(dim, []).append(int(size))
        entries.append((name, bound))
    return tuple(entries)


@click.command("compile")
@click.argument("models", metavar="MODEL.onnx...", type=options.PATH, nargs=-1, required=True)
@click.option(
    "--entry",
    "entries",
    metavar="NAME[:DIM=SIZE[,SIZE...],...]",
    multiple=True,
    callback=_parse_entries,
    help="One function of a firmware with several: the model with these sizes.  Weights and states are "
    "common.  With --context, `context=ROWS` is a size, too; of several sizes of caches there is a function "
    "for each, and a call takes the smallest that has its rows.  [default: one function for each MODEL]",
)
@options.target_option()
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=options.PATH,
    help="Folder to make.  [default: the model's name]",
)
@quantize_options
@click.option(
    "--test-inputs",
    type=options.FILE,
    metavar="FILE.npz",
    help="Inputs to verify with.  [default: MODEL.inputs.npz, else seeded random]",
)
@options.choice(
    "--method",
    options.METHODS,
    "How to search: auto (enumeration), exact (the same however long it takes), "
    "gradient (descent first), layerwise (no fusion), or a baseline: "
    "dosa, genetic, bayesian, random, gemmini-auto.",
    metavar="METHOD",
)
@options.search_options
@click.option(
    "--max-dram-bytes",
    metavar="BYTES|gemmini-auto|none",
    callback=_parse_limit,
    default="none",
    show_default=True,
    help="Most DRAM bytes the schedule may move, at whatever it costs; gemmini-auto: what gemmini.h's "
    "automatically tiled calls would move.",
)
@dim_option
@cut_options
@state_options
@keep_float_option
@without_option
@click.option(
    "--schedule",
    type=options.FILE,
    metavar="SCHEDULE.json",
    help="Execute this schedule instead of searching; it brings its own target.",
)
@options.choice(
    "--timeloop-dialect",
    ["native", "frontend", "both"],
    "native: what the Timeloop binaries read. frontend: what pytimeloop and timeloopfe read.",
)
@click.option("--timeloop-hyphens", is_flag=True, help="Native keys for Timeloop releases before 2024-02.")
@click.option(
    "--verify/--no-verify", default=False, show_default=True, help="Also do what `fadiff verify` does."
)
@options.accuracy_options
@click.option("--force", is_flag=True, help="Replace DIR if it is an output folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the totals as JSON.")
@options.console_options
@one_reading
def compile_command(
    console: Console,
    models: tuple[Path, ...],
    entries: tuple[tuple[str, Sizes], ...],
    target: Target,
    out: Path | None,
    reading: ModelOptions,
    max_dram_bytes: Any,
    schedule: Path | None,
    timeloop_dialect: Any,
    timeloop_hyphens: bool,
    verify: bool,
    min_top1: float | None,
    force: bool,
    as_json: bool,
    **search: Any,
) -> int:
    """Turn MODEL.onnx into a schedule, Gemmini C, Timeloop mappings and a report.

    DIR appears complete or not at all. Exits 1 when the integers lose the float model (--min-sqnr, or under
    90 % of its answers), or --verify finds a difference.

    \b
    Examples:
      fadiff compile resnet18.onnx --target gemmini-large --out build/resnet18 --verify
      fadiff compile net.onnx --target gemmini_params.h --calibration images.npz
      fadiff compile bert.onnx --dim batch=1 --dim sequence=128 --time-budget 60
      fadiff compile yolo.onnx --outputs boxes,scores
      fadiff compile lm.onnx --entry prefill:seq=128 --entry decode:seq=1
      fadiff compile net.onnx --schedule edited/schedule.json --out again
    """
    from fadiff.costmodel.schedule.verdict import verdict_of
    from fadiff.entries import compile_entries
    from fadiff.pipeline import TimeloopOptions
    from fadiff.pipeline import compile as compile_model
    from fadiff.search import SearchOptions

    common: dict[str, Any] = {
        "target": target,
        "reading": reading,
        "search": SearchOptions(**search),
        "max_dram_bytes": max_dram_bytes,
        "timeloop": TimeloopOptions(timeloop_dialect, timeloop_hyphens),
        "verify": verify,
        "force": force,
        "console": console,
    }
    if len(models) == 1 and not entries:
        folder = out or Path(models[0].stem)
        results = {"": compile_model(models[0], folder, schedule=schedule, **common)}
    elif schedule is not None:
        raise InputError("--schedule: of one function; every entry has a schedule of its own")
    else:
        folder = _folder_of_entries(models, out)
        results = dict(compile_entries(_entries(models, entries), folder, **common).entries)
    verdicts = {name: verdict_of(one.document, reading.min_sqnr, min_top1) for name, one in results.items()}
    if as_json:
        summaries = {name: _summary(one, verdicts[name]) for name, one in results.items()}
        whole = summaries[""] if "" in summaries else {"out": str(folder), "entries": summaries}
        console.result(json.dumps(whole, indent=2))
    else:
        for name, one in results.items():
            _print(console, one, verdicts[name])
        if "" not in results:
            console.result(f"all entries\n  report      {folder / 'report.html'}")
    passed = all(one.verification is None or one.verification.passed for one in results.values())
    return OK if passed and all(v is None or v.passed for v in verdicts.values()) else CHECK_FAILED


def _folder_of_entries(models: tuple[Path, ...], out: Path | None) -> Path:
    if out is None and len(models) > 1:
        raise InputError(f"{len(models)} models: give --out, whose name the firmware has")
    return out or Path(models[0].stem)


def _entries(models: tuple[Path, ...], given: tuple[tuple[str, Sizes], ...]) -> list[Entry]:
    """A function for each model, or for each --entry of the only one; for each of several sizes."""
    if len(models) == 1:
        return [entry for name, sizes in given for entry in _of_sizes(name, models[0], sizes)]
    sizes = dict(given)
    for name in sizes:
        if name not in (stems := [model.stem for model in models]):
            raise InputError(f"--entry {name}: no model of that name: there are {', '.join(stems)}")
    return [entry for model in models for entry in _of_sizes(model.stem, model, sizes.get(model.stem, {}))]


def _of_sizes(name: str, model: Path, sizes: Sizes) -> list[Entry]:
    from fadiff.entries import Entry

    entry = Entry(name, model, {dim: several[-1] for dim, several in sizes.items()})
    several = {dim: given for dim, given in sizes.items() if len(given) > 1}
    return entry.of_sizes(several) if several else [entry]


def _summary(result: CompileResult, accuracy: Verdict | None) -> dict[str, Any]:
    from fadiff.costmodel.schedule.mixed_precision import mixed_precision

    return {
        "out": str(result.out),
        "totals": result.document.totals.model_dump(),
        "accuracy": accuracy.as_dict() if accuracy is not None else None,
        "kept_float": mixed.as_dict() if (mixed := mixed_precision(result.document)) else None,
        "verification": result.verification.as_dict() if result.verification else None,
    }


def _print(console: Console, result: CompileResult, accuracy: Verdict | None) -> None:
    from fadiff.commands.verify import print_accuracy, print_verification
    from fadiff.costmodel.latency.clock import error_against_rtl
    from fadiff.costmodel.schedule.mixed_precision import mixed_precision

    document, totals = result.document, result.document.totals
    fused = sum(document.fused)
    entry = OutputFolder(result.out).entry
    console.result(
        f"{document.model.name}{entry and f', entry {entry},'} on {document.target.name} "
        f"({document.profile} profile)"
    )
    console.result(f"  EDP         {totals.edp_uj_cycles:.4e} uJ x cycles")
    if totals.gap is not None and totals.lower_bound_edp_uj_cycles is not None:
        above = round(100 * totals.gap, 2) + 0.0  # never "-0.00": equal up to the order of a sum
        side = "below" if above < 0 else "above"
        console.result(
            f"  bound       {totals.lower_bound_edp_uj_cycles:.4e}; "
            f"the schedule is {abs(above):.2f} % {side} it ({BOUND[totals.bound_kind]})"
        )
    console.result(f"  energy      {totals.energy_pj * 1e-6:,.1f} uJ (modelled)")
    error = error_against_rtl(document.latency_model, document.target)
    modelled = f"modelled by the {document.latency_model}: {error}"
    console.result(f"  cycles      {totals.latency_cycles:,.0f} ({modelled})")
    console.result(f"  DRAM bytes  {totals.dram_bytes:,}")
    stay = {tensor for run in document.fusion.execution for tensor in run.resident_tensors}
    residents = f", {len(stay)} tensor{'s' if len(stay) != 1 else ''} on chip between groups" if stay else ""
    console.result(
        f"  layers      {len(document.layers)}, {fused} fused group{'s' if fused != 1 else ''}{residents}"
    )
    if (memory := OutputFolder(result.out).memory_map()) is not None:
        _print_memory(console, memory)
    print_accuracy(console, accuracy)
    if (mixed := mixed_precision(document)) is not None:
        console.result(f"  in float    {mixed.line()}")
    _print_sensitive(console, document)
    if document.search:
        search = document.search
        console.result(f"  search      {search.method}, seed {search.seed}, {search.seconds:.1f} s")
    if result.verification is not None:
        print_verification(console, result.verification)
    elif document.is_executable:
        folder = result.out.parent if entry else result.out
        console.result(f"  not verified: fadiff verify {shlex.quote(str(folder))}")
    else:
        console.result("  no C: these rules are for comparison with published numbers")
    console.result(f"  report      {result.out / 'report.html'}")


def _print_memory(console: Console, memory: MemoryMap) -> None:
    parts = [
        f"arena {memory.symbols.arena.bytes:,} bytes (alive at once {memory.live_bytes:,})",
        f"weights {memory.symbols.weights.bytes:,}",
        f"tile buffer {memory.symbols.tile_buffer.bytes:,}",
        f"stack below {memory.stack_bytes:,}",
    ]
    console.result(f"  memory      {', '.join(parts)}")


def _print_sensitive(console: Console, document: ScheduleDocument) -> None:
    """The layers that int8 hurts most: those below POOR_SQNR_DB, with -v the worst in any case."""
    writers = {name: layer.name for layer in document.layers for name in layer.outputs}
    worst = sorted(document.conversion.quantization, key=lambda row: row.sqnr_db)[:SENSITIVE_LAYERS]
    shown = [row for row in worst if row.sqnr_db < POOR_SQNR_DB or console.verbosity > 0]
    for i, row in enumerate(shown):
        layer = writers.get(row.tensor, row.tensor)
        console.result(f"  {'sensitive' if i == 0 else '':<11} {layer}: SQNR {row.sqnr_db:.1f} dB")
