"""Layer by layer: biases fitted to what the layers before, in int8, really hand on.

The quantised model runs product by product on all samples; the bias of each takes back what the mean of each
output channel has lost by everything so far.  Behind a ReLU only what passes counts: saturation leaves
negative sums too large, and to take that back would make what passes too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fadiff.converter.quantise.biases import Corrections, Product
from fadiff.converter.quantise.observe import mean_of_channels
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import Quantisation
from fadiff.converter.read.inputs import Samples

_LEAST_PASSING = 0.2
"""The share of sums behind a ReLU that corrections count on: of few they would be large and unsure."""


def corrected_layer_by_layer(
    simulation: Simulation,
    samples: Samples,
    quantisation: Quantisation,
    products: Sequence[Product],
    means: Mapping[str, np.ndarray],
) -> Corrections:
    """What to add to the biases of some products.

    Args:
        simulation: the quantised model.
        samples: what is calibrated on.
        quantisation: without corrections, with the ranges and weights that are chosen.
        products: those that have a bias, in order.
        means: [samples, channels] of what each hands on in the float model.
    """
    return _Run(simulation, samples, quantisation).corrections(products, means)


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
        names = self.simulation.names
        biased = {name: p for p in products for name in (p.sums, names.of(p.sums, "float"))}
        found = {}
        for i, node in enumerate(self.nodes):
            product = biased.get(node.output[0])
            if product is not None and not node.op_type.endswith("Linear"):
                self._advance(i + 1)
                found[product.step.name] = self._correct(product, node.output[0], means[product.sums])
        return found

    def _correct(self, product: Product, sums: str, wanted: np.ndarray) -> np.ndarray:
        shape = [-1 if i == product.axis else 1 for i in range(self.states[0][sums].ndim)]
        arrays = [state[sums] for state in self.states]
        got = np.stack([mean_of_channels(product.passed(array), product.axis) for array in arrays])
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
