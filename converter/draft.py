"""draft: a simplified model, planned; its channels equalised or split as far as held-out samples gain.

Equalised weights are never coarser, but channels of activations that were alike may no longer be: whether
that is better only a run of the network can tell.  Split channels are finer, but the schedule pays for it.
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
from fadiff.converter.plan.floats import keep_float
from fadiff.converter.plan.plan import Step, plan
from fadiff.converter.quantise.choose import WORTH_DB, Calibration
from fadiff.converter.quantise.equalise import Pair, equalise, find_pairs
from fadiff.converter.quantise.pairwise import gaining_pairs
from fadiff.converter.quantise.scales import inherited, unfit_clips, unknown_scales
from fadiff.converter.quantise.split import split
from fadiff.converter.quantise.zeros import Zeros, prescribed
from fadiff.converter.read.inputs import Samples
from fadiff.converter.rewrites import (
    BORDER_ZEROS,
    EQUALISE_CHANNELS,
    FOLD_EPILOGUES,
    SHIFT_ZEROS,
    SPLIT_CHANNELS,
)
from fadiff.converter.simplify import Simplified

_SPLIT_WORTH_DB = 1.0


@dataclass(frozen=True)
class Draft:
    """A model as it is to be calibrated, and what was done to it."""

    calibration: Calibration
    pairs: tuple[Pair, ...] = ()
    """Whose channels were made alike."""
    notes: tuple[str, ...] = ()
    is_split: bool = False
    lines: tuple[str, ...] = ()
    """What was tried."""

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
        drafts = [plain] if EQUALISE_CHANNELS in self.without else self._equalised(plain, judged, progress)
        best = drafts[0]
        for draft in drafts[1:]:
            if draft.beats(best, WORTH_DB):
                best = draft
        if not judged:
            return best
        if SPLIT_CHANNELS not in self.without:
            progress("trying to split channels")
            whole = [n for step in plain.calibration.steps if step.is_float for n in step.onnx_nodes]
            # those that lose here too: which pairs are worth it is another question once channels are split
            finer = [self._split(draft, whole) for draft in drafts if draft is best or draft.pairs]
            drafts += [draft for draft in finer if draft.is_split]
            finest = max(drafts, key=lambda draft: draft.calibration.promise())
            if finest.is_split and finest.beats(best, _SPLIT_WORTH_DB):
                best = finest
        tried = drafts if any(draft.pairs for draft in drafts) else []
        return replace(best, lines=tuple(map(self._line, tried)))

    def _equalised(self, plain: Draft, judged: bool, progress: Callable[[str], None]) -> list[Draft]:
        """Drafts to be judged, the simplest first: no pair, all, those that gain; all where nobody judges."""
        pairs = self._pairs
        if not pairs:
            return [plain]
        progress("trying to equalise channels")
        every = self._draft(pairs)
        if not judged:
            return [every]
        progress("trying to equalise channels of some layers")
        some = gaining_pairs(plain.calibration, every.calibration, pairs)
        none = replace(plain, notes=(f"{EQUALISE_CHANNELS}: none, as held-out samples gain nothing by it",))
        return [none, every, *([self._draft(some)] if 0 < len(some) < len(pairs) else [])]

    def _split(self, draft: Draft, whole: Collection[str]) -> Draft:
        finer = self._draft(draft.pairs, whole=whole)
        return replace(finer, notes=(*draft.notes, finer.notes[-1])) if finer.is_split else finer

    def _line(self, draft: Draft) -> str:
        parted = ", channels split" if draft.is_split else ""
        return (
            f"{EQUALISE_CHANNELS}: {len(draft.pairs)} of {len(self._pairs)} pairs{parted}: "
            f"{draft.calibration.promise():.1f} dB on {len(draft.calibration.held_out)} held-out samples"
        )

    @cached_property
    def _pairs(self) -> tuple[Pair, ...]:
        seen = () if self.weights or FOLD_EPILOGUES in self.without else self.samples
        simple = self.simplified
        return find_pairs(self.file, simple.model, simple.program, seen, self.scales)

    def _draft(self, pairs: Sequence[Pair] = (), *, whole: Collection[str] | None = None) -> Draft:
        """A draft: channels equalised between some pairs of layers and, but for `whole` nodes, split."""
        model = onnx.ModelProto()
        model.CopyFrom(self.simplified.model)
        program, caps, parted, notes = self.simplified.program, frozenset[str](), "", []
        if pairs:
            note, caps = equalise(model, program, pairs, len(self._pairs))
            notes.append(note)
            program = self._read(model)
        if whole is not None:
            parted = split(model, program, whole)
            notes.append(parted)
            program = self._read(model)
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
        return Draft(calibration, tuple(pairs), tuple(note for note in notes if note), bool(parted))

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
        steps = plan(program, self.element, self.without, apart, caps, self.scales)
        return keep_float(self.file, program, steps, self.keep_float) if self.element == "int8" else steps
