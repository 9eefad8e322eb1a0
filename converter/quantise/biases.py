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

from converter.ir.operators import WEIGHTED
from converter.ir.program import Node, Program
from converter.ir.stored import StoredWeights
from converter.plan.plan import Step
from converter.quantise.observe import activations, channel_axis, channel_means, mean_of_channels
from converter.quantise.simulate import Simulation
from converter.quantise.weights import Quantisation
from converter.read.inputs import Samples
from converter.read.runtime import run_nodes

Corrections = Mapping[str, np.ndarray]
"""What to add to biases, by the name of the step."""


@dataclass(frozen=True)
class _Product:
    """A product with constant weights and one bias per output channel."""

    step: Step
    sums: str
    """The value with the bias and without the activation."""
    axis: int
    """Of its output channels."""
    weight: str


def weight_shift(
    file: str,
    model: onnx.ModelProto,
    program: Program,
    steps: Sequence[Step],
    samples: Samples,
    quantisation: Quantisation,
) -> Corrections:
    """What rounding the weights takes from the mean of each output channel, the inputs being float.

    A product is linear: the mean of its results over samples is its result on the mean input.
    """
    products = _products(program, steps)
    means: dict[str, np.ndarray] = {}
    sources = list(dict.fromkeys(p.step.source for p in products))
    for name, array in activations(file, model, StoredWeights(), samples, sources):
        means[name] = means.get(name, np.float32(0)) + array / np.float32(len(samples))
    nodes = {node.output[0]: node for node in model.graph.node}
    found = {}
    for product in products:
        name, head = product.weight, nodes[product.step.head.outputs[0]]
        content = quantisation.weights[name]
        lost = program.constants[name] - content.data.astype(np.float32) * np.float32(content.scale)
        bare = onnx.NodeProto()
        bare.CopyFrom(head)
        del bare.input[2:]
        feeds = {product.step.source: means[product.step.source], name: lost}
        (shifts,) = run_nodes([bare], [feeds], [bare.output[0]], like=model)
        found[product.step.name] = mean_of_channels(shifts[bare.output[0]], product.axis)
    return found


def whole_shift(
    file: str, model: onnx.ModelProto, simulation: Simulation, samples: Samples, quantisation: Quantisation
) -> Corrections:
    """What int8 takes from the mean of each output channel, layer by layer, all before it corrected."""
    products = {p.sums: p for p in _products(simulation.program, simulation.steps)}
    wanted = channel_means(file, model, samples, {p.sums: p.axis for p in products.values()})
    feeds, found = simulation.feeds(quantisation), {}
    states = [dict(sample) for sample in samples]
    pieces = _pieces(simulation.model, products)
    outputs = {value.name for value in simulation.model.graph.output}
    for number, nodes in enumerate(pieces[:-1]):
        later = {name for piece in pieces[number + 1 :] for node in piece for name in node.input} | outputs
        sums = nodes[-1].output[0]
        made = [name for node in nodes for name in node.output if name in later or name == sums]
        read = {name for node in nodes for name in node.input}
        fed = [{n: a for n, a in {**feeds, **state}.items() if n in read} for state in states]
        made_of = run_nodes(nodes, fed, made, simulation.model.graph.initializer, like=simulation.model)
        for state, values in zip(states, made_of, strict=True):
            state.update(values)
        product = products[sums.removesuffix(".float")]
        shape = [-1 if i == product.axis else 1 for i in range(states[0][sums].ndim)]
        got = sum(mean_of_channels(state[sums], product.axis) for state in states) / len(states)
        found[product.step.name] = wanted[product.sums] - got
        for state in states:
            state[sums] = state[sums] + found[product.step.name].reshape(shape).astype(np.float32)
            for name in [name for name in state if name not in later]:
                del state[name]
    return found


def _pieces(model: onnx.ModelProto, sums: Mapping[str, _Product]) -> list[list[onnx.NodeProto]]:
    """Nodes in order, cut behind each of the values."""
    pieces: list[list[onnx.NodeProto]] = [[]]
    for node in model.graph.node:
        pieces[-1].append(node)
        if node.output[0].removesuffix(".float") in sums and not node.op_type.endswith("Linear"):
            pieces.append([])
    return pieces


def _products(program: Program, steps: Sequence[Step]) -> list[_Product]:
    found = []
    for step in steps:
        if step.kind != "node" or step.head.op not in WEIGHTED or step.is_float:
            continue
        sums = (step.nodes[1] if step.bias else step.head).outputs[0]
        weights = [name for name in step.head.inputs[:2] if name in program.constants]
        bias = program.constant(step.bias or _third(step.head))
        axis = channel_axis(program, sums, step.head.op)
        if len(weights) == 1 and bias is not None and bias.size == program.shapes[sums][axis]:
            found.append(_Product(step, sums, axis, weights[0]))
    return found


def _third(node: Node) -> str:
    return "" if node.op == "MatMul" else node.input(2)
