"""What calibration leaves open: ranges, biases, rounding, zero points, decided on held-out samples.

Every way is tried in a simulation of the whole network; one takes the place of a simpler one where it wins
by `WORTH_DB` on the held-out samples.  What won is then computed anew from all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import onnx

from fadiff.converter.ir.operators import WEIGHTED
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.ir.work import macs_of
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.biases import (
    Corrections,
    Product,
    biased_products,
    mean_inputs,
    mean_outputs,
    shared,
    weight_shift,
)
from fadiff.converter.quantise.columns import with_headroom
from fadiff.converter.quantise.importance import importances
from fadiff.converter.quantise.judge import Judge
from fadiff.converter.quantise.layerwise import corrected_layer_by_layer
from fadiff.converter.quantise.observe import Observed, observe
from fadiff.converter.quantise.ranges import METHODS, Range, ranges
from fadiff.converter.quantise.rounding import Rounder
from fadiff.converter.quantise.sentinels import without_sentinels
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import Integers, Quantisation, Quantised, quantise
from fadiff.converter.quantise.zeros import Zeros, can_shift
from fadiff.converter.read.inputs import Samples
from fadiff.converter.rewrites import (
    BORDER_ZEROS,
    CHOOSE_RANGES,
    CORRECT_BIASES,
    JUDGED,
    NARROW_WEIGHTS,
    ROUND_WEIGHTS,
    SHIFT_ZEROS,
)

WORTH_DB = 0.2
_HELD_OUT = 3
"""One sample in so many is kept out of calibration."""
_PLAIN = ("min-max", "least squares")
_REFINED = 3
"""So many of the best ranges are tried with corrections."""
_RISK_DB = {"99.9 %": 1.5, "entropy": 1.5}
"""What narrow ranges have to win more: the few held-out samples rarely show what they cut off of others."""
_BORDER_DB = 1.0
"""What zero points have to win more where values need borders for them: these take time on the device."""
_MOST_ROUNDED = 2**22
"""Weights of a network that are rounded jointly: more would take minutes."""
_MOST_SAMPLES = 256
_LEAST_SAMPLES = 6
_MOST_MACS = 6e9
"""Of one pass over the samples that the choice is made on."""


@dataclass(frozen=True)
class _Way:
    """How ranges are found, which shifts the biases take back, and how weights are rounded."""

    ranges: str = next(iter(METHODS))
    biases: Literal["none", "of weights", "layer by layer"] = "none"
    rounds: bool = False
    """Weights are rounded so that errors cancel, layer by layer."""
    narrow: bool = False
    """And the largest of them saturate."""
    zeros: Zeros = "none"
    """Which values have zero points."""

    @property
    def risk_db(self) -> float:
        """What held-out samples flatter it by, and what it costs."""
        return _RISK_DB.get(self.ranges, 0.0) + (_BORDER_DB if self.zeros == "bordered" else 0.0)

    def __str__(self) -> str:
        biases = "" if self.biases == "none" else f", biases {self.biases}"
        return (
            f"ranges by {self.ranges}{biases}"
            + (", weights rounded jointly" if self.rounds else "")
            + (" in narrow ranges" if self.narrow else "")
            + {"none": "", "free": ", zero points", "bordered": ", zero points in borders, too"}[self.zeros]
        )


@dataclass(frozen=True)
class Choice:
    """Ranges, corrections of biases and weights that are rounded already, by constant."""

    ranges: Mapping[str, Range]
    corrections: Corrections = field(default_factory=dict)
    weights: Mapping[str, Quantised] = field(default_factory=dict)
    way: str = ""
    """How they were found, in words; empty where nobody judged."""
    lines: tuple[str, ...] = ()
    """What was tried."""
    zeros: Zeros = "none"
    ranges_by: str = next(iter(METHODS))
    """The method that found the ranges."""


@dataclass(frozen=True)
class Calibration:
    """A program that is to be quantised, and what calibrates it.

    `values` need a range; `known` are the scales that the file prescribes, `kept_zeros` its zero
    points (and the scales that go with them) that the array can have.
    """

    file: str
    model: onnx.ModelProto
    weights: StoredWeights
    program: Program
    steps: tuple[Step, ...]
    values: tuple[str, ...]
    known: Mapping[str, float]
    kept_zeros: Mapping[str, tuple[int, float]]
    samples: Samples
    integers: Integers = field(default_factory=Integers, repr=False, compare=False)
    """Of the program's constants."""
    _scores: dict[_Way, float] = field(default_factory=dict, init=False)
    _found: dict[str, dict[str, Range]] = field(default_factory=dict, init=False)
    """Ranges by method."""
    _rounders: list[Rounder] = field(default_factory=list, init=False)
    """None or one."""

    @property
    def is_judged(self) -> bool:
        """Whether there are samples to keep out, and a float model in memory (no quantised file) to try."""
        return len(self._few) >= _HELD_OUT and not self.weights and not self.known

    def promise(self) -> float:
        """What plain ways of finding ranges come to, in dB on held-out samples."""
        return max(self._score(_Way(method)) for method in _PLAIN)

    def plain_ranges(self) -> Mapping[str, Range]:
        """The better of the plain ranges, of the samples that calibrate while others judge."""
        return self.fitting._ranges(max((_Way(method) for method in _PLAIN), key=self._score))

    def fit(self, constants: Mapping[str, np.ndarray], ranges: Mapping[str, Range]) -> float:
        """What other constants and ranges come to, in dB on half of the samples that calibrate."""
        program = replace(self.program, constants={**self.program.constants, **constants})
        return self._fit_judge.score(quantise(program, self.steps, ranges, self.known))

    @cached_property
    def _fit_judge(self) -> Judge:
        return Judge(self.file, self.model, self._simulation, self.fitting.samples[::2])

    def choose(self, without: Collection[str], progress: Callable[[str], None]) -> Choice:
        """The best ranges and corrections, the widest ranges where nothing can be judged.

        Raises:
            ModelError: the samples do not fit the model.
        """
        if not self.is_judged or set(JUDGED) <= set(without):
            return Choice(self._ranges(_Way()))
        scores = {_Way(): self._score(_Way())}

        def attempt(way: _Way) -> None:
            progress(f"trying {way}")
            scores[way] = self._score(way)

        for method in METHODS if CHOOSE_RANGES not in without else ():
            attempt(_Way(method))
        rounds = ROUND_WEIGHTS not in without and _weights(self.program) <= _MOST_ROUNDED
        for way in sorted(scores, key=lambda way: way.risk_db - scores[way])[:_REFINED]:
            if CORRECT_BIASES not in without:
                attempt(replace(way, biases="of weights"))
                attempt(way := replace(way, biases="layer by layer"))
            if rounds:
                attempt(way := replace(way, rounds=True))
            if rounds and NARROW_WEIGHTS not in without:
                attempt(replace(way, narrow=True))
        for zeros in self._zero_points(without):
            order = sorted(scores, key=lambda way: way.risk_db - scores[way])
            others = [way for way in order if way.ranges != order[0].ranges]  # (not variants of one only)
            for way in dict.fromkeys((*order[:2], *others[:1])):
                attempt(replace(way, zeros=zeros))
        best = _Way()
        for way, score in scores.items():
            if score - way.risk_db > scores[best] - best.risk_db + WORTH_DB:
                best = way
        lines = (
            f"{way}: {score:.1f} dB on {len(self.held_out)} held-out samples" for way, score in scores.items()
        )
        chosen = self._choice(best, self._simulation)
        return replace(chosen, way=str(best), lines=tuple(lines), ranges_by=best.ranges)

    def _zero_points(self, without: Collection[str]) -> list[Zeros]:
        """The ways to have some, of those that differ."""
        found: list[Zeros] = []
        none: frozenset[str] = frozenset()
        named: dict[Zeros, str] = {"free": SHIFT_ZEROS, "bordered": BORDER_ZEROS}
        for zeros, name in named.items():
            values = can_shift(self.program, self.steps, zeros)
            if not {name, SHIFT_ZEROS} & set(without) and values != none:
                found.append(zeros)
                none = values
        return found

    @cached_property
    def _few(self) -> Samples:
        """So many of the samples that trying does not take long, from all over them."""
        macs = sum(macs_of(self.program, node) for node in self.program.nodes)
        count = int(np.clip(_MOST_MACS / max(macs, 1), _LEAST_SAMPLES, _MOST_SAMPLES))
        return self.samples[:: max(1, -(-len(self.samples) // count))]

    @cached_property
    def held_out(self) -> Samples:
        """The samples that judge."""
        return self._few[_HELD_OUT - 1 :: _HELD_OUT]

    @cached_property
    def fitting(self) -> Calibration:
        """The same with the other samples only."""
        rest = [sample for i, sample in enumerate(self._few) if i % _HELD_OUT != _HELD_OUT - 1]
        return replace(self, samples=rest)

    @cached_property
    def _simulation(self) -> Simulation:
        first = self.fitting.quantised(Choice(self.fitting._ranges(_Way())))
        return Simulation(self.model, self.program, self.steps, first)

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self.file, self.model, self._simulation, self.held_out)

    def _score(self, way: _Way) -> float:
        if way not in self._scores:
            choice = self.fitting._choice(way, self._simulation)
            self._scores[way] = self._judge.score(self.fitting.quantised(choice))
        return self._scores[way]

    def observe(self, values: Sequence[str]) -> Mapping[str, Observed]:
        """What values are on the samples, and what their errors count for."""
        program, steps = self.program, self.steps
        counts = importances(self.model, program, steps, values) if not self.weights else {}
        return observe(self.file, self.model, self.weights, self.samples, values, counts, program.roles)

    @cached_property
    def _observed(self) -> Mapping[str, Observed]:
        return self.observe(self.values)

    @cached_property
    def _products(self) -> Sequence[Product]:
        return biased_products(self.program, self.steps)

    @cached_property
    def _mean_inputs(self) -> Mapping[str, np.ndarray]:
        return mean_inputs(self.file, self.model, self._few, self._products)

    @cached_property
    def _mean_outputs(self) -> Mapping[str, np.ndarray]:
        return mean_outputs(self.file, self.model, self._few, self._products)

    def _rounder(self, simulation: Simulation) -> Rounder:
        if not self._rounders:
            plain = self.quantised(Choice(self._ranges(_Way("least squares"))))
            self._rounders.append(Rounder(simulation, plain, self._few))
        return self._rounders[0]

    def _ranges(self, way: _Way) -> dict[str, Range]:
        if way.ranges not in self._found:
            counts = {value: int(seen.counts.sum()) for value, seen in self._observed.items()}
            found = ranges(self._observed, way.ranges)
            found = with_headroom(self.program, self.steps, found, counts)
            self._found[way.ranges] = without_sentinels(self.program, self.steps, found)
        return self._found[way.ranges]

    def _choice(self, way: _Way, simulation: Simulation) -> Choice:
        found = Choice(self._ranges(way), zeros=way.zeros)
        if way.rounds:
            centred = {product.weight for product in self._products if way.biases != "none"}
            plain = self.quantised(found)
            weights = self._rounder(simulation).weights(plain, centred, narrow=way.narrow)
            found = replace(found, weights=weights)
        if way.biases == "none":
            return found
        plain = self.quantised(found)
        if way.biases == "of weights":
            shifts = weight_shift(self.model, self.program, plain, self._products, self._mean_inputs)
        else:
            shifts = corrected_layer_by_layer(
                simulation, self._few, plain, self._products, self._mean_outputs
            )
        return replace(found, corrections=shared(shifts, self._products, self.program.roles))

    def quantised(self, choice: Choice, *, look: bool = False) -> Quantisation:
        """The program in integers, as a choice says; `look` as in `quantise`."""
        return quantise(
            self.program,
            self.steps,
            choice.ranges,
            self.known,
            choice.corrections,
            choice.weights,
            zero_points=choice.zeros,
            kept_zeros=self.kept_zeros,
            look=look,
            integers=self.integers,
        )


def _weights(program: Program) -> int:
    """Constants that products multiply by."""
    names = {name for node in program.nodes if node.op in WEIGHTED for name in node.inputs[:2]}
    return sum(program.constants[name].size for name in names if name in program.constants)
