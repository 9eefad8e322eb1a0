"""Mixed precision by need: which layers to keep in float32 so that the outputs are good enough.

What costs int8 its accuracy is often one value that it holds badly: the layer that writes it and those that
read it go to float together.  Each round tries the values that lose most, and keeps the set of layers that
gains most for its work on the core.  Where no such set gains much, noise comes from everywhere: as many go to
float as it takes.  What turns out not to be needed in the end goes back to int8.  All figures are of samples
that took no part in calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.kinds import WEIGHTED, is_a
from fadiff.converter.plan.floats import can_be_float, keep_float, moves, normalisers, outputs_of, widened
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.choose import Calibration, Choice
from fadiff.converter.quantise.judge import decibels, float_values
from fadiff.converter.quantise.observe import Observed
from fadiff.converter.quantise.ranges import ranges
from fadiff.converter.quantise.scales import stored_values, unknown_scales
from fadiff.converter.quantise.sentinels import without_sentinels
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.quantise.wide import with_rounded_weights
from fadiff.converter.read.inputs import Samples

MARGIN_DB = 1.0
"""The samples that the result is judged on in the end are others."""
GOOD_DB = 20.0
"""Signal to noise of the worst output: less is reason to look for more, whatever the goal."""
_WORTH_DB = 0.2
_TRIALS = 10
"""Sets of layers that a round tries."""
_STRIDE = 0.25
"""A round has to gain so much of what is missing; otherwise many layers are needed."""
_SAMPLES = 16
_LOOKED_AT = 2
"""Samples that every value is compared on."""
_ARRAY = 64.0
"""Multiplications that the array does, at least, while the core does one."""
_CLEAN_DB = 45.0
"""What is assumed of values that are not rounded before."""


@dataclass(frozen=True)
class Mixed:
    """Layers in float32, and the worst output's signal to noise in dB on held-out samples without and with
    them; None where there is nothing to judge by."""

    layers: tuple[str, ...] = ()
    before_db: float | None = None
    after_db: float | None = None

    def __str__(self) -> str:
        gain = (
            ""
            if self.before_db is None
            else f": {self.before_db:.1f} -> {self.after_db:.1f} dB on held-out samples"
        )
        return f"{', '.join(self.layers) or 'no layer'} in float32 on the core{gain}"


@dataclass(frozen=True)
class MixedSearch:
    """Tries plans of one calibrated program with further steps in float.

    Args:
        calibration: the program as it is planned so far.
        choice: how its ranges are found, and corrections of its biases.
        is_judged: whether the samples are the user's, and enough of them.
        in_sequence: whether they are steps, each with the states that the one before left.
        before_db: what int8 had, where states are in float already (converter/quantise/float_states.py).
    """

    calibration: Calibration
    choice: Choice
    is_judged: bool
    in_sequence: bool = False
    before_db: float | None = None

    def until(self, least_db: float, progress: Callable[[str], None]) -> tuple[frozenset[str], str]:
        """Names of the steps to keep in float so that every output has `least_db` and a margin (if there can
        be one), and a warning: where that is out of reach, no further step is kept.

        Raises:
            ModelError: no samples to judge by.
        """
        if not self.is_judged:
            raise ModelError(
                f"{self.calibration.file}: --keep-float auto needs a float model and at least 3 calibration "
                "samples to judge by; give --calibration FILE.npz, or name the layers"
            )
        kept, score = self.named, self.score(self.named)
        every = kept.union(*self._candidates(kept))
        wanted = least_db + MARGIN_DB
        if score >= wanted:
            return kept, ""
        most = self.score(every)  # graph outputs, softmax and their like are int8 in any case
        if most < least_db:
            held = f"{score:.1f} dB as it is, {most:.1f} dB with every layer in float that can be"
            return kept, f"--keep-float auto: {least_db:.1f} dB are out of reach on held-out samples ({held})"
        wanted = min(wanted, most - _WORTH_DB)
        while score < wanted:
            sets = self._candidates(kept)[:_TRIALS]
            found = {}
            for number, more in enumerate(sets):
                progress(f"{len(kept)} layers in float, {score:.1f} dB: trying {number + 1} of {len(sets)}")
                found[more] = self.score(kept | more)
            gain = {more: min(found[more], wanted) - score for more in sets}
            best = max(sets, key=lambda more: gain[more] / self._work(more - kept), default=frozenset())
            if gain.get(best, 0.0) < max(_WORTH_DB, (wanted - score) * _STRIDE):
                kept = self._enough(kept, wanted, progress)
                break
            kept, score = kept | best, found[best]
        return self._needed(kept, wanted, progress), ""

    def _enough(self, kept: frozenset[str], wanted: float, progress: Callable[[str], None]) -> frozenset[str]:
        """Noise comes from everywhere: the values that lose most, twice as many each time."""
        sets, count = self._candidates(kept), 2
        while count < 2 * len(sets):
            more = kept.union(*sets[:count])
            progress(f"trying {len(more)} layers in float")
            if self.score(more) >= wanted:
                return more
            count *= 2
        return kept.union(*sets)

    def _needed(self, kept: frozenset[str], wanted: float, progress: Callable[[str], None]) -> frozenset[str]:
        """Without the layers that are not needed, the most expensive ones first.

        Equal ones go by name, so that the same are kept in every run.
        """
        for name in sorted(kept - self.named, key=lambda name: (-self._work({name}), name)):
            progress(f"{len(kept)} layers in float: trying without {name}")
            if self.score(kept - {name}) >= wanted:
                kept -= {name}
        return kept

    def worth(self, names: Collection[str]) -> Mixed:
        """What these steps in float gain."""
        layers = tuple(step.name for step in self._planned(names) if step.is_float)
        if not self.is_judged:
            return Mixed(layers)
        before = self.score(()) if self.before_db is None else self.before_db
        return Mixed(layers, round(before, 2), round(self.score(names) if names else before, 2))

    @cached_property
    def named(self) -> frozenset[str]:
        """The steps that the user keeps in float."""
        c = self.calibration
        floats = {step.name for step in c.steps if step.is_float and can_be_float(c.program, step)}
        return frozenset(floats - normalisers(c.program, c.steps))

    def on_array(self) -> MixedSearch:
        """The same with all products that are kept in float on the array."""
        return replace(self, calibration=replace(self.calibration, steps=widened(self.calibration.steps)))

    def score(self, names: Collection[str]) -> float:
        """The worst output's signal to noise in dB on held-out samples."""
        program = self.calibration.program
        kept = {state.output for state in program.states} if self.in_sequence else set()
        wanted = [v for v in program.outputs if program.is_float(v) and v not in kept]
        return min(self._ratios(names, wanted).values(), default=np.inf)

    def reach(self) -> Mixed | None:
        """What every layer in float that can be would gain; None where int8 is good without."""
        before = self.score(self.named)
        if before >= GOOD_DB:
            return None
        program, steps = self.calibration.program, self.calibration.steps
        every = {step.name for step in steps if can_be_float(program, step)}
        return Mixed(before_db=round(before, 2), after_db=round(self.score(every), 2))

    def _candidates(self, kept: Collection[str]) -> list[frozenset[str]]:
        """Sets of steps that would hold a value in float, or only the weights of its writer: those of values
        that lose most first."""
        program, steps = self.calibration.program, self._planned(kept)
        stored = [v for v in stored_values(program, steps) if v not in program.inputs]
        ratio = self._ratios(kept, stored, _LOOKED_AT)
        found: dict[frozenset[str], float] = {}
        for step in steps:
            for value in outputs_of(step):
                if value not in ratio:
                    continue
                loss = min([_CLEAN_DB, *(ratio[v] for v in self._sources(step) if v in ratio)]) - ratio[value]
                around = self._around(value)
                for more in (around, around & {step.name}):
                    if more - set(kept):
                        found[more] = max(loss, found.get(more, loss))
        return sorted(found, key=lambda more: -found[more])

    def _sources(self, step: Step) -> list[str]:
        return [value for node in step.nodes for value in self.calibration.program.activations(node)]

    def _around(self, value: str) -> frozenset[str]:
        """The writer and the readers of a value, those of its moves included, that can be in float."""
        program = self.calibration.program
        found, pending = set(), [program.producer.get(value), *program.consumers(value)]
        while pending:
            node = pending.pop()
            step = self._step_of.get(node.name) if node is not None else None
            if step is not None and can_be_float(program, step):
                found.add(step.name)
            elif step is not None and value not in outputs_of(step) and moves(program, step):
                pending += [reader for v in outputs_of(step) for reader in program.consumers(v)]
        return frozenset(found)

    @cached_property
    def _step_of(self) -> dict[str, Step]:
        return {node: step for step in self.calibration.steps for node in step.onnx_nodes}

    def _work(self, names: Collection[str]) -> float:
        """Operations of the core, on which products take about equal cycles each."""
        program, total = self.calibration.program, 1.0
        for name in names:
            step = self._step_of[name]
            out = float(np.prod(program.shapes[step.output]))
            weight = program.shapes[step.head.inputs[1]] if is_a(step.head, WEIGHTED) else ()
            channels = weight[-1 if step.head.op == "MatMul" else 0] if weight else 1
            inputs = float(np.prod(weight)) / channels if weight else 1.0
            total += out * (1 + inputs / _ARRAY if self._step_of[name].is_wide else inputs)
        return total

    def _planned(self, names: Collection[str]) -> tuple[Step, ...]:
        c = self.calibration
        return keep_float(c.file, c.program, c.steps, names)

    def planned(self, names: Collection[str]) -> Calibration:
        """The calibration with these steps in float."""
        c, steps = self.calibration, self._planned(names)
        return replace(c, steps=steps, values=unknown_scales(c.program, steps, c.known))

    def _ratios(
        self, names: Collection[str], values: Sequence[str], most: int = _SAMPLES
    ) -> dict[str, float]:
        """Signal to noise of values in dB, on `most` held-out samples."""
        planned = self.planned(names)
        found = ranges({value: self._observed[value] for value in planned.values}, self.choice.ranges_by)
        found = without_sentinels(planned.program, planned.steps, found)
        quantisation = planned.quantised(replace(self.choice, ranges=found))
        model = with_rounded_weights(planned.model, planned.program, planned.steps)
        simulation = Simulation(model, planned.program, planned.steps, quantisation)
        held = planned.held_out[:most]
        exact = float_values(planned.file, planned.model, held, values)
        return decibels(exact, self._computed(simulation, quantisation, held, values))

    def _computed(
        self, simulation: Simulation, quantisation: Quantisation, held: Samples, values: Sequence[str]
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Values in int8, sample by sample; with states on what int8 made of them in the steps before."""
        states = self.calibration.program.states
        if not self.in_sequence or not states:
            return simulation.run(quantisation, held, values)
        wanted = {id(sample) for sample in held}
        steps = list(self.calibration.samples)
        steps = steps[: 1 + max(i for i, step in enumerate(steps) if id(step) in wanted)]
        runs = simulation.run(quantisation, steps, values, states)
        return (found for step, found in zip(steps, runs, strict=True) if id(step) in wanted)

    @cached_property
    def _observed(self) -> Mapping[str, Observed]:
        c = self.calibration.fitting
        every = stored_values(c.program, [replace(step, is_float=False) for step in c.steps])
        return c.observe(every)
