"""Factors of channels, put into the weights of products that compute them, and of those that read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a, magnitudes, output_axis, outputs_first
from fadiff.converter.ir.program import Node, Program


def inputs_apart(product: Node, weight: np.ndarray) -> np.ndarray:
    """The weights as [groups, outputs of a group, inputs of a group, taps]: a view."""
    if product.op != "Conv":
        rows = weight if output_axis(product) == 0 else weight.T
        return rows[None, :, :, None]
    groups = int(product.attributes.get("group", 1))
    return weight.reshape(groups, -1, weight.shape[1], int(np.prod(weight.shape[2:])))


def largest_of_inputs(product: Node, weight: np.ndarray) -> np.ndarray:
    """The largest magnitude of the weights of each input channel."""
    return magnitudes(inputs_apart(product, weight), (1, 3)).reshape(-1)


def largest_of_outputs(product: Node, weight: np.ndarray) -> np.ndarray:
    """The same of each output channel."""
    return magnitudes(outputs_first(product, weight), 1)


def by_inputs(product: Node, weight: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The weights with those of each input channel multiplied: a copy of the factors' type."""
    out = np.array(weight, factors.dtype, order="C")
    channels = inputs_apart(product, out)
    channels *= factors.reshape(len(channels), 1, -1, 1)
    return out


def multiplies(program: Program, node: Node, value: str) -> bool:
    """Whether a node is a product of the value and constant weights that may change."""
    weight = program.constant(node.input(1)) if is_a(node, Kind.PRODUCT) else None
    plain = weight is not None and (node.op == "Conv" or weight.ndim == 2)
    is_operand = node.inputs[0] == value and value not in node.inputs[1:]
    return plain and is_operand and not node.attributes.get("transA", 0)


def multiply_outputs(
    edit: Editor, program: Program, chain: Sequence[Node], axis: int, factors: np.ndarray
) -> None:
    """Multiply columns of a product, the last of a chain, and what its other nodes add to them."""
    product, rank = chain[-1], len(program.shapes[chain[-1].outputs[0]])
    along = [1] * len(program.shapes[product.inputs[1]])
    along[output_axis(product)] = -1
    _multiply(edit, product, 1, factors.reshape(along))
    if product.input(2):
        _multiply(edit, product, 2, factors)
    for node in chain[:-1]:
        for place, name in enumerate(node.inputs):
            if is_a(node, Kind.ADDITIVE) and name in program.constants:
                _multiply(edit, node, place, factors.reshape(-1, *(1 for _ in range(rank - 1 - axis))))


def _multiply(edit: Editor, node: Node, place: int, factors: np.ndarray) -> None:
    edit.change_constant(node, place, lambda array: np.asarray(array * factors, np.float32))


def divide_inputs(edit: Editor, product: Node, factors: np.ndarray) -> None:
    """Divide the weights of each input channel, as they are by now, for this reader only."""
    inverse = 1 / factors.astype(np.float64)
    edit.change_constant(product, 1, lambda array: by_inputs(product, array, inverse).astype(np.float32))
