"""correct-biases: int8 shifts the mean of what a product computes; its bias takes that back.

Rounded weights do not sum to what the weights summed to, and saturation cuts on one side more than on the
other, so every output channel is off by a constant on average (Nagel et al., "Data-Free Quantization
Through Weight Equalization and Bias Correction", 2019, section 4.2).  The bias is there anyway.

A correction is in float, per output channel of a step; `quantise` adds it to the bias before rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.ir.kinds import WEIGHTED, is_a
from fadiff.converter.ir.operators import channel_axis
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.observe import activations, mean_of_channels
from fadiff.converter.read.inputs import Samples

Corrections = Mapping[str, np.ndarray]
"""What to add to biases, by the name of the step."""


@dataclass(frozen=True)
class Product:
    """A product with constant weights and one bias per output channel."""

    step: Step
    sums: str
    """The value with the bias and without the activation."""
    axis: int
    """Axis of its output channels."""
    weight: str

    def passed(self, sums: np.ndarray) -> np.ndarray:
        """What becomes of sums: the ReLU behind them hides what is negative, and what it is off by."""
        return np.maximum(sums, 0) if self.step.activation == "relu" else sums

    def passing(self, sums: np.ndarray) -> np.ndarray:
        """The share of sums, by channel, that the ReLU passes; all without one."""
        return mean_of_channels(sums > 0 if self.step.activation == "relu" else np.ones_like(sums), self.axis)


def mean_outputs(
    file: str, model: onnx.ModelProto, samples: Samples, products: Sequence[Product]
) -> dict[str, np.ndarray]:
    """The means [samples, channels] of what products hand on, by the value of their sums.

    Raises:
        ModelError: the samples do not fit the model.
    """
    of = {product.sums: product for product in products}
    means: dict[str, list[np.ndarray]] = {}
    for name, array in activations(file, model, StoredWeights(), samples, of):
        means.setdefault(name, []).append(mean_of_channels(of[name].passed(array), of[name].axis))
    return {name: np.stack(found) for name, found in means.items()}


def shared(corrections: Corrections, products: Sequence[Product], roles: Mapping[str, str]) -> Corrections:
    """The same with one correction, the mean, for products of one role (`Program.roles`)."""
    alike: dict[str, list[str]] = {}
    for product in products:
        alike.setdefault(roles.get(product.sums, product.sums), []).append(product.step.name)
    return {
        name: np.asarray(np.mean([corrections[other] for other in names], axis=0))
        for names in alike.values()
        for name in names
    }


def biased_products(program: Program, steps: Sequence[Step]) -> list[Product]:
    """The products that can take back what the mean of a channel loses."""
    found = []
    for step in steps:
        if step.kind != "node" or not is_a(step.head, WEIGHTED) or step.is_float:
            continue
        sums = (step.nodes[1] if step.bias else step.head).outputs[0]
        weights = [name for name in step.head.inputs[:2] if name in program.constants]
        bias = program.constant(step.bias or step.head.input(2))
        axis = channel_axis(program, sums, step.head.op)
        if len(weights) == 1 and bias is not None and bias.size == program.shapes[sums][axis]:
            found.append(Product(step, sums, axis, weights[0]))
    return found
