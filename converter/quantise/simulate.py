"""Simulation: a quantisation in ONNX Runtime; score: how good it is on samples kept out of calibration.

In the quantised model every scale and constant is an input: one session runs any quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnxruntime import InferenceSession

from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a, keeps_scale
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State, chained
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.qdq import stored_constants, written
from fadiff.converter.quantise.ranges import activations
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import NOT_OPTIMISED, run_session, session_of, session_options


class Simulation:
    """int8 in ONNX Runtime: every stored value is rounded and dequantised, sums are float32.

    Args:
        program: the float model.
        steps: its plan.
        quantisation: one of those to come; which values and constants are integers is the same in all.
    """

    def __init__(self, program: Program, steps: Sequence[Step], quantisation: Quantisation) -> None:
        self.program, self.steps = program, steps
        self.written = written(program, steps, quantisation)
        self.model = self.written.model
        self._sessions: dict[tuple[object, ...], InferenceSession] = {}
        graph, fed = self.model.graph, self._numbers(quantisation).keys()
        nodes = [node for node in graph.node if node.output[0] not in fed]
        read = {name for node in nodes for name in node.input}
        kept = [tensor for tensor in graph.initializer if tensor.name in read - fed]
        self._open = fed & read
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend(kept)

    def feeds(self, quantisation: Quantisation) -> dict[str, np.ndarray]:
        """The inputs that stand for scales and constants."""
        return {name: array for name, array in self._numbers(quantisation).items() if name in self._open}

    def _numbers(self, quantisation: Quantisation) -> dict[str, np.ndarray]:
        """Scales, zero points and what constants mean, by what holds them in the quantised model."""
        found = dict[str, np.ndarray]()
        for value, scale in quantisation.scales.items():
            if pair := self.written.pairs.get(value):
                found[pair.scale] = np.asarray(scale.step, np.float32)
                found[pair.zero] = np.asarray(scale.zero, np.int8)
        for place, (_, content) in stored_constants(self.program, self.steps, quantisation).items():
            name = self.written.constants[place]
            found[name] = np.asarray(content.data.astype(np.float32) * content.step)
        return found

    def run(
        self,
        quantisation: Quantisation,
        samples: Samples,
        values: Sequence[str],
        states: Sequence[State] = (),
    ) -> Iterator[dict[str, np.ndarray]]:
        """Some values, sample by sample; with `states` these are steps, each goes on from the one before."""
        feeds, whole = self.feeds(quantisation), (0, len(self.model.graph.node))
        fed = ({**feeds, **sample} for sample in samples)
        if not states:
            yield from self.run_part(whole, list(fed), values)
            return
        fetched = list(dict.fromkeys([*values, *(state.output for state in states)]))
        for _, found in chained(lambda given: next(self.run_part(whole, [given], fetched)), fed, states):
            yield {value: found[value] for value in values}

    def run_part(
        self, part: tuple[int, int], feeds: Sequence[Mapping[str, np.ndarray]], values: Sequence[str]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Some values that nodes of the model (the first, and the one after the last) compute."""
        key = (*part, tuple(values))
        if key not in self._sessions:
            options, graph = session_options(NOT_OPTIMISED), self.model.graph
            nodes = graph.node[slice(*part)]
            self._sessions[key] = session_of(
                nodes, feeds[0], values, graph.initializer, like=self.model, options=options
            )
        yield from run_session(self._sessions[key], feeds, values)


_WORST = 1e6
"""Noise over signal: beyond, and below its inverse, nothing gets worse or better."""


def score(exact: Mapping[str, Sequence[np.ndarray]], runs: Iterable[Mapping[str, np.ndarray]]) -> float:
    """Signal to quantisation noise in dB, of the mean share of noise in the values that decide.

    The worst of them counts for most: what one output gains makes up for little in another.

    Args:
        exact: what the float model makes of each sample, by value (`deciding_values`).
        runs: what integers make of it, sample by sample.
    """
    shares = list(_noise_shares(exact, runs).values())
    return float(-10 * np.log10(np.mean(shares))) if shares else 0.0


def deciding_values(program: Program, steps: Sequence[Step]) -> tuple[str, ...]:
    """The float outputs; where one is a table, a softmax or a choice of other values, these.

    A sigmoid that saturates or a softmax that is sure hides what its input lost.
    """
    writers = {step.output: step for step in steps}
    found = []
    for value in program.outputs:
        while (step := writers.get(value)) is not None and step.source in program.shapes:
            squashes = step.kind in ("lookup", "output") or (step.kind == "node" and _picks(step))
            if program.is_float(value) and not squashes:
                break
            value = step.source
        if program.is_float(value) and value not in program.constants:
            found.append(value)
    return tuple(dict.fromkeys(found))


def _picks(step: Step) -> bool:
    return is_a(step.head, Kind.SOFTMAX) or keeps_scale(step.head)


def float_values(
    file: str, program: Program, samples: Samples, values: Sequence[str]
) -> Mapping[str, list[np.ndarray]]:
    """What the float model makes of samples, by value."""
    found: dict[str, list[np.ndarray]] = {value: [] for value in values}
    for name, array in activations(file, program, samples, values):
        found[name].append(array)
    return found


def decibels(
    exact: Mapping[str, Sequence[np.ndarray]], runs: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, float]:
    """Signal to noise of values in all runs, between -60 and 60; noise without signal is 0 dB."""
    return {name: float(-10 * np.log10(share)) for name, share in _noise_shares(exact, runs).items()}


def _noise_shares(
    exact: Mapping[str, Sequence[np.ndarray]], runs: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, float]:
    signal, noise = dict.fromkeys(exact, 0.0), dict.fromkeys(exact, 0.0)
    for i, found in enumerate(runs):
        for name, array in found.items():
            wanted = exact[name][i].astype(np.float64)
            signal[name] += float(np.sum(wanted**2))
            noise[name] += float(np.sum((wanted - array) ** 2))
    return {name: _share(signal[name], noise[name]) for name in exact}


def _share(signal: float, noise: float) -> float:
    """Noise over signal, between what is as good as none and what is as bad as can be."""
    if not np.isfinite(signal) or not np.isfinite(noise):
        return _WORST
    if signal == 0:
        return 1.0 if noise else 1 / _WORST
    return float(np.clip(noise / signal, 1 / _WORST, _WORST))
