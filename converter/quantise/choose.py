"""What calibration leaves open: ranges, biases, rounding, zero points, decided on folds of the samples.

Every recipe is tried in a simulation of the whole network, once for each fold: fitted to the other samples,
judged on the fold.  A change of the recipe has to win on every fold, or by more than folds differ: few
samples make many recipes look better than they are.  What won is then computed anew from all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fadiff.converter.ir.kinds import WEIGHTED
from fadiff.converter.ir.operators import is_a, macs_of
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Prescribed
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.bias_correction import (
    Corrections,
    Product,
    biased_products,
    corrected_biases,
)
from fadiff.converter.quantise.blocks import CHANNEL_BLOCK, block_scales, could_have_blocks
from fadiff.converter.quantise.ranges import METHODS, Observed, Range, ranges
from fadiff.converter.quantise.rounding import Rounder
from fadiff.converter.quantise.seen import NO_FOLD, Seen, Wanted, look
from fadiff.converter.quantise.simulate import Simulation, deciding_values, score
from fadiff.converter.quantise.weights import Integers, Quantisation, Quantised, quantise
from fadiff.converter.quantise.zeros import can_shift
from fadiff.converter.read.inputs import Samples
from fadiff.converter.rewrites import CHOOSE_RANGES, CORRECT_BIASES, JUDGED, ROUND_WEIGHTS, SHIFT_ZEROS

_WORTH_DB = 0.2
_FOLDS = 3
_MOST_ROUNDED = 2**22
"""Weights of a network that are rounded jointly: more would take minutes."""
_MOST_SAMPLES = 256
_LEAST_SAMPLES = 6
_MOST_MACS = 6e9
"""Most multiply-accumulates of a pass over the samples that the choice is made on."""

Scores = Sequence[float]
"""Signal to noise of one recipe or candidate in dB, one for each fold."""


def gains(scores: Scores, others: Scores) -> bool:
    """Whether the first is better on every fold, or by more than folds differ."""
    gain = np.subtract(scores, others)
    return bool(gain.mean() >= _WORTH_DB and (gain.min() > 0 or gain.mean() > gain.std()))


@dataclass(frozen=True)
class Recipe:
    """How integers are found: in the simplest form from the widest ranges, each number by itself."""

    ranges: str = next(iter(METHODS))
    biases: bool = False
    """They take back what means have lost, layer by layer."""
    rounds: bool = False
    """Weights are rounded so that errors cancel."""
    zeros: bool = False
    """Values have zero points where these cost nothing."""

    def __str__(self) -> str:
        return (
            f"ranges by {self.ranges}"
            + (", biases layer by layer" if self.biases else "")
            + (", weights rounded jointly" if self.rounds else "")
            + (", zero points" if self.zeros else "")
        )


@dataclass(frozen=True)
class Choice:
    """Ranges, corrections of biases and weights that are rounded already, by constant."""

    ranges: Mapping[str, Range]
    corrections: Corrections = field(default_factory=dict)
    weights: Mapping[str, Quantised] = field(default_factory=dict)
    blocks: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Scales of blocks of output channels, by constant."""
    recipe: Recipe = field(default_factory=Recipe)
    """How they were found."""
    lines: tuple[str, ...] = ()
    """What was tried; empty where nobody judged."""


@dataclass(frozen=True)
class Calibration:
    """A program that is to be quantised, and what calibrates it.

    `values` need a range; `given` are scales that the file prescribes.
    """

    file: str
    program: Program
    steps: tuple[Step, ...]
    values: tuple[str, ...]
    given: Prescribed
    samples: Samples
    without: Collection[str] = ()
    """Rewrites that are left out."""
    has_blocks: bool = False
    """Whether weights may have scales by blocks of output channels."""
    integers: Integers = field(default_factory=Integers, repr=False, compare=False)
    """Integers of the program's constants."""
    whole: tuple[Calibration, int] | None = field(default=None, repr=False, compare=False)
    """What it is part of, and the fold that is left out."""
    _known: dict[tuple[Recipe, int], float] = field(default_factory=dict, init=False)
    """Scores by recipe and fold."""
    _found: dict[str, dict[str, Range]] = field(default_factory=dict, init=False)
    """Ranges by method."""
    _rounders: list[Rounder] = field(default_factory=list, init=False)
    """None or one."""

    @property
    def is_judged(self) -> bool:
        """Whether there are samples to keep out, and a float model in memory (no quantised file) to try."""
        return len(self._few) >= _FOLDS and not self.program.weights and not self.given.steps

    def promise(self, fold: int) -> float:
        """What plain ways of finding ranges come to on a fold, in dB."""
        return max(self._score(Recipe(method), fold) for method in METHODS)

    def choose(self, progress: Callable[[str], None]) -> Choice:
        """The best ranges and corrections, the widest ranges where nothing can be judged.

        Raises:
            ModelError: the samples do not fit the model.
        """
        if not self.is_judged or set(JUDGED) <= set(self.without):
            return self._plain(Recipe())
        best = plain = Recipe()
        for change in self._changes():
            other = replace(best, **change)
            progress(f"trying {other}")
            scores = self.scores(other)
            if gains(scores, self.scores(best)) and gains(scores, self.scores(plain)):
                best = other
        lines = (
            f"{recipe}: {listed(self.scores(recipe))} dB on held-out samples"
            for recipe in dict.fromkeys(recipe for recipe, _ in self._known)
        )
        return replace(self._choice(best, self._simulation), lines=tuple(lines))

    def _changes(self) -> list[dict[str, Any]]:
        """What is tried in turn; ranges a second time, because biases take back what saturation shifts."""
        ranges = [{"ranges": method} for method in list(METHODS)[1:]]
        ranges = [] if CHOOSE_RANGES in self.without else ranges
        zeros = SHIFT_ZEROS not in self.without and can_shift(self.program, self.steps)
        found: list[dict[str, Any]] = [{"zeros": True}] if zeros else []
        found += ranges
        if self._products:
            found += [{"biases": True}, *ranges]
        if ROUND_WEIGHTS not in self.without and _weights(self.program) <= _MOST_ROUNDED:
            found.append({"rounds": True})
        return found

    @property
    def _few(self) -> Samples:
        """So many of the samples that trying does not take long, from all over them."""
        return self.samples[:: self._stride]

    @cached_property
    def _stride(self) -> int:
        macs = sum(macs_of(self.program, node) for node in self.program.nodes)
        count = int(np.clip(_MOST_MACS / max(macs, 1), _LEAST_SAMPLES, _MOST_SAMPLES))
        return max(1, -(-len(self.samples) // count))

    @cached_property
    def folds(self) -> Sequence[tuple[Calibration, Samples]]:
        """The same with all samples but those of a fold, and those."""
        found = []
        for k in range(_FOLDS):
            others = [sample for i, sample in enumerate(self._few) if i % _FOLDS != k]
            found.append((replace(self, samples=others, whole=(self, k)), self._few[k::_FOLDS]))
        return found

    @property
    def held_out(self) -> Samples:
        """The samples of one fold."""
        return self.folds[-1][1]

    @property
    def fitting(self) -> Calibration:
        """The same with the other samples only."""
        return self.folds[-1][0]

    @cached_property
    def _simulation(self) -> Simulation:
        first = self.fitting.quantised(self.fitting._plain(Recipe()))
        return Simulation(self.program, self.steps, first)

    def scores(self, recipe: Recipe) -> Scores:
        """What a recipe comes to, on every fold."""
        return tuple(self._score(recipe, fold) for fold in range(_FOLDS))

    def _score(self, recipe: Recipe, fold: int) -> float:
        """Fitted to the samples of the other folds."""
        if (recipe, fold) not in self._known:
            fitting, held = self.folds[fold]
            found = fitting.quantised(fitting._choice(recipe, self._simulation))
            exact = self._exact[fold]
            self._known[recipe, fold] = score(exact, self._simulation.run(found, held, list(exact)))
        return self._known[recipe, fold]

    def observe(self, values: Sequence[str]) -> Mapping[str, Observed]:
        """What values are on the samples."""
        wanted = Wanted(values)
        return look(self.file, self.program, self.samples, wanted).observed

    @cached_property
    def _seen(self) -> Seen:
        if self.whole is not None:  # (the float model ran on all samples)
            calibration, fold = self.whole
            return calibration._seen.without(fold)
        wanted = Wanted(self.values, vectors={step.source for step in self._able})
        if self.is_judged:
            decide = deciding_values(self.program, self.steps)
            wanted = replace(wanted, products=self._products, exact=decide)
        tried = range(0, len(self.samples), self._stride)
        folds = [tried.index(i) % _FOLDS if i in tried else NO_FOLD for i in range(len(self.samples))]
        return look(self.file, self.program, self.samples, wanted, folds)

    @cached_property
    def _exact(self) -> Sequence[Mapping[str, Sequence[np.ndarray]]]:
        """What the float model makes of the samples of each fold."""
        return [self._seen.of(fold).exact for fold in range(_FOLDS)]

    @cached_property
    def _able(self) -> Sequence[Step]:
        return could_have_blocks(self.program, self.steps) if self.has_blocks else ()

    @cached_property
    def _blocks(self) -> Mapping[str, np.ndarray]:
        return block_scales(self.program, self.steps, self._able, self._seen.vectors)

    @cached_property
    def _products(self) -> Sequence[Product]:
        """Those whose biases may be corrected."""
        return () if CORRECT_BIASES in self.without else biased_products(self.program, self.steps)

    def _rounder(self, simulation: Simulation) -> Rounder:
        if not self._rounders:
            plain = self.quantised(self._plain(Recipe("least squares")))
            self._rounders.append(Rounder(simulation, plain, self._few))
        return self._rounders[0]

    def _ranges(self, recipe: Recipe) -> dict[str, Range]:
        if recipe.ranges not in self._found:
            self._found[recipe.ranges] = ranges(self.program, self.steps, self._seen.observed, recipe.ranges)
        return self._found[recipe.ranges]

    def _plain(self, recipe: Recipe) -> Choice:
        """Without a look at what integers make of the samples."""
        return Choice(self._ranges(recipe), blocks=self._blocks, recipe=recipe)

    def _choice(self, recipe: Recipe, simulation: Simulation) -> Choice:
        found = self._plain(recipe)
        if recipe.rounds:
            centred = {product.weight for product in self._products if recipe.biases}
            weights = self._rounder(simulation).weights(self.quantised(found), centred)
            found = replace(found, weights=weights)
        if not recipe.biases:
            return found
        plain = self.quantised(found)
        shifts = corrected_biases(simulation, self._few, plain, self._products, self._seen.means)
        return replace(found, corrections=shifts)

    def quantised(self, choice: Choice, *, look: bool = False) -> Quantisation:
        """The program in integers, as a choice says; `look` as in `quantise`."""
        given = self.given
        if choice.blocks:
            given = replace(given, channels=choice.blocks, block=CHANNEL_BLOCK)
        return quantise(
            self.program,
            self.steps,
            choice.ranges,
            given,
            choice.corrections,
            choice.weights,
            zero_points=choice.recipe.zeros,
            look=look,
            integers=self.integers,
        )


def listed(scores: Scores) -> str:
    """For people."""
    return ", ".join(f"{score:.1f}" for score in scores)


def _weights(program: Program) -> int:
    """Constants that products multiply by."""
    names = {name for node in program.nodes if is_a(node, WEIGHTED) for name in node.inputs[:2]}
    return sum(program.constants[name].size for name in names if name in program.constants)
