"""draft: a simplified model, planned; its channels equalised where held-out samples gain.

Equalised weights are never coarser, but channels of activations that were alike may no longer be: whether
that is better only a run of the network can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx

from fadiff.converter.errors import UnsupportedError
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.ir.program import Program, program_of
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.lower import unsupported
from fadiff.converter.plan.floats import keep_float, widened
from fadiff.converter.plan.plan import Step, plan
from fadiff.converter.quantise.choose import Calibration, gains, listed
from fadiff.converter.quantise.equalise import Pair, equalise, find_pairs
from fadiff.converter.quantise.scales import inherited, unfit_clips, unknown_scales
from fadiff.converter.quantise.zeros import Zeros, prescribed
from fadiff.converter.read.inputs import Samples
from fadiff.converter.rewrites import BORDER_ZEROS, EQUALISE_CHANNELS, FOLD_EPILOGUES, SHIFT_ZEROS
from fadiff.converter.simplify import Simplified


@dataclass(frozen=True)
class Draft:
    """A model as it is to be calibrated, and what was done to it."""

    calibration: Calibration
    pairs: tuple[Pair, ...] = ()
    """Whose channels were made alike."""
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """What was tried."""


@dataclass(frozen=True)
class Drafter:
    """What all drafts of a model have in common.

    `scales` are those that the file prescribes, `samples` the user's calibration inputs (if any);
    `keep_float` names layers that stay in float32 (converter/plan/floats.py).
    """

    file: str
    simplified: Simplified
    weights: StoredWeights
    scales: Mapping[str, float]
    samples: Samples
    element: ElementType
    without: Collection[str]
    keep_float: Collection[str] = ()
    wide: Collection[str] = ()
    """Those of them whose products are the array's, with 16-bit activations."""

    def best(self, progress: Callable[[str], None]) -> Draft:
        """The draft that does best; where nothing can be judged, one with all channels equalised.

        Raises:
            ModelError: the samples do not fit the model.
            UnsupportedError: steps that cannot be lowered.
        """
        plain = self._draft()
        if self.element != "int8":
            return plain
        pairs = () if EQUALISE_CHANNELS in self.without else self._pairs
        if not pairs:
            return plain
        progress("trying to equalise channels")
        alike = self._draft(pairs)
        if not plain.calibration.is_judged or not plain.calibration.values:
            return alike
        before, after = plain.calibration.promise(), alike.calibration.promise()
        lines = tuple(
            f"{EQUALISE_CHANNELS}: {len(draft.pairs)} pairs: {listed(found)} dB on held-out samples"
            for draft, found in ((plain, before), (alike, after))
        )
        if gains(after, before):
            return replace(alike, lines=lines)
        none = f"{EQUALISE_CHANNELS}: none, as held-out samples gain nothing by it"
        return replace(plain, notes=(none,), lines=lines)

    @cached_property
    def _pairs(self) -> tuple[Pair, ...]:
        seen = () if self.weights or FOLD_EPILOGUES in self.without else self.samples
        simple = self.simplified
        return find_pairs(self.file, simple.model, simple.program, seen, self.scales)

    def _draft(self, pairs: Sequence[Pair] = ()) -> Draft:
        """A draft: channels equalised between some pairs of layers."""
        model = onnx.ModelProto()
        model.CopyFrom(self.simplified.model)
        program, caps, notes = self.simplified.program, frozenset[str](), tuple[str, ...]()
        if pairs:
            note, caps = equalise(model, program, pairs)
            notes = (note,)
            program = replace(program_of(model, self.weights), states=program.states)
        steps = self._plan(program, caps=caps)
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
        return Draft(calibration, tuple(pairs), notes)

    def _kept_zeros(self, program: Program, steps: tuple[Step, ...]) -> Mapping[str, tuple[int, float]]:
        """The file's zero points that stay, where its scales do."""
        if not self.scales or SHIFT_ZEROS in self.without:
            return {}
        zeros: Zeros = "free" if BORDER_ZEROS in self.without else "bordered"
        return prescribed(program, steps, zeros, self.simplified.zeros)

    def _plan(
        self, program: Program, apart: Collection[str] = (), caps: Collection[str] = ()
    ) -> tuple[Step, ...]:
        steps = plan(program, self.element, self.without, apart, caps, self.scales)
        if self.element != "int8":
            return steps
        return keep_float(self.file, program, widened(steps, self.wide), (*self.keep_float, *self.wide))
