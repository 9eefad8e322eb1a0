"""The quantised model with every scale and constant as an input: one session runs any quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnxruntime import InferenceSession

from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State, chained
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.qdq import PartNames, quantised_model, stored_constants
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import NOT_OPTIMISED, run_session, session_of, session_options


class Simulation:
    """int8 in ONNX Runtime: every stored value is rounded and dequantised, sums are float32.

    Args:
        model: the float model.
        program: the same as a Program.
        steps: its plan.
        quantisation: one of those to come; which values and constants are integers is the same in all.
    """

    def __init__(
        self, model: onnx.ModelProto, program: Program, steps: Sequence[Step], quantisation: Quantisation
    ) -> None:
        self.program, self.steps, self.names = program, steps, PartNames(model)
        self.model = quantised_model(model, program, steps, quantisation)
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
        """Scales, zero points and what constants mean, by their names in the quantised model."""
        found = dict[str, np.ndarray]()
        for value, scale in quantisation.scales.items():
            found[self.names.of(value, "scale")] = np.asarray(scale.step, np.float32)
            found[self.names.of(value, "zero")] = np.asarray(scale.zero, np.int8)
        constants = stored_constants(self.program, self.steps, quantisation)
        for label, content in constants.values():
            found[self.names.of(label, "dq")] = np.asarray(content.data.astype(np.float32) * content.step)
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
