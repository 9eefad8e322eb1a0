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


CONTEXT = "context"
"""The size of an entry that is no dimension of the file, but rows of caches that grow."""


@dataclass(frozen=True)
class Entry:
    """A function of the firmware: a model with sizes for its dimensions."""

    name: str
    model: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dimensions; with `ModelOptions.context` also `context`, rows of caches that grow."""
    narrows: str = ""
    """The entry of which this one sees only the first rows of the caches: it takes that one's data, as far as
    they are enough, and its scales."""

    def of_sizes(self, sizes: Mapping[str, Sequence[int]]) -> list[Entry]:
        """One entry for each number of rows, smaller ones first: NAME_SIZE; the largest keeps the name.

        Args:
            sizes: ascending, of the dimension that rows of caches have; of several (caches and their mask) as
                many of each.

        Raises:
            InputError: of one dimension other numbers of sizes than of another, or not ascending.
        """
        every = [dict(zip(sizes, each, strict=False)) for each in zip(*sizes.values(), strict=False)]
        if any(list(given) != sorted(set(given)) or len(given) != len(every) for given in sizes.values()):
            raise InputError(f"entry {self.name}: give as many sizes of each dimension, ascending")
        *fewer, most = (replace(self, dims={**self.dims, **each}) for each in every)
        rows = [next(iter(each.values())) for each in every]
        narrow = zip(fewer, rows, strict=False)
        return [*(replace(e, name=f"{e.name}_{n}", narrows=self.name) for e, n in narrow), most]


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
        decode = Entry("decode", lm, {"seq": 1}).of_sizes({"cache": (128, 512)})  # decode_128, decode

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
    if entries[0].narrows:
        raise InputError(f"entry {names[0]}: the first entry begins a run: put one for prompts before it")
    wide = {entry.name for entry in entries if not entry.narrows}
    if lost := next((entry for entry in entries if entry.narrows and entry.narrows not in wide), None):
        raise InputError(f"entry {lost.name}: there is no entry {lost.narrows} with all rows")


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
    narrow = {entry.name: entry.narrows for entry in entries if entry.narrows}
    _check_states(looks)
    calibration = reading.calibration
    if calibration is not None and not isinstance(calibration, str | Path | Mapping):
        raise InputError("calibration of several entries: an .npz file, or arrays named ENTRY:INPUT")
    runs = float_runs(looks, files, calibration, "calibration", (0,), narrow)
    # each entry would round and scale weights in a way of its own, and they would be there twice
    without = {*reading.without, EQUALISE_CHANNELS, ROUND_WEIGHTS, *(() if runs.given else JUDGED)}
    if not runs.given and target.element_type == "int8":
        console.warn(
            "no calibration data: int8 ranges come from seeded random runs; accuracy on real data may be "
            "poor (give --calibration FILE.npz)"
        )

    def convert(entry: Entry, scales: Mapping[str, float], like: Conversion | None = None) -> Conversion:
        samples = runs.samples(entry.name, [name for name, wide in narrow.items() if wide == entry.name])
        own = replace(_reading(entry, reading), calibration=samples, without=tuple(sorted(without)))
        found = read_model(entry.model, target, own, console, scales, like)
        return replace(found, random_calibration=not runs.given)

    whole = [entry for entry in entries if not entry.narrows]
    found = {entry.name: convert(entry, {}) for entry in whole}
    for _ in whole:  # (a scale that grows in one may share it with another value there, and so on)
        scales = _largest(_scales(conversion) for conversion in found.values())
        for entry in whole:
            own = _scales(found[entry.name])
            if any(scale != scales[value] for value, scale in own.items()):
                found[entry.name] = convert(entry, {value: scales[value] for value in own})
    for entry in entries:
        if entry.narrows:
            wide = found[entry.narrows]
            found[entry.name] = convert(entry, _scales(wide), wide)
    _check_states(found)
    tests = float_runs(looks, files, reading.test_inputs, "inputs", (1,), narrow)
    return {entry.name: found[entry.name] for entry in entries}, tests


def _reading(entry: Entry, reading: ModelOptions) -> ModelOptions:
    """What is common to all entries with the sizes of this one."""
    dims = {**reading.dims, **entry.dims}
    context = reading.context if reading.context is None else dims.pop(CONTEXT, reading.context)
    return replace(reading, dims=dims, context=context)


def _looked_at(entry: Entry, target: Target, reading: ModelOptions, console: Console) -> Conversion:
    """An entry without scales: its float model, and what it keeps."""
    from fadiff.pipeline import convert_with

    own = replace(
        _reading(entry, reading),
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
            if _rows(first) != _rows(tensor):
                raise InputError(
                    f"state {state}: {other} keeps it as {_described(first)}, {entry} as "
                    f"{_described(tensor)}: entries of one firmware must keep it alike, but for the "
                    "number of rows that are written at positions"
                )


def _rows(tensor: Tensor) -> object:
    """What rows of a state are stored like."""
    return tensor.shape[1:], tensor.dtype, tensor.scale, tensor.zero, tensor.onnx_axes


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
            goes_on = entry != list(solved)[-1]  # (the next entries begin where all its calls have led)
            data = folder.verification_data
            first, later = write_vectors(data, one.vectors, whole_sequence=goes_on)
            programs.append(gemmini.Entry(entry, one.schedule, (first, *later)))
    if programs:
        with console.stage("writing firmware"):
            gemmini.emit_entries(programs, model_name=name, out_dir=work / "firmware", generator=generator)
    page = render_entries(name, {entry: one.document for entry, one in solved.items()})
    (work / "report.html").write_text(page, encoding="utf-8")
