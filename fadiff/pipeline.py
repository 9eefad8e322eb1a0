"""The main job as a Python call: ONNX -> Graph -> Schedule -> C, YAML, report -> verified.

Heavy packages are imported inside the functions: `import fadiff` stays light.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from fadiff.console import Console
from fadiff.converter.names import did_you_mean
from fadiff.errors import InputError, one_line
from fadiff.folder import OutputFolder
from fadiff.keywords import InputTypes, Keywords, Quantize
from fadiff.model_file import model_file
from fadiff.output import replacing_folder

if TYPE_CHECKING:
    from fadiff.batches import Batches
    from fadiff.converter import Conversion
    from fadiff.converter.ir.graph import ElementType
    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.target.target import Target
    from fadiff.emulator import VerifyReport
    from fadiff.model_file import Model
    from fadiff.optimizer import Settings
    from fadiff.realised import Realiser
    from fadiff.search import DramLimit, SearchOptions
    from fadiff.solved import Solved

AUTO = "auto"


@dataclass(frozen=True)
class ModelOptions:
    """How to read a model; .npz files have one array per model input."""

    quantize: Quantize = "auto"
    calibration: str | Path | Batches | None = None
    """An .npz file, or batches: a list, a generator or a DataLoader of arrays, by input name or in order; an
    empty tuple: none, whatever lies beside the model."""
    test_inputs: str | Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    context: int | None = None
    """Rows that caches which grow from run to run get; None: they stay as they are."""
    inputs: Sequence[str] = ()
    """Tensors that become the model's inputs, whatever comes before them; none: the file's."""
    outputs: Sequence[str] = ()
    """Tensors that become the model's outputs, whatever comes behind them; none: the file's."""
    states: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    """Outputs that are inputs of the next run, by ONNX name: {"hn": "h"}."""
    guess_states: bool = True
    """Find them by name where none is given."""
    without: tuple[str, ...] = ()
    """Rewrites to leave out (`fadiff.converter.rewrites.NAMES`)."""
    keep_float: str | Sequence[str] = ()
    """Layers that an int8 target runs in float32 on the core, by name; AUTO: more until `min_sqnr` holds."""
    wide: Sequence[str] = ()
    """The same for products that stay on the array, with 16-bit activations."""
    input_type: InputTypes = "int8"
    """Of float inputs (all, or by name) at the interface of an int8 target."""
    min_sqnr: float | None = None
    """Least signal to noise of every output in dB; None: the verdict's default."""


@dataclass(frozen=True)
class TimeloopOptions:
    """How to write the Timeloop files: dialect, and keys with hyphens for releases before 2024-02."""

    dialect: Literal["native", "frontend", "both"] = "native"
    hyphens: bool = False


@dataclass(frozen=True, repr=False)
class CompileResult:
    """What `compile` wrote, and what it knows about it; a card with the timeline in a notebook."""

    out: Path
    document: ScheduleDocument
    verification: VerifyReport | None = None

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One record per layer, with the columns of layers.csv: for `pandas.DataFrame(result.layers)`."""
        from fadiff.emitters.layers_csv import layer_records

        return layer_records(self.document)

    def __repr__(self) -> str:
        from fadiff.emitters.report.card import one_line

        passed = self.verification.passed if self.verification is not None else None
        return f"<{one_line(self.document, passed)}, in {self.out}>"

    def _repr_html_(self) -> str:
        from fadiff.emitters.report.card import card

        return card(self.document, None if self.verification is None else self.verification.as_dict())


def compile(
    model: Model,
    out: str | Path,
    *,
    example_inputs: Any = None,
    target: str | Path | Target = "gemmini-default",
    reading: ModelOptions | None = None,
    search: SearchOptions | None = None,
    schedule: str | Path | None = None,
    max_dram_bytes: DramLimit = None,
    timeloop: TimeloopOptions | None = None,
    verify: bool = False,
    force: bool = False,
    console: Console | None = None,
    **plain: Unpack[Keywords],
) -> CompileResult:
    """Convert, search and emit; `out` appears complete or not at all.

        compile("net.onnx", "build/net", calibration="images.npz", method="layerwise", time_budget=20)
        compile(module, "build/net", example_inputs=images[:1], calibration=loader)

    Args:
        model: An ONNX file, an onnx.ModelProto, or a torch.nn.Module.
        example_inputs: What a module is called with to export it: a tensor or a tuple of them.
        out: Folder to make.
        target: Preset name, target file or Target.
        reading: Quantisation, calibration, symbolic dimensions.
        search: Method, objective, profile, budget.
        schedule: A schedule.json to execute instead of searching; it brings its own target.
        max_dram_bytes: What a searched schedule may move; baselines and profile dosa have no limit.
        timeloop: Dialect of the Timeloop files.
        verify: Also build the C for the host and run it on the functional model.
        force: Replace `out` if it is an output folder.
        console: Where progress goes; only warnings by default.
        plain: Single fields of `ModelOptions` and `SearchOptions`: calibration, dims, method, time_budget...

    Raises:
        TypeError: a keyword that neither of them has.
        InputError, ModelError, TargetError, ScheduleError: the input cannot be used; one line says why.
    """
    from fadiff.costmodel.schedule.serialize import read_document
    from fadiff.solved import as_given, solve

    out = Path(out)
    console = console or Console(verbosity=-1)
    reading, search = options_of(reading, search, plain)
    with model_file(model, example_inputs) as file, replacing_folder(out, force=force) as work:
        given = None if schedule is None else read_document(Path(schedule))
        if verify:
            check_has_c(given or search)
        hardware = given.target if given else as_target(target)
        conversion = read_model(file, hardware, reading, console)
        realise = realiser(conversion, file, reading, console)
        for warning in realise.vectors.warnings:  # a file that does not fit is refused before searching
            console.warn(warning)
        if given is None:
            solved = solve(realise, hardware, search, max_dram_bytes, console)
        else:
            solved = as_given(realise, given, str(schedule), console)
        folder = OutputFolder(work)
        write_folder(folder, solved, console, timeloop or TimeloopOptions())
        report = _verify_new(folder, console) if verify else None
        if report is None:
            folder.refresh_report()
    return CompileResult(out, solved.document, report)


Options = TypeVar("Options", bound="ModelOptions | Settings")


def options_of(
    reading: ModelOptions | None, search: SearchOptions | None, plain: Mapping[str, object]
) -> tuple[ModelOptions, SearchOptions]:
    """Those given, or the defaults, with single fields of either.

    Raises:
        TypeError: a keyword that neither of them has.
    """
    from fadiff.search import SearchOptions

    reading = with_keywords(reading or ModelOptions(), plain, search := search or SearchOptions())
    return reading, with_keywords(search, plain, reading)


def check_has_c(rules: SearchOptions | ScheduleDocument) -> None:
    """Raises InputError where schedules under these rules have no C to verify."""
    if (rules.profile, rules.fusion_model) != ("hw", "sound"):
        raise InputError("--verify needs --profile hw and --fusion-model sound: the others emit no C")


def with_keywords(options: Options, plain: Mapping[str, object], *others: object) -> Options:
    """The options with some of their fields changed; other keywords are fields of `others`.

    Raises:
        TypeError: a keyword that none of them has.
    """
    ours = {entry.name for entry in fields(options)}
    known = ours.union(*({entry.name for entry in fields(other)} for other in others))  # type: ignore[arg-type]
    for name in plain:
        if name not in known:
            advice = did_you_mean(name, known)
            raise TypeError(f"there is no keyword {name!r}{advice and f': {advice}'}")
    changed: dict[str, Any] = {name: value for name, value in plain.items() if name in ours}
    return replace(options, **changed)


def realiser(conversion: Conversion, model: Path, reading: ModelOptions, console: Console) -> Realiser:
    """What puts other layers in place of host operators, judged on the test inputs where there are any."""
    from fadiff.realised import Realiser

    beside = model.with_suffix(".inputs.npz")
    inputs = Path(reading.test_inputs) if reading.test_inputs else beside if beside.is_file() else None
    return Realiser(conversion, console, inputs)


def as_target(target: str | Path | Target) -> Target:
    """A preset name, a target .yaml, a gemmini_params.h, or a Target as it is."""
    from fadiff.costmodel.target.params_header import target_from_header
    from fadiff.costmodel.target.target import Target, load_target

    if isinstance(target, Target):
        return target
    return target_from_header(target) if str(target).endswith(".h") else load_target(target)


def read_model(
    model: Path,
    target: Target,
    reading: ModelOptions,
    console: Console,
    common_scales: Mapping[str, float] | None = None,
    like: Conversion | None = None,
) -> Conversion:
    """Convert the model for the element type of `target`; warnings and notes go to the console."""
    with console.stage(f"converting {model.name}"):
        conversion = convert_with(
            model, reading, console, element=target.element_type, common_scales=common_scales, like=like
        )
    for warning in conversion.warnings:
        console.warn(warning)
    for note in conversion.notes:
        console.note(note)
    return conversion


def convert_with(
    model: Path,
    reading: ModelOptions,
    console: Console,
    *,
    element: ElementType = "int8",
    calibrate: bool = True,
    common_scales: Mapping[str, float] | None = None,
    like: Conversion | None = None,
) -> Conversion:
    """Convert an ONNX file as the options say; `common_scales` and `like` as `convert` takes them."""
    from fadiff.batches import samples_of
    from fadiff.converter import Cut, State, convert

    given = reading.calibration
    if isinstance(given, tuple) and not given:
        given = ()
    elif given is not None and not isinstance(given, str | Path):
        given = samples_of(given, model, reading.inputs, reading.dims)
    return convert(
        model,
        element=element,
        quantize=reading.quantize,
        calibration=given,
        dims=reading.dims,
        context=reading.context,
        cut=Cut(tuple(reading.inputs), tuple(reading.outputs)),
        states=[State(*pair) for pair in _pairs(reading.states)],
        guess_states=reading.guess_states,
        common_scales=common_scales,
        like=like,
        calibrate=calibrate,
        without=reading.without,
        keep_float=[name for name in _kept_names(reading) if name != AUTO],
        keep_float_until=_least_db(reading),
        wide=reading.wide,
        input_type=reading.input_type,
        progress=console.update,
    )


def _pairs(states: Mapping[str, str] | Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    return list(states.items()) if isinstance(states, Mapping) else states


def _kept_names(reading: ModelOptions) -> Sequence[str]:
    return [reading.keep_float] if isinstance(reading.keep_float, str) else reading.keep_float


def _least_db(reading: ModelOptions) -> float | None:
    from fadiff.costmodel.schedule.verdict import MIN_SQNR_DB

    if AUTO not in _kept_names(reading):
        return None
    return MIN_SQNR_DB if reading.min_sqnr is None else reading.min_sqnr


def write_folder(
    folder: OutputFolder, solved: Solved, console: Console, timeloop_options: TimeloopOptions
) -> None:
    """schedule.json, Timeloop files and, if it is executable, firmware with its verification data."""
    write_records(folder, solved, console, timeloop_options)
    if not solved.document.is_executable:
        return
    from fadiff.emitters import gemmini
    from fadiff.vectors import write_vectors

    with console.stage("writing firmware"):
        first, later = write_vectors(folder.verification_data, solved.vectors)
        gemmini.emit(
            solved.schedule,
            model_name=solved.schedule.graph.name,
            out_dir=folder.firmware,
            test_vectors=first,
            later_steps=later,
            generator=solved.document.generator,
        )


def write_records(
    folder: OutputFolder, solved: Solved, console: Console, timeloop_options: TimeloopOptions
) -> None:
    """schedule.json, target, table of layers and Timeloop files."""
    from fadiff.costmodel.schedule.serialize import write_document
    from fadiff.costmodel.target.target import target_yaml
    from fadiff.emitters import timeloop
    from fadiff.emitters.layers_csv import layers_csv

    write_document(solved.document, folder.schedule)
    folder.target.write_text(target_yaml(solved.schedule.target), encoding="utf-8")
    folder.table.write_text(layers_csv(solved.document), encoding="utf-8")
    with console.stage("writing Timeloop files"):
        timeloop.emit(solved.schedule, folder.timeloop, timeloop_options.dialect, timeloop_options.hyphens)


def _verify_new(folder: OutputFolder, console: Console) -> VerifyReport:
    """The same for C that nobody can have edited yet: if it does not compile, that is a bug of ours."""
    from fadiff.emulator import BuildError

    try:
        return verify_folder(folder, console)
    except BuildError as error:
        raise RuntimeError(f"the C just written does not compile: {error}") from error


def verify(folder: str | Path, *, console: Console | None = None) -> VerifyReport:
    """Run what `compile` wrote on the functional model of Gemmini, and compare every output and byte.

    Raises:
        InputError: the folder is none of ours, or holds no program.
        BuildError: its C does not compile.
    """
    return verify_folder(OutputFolder(Path(folder)), console or Console(verbosity=-1))


def verify_folder(folder: OutputFolder, console: Console) -> VerifyReport:
    """Build the firmware for the host, run it on the functional model, and keep in the folder and its report
    what was measured (a warning where that cannot be written)."""
    from fadiff.emulator import verify as verified

    document = folder.document
    if folder.entry:
        raise InputError(f"{folder.path}: an entry of {folder.path.parent}: verify that, as a whole")
    if not document.is_executable:
        raise InputError(
            f"{folder.path}: holds no C (profile {document.profile}, fusion model {document.fusion_model}): "
            "compile with --profile hw --fusion-model sound"
        )
    with console.stage("verifying"):
        report = verified(folder.path, progress=console.update)
    keep_report(folder, report, console)
    return report


def keep_report(folder: OutputFolder, report: VerifyReport, console: Console) -> None:
    """Write what was measured into the folder; a warning where that cannot be."""
    try:
        folder.verification.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        folder.refresh_report()
    except OSError as error:
        console.warn(f"the result is not kept in the folder: {one_line(error)}")
