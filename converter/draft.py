"""draft: a simplified model, planned; its channels equalised or split as far as held-out samples gain.

Equalised weights are never coarser, but channels of activations that were alike may no longer be: whether
that is better only a run of the network can tell.  Split channels are finer, but the schedule pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import onnx

from converter.errors import UnsupportedError
from converter.ir.graph import ElementType
from converter.ir.program import Program, program_of
from converter.ir.stored import StoredWeights
from converter.lower import unsupported
from converter.plan.floats import keep_float
from converter.plan.plan import Step, plan
from converter.quantise.choose import WORTH_DB, Calibration
from converter.quantise.equalise import Equalised, equalise
from converter.quantise.scales import inherited, unfit_clips, unknown_scales
from converter.quantise.split import split
from converter.quantise.zeros import Zeros, prescribed
from converter.read.inputs import Samples
from converter.rewrites import BORDER_ZEROS, EQUALISE_CHANNELS, FOLD_EPILOGUES, SHIFT_ZEROS, SPLIT_CHANNELS
from converter.simplify import Simplified

_LEAST_BITS = (0.0, 1.0)
"""Equalised are all pairs of layers, or only those of which one loses a bit to its loudest channel."""
_SPLIT_WORTH_DB = 1.0


@dataclass(frozen=True)
class Draft:
    """A model as it is to be calibrated, and what was done to it."""

    calibration: Calibration
    least: float | None
    """Pairs of layers that lose so many bits were equalised."""
    notes: tuple[str, ...] = ()
    is_split: bool = False

    def beats(self, other: Draft, margin: float) -> bool:
        """Whether samples kept out of calibration gain so many dB."""
        return self.calibration.promise() > other.calibration.promise() + margin


@dataclass(frozen=True)
class Drafter:
    """What all drafts of a model have in common.

    `scales` are those that the file prescribes, `samples` the user's calibration inputs (if any);
    `keep_float` names layers that stay in float32 (converter/plan/floats.py), which are not split.
    """

    file: str
    simplified: Simplified
    weights: StoredWeights
    scales: Mapping[str, float]
    samples: Samples
    element: ElementType
    without: Collection[str]
    keep_float: Collection[str] = ()

    def best(self, progress: Callable[[str], None]) -> Draft:
        """The draft that does best; where nothing can be judged, one with all channels equalised.

        Raises:
            ModelError: the samples do not fit the model.
            UnsupportedError: steps that cannot be lowered.
        """
        plain = self._draft()
        if self.element != "int8":
            return plain
        judged = plain.calibration.is_judged and bool(plain.calibration.values)
        best = plain if EQUALISE_CHANNELS in self.without else self._equalised(plain, judged, progress)
        if SPLIT_CHANNELS in self.without or not judged:
            return best
        progress("trying to split channels")
        whole = [n for step in plain.calibration.steps if step.is_float for n in step.onnx_nodes]
        finer = self._draft(best.least, whole=whole)
        if finer.is_split and finer.beats(best, _SPLIT_WORTH_DB):
            return replace(finer, notes=(*best.notes, finer.notes[-1]))
        return best

    def _equalised(self, plain: Draft, judged: bool, progress: Callable[[str], None]) -> Draft:
        every = self._draft(_LEAST_BITS[0])
        if not every.notes:
            return plain
        if not judged:
            return every
        best = replace(plain, notes=(f"{EQUALISE_CHANNELS}: none, as held-out samples gain nothing by it",))
        for least in _LEAST_BITS:
            progress(f"trying to equalise channels that cost {least:.0f} bits or more")
            draft = self._draft(least)
            if draft.notes and draft.beats(best, WORTH_DB):
                best = draft
        return best

    def _draft(self, least: float | None = None, *, whole: Collection[str] | None = None) -> Draft:
        """A draft whose channels are equalised from `least` bits on and, but for `whole` nodes, split."""
        model = onnx.ModelProto()
        model.CopyFrom(self.simplified.model)
        program, equalised, parted, notes = self.simplified.program, Equalised(), "", []
        if least is not None:
            seen = () if self.weights or FOLD_EPILOGUES in self.without else self.samples
            equalised = equalise(self.file, model, program, seen, self.scales, least)
            notes.append(equalised.note)
            program = self._read(model)
        if whole is not None:
            parted = split(model, program, whole)
            notes.append(parted)
            program = self._read(model)
        steps = self._plan(program, caps=equalised.caps)
        problems = unsupported(program, steps, self.element)
        if problems:
            raise UnsupportedError(self.file, problems)
        known = inherited(program, steps, self.scales)
        if apart := unfit_clips(steps, known):
            steps = self._plan(program, apart=apart)
            known = inherited(program, steps, self.scales)
        values = unknown_scales(program, steps, known)
        calibration = Calibration(
            self.file,
            model,
            self.weights,
            program,
            steps,
            values,
            known,
            self._kept_zeros(program, steps),
            self.samples,
        )
        return Draft(calibration, least, tuple(note for note in notes if note), bool(parted))

    def _read(self, model: onnx.ModelProto) -> Program:
        return replace(program_of(model, self.weights), states=self.simplified.program.states)

    def _kept_zeros(self, program: Program, steps: tuple[Step, ...]) -> Mapping[str, tuple[int, float]]:
        """The file's zero points that stay, where its scales do."""
        if not self.scales or SHIFT_ZEROS in self.without:
            return {}
        zeros: Zeros = "free" if BORDER_ZEROS in self.without else "bordered"
        return prescribed(program, steps, zeros, self.simplified.zeros)

    def _plan(
        self, program: Program, apart: Collection[str] = (), caps: Collection[str] = ()
    ) -> tuple[Step, ...]:
        steps = plan(program, self.element, self.without, apart, caps)
        return keep_float(self.file, program, steps, self.keep_float) if self.element == "int8" else steps
