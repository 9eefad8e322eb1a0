"""convert: an ONNX file to a Graph, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from converter.errors import ModelError, UnsupportedError
from converter.explain import explain
from converter.ir.graph import ElementType, Graph
from converter.ir.program import Program, program_of
from converter.ir.stored import StoredWeights
from converter.ir.weight_file import WeightFile, with_weights
from converter.lower import lower, unsupported
from converter.plan.plan import Step, plan
from converter.quantise.calibrate import calibration_ranges, load_samples, random_samples
from converter.quantise.equalise import Equalised, equalise
from converter.quantise.imported import is_quantised
from converter.quantise.qdq import quantised_model
from converter.quantise.scales import inherited, unfit_clips, unknown_scales
from converter.quantise.sentinels import without_sentinels
from converter.quantise.siblings import Siblings, balanced, find_siblings, merge_siblings, worsened
from converter.quantise.weights import Quantisation, as_float, quantise
from converter.read.inputs import Samples, Spans
from converter.read.load import load_model
from converter.rewrites import EQUALISE_CHANNELS, FOLD_EPILOGUES, MERGE_SIBLINGS, check_names, rewrite
from converter.simplify import simplify

QuantizeMode = Literal["auto", "int8", "none"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    `float_model` is the normalised float model, `quantized_model` the QDQ model whose integers the
    graph holds (the float model itself for a float32 array): both run in ONNX Runtime under the input
    and output names of the file.
    """

    graph: Graph
    float_model: onnx.ModelProto = field(repr=False)
    float_weights: StoredWeights = field(repr=False)
    """Inputs of `float_model` that are weights, left on disk: a large model's."""
    quantized_file: onnx.ModelProto | None = field(default=None, repr=False)
    """A model that came quantised, as it is in the file but for its shapes."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    """What became of the model's nodes, line by line (`fadiff inspect --explain`)."""
    samples: Samples = field(default=(), repr=False)
    """The calibration inputs; empty where the file prescribes every scale."""
    spans: Spans = field(default_factory=dict, repr=False)
    """What inputs can be, by the file's own quantisation of them."""
    siblings: tuple[Siblings, ...] = field(default=(), repr=False)
    """Products that became one layer."""
    _quantisation: Quantisation = field(default=Quantisation({}, {}, {}), repr=False, compare=False)
    _reading: _Reading | None = field(default=None, repr=False, compare=False)

    @cached_property
    def quantized_model(self) -> onnx.ModelProto:
        """The QDQ model, written when it is asked for."""
        return self.quantized(None)

    def quantized(self, file: WeightFile | None) -> onnx.ModelProto:
        """The QDQ model with its large constants in `file`, if there is one."""
        assert self._reading is not None
        if self._reading.element == "float32":
            return with_weights(self.float_model, self.float_weights, file)
        reading = self._reading
        return quantised_model(self.float_model, reading.program, reading.steps, self._quantisation, file)

    @property
    def mergeable(self) -> tuple[Siblings, ...]:
        """Sibling products that could become one layer."""
        reading = self._reading
        if reading is None or self.siblings or MERGE_SIBLINGS in reading.without:
            return ()
        return find_siblings(reading.program, reading.steps)

    def with_siblings(self, kinds: Collection[str] | None = None) -> Conversion | None:
        """The same model with sibling products (of these kinds) merged, None where none can be.

        Whether that is better is for the cost of its schedule to say: a merged layer reads its input
        once, but may fit less well, and its results may fuse less.
        """
        reading = self._reading
        wanted = tuple(group for group in self.mergeable if kinds is None or group.kind in kinds)
        while reading is not None and wanted:
            found = reading.conversion(wanted)
            worse = worsened(found.graph, self.graph, found.siblings)
            if not worse:
                return found if found.siblings else None
            rest = (
                group.only([s.name for s in group.steps if s.name not in worse]) for group in found.siblings
            )
            wanted = tuple(group for group in rest if group is not None)
        return None


def _silent(_: str) -> None:
    """No progress wanted."""


def convert(
    path: str | Path,
    *,
    element: ElementType = "int8",
    quantize: QuantizeMode = "auto",
    calibration: str | Path | Sequence[Mapping[str, np.ndarray]] | None = None,
    dims: Mapping[str, int] | None = None,
    calibrate: bool = True,
    seed: int = 0,
    without: Collection[str] = (),
    progress: Progress = _silent,
) -> Conversion:
    """Import, normalise, quantise and lower an ONNX model.

    Args:
        path: the .onnx file; external data is looked for beside it.
        element: what the array computes with; float32 quantises nothing, and leaves out what the file
            says about quantisation.
        quantize: "int8" quantises, "none" demands a model that is already quantised, "auto" keeps
            the scales of a quantised model and quantises the rest.
        calibration: .npz file or samples (one mapping of input name to array each); by default
            FILE.calibration.npz beside the model, else seeded random numbers with a warning.
        dims: sizes of symbolic dimensions.
        calibrate: False leaves scales that the file does not give at 1: for looking at layers only.
        seed: of the random samples.
        without: names of rewrites (`converter.rewrites.NAMES`) to leave out.
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
    model, weights = load_model(path, dims or {})
    sha256 = _sha256(path)
    original = onnx.ModelProto()
    if is_quantised(model) and not weights:
        original.CopyFrom(model)
    progress("normalising")
    simplified = simplify(str(path), model, weights, lambda program: _given(path, program, calibration))
    float_model, program = simplified.model, simplified.program
    notes.extend(simplified.notes)
    equalised = Equalised()
    scales = {} if quantize == "int8" else simplified.scales
    if element == "int8" and EQUALISE_CHANNELS not in without:
        seen: Samples = ()
        if calibrate and not weights and FOLD_EPILOGUES not in without:
            seen = _given(path, program, calibration)
        equalised = equalise(str(path), float_model, program, seen, scales)
        if equalised.note:
            notes.append(equalised.note)
            program = program_of(float_model, weights)
    steps = plan(program, element, without, caps=equalised.caps)
    problems = unsupported(program, steps, element)
    if problems:
        raise UnsupportedError(str(path), problems)
    if element == "float32" and quantize == "int8":
        raise ModelError(f"{path}: the target computes in float32: leave out --quantize int8")
    if element == "float32" and simplified.scales:
        notes.append("the target computes in float32: the quantisation in the file is left out")
    known = inherited(program, steps, scales)
    if apart := unfit_clips(steps, known):
        steps = plan(program, element, without, apart)
        known = inherited(program, steps, scales)
    missing = unknown_scales(program, steps, known)
    if quantize == "none" and missing and element == "int8":
        raise ModelError(
            f"{path}: {len(missing)} values have no scale (first: {missing[0]}), so the model is not "
            "quantised; use --quantize int8, or auto"
        )
    ranges: dict[str, tuple[float, float]] = {}
    samples: Samples = ()
    if missing and calibrate and element == "int8":
        samples = _given(path, program, calibration)
        if not samples:
            warnings.append(
                "no calibration data: int8 ranges come from seeded random inputs; "
                "accuracy on real data may be poor (give --calibration FILE.npz)"
            )
            samples = random_samples(program, seed, simplified.spans)
        progress(f"calibrating on {len(samples)} samples")
        found = calibration_ranges(str(path), float_model, weights, samples, missing)
        ranges = without_sentinels(program, steps, found)
    reading = _Reading(
        path=path,
        sha256=sha256,
        element=element,
        float_model=float_model,
        weights=weights,
        original=original if original.ByteSize() else None,
        program=program,
        steps=steps,
        ranges=ranges,
        known=known,
        samples=samples,
        spans=simplified.spans,
        notes=notes,
        warnings=warnings,
        without=without,
        look=not calibrate,
    )
    progress("lowering")
    return reading.conversion()


@dataclass(frozen=True)
class _Reading:
    """A model as far as it is the same whatever products are merged."""

    path: Path
    sha256: str
    element: ElementType
    float_model: onnx.ModelProto
    weights: StoredWeights
    original: onnx.ModelProto | None
    program: Program
    steps: tuple[Step, ...]
    ranges: Mapping[str, tuple[float, float]]
    known: Mapping[str, float]
    samples: Samples
    spans: Spans
    notes: Sequence[str]
    warnings: Sequence[str]
    without: Collection[str]
    look: bool

    def conversion(self, siblings: Sequence[Siblings] = ()) -> Conversion:
        """Quantised, lowered and rewritten, with each group of siblings as one layer."""
        program, steps, float_model = self.program, self.steps, self.float_model
        ranges = self.ranges
        if self.element == "float32":
            quantisation = as_float(program, steps)
        else:
            siblings, ranges = balanced(program, siblings, ranges, self.known)
            together = [group.steps for group in siblings]
            quantisation = quantise(program, steps, ranges, self.known, together, look=self.look)
        merged = merge_siblings(program, steps, quantisation, siblings)
        graph = lower(self.path.stem, float_model, *merged, self.sha256, self.without)
        graph, done = rewrite(graph, self.without)
        lines = tuple(f"merge-siblings: {group.note}" for group in siblings)
        return Conversion(
            graph,
            float_model,
            self.weights,
            self.original,
            tuple(self.notes),
            tuple(self.warnings),
            (*explain(program, steps, graph), *done, *lines),
            tuple(self.samples),
            self.spans,
            siblings=tuple(siblings),
            _quantisation=quantisation,
            _reading=self,
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _given(path: Path, program: Program, calibration: str | Path | Samples | None) -> Samples:
    """The user's calibration inputs, none where there are none."""
    if calibration is None:
        beside = path.with_suffix(".calibration.npz")
        calibration = beside if beside.is_file() else ()
    if isinstance(calibration, (str, Path)):
        return load_samples(program, Path(calibration))
    types = {n: onnx.helper.tensor_dtype_to_np_dtype(program.types[n]) for n in program.inputs}
    return [{n: np.asarray(sample[n]).astype(types[n]) for n in program.inputs} for sample in calibration]
