"""convert: an ONNX file to a Graph, step by step."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec

import numpy as np
import onnx

from fadiff.converter.candidates import Candidates
from fadiff.converter.cuts import way_out
from fadiff.converter.dequantise.strip import is_quantised
from fadiff.converter.errors import ModelError, UnsupportedError
from fadiff.converter.explain import explain
from fadiff.converter.ir.graph import ElementType, Graph
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.scale import NOTHING
from fadiff.converter.ir.stored import StoredWeights, WeightFile, with_weights
from fadiff.converter.lower import lower
from fadiff.converter.names import printable
from fadiff.converter.plan.inputs import suggested_spans
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.calibrate import CalibrationData
from fadiff.converter.quantise.choose import Choice
from fadiff.converter.quantise.doubts import doubts, unexpected, without_tables
from fadiff.converter.quantise.mixed import Mixed, MixedSearch, decide
from fadiff.converter.quantise.prescribed import notes_of
from fadiff.converter.quantise.qdq import Written, written
from fadiff.converter.quantise.scales import stored_values
from fadiff.converter.quantise.weights import Quantisation, as_float
from fadiff.converter.read.cut import Cut, cut_model
from fadiff.converter.read.inputs import Samples, Spans
from fadiff.converter.read.interface import InputType, InputTypes, input_types, take_bytes
from fadiff.converter.read.load import load_model, named_model
from fadiff.converter.read.validate import judged_by_onnx
from fadiff.converter.read.workloads import drawn_weights
from fadiff.converter.rewrites import CHOOSE_RANGES, JUDGED, check_names, rewrite
from fadiff.converter.simplify import Simplified, simplify

QuantizeMode = Literal["auto", "int8", "none"]
Progress = Callable[[str], None]
Parameters = ParamSpec("Parameters")
_WHOLE = Cut()


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    `program` has the normalised float model, `quantized_model` is the QDQ model whose integers the
    graph holds (the float model itself for a float32 array): both run in ONNX Runtime under the input
    and output names of the file.
    """

    graph: Graph
    program: Program = field(repr=False)
    quantized_file: onnx.ModelProto | None = field(default=None, repr=False)
    """A model that came quantised, as it is in the file but for its shapes."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    """The fate of the model's nodes, line by line (`fadiff inspect --explain`)."""
    samples: Samples = field(default=(), repr=False)
    """The calibration inputs; of a file that prescribes every scale those that were given."""
    random_calibration: bool = False
    """The samples were drawn: the user gave none."""
    doubts: tuple[str, ...] = ()
    """Reasons to doubt the calibration data; warnings, too."""
    mixed: Mixed = field(default_factory=Mixed)
    """The layers that are kept in float32 beside an int8 array."""
    spans: Spans = field(default_factory=dict, repr=False)
    """Ranges of inputs, by the file's own quantisation of them, or by its first operators."""
    consecutive: bool = True
    """The samples of a model with states are steps one after the other, from zero."""
    _steps: tuple[Step, ...] = field(default=(), repr=False, compare=False)
    _quantisation: Quantisation = field(default=Quantisation({}, {}, {}), repr=False, compare=False)
    _choice: Choice = field(default=Choice({}), repr=False, compare=False)
    _search: MixedSearch | None = field(default=None, repr=False, compare=False)

    @property
    def float_model(self) -> onnx.ModelProto:
        """The normalised float model."""
        return self.program.model

    @property
    def float_weights(self) -> StoredWeights:
        """Inputs of `float_model` that are weights, left on disk: a large model's."""
        return self.program.weights

    @cached_property
    def reach(self) -> Mixed | None:
        """What float32 wherever it can be would gain, tried when it is asked for; None: int8 is good."""
        return None if self._search is None else self._search.reach()

    @property
    def quantized_model(self) -> onnx.ModelProto:
        """The QDQ model."""
        return self.quantized.model

    @cached_property
    def quantized(self) -> Written:
        """The same with what is where in it, written when it is asked for."""
        return self.quantized_beside(None)

    def quantized_beside(self, file: WeightFile | None) -> Written:
        """The same with its large constants in `file`, if there is one."""
        if self.graph.element_type == "float32":
            return Written(with_weights(self.float_model, self.float_weights, file), {}, {})
        return written(self.program, self._steps, self._quantisation, file)


def _silent(_: str) -> None:
    """No progress wanted."""


def _with_way_out(
    convert: Callable[Concatenate[str | Path, Parameters], Conversion],
) -> Callable[Concatenate[str | Path, Parameters], Conversion]:
    """A conversion whose refusals say where the model could be cut, if that was tried with success."""

    def advised(path: str | Path, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Conversion:
        try:
            return convert(path, *arguments, **options)
        except UnsupportedError as refused:
            given: dict[str, Any] = {**options}
            whole, progress = given.get("cut", _WHOLE), given.get("progress", _silent)
            model = named_model(Path(path))
            if whole:
                cut_model(Path(path), model, whole, given.get("dims") or {})

            def attempt(cut: Cut) -> Conversion:
                progress(f"trying {cut}")
                shown = {
                    **given,
                    "cut": cut,
                    "calibrate": False,
                    "calibration": (),
                    "keep_float": (),
                    "wide": (),
                }
                plain = {"states": (), "guess_states": False, "keep_float_until": None}
                return convert(path, *arguments, **{**shown, **plain})

            advice = way_out(model, whole, refused, attempt)
            if not advice:
                raise
            raise UnsupportedError(refused.file, refused.problems, advice) from refused

    functools.update_wrapper(advised, convert)
    return advised


@judged_by_onnx
@_with_way_out
def convert(
    path: str | Path,
    *,
    element: ElementType = "int8",
    quantize: QuantizeMode = "auto",
    calibration: str | Path | Sequence[Mapping[str, np.ndarray]] | None = None,
    dims: Mapping[str, int] | None = None,
    context: int | None = None,
    cut: Cut = _WHOLE,
    states: Sequence[State] = (),
    guess_states: bool = True,
    common_scales: Mapping[str, float] | None = None,
    like: Conversion | None = None,
    calibrate: bool = True,
    seed: int = 0,
    without: Collection[str] = (),
    keep_float: Collection[str] = (),
    keep_float_until: float | None = None,
    wide: Collection[str] = (),
    input_type: InputTypes = "int8",
    progress: Progress = _silent,
) -> Conversion:
    """Import, normalise, quantise and lower an ONNX model.

    Args:
        path: the .onnx file; external data is looked for beside it.
        element: what the array computes with; float32 quantises nothing, and leaves out what the file
            says about quantisation.
        quantize: "int8" quantises, "none" demands a model that is already quantised, "auto" keeps
            the scales of a quantised model and quantises the rest.
        calibration: .npz file or samples (one mapping of input name to array each; a generator will do); by
            default FILE.calibration.npz beside the model, else seeded random numbers with a warning.
        dims: sizes of symbolic dimensions.
        context: rows of caches that grow from run to run in the file: they get a fixed size, are states, and
            an input `cache_position` says where new rows are written (converter/read/growing.py).
        cut: tensors to take as inputs and outputs.
        states: outputs that are inputs of the next run, by the names in the file; with such a model,
            calibration samples are consecutive steps and need no arrays for states.
        guess_states: find them by name where none is given (`fadiff.converter.read.states`).
        common_scales: of states' inputs and of outputs that other models of one firmware have, too: what
            their integers mean, no finer than this model's own scale.
        like: of the same file with more rows of its caches: what calibration found there is taken, so that
            integers are the same (with `keep_float_until` each looks for itself).
        calibrate: False leaves scales that the file does not give at 1: for looking at layers only.
        seed: of the random samples.
        without: names of rewrites (`fadiff.converter.rewrites.NAMES`) to leave out.
        keep_float: names of layers that an int8 array leaves to the core, in float32, and of states that
            stay float32 between runs.
        keep_float_until: keep further ones until every output has so many dB on held-out samples.
        wide: names of products that are kept so, but on the array (converter/lower/float_layers.py).
        input_type: of float inputs (all, or by name) at the interface of an int8 array
            (converter/read/interface.py); what is not int8 is rounded by the core.
        progress: told what is going on, one short line at a time.

    Raises:
        ModelError: the file, a dimension or the calibration data cannot be used.
        UnsupportedError: operators that cannot be lowered, all in one message.
        ValueError: an unknown name in `without`.
    """
    check_names(without)
    path = Path(path)
    notes: list[str] = []
    warnings: list[str] = []
    progress(f"reading {path.name}")
    data = CalibrationData(path, calibration, states, guess_states)
    model, weights, caches = load_model(path, dims or {}, cut, data.names, context)
    data.named = states or caches
    if drawn_names := drawn_weights(model):
        warnings.append(
            f"the file has sizes of weights and no numbers ({drawn_names}): they are drawn; layers, schedule "
            "and Timeloop files are right, what the program computes says nothing"
        )
    sha256 = _sha256(path)
    original = onnx.ModelProto()
    if is_quantised(model) and not weights:
        original.CopyFrom(model)
    progress("normalising")
    types: dict[str, InputType] = input_types(str(path), model, input_type) if element == "int8" else {}
    simplified = simplify(str(path), model, weights, data.read, types)
    notes.extend((*simplified.notes, *filter(None, [data.note])))
    samples = data.samples if calibrate else ()
    program = replace(simplified.program, states=data.states, common_scales=common_scales or {})
    spans = {**suggested_spans(program), **simplified.spans}
    simplified = replace(simplified, program=program, spans=spans)
    if element == "int8":
        simplified = _with_types(simplified, program, types, samples)
    given = NOTHING if quantize == "int8" else simplified.given

    @functools.cache
    def draw() -> Samples:
        return data.draw(simplified.program, seed, spans) if calibrate else ()

    best = Candidates(str(path), simplified, given, samples, draw, element, without, keep_float, wide).best(
        progress
    )
    chosen = best.calibration
    notes.extend(best.notes)
    program, steps = chosen.program, chosen.steps
    if element == "float32" and quantize == "int8":
        raise ModelError(f"{path}: the target computes in float32: leave out --quantize int8")
    if element == "float32" and simplified.given.steps:
        notes.append("the target computes in float32: the quantisation in the file is left out")
    if quantize == "none" and chosen.values and element == "int8":
        raise ModelError(
            f"{path}: {len(chosen.values)} values have no scale (first: {chosen.values[0]}), so the model is "
            "not quantised; use --quantize int8, or auto"
        )
    choice, mixed, undecided = Choice({}), Mixed(), None
    doubted: tuple[str, ...] = ()
    drawn = False
    if chosen.values and calibrate and element == "int8":
        drawn = not samples
        if drawn:
            warnings.append(
                "no calibration data: int8 ranges come from seeded random inputs; "
                "accuracy on real data may be poor (give --calibration FILE.npz)"
            )
            warnings.extend(without_tables(simplified.program))
            chosen = replace(chosen, samples=draw(), without={*without, *JUDGED})  # (these can judge nothing)
        else:
            doubted = tuple(doubts(str(path), simplified.program, samples, spans))
            warnings.extend(doubted)
        progress(f"calibrating on {len(chosen.samples)} samples")
        found = like._choice if like and keep_float_until is None else None
        is_judged = chosen.is_judged and not drawn and found is None
        search = MixedSearch(chosen, found or chosen.choose(progress), is_judged, not data.recorded)
        kept = decide(search, keep_float_until, progress)
        chosen, choice, steps = kept.calibration, kept.choice, kept.calibration.steps
        warnings.extend(kept.warnings)
        notes.extend(kept.notes)
        undecided = kept.undecided
        if kept.mixed is not None:
            mixed = kept.mixed
            notes.append(f"keep-float: {mixed}")
        if choice.lines:
            notes.append(f"calibration: {choice.recipe}")
    elif calibrate and element == "int8":
        stacked = {name: np.stack([sample[name] for sample in samples]) for name in (samples or [{}])[0]}
        warnings.extend(doubted := tuple(unexpected("calibration data", stacked, spans)))
    if element == "int8" and given.steps:
        notes.extend(notes_of(program, stored_values(program, steps), simplified.given, chosen.given))
    progress("lowering")
    if element == "float32":
        quantisation = as_float(program, steps)
    else:
        quantisation = chosen.quantised(choice, look=not calibrate)
    graph = lower(printable(path.stem), program, steps, quantisation, sha256, without)
    graph, done = rewrite(graph, without)
    return Conversion(
        graph,
        program,
        original if original.ByteSize() else None,
        tuple(notes),
        tuple(warnings),
        (
            *explain(program, steps, graph),
            *best.lines,
            *(f"{CHOOSE_RANGES}: {line}" for line in choice.lines),
            *done,
        ),
        tuple(chosen.samples) if element == "int8" else (),
        drawn,
        doubted,
        mixed,
        spans,
        not data.recorded,
        _steps=steps,
        _quantisation=quantisation,
        _choice=choice,
        _search=undecided,
    )


def _with_types(
    simplified: Simplified,
    program: Program,
    types: Mapping[str, InputType],
    samples: Samples,
) -> Simplified:
    """Told what comes as bytes and what as floats."""
    scales, zeros = dict(simplified.given.steps), dict(simplified.given.zeros)
    model, found = take_bytes(program, types, samples, simplified.spans)
    read = program.changed(model) if found else program
    for name in found:  # (what a file says of the input holds for the numbers behind the bytes)
        number = read.consumers(name)[0].outputs[0]
        scales.update({number: scales.pop(name)} if name in scales else {})
        zeros.update({number: zeros.pop(name)} if name in zeros else {})
    states = {state.input for state in program.states}
    floats = {name for name in program.inputs if types.get(name) == "float32"} - states
    told = replace(read, float_inputs=frozenset(floats), byte_inputs=found)
    given = replace(simplified.given, steps=scales, zeros=zeros)
    return replace(simplified, program=told, given=given)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
