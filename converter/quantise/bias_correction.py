"""correct-biases: int8 shifts the mean of what a product computes; its bias takes that back.

Rounded weights do not sum to what the weights summed to, and saturation cuts on one side more than on the
other, so every output channel is off by a constant on average (Nagel et al., "Data-Free Quantization
Through Weight Equalization and Bias Correction", 2019, section 4.2).  The quantised model runs product by
product on all samples; each takes back what everything before it, in int8, has lost.  Behind a ReLU only what
passes counts: saturation leaves negative sums too large, and to take that back would make what passes too
small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.kinds import WEIGHTED
from fadiff.converter.ir.operators import channel_axis, is_a
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.read.inputs import Samples

Corrections = Mapping[str, np.ndarray]
"""What to add to biases, in float, per output channel, by the name of the step."""
_LEAST_PASSING = 0.2
"""The share of sums behind a ReLU that corrections count on: of few they would be large and unsure."""


@dataclass(frozen=True)
class Product:
    """A product with constant weights and one bias per output channel."""

    step: Step
    sums: str
    """The value with the bias and without the activation."""
    axis: int
    """Axis of its output channels."""
    weight: str

    def means(self, sums: np.ndarray) -> np.ndarray:
        """The mean, by channel, of what becomes of sums: a ReLU hides what is negative."""
        return self._mean(np.maximum(sums, 0) if self.step.activation == "relu" else sums)

    def passing(self, sums: np.ndarray) -> np.ndarray:
        """The share of sums, by channel, that the ReLU passes; all without one."""
        return self._mean(sums > 0 if self.step.activation == "relu" else np.ones_like(sums))

    def _mean(self, array: np.ndarray) -> np.ndarray:
        others = tuple(i for i in range(array.ndim) if i != self.axis)
        return np.asarray(array.mean(others, dtype=np.float64))


def biased_products(program: Program, steps: Sequence[Step]) -> list[Product]:
    """The products that can take back what the mean of a channel loses."""
    found = []
    for step in steps:
        if step.kind != "node" or not is_a(step.head, WEIGHTED) or step.is_float:
            continue
        sums = (step.nodes[1] if step.bias else step.head).outputs[0]
        weights = [name for name in step.head.inputs[:2] if name in program.constants]
        bias = program.constant(step.bias or step.head.input(2))
        axis = channel_axis(program, sums, step.head)
        if len(weights) == 1 and bias is not None and bias.size == program.shapes[sums][axis]:
            found.append(Product(step, sums, axis, weights[0]))
    return found


def corrected_biases(
    simulation: Simulation,
    samples: Samples,
    quantisation: Quantisation,
    products: Sequence[Product],
    means: Mapping[str, np.ndarray],
) -> Corrections:
    """What to add to the biases of some products; products of one role (`Program.roles`) share the mean.

    Args:
        simulation: the quantised model.
        samples: what is calibrated on.
        quantisation: without corrections, with the ranges and weights that are chosen.
        products: those that have a bias, in order.
        means: [samples, channels] of what each hands on in the float model.
    """
    found = _Run(simulation, samples, quantisation).corrections(products, means)
    alike: dict[str, list[str]] = {}
    for product in products:
        role = simulation.program.roles.get(product.sums, product.sums)
        alike.setdefault(role, []).append(product.step.name)
    together = {role: np.asarray(np.mean([found[n] for n in names], 0)) for role, names in alike.items()}
    return {name: together[role] for role, names in alike.items() for name in names}


class _Run:
    """The model while it runs: `states` are the values of each sample that nodes still to come read."""

    def __init__(self, simulation: Simulation, samples: Samples, quantisation: Quantisation) -> None:
        self.simulation = simulation
        self.feeds = simulation.feeds(quantisation)
        self.states = [dict(sample) for sample in samples]
        graph = simulation.model.graph
        self.nodes = list(graph.node)
        self.last_reader = {name: i for i, node in enumerate(self.nodes) for name in node.input}
        self.last_reader |= {value.name: len(self.nodes) for value in graph.output}
        self.done = 0

    def corrections(self, products: Sequence[Product], means: Mapping[str, np.ndarray]) -> Corrections:
        biased = {self.simulation.written.exact(product.sums): product for product in products}
        found = {}
        for i, node in enumerate(self.nodes):
            product = biased.get(node.output[0])
            if product is not None:
                self._advance(i + 1)
                found[product.step.name] = self._correct(product, node.output[0], means[product.sums])
        return found

    def _correct(self, product: Product, sums: str, wanted: np.ndarray) -> np.ndarray:
        shape = [-1 if i == product.axis else 1 for i in range(self.states[0][sums].ndim)]
        arrays = [state[sums] for state in self.states]
        got = np.stack([product.means(array) for array in arrays])
        passing = np.mean([product.passing(array) for array in arrays], axis=0)
        shift = np.asarray(certain_mean(wanted - got) / np.maximum(passing, _LEAST_PASSING))
        for state in self.states:
            state[sums] = state[sums] + shift.reshape(shape).astype(np.float32)
        return shift

    def _advance(self, end: int) -> None:
        """Run the nodes before `end`; values that nobody reads any more are dropped."""
        start, self.done = self.done, end
        nodes = self.nodes[start:end]
        made = [n for node in nodes for n in node.output if self.last_reader.get(n, -1) >= end]
        if made:
            read = {name for node in nodes for name in node.input}
            fixed = {name: self.feeds[name] for name in read & self.feeds.keys()}
            fed = [fixed | {name: state[name] for name in read & state.keys()} for state in self.states]
            found = self.simulation.run_part((start, end), fed, made)
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
