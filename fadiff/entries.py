"""Several entries of one model in one firmware: prefill and decode, with the same weights and states.

Each entry goes through the pipeline of `compile` by itself; what they share is what runs through them
(`fadiff.entry_runs`), one scale for every state, and the link of their programs
(`fadiff.emitters.gemmini.link`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fadiff.console import Console
from fadiff.entry_runs import IntegerRuns, Runs, float_runs
from fadiff.errors import InputError
from fadiff.folder import ENTRIES, OutputFolder, entry_names
from fadiff.keywords import Keywords
from fadiff.output import replacing_folder
from fadiff.pipeline import (
    CompileResult,
    ModelOptions,
    TimeloopOptions,
    as_target,
    check_has_c,
    keep_report,
    options_of,
    read_model,
    write_records,
)
from fadiff.solved import Solved, solve

if TYPE_CHECKING:
    from fadiff.converter import Conversion
    from fadiff.converter.ir.graph import Tensor
    from fadiff.costmodel.target.target import Target
    from fadiff.emulator import VerifyReport
    from fadiff.search import DramLimit, SearchOptions


@dataclass(frozen=True)
class Entry:
    """A function of the firmware: a model with sizes for its dimensions."""

    name: str
    model: Path
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class EntriesResult:
    """What `compile_entries` wrote: the folder, and what each entry is, in the order of a run."""

    out: Path
    entries: Mapping[str, CompileResult]


def compile_entries(
    entries: Sequence[Entry],
    out: str | Path,
    *,
    name: str = "",
    target: str | Path | Target = "gemmini-default",
    reading: ModelOptions | None = None,
    search: SearchOptions | None = None,
    max_dram_bytes: DramLimit = None,
    timeloop: TimeloopOptions | None = None,
    verify: bool = False,
    force: bool = False,
    console: Console | None = None,
    **plain: Unpack[Keywords],
) -> EntriesResult:
    """Convert, search and emit several entries as one firmware; `out` appears complete or not at all.

        lm = Path("lm.onnx")
        entries = [Entry("prefill", lm, {"seq": 128}), Entry("decode", lm, {"seq": 1})]
        compile_entries(entries, "build/lm", calibration="runs.npz", verify=True)

    A run calls the first entry with states of zero, then every other as often as the data says.
    Calibration and test data have one array for each input of each entry, named ENTRY:INPUT, with a leading
    axis of calls: as many of the first entry as there are runs, of the others a multiple of that.

    Args:
        entries: In the order of a run.
        out: Folder to make.
        name: Of the firmware; by default that of the model, of several models that of `out`.
        target: As `compile`, and so are those that follow.
        reading: Quantisation, data and dimensions of all entries.
        search: Method, objective, budget of each entry.
        max_dram_bytes: What the schedule of each entry may move.
        timeloop: Dialect of the Timeloop files.
        verify: Also run all entries in turn on the functional model.
        force: Replace `out` if it is an output folder.
        console: Where progress goes; only warnings by default.
        plain: Single fields of `ModelOptions` and `SearchOptions`.

    Raises:
        TypeError: a keyword that neither of them has.
        InputError, ModelError, TargetError, ScheduleError: the input cannot be used; one line says why.
    """
    from fadiff.realised import Realiser

    out = Path(out)
    console = console or Console(verbosity=-1)
    reading, search = options_of(reading, search, plain)
    if verify:
        check_has_c(search)
    _check_names(entries)
    models = {entry.model for entry in entries}
    name = name or (entries[0].model.stem if len(models) == 1 else out.name)
    hardware = as_target(target)
    with replacing_folder(out, force=force) as work:
        converted, tests = _converted(entries, hardware, reading, console)
        integers, solved = IntegerRuns(tests, {}), dict[str, Solved]()
        for entry, conversion in converted.items():
            console.note(f"entry {entry}:")
            realise = Realiser(conversion, console, given=integers.vectors(entry, conversion))
            solved[entry] = solve(realise, hardware, search, max_dram_bytes, console)
            integers = integers.after(solved[entry].vectors)
        _write(work, name, solved, console, timeloop or TimeloopOptions())
        reports = dict(zip(solved, verify_entries(work, console), strict=True)) if verify else {}
        if not verify:
            for entry in solved:
                OutputFolder(work / entry).refresh_report()
    results = {
        entry: CompileResult(out / entry, s.document, reports.get(entry)) for entry, s in solved.items()
    }
    return EntriesResult(out, results)


def verify_entries(folder: Path, console: Console | None = None) -> list[VerifyReport]:
    """Run the entries that `compile_entries` wrote in turn on the functional model, and compare; keep in the
    folder what was measured.

    Raises:
        InputError: the folder has no entries, or they hold no program.
        BuildError: its C does not compile.
    """
    from fadiff.emulator import verify_entries as verified

    console = console or Console(verbosity=-1)
    outputs = [OutputFolder(folder / name) for name in entry_names(folder)]
    if not outputs or not all(output.document.is_executable for output in outputs):
        raise InputError(f"{folder}: holds no entries with C: compile with --profile hw --fusion-model sound")
    with console.stage("verifying"):
        maps = {output.path: output.map_name for output in outputs}
        reports = verified(outputs[0].firmware, maps, progress=console.update)
    for output, report in zip(outputs, reports, strict=True):
        keep_report(output, report, console)
    return reports


def _check_names(entries: Sequence[Entry]) -> None:
    if not entries:
        raise InputError("no entry: give at least one")
    names = [entry.name for entry in entries]
    for name in names:
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in ("firmware", "generate"):
            raise InputError(f"entry {name!r}: a name of letters, digits and _ that begins with a letter")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise InputError(f"entry {twice} is there twice: give each a name of its own")


def _converted(
    entries: Sequence[Entry], target: Target, reading: ModelOptions, console: Console
) -> tuple[dict[str, Conversion], Runs]:
    """The entries, calibrated on one run, with one scale for every state and for outputs of one name; and the
    runs to test them with.

    An entry that has found a finer scale than another is converted once more.
    """
    from fadiff.converter.rewrites import EQUALISE_CHANNELS, JUDGED, ROUND_WEIGHTS

    looks = {entry.name: _looked_at(entry, target, reading, console) for entry in entries}
    files = {entry.name: entry.model for entry in entries}
    _check_states(looks)
    calibration = reading.calibration
    if calibration is not None and not isinstance(calibration, str | Path | Mapping):
        raise InputError("calibration of several entries: an .npz file, or arrays named ENTRY:INPUT")
    runs = float_runs(looks, files, calibration, "calibration", (0,))
    # each entry would round and scale weights in a way of its own, and they would be there twice
    without = {*reading.without, EQUALISE_CHANNELS, ROUND_WEIGHTS, *(() if runs.given else JUDGED)}
    if not runs.given and target.element_type == "int8":
        console.warn(
            "no calibration data: int8 ranges come from seeded random runs; accuracy on real data may be "
            "poor (give --calibration FILE.npz)"
        )

    def convert(entry: Entry, scales: Mapping[str, float]) -> Conversion:
        samples = runs.samples(entry.name)
        own = replace(
            reading, dims={**reading.dims, **entry.dims}, calibration=samples, without=tuple(sorted(without))
        )
        found = read_model(entry.model, target, own, console, scales)
        return replace(found, random_calibration=not runs.given)

    found = {entry.name: convert(entry, {}) for entry in entries}
    for _ in entries:  # (a scale that grows in one may share it with another value there, and so on)
        scales = _largest(_scales(conversion) for conversion in found.values())
        for entry in entries:
            own = _scales(found[entry.name])
            if any(scale != scales[value] for value, scale in own.items()):
                found[entry.name] = convert(entry, {value: scales[value] for value in own})
    _check_states(found)
    return found, float_runs(looks, files, reading.test_inputs, "inputs", (1,))


def _looked_at(entry: Entry, target: Target, reading: ModelOptions, console: Console) -> Conversion:
    """An entry without scales: its float model, and what it keeps."""
    from fadiff.pipeline import convert_with

    own = replace(
        reading,
        dims={**reading.dims, **entry.dims},
        calibration=(),
        keep_float=(),
        wide=(),
        min_sqnr=None,
    )
    with console.stage(f"reading {entry.model.name} as {entry.name}"):
        return convert_with(entry.model, own, console, element=target.element_type, calibrate=False)


def _states(conversion: Conversion) -> dict[str, Tensor]:
    """What an entry keeps, by the names of inputs in the file."""
    tensors = (conversion.graph.tensors[state.input] for state in conversion.graph.states)
    return {tensor.onnx_name or tensor.name: tensor for tensor in tensors}


def _scales(conversion: Conversion) -> dict[str, float]:
    """What integers of states and outputs mean, by the names in the file."""
    graph = conversion.graph
    ends = [graph.tensors[name] for name in graph.results] + list(_states(conversion).values())
    return {t.onnx_name or t.name: t.scale for t in ends if t.scale is not None and t.along is None}


def _largest(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for own in found:
        scales |= {value: max(scales.get(value, 0.0), scale) for value, scale in own.items()}
    return scales


def _check_states(entries: Mapping[str, Conversion]) -> None:
    """Raises InputError where two entries do not keep a state alike."""
    known: dict[str, tuple[str, Tensor]] = {}
    for entry, conversion in entries.items():
        for state, tensor in _states(conversion).items():
            other, first = known.setdefault(state, (entry, tensor))
            if _stored(first) != _stored(tensor):
                raise InputError(
                    f"state {state}: {other} keeps it as {_described(first)}, {entry} as "
                    f"{_described(tensor)}: entries of one firmware must keep it alike"
                )


def _stored(tensor: Tensor) -> object:
    return tensor.shape, tensor.dtype, tensor.scale, tensor.zero, tensor.onnx_axes


def _described(tensor: Tensor) -> str:
    scale = "" if tensor.scale is None else f" of scale {tensor.scale:.6g}"
    axes = "" if tensor.onnx_axes is None else f", axes {' '.join(map(str, tensor.onnx_axes))}"
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape))}{scale}{axes}"


def _write(
    work: Path, name: str, solved: Mapping[str, Solved], console: Console, timeloop: TimeloopOptions
) -> None:
    """A folder for each entry, the firmware, and a page that leads to all."""
    from fadiff.emitters import gemmini
    from fadiff.emitters.report.entries import render_entries
    from fadiff.vectors import write_vectors

    generator = next(iter(solved.values())).document.generator
    index = {"version": 1, "generator": generator, "name": name, "entries": list(solved)}
    (work / ENTRIES).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    programs = []
    for entry, one in solved.items():
        folder = OutputFolder(work / entry)
        folder.path.mkdir()
        write_records(folder, one, console, timeloop)
        if one.document.is_executable:
            first, later = write_vectors(folder.verification_data, one.vectors)
            programs.append(gemmini.Entry(entry, one.schedule, (first, *later)))
    if programs:
        with console.stage("writing firmware"):
            gemmini.emit_entries(programs, model_name=name, out_dir=work / "firmware", generator=generator)
    page = render_entries(name, {entry: one.document for entry, one in solved.items()})
    (work / "report.html").write_text(page, encoding="utf-8")
