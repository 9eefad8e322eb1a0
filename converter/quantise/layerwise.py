"""Layer by layer: weights and biases fitted to what the layers before, in int8, really hand on.

The quantised model runs product by product on all samples.  Before one runs, its weights are rounded so
that errors cancel on the inputs that it gets (`rounding.py`); then its bias takes back what the mean of
each output channel has lost by everything so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from converter.plan.plan import Step
from converter.quantise.biases import Corrections, Product, biased_products
from converter.quantise.observe import channel_means, mean_of_channels
from converter.quantise.rounding import can_round, rounded
from converter.quantise.simulate import Simulation
from converter.quantise.weights import Quantisation, Quantised
from converter.read.inputs import Samples
from converter.read.runtime import run_nodes


@dataclass(frozen=True)
class Fitted:
    """Corrections of biases, and weights as they are to be rounded, by constant."""

    corrections: Corrections = field(default_factory=dict)
    weights: Mapping[str, Quantised] = field(default_factory=dict)


def fit(
    file: str,
    model: onnx.ModelProto,
    simulation: Simulation,
    samples: Samples,
    quantisation: Quantisation,
    *,
    correct_biases: bool,
    round_weights: bool,
) -> Fitted:
    """Corrections of biases, and the rounding of all weights that allow it: either, or both.

    Args:
        file: for messages.
        model: the float model.
        simulation: the quantised one.
        samples: what is calibrated on.
        quantisation: plain, with the ranges that are chosen.
    """
    products = biased_products(simulation.program, simulation.steps) if correct_biases else ()
    means = channel_means(file, model, samples, {product.sums: product.axis for product in products})
    return _Fit(simulation, samples, quantisation, products, means).run(round_weights)


class _Fit:
    """The model while it runs: `states` are the values of each sample that nodes still to come read."""

    def __init__(
        self,
        simulation: Simulation,
        samples: Samples,
        quantisation: Quantisation,
        products: Sequence[Product],
        means: Mapping[str, np.ndarray],
    ) -> None:
        self.simulation, self.quantisation, self.means = simulation, quantisation, means
        self.biased = {product.sums: product for product in products}
        steps = simulation.steps
        self.feeds = simulation.feeds(quantisation)
        self.states = [dict(sample) for sample in samples]
        self.heads = {step.head.outputs[0]: step for step in steps if step.kind == "node"}
        self.readers = Counter(name for step in steps for name in step.head.inputs)
        self.nodes = list(simulation.model.graph.node)
        self.last_reader = {name: i for i, node in enumerate(self.nodes) for name in node.input}
        self.last_reader |= {value.name: len(self.nodes) for value in simulation.model.graph.output}
        self.done = 0
        self.corrections: dict[str, np.ndarray] = {}
        self.weights: dict[str, Quantised] = {}

    def run(self, round_weights: bool) -> Fitted:
        for i, node in enumerate(self.nodes):
            result = node.output[0].removesuffix(".float")
            if node.op_type.endswith("Linear"):
                continue
            step = self.heads.get(result)
            if round_weights and step is not None and self._is_open(step):
                self._advance(i)
                self._round(step, node.input[0])
            if result in self.biased:
                self._advance(i + 1)
                self._correct(self.biased[result], node.output[0])
        return Fitted(self.corrections, self.weights)

    def _is_open(self, step: Step) -> bool:
        """Whether the rounding of this step's weights is nobody else's matter."""
        name = step.head.input(1)
        content = self.quantisation.weights.get(name)
        return content is not None and self.readers[name] == 1 and can_round(step.head, content.data)

    def _round(self, step: Step, source: str) -> None:
        name = step.head.inputs[1]
        scale = self.quantisation.weights[name].scale
        sums = (step.nodes[1] if step.bias else step.head).outputs[0]
        inputs = [state[source] for state in self.states]
        weight = self.simulation.program.constants[name]
        data = rounded(step.head, weight, scale, inputs, centred=sums in self.biased)
        self.weights[name] = Quantised(data, scale)
        self.feeds[f"{name}.dq"] = data.astype(np.float32) * np.float32(scale)

    def _correct(self, product: Product, sums: str) -> None:
        shape = [-1 if i == product.axis else 1 for i in range(self.states[0][sums].ndim)]
        got = np.stack([mean_of_channels(state[sums], product.axis) for state in self.states])
        shift = certain_mean(self.means[product.sums] - got)
        self.corrections[product.step.name] = shift
        for state in self.states:
            state[sums] = state[sums] + shift.reshape(shape).astype(np.float32)

    def _advance(self, end: int) -> None:
        """Run the nodes before `end`; values that nobody reads any more are dropped."""
        nodes, self.done = self.nodes[self.done : end], end
        made = [n for node in nodes for n in node.output if self.last_reader.get(n, -1) >= end]
        if made:
            read = {name for node in nodes for name in node.input}
            fixed = {name: self.feeds[name] for name in read & self.feeds.keys()}
            fed = [fixed | {name: state[name] for name in read & state.keys()} for state in self.states]
            graph = self.simulation.model.graph
            found = run_nodes(nodes, fed, made, graph.initializer, like=self.simulation.model)
            for state, values in zip(self.states, found, strict=True):
                state.update(values)
        for state in self.states:
            for name in [name for name in state if self.last_reader.get(name, -1) < end]:
                del state[name]


def certain_mean(shifts: np.ndarray) -> np.ndarray:
    """The mean of [samples, channels], less where the samples do not agree on it.

    Source: the positive part of James and Stein, "Estimation with Quadratic Loss", 1961.
    """
    mean = shifts.mean(0)
    error = shifts.var(0) / max(len(shifts) - 1, 1)
    sure = 1 - error / np.maximum(mean**2, np.finfo(float).tiny)
    return np.asarray(mean * np.maximum(sure, 0.0))
