"""Candidates for calibration: a simplified model, planned; channels, also of inputs, made alike where that
gains.

Equalised weights are never coarser, but channels of activations that were alike may no longer be; a column
that is made loud costs the weights of others steps.  Whether that is better only runs of the network tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from fadiff.converter.errors import UnsupportedError
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Prescribed
from fadiff.converter.lower import unsupported
from fadiff.converter.plan.floats import keep_float, widened
from fadiff.converter.plan.inputs import moves_behind
from fadiff.converter.plan.plan import Step, plan
from fadiff.converter.quantise.blocks import sort_channels
from fadiff.converter.quantise.choose import Calibration, gains, listed
from fadiff.converter.quantise.columns import balance_inputs
from fadiff.converter.quantise.equalise import equalise, find_pairs
from fadiff.converter.quantise.parted import enlarge_parts
from fadiff.converter.quantise.prescribed import inherited, kept_channels, kept_zeros, unfit_clips
from fadiff.converter.quantise.scales import unknown_scales
from fadiff.converter.read.inputs import Samples
from fadiff.converter.rewrites import (
    BORDER_ZEROS,
    CHANNEL_SCALES,
    EQUALISE_CHANNELS,
    FOLD_EPILOGUES,
    FOLD_INPUTS,
    JUDGED,
    SHIFT_ZEROS,
)
from fadiff.converter.simplify import Simplified


@dataclass(frozen=True)
class Candidate:
    """A model as it is to be calibrated, and what was done to it."""

    calibration: Calibration
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Lines that say what was tried."""


Change = Callable[[Calibration], Candidate | None]
"""Makes a changed candidate from one as it is calibrated; None where there is nothing to change."""


@dataclass(frozen=True)
class Candidates:
    """The common part of all candidates of a model.

    `given` are scales that the file prescribes, `samples` the user's calibration inputs (if any);
    `keep_float` names layers that stay in float32 (converter/plan/floats.py).
    """

    file: str
    simplified: Simplified
    given: Prescribed
    samples: Samples
    draw: Callable[[], Samples]
    """Random ones, where there are none."""
    element: ElementType
    without: Collection[str]
    keep_float: Collection[str] = ()
    wide: Collection[str] = ()
    """Those of them whose products are the array's, with 16-bit activations."""

    def best(self, progress: Callable[[str], None]) -> Candidate:
        """The candidate that does best; where nothing can be judged, one with all channels equalised.

        Raises:
            ModelError: the samples do not fit the model.
            UnsupportedError: steps that cannot be lowered.
        """
        best = self._candidate(self.simplified.program)
        if self.element != "int8":
            return best
        if EQUALISE_CHANNELS not in self.without:
            best = self._enlarged(best.calibration) or best
        for name, change in ((FOLD_INPUTS, self._balanced), (EQUALISE_CHANNELS, self._equalised)):
            if name not in self.without:
                best = _better(name, change, best, progress)
        return best

    @property
    def _has_blocks(self) -> bool:
        """Whether weights may have scales by blocks of channels: of a float model with samples, in memory."""
        of_floats = self.element == "int8" and not (self.given.steps or self.simplified.program.weights)
        return of_floats and bool(self.samples) and CHANNEL_SCALES not in self.without

    def _enlarged(self, plain: Calibration) -> Candidate | None:
        """A candidate whose parts of one product are of one size, which makes none coarser."""
        samples = () if plain.program.weights or self.given.steps else plain.samples or self.draw()
        if not samples:
            return None
        model, names = enlarge_parts(self.file, plain.program, samples)
        note = f"{EQUALISE_CHANNELS}: scales of their own for parts of one product ({', '.join(names)})"
        return self._candidate(plain.program.changed(model), note=note) if names else None

    def _balanced(self, plain: Calibration) -> Candidate | None:
        """A candidate whose inputs have columns that are alike, if they can be made so."""
        if plain.program.weights or self.given.steps:
            return None
        start = self.simplified.program  # (not `plain`: joined to inputs is enlarged when these are alike)
        model, names = balance_inputs(self.file, start, plain.samples)
        if not names:
            return None
        note = f"{', '.join(names)}: offsets or scales of columns, the weights behind take them back"
        balanced = self._candidate(moves_behind(start.changed(model)), note=note)
        enlarged = self._enlarged(balanced.calibration) or balanced
        return replace(enlarged, notes=balanced.notes)

    def _equalised(self, plain: Calibration) -> Candidate | None:
        """A candidate with channels equalised between all pairs of layers, if that makes weights finer."""
        seen = () if plain.program.weights or FOLD_EPILOGUES in self.without else plain.samples
        pairs = () if self.given.steps else find_pairs(self.file, plain.program, seen)
        if not pairs:
            return None
        model, note, caps = equalise(plain.program, pairs)
        return self._candidate(plain.program.changed(model), caps, note)

    def _candidate(self, program: Program, caps: Collection[str] = (), note: str = "") -> Candidate:
        if self._has_blocks and not caps and (sorted_model := sort_channels(program)) is not None:
            program = program.changed(sorted_model)
        steps = self._plan(program, caps=caps)
        problems = unsupported(program, steps, self.element)
        if problems:
            raise UnsupportedError(self.file, problems)
        known = inherited(program, steps, self.given.steps)
        if apart := unfit_clips(steps, known):
            steps = self._plan(program, apart=apart)
            known = inherited(program, steps, self.given.steps)
        calibration = Calibration(
            self.file,
            program,
            steps,
            unknown_scales(program, steps, known),
            self._kept(program, steps, known),
            self.samples,
            self.without,
            self._has_blocks,
        )
        return Candidate(calibration, (note,) if note else ())

    def _kept(self, program: Program, steps: tuple[Step, ...], known: Mapping[str, float]) -> Prescribed:
        """What stays of the file's zero points and scales of output channels, where its scales do."""
        zeros, channels = {}, {}
        if known and SHIFT_ZEROS not in self.without:
            bordered = BORDER_ZEROS not in self.without
            zeros = kept_zeros(program, steps, self.simplified.given.zeros, bordered=bordered)
        if known and CHANNEL_SCALES not in self.without and self.element == "int8":
            channels = kept_channels(program, steps, self.simplified.given.channels)
        return Prescribed(known, zeros, channels)

    def _plan(
        self, program: Program, apart: Collection[str] = (), caps: Collection[str] = ()
    ) -> tuple[Step, ...]:
        steps = plan(program, self.element, self.without, apart, caps, self.given.steps)
        if self.element != "int8":
            return steps
        return keep_float(self.file, program, widened(steps, self.wide), self.keep_float, self.wide)


def _better(name: str, change: Change, before: Candidate, progress: Callable[[str], None]) -> Candidate:
    """The changed one if it gains on folds, fitted to the other samples, or if nothing can be judged."""
    plain = before.calibration
    after = change(plain)
    if after is None:
        return before
    notes = tuple(f"{name}: {note}" for note in after.notes)
    if not plain.is_judged or not plain.values:
        return replace(after, notes=(*before.notes, *notes))
    progress(f"trying {name}")
    fitted = [change(fitting) for fitting, _ in plain.folds]
    scores = [plain.promise(fold) for fold in range(len(fitted))]
    changed = [
        score if candidate is None else replace(candidate.calibration, without=JUDGED).promise(fold)
        for fold, (candidate, score) in enumerate(zip(fitted, scores, strict=True))
    ]
    tried = f"{name}: {listed(scores)} dB on held-out samples without, {listed(changed)} with it"
    lines = (*before.lines, tried)
    if gains(changed, scores):
        return replace(after, notes=(*before.notes, *notes), lines=lines)
    none = f"{name}: none, as held-out samples gain nothing by it"
    return replace(before, notes=(*before.notes, none), lines=lines)
