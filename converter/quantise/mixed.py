"""Mixed precision by need: which layers to keep in float32 so that the outputs are good enough.

What costs int8 its accuracy is often one value that it holds badly: the layer that writes it and those that
read it go to float together, in the order of what values lose, until the outputs are good enough.  What turns
out not to be needed goes back to int8, the most expensive layers first.  All figures are of samples that took
no part in calibration.

States come before layers.  In int8 a state stands still where a step changes it by less than half a unit, and
its rounding comes back in every step; what leads from it to its next value is arithmetic on single elements,
little work for the core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.kinds import WEIGHTED
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.recurrence import LOST_BY_STATES
from fadiff.converter.plan.floats import (
    can_be_float,
    cell_of,
    float_states,
    keep_float,
    moves,
    normalisers,
    outputs_of,
    widened,
)
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.choose import Calibration, Choice
from fadiff.converter.quantise.ranges import Observed, ranges
from fadiff.converter.quantise.scales import stored_values, unknown_scales
from fadiff.converter.quantise.simulate import Simulation, decibels, float_values
from fadiff.converter.quantise.weights import Quantisation, with_rounded_weights
from fadiff.converter.read.inputs import Samples

MARGIN_DB = 1.0
"""The samples that the result is judged on in the end are others."""
GOOD_DB = 20.0
"""Signal to noise of the worst output: less is reason to look for more, whatever the goal."""
_WORTH_DB, _STATES_DB = 0.2, 1.0
"""What layers, and states, must gain."""
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
        before_db: what int8 had, where states are in float already (`decide`).
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
        kept, score, wanted = self.named, self.score(self.named), least_db + MARGIN_DB
        if score >= wanted:
            return kept, ""
        sets, count = self._candidates(kept), 1
        most = self.score(kept.union(*sets))  # graph outputs, softmax and their like are int8 in any case
        if most < least_db:
            held = f"{score:.1f} dB as it is, {most:.1f} dB with every layer in float that can be"
            return kept, f"--keep-float auto: {least_db:.1f} dB are out of reach on held-out samples ({held})"
        wanted = min(wanted, most - _WORTH_DB)
        while count < len(sets) and self.score(kept.union(*sets[:count])) < wanted:
            count *= 2
            progress(f"trying the {count} values that lose most in float")
        return self._needed(kept.union(*sets[:count]), wanted, progress), ""

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
        but = {*program.constants, *((s.output for s in program.states) if self.in_sequence else ())}
        wanted = [v for v in program.outputs if program.is_float(v) and v not in but]
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
        return replace(c, steps=steps, values=unknown_scales(c.program, steps, c.given.steps))

    def _ratios(
        self, names: Collection[str], values: Sequence[str], most: int = _SAMPLES
    ) -> dict[str, float]:
        """Signal to noise of values in dB, on `most` held-out samples."""
        planned = self.planned(names)
        seen = {value: self._observed[value] for value in planned.values}
        found = ranges(planned.program, planned.steps, seen, self.choice.recipe.ranges)
        quantisation = planned.quantised(replace(self.choice, ranges=found))
        rounded = with_rounded_weights(planned.program, planned.steps)
        simulation = Simulation(rounded, planned.steps, quantisation)
        held = planned.held_out[:most]
        exact = float_values(planned.file, planned.program, held, values)
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


@dataclass(frozen=True)
class Kept:
    """A program as it is planned and calibrated in the end; `mixed` is None where nobody asked for floats."""

    calibration: Calibration
    choice: Choice
    mixed: Mixed | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    undecided: MixedSearch | None = None
    """What can tell what floats would gain, where nobody asked for them."""


def decide(search: MixedSearch, least_db: float | None, progress: Callable[[str], None]) -> Kept:
    """Keep in float what every output needs for `least_db`; None: only what is named, with advice on states.

    Args:
        search: of the program as it is calibrated with what is named.
        least_db: of the worst output, on held-out samples.
        progress: told what is going on.

    Raises:
        ModelError: `least_db` is given, and there are no samples to judge by.
    """
    plain = Kept(search.calibration, search.choice)
    if least_db is None:
        named = search.worth(search.named) if search.named else None
        better = _with_states(search, progress)
        notes = () if better is None else (_advice(search, better),)
        undecided = search.on_array() if search.is_judged and better is None else None
        return replace(plain, mixed=named, notes=notes, undecided=undecided)
    search = _with_states(search, progress) or search
    on_array = search.on_array()
    kept, warning = on_array.until(least_db, progress)
    if warning:  # (weights of 32 bits may be what it takes)
        kept, warning = search.until(least_db, progress)
    else:
        search = on_array
    mixed, warnings = search.worth(kept), (warning,) if warning else ()
    if kept == search.named:
        return Kept(search.calibration, search.choice, mixed, warnings=warnings)
    planned = search.planned(kept)
    return Kept(planned, planned.choose(progress), mixed, warnings=warnings)


def _with_states(search: MixedSearch, progress: Callable[[str], None]) -> MixedSearch | None:
    """The same, calibrated anew with all states in float that can be; None where int8 is good, or nothing is
    gained."""
    c = search.calibration
    cells = search.named.union(*(cell_of(c.program, c.steps, state) for state in c.program.states))
    if not search.is_judged or cells == search.named:
        return None
    before = search.score(search.named)
    if before >= GOOD_DB:
        return None
    progress("trying states in float")
    planned = search.planned(cells)
    found = replace(search, calibration=planned, choice=planned.choose(progress), before_db=before)
    return found if found.score(cells) >= before + _STATES_DB else None


def _advice(search: MixedSearch, better: MixedSearch) -> str:
    program = search.calibration.program
    before = float_states(program, search.calibration.steps)
    kept = [s.input for s in float_states(program, better.calibration.steps) if s not in before]
    gain = f"{better.before_db:.1f} -> {better.score(better.named):.1f} dB on held-out samples"
    return f"{LOST_BY_STATES} (in float32: {gain}): --keep-float {','.join(kept)}"
