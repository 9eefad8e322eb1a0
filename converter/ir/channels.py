"""The channels of a product: where they lie, whether its weights may change, what keeps them apart."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import reduction_axes
from fadiff.converter.ir.program import Node, Program


def channel_axis(program: Program, value: str, op: str) -> int:
    """The axis of the channels in what a product computes, or sums over."""
    return 1 if op in ("Conv", "ConvTranspose") else len(program.shapes[value]) - 1


def output_axis(node: Node) -> int:
    """The axis of the output channels in the weights."""
    return 0 if node.op == "Conv" or node.attributes.get("transB", 0) else 1


def outputs_first(node: Node, weight: np.ndarray) -> np.ndarray:
    """The weights as [output channels, all others]: a view."""
    return weight.T if output_axis(node) else weight.reshape(len(weight), -1)


def magnitudes(weight: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """The largest magnitude over some axes, without a copy of all magnitudes."""
    return np.asarray(np.maximum(weight.max(axes), -weight.min(axes)))


def are_owned(program: Program, node: Node, *, bias: bool = True) -> bool:
    """Whether a product's weights (and bias) are float32 constants in memory that nobody else reads."""
    if not is_a(node, Kind.PRODUCT) or node.attributes.get("transA", 0):
        return False
    if node.op == "MatMul" and len(program.shapes[node.inputs[1]]) != 2:
        return False
    names = [node.inputs[1], *([node.input(2)] if bias and node.input(2) else [])]
    arrays = [program.constant(name) for name in names if name not in program.stored]
    return (
        len(arrays) == len(names)
        and all(array is not None and array.dtype == np.float32 for array in arrays)
        and all(len(program.consumers(name)) == 1 and name not in program.outputs for name in names)
        and (len(names) < 2 or program.shapes[names[1]] == (program.shapes[node.outputs[0]][1],))
    )


def keeps_apart(program: Program, node: Node) -> bool:
    """Whether a channel (the second axis) of the result comes from that of the input alone: pools, means and
    reshapes; functions of each element are not looked at."""
    shape, result = (program.shapes[value] for value in (node.inputs[0], node.outputs[0]))
    if is_a(node, Kind.RESHAPE):
        return shape[:2] == result[:2] and all(size == 1 for size in (*shape[2:], *result[2:]))
    if node.op in ("ReduceMean", "ReduceMax"):
        return min(reduction_axes(program, node) or (0,)) > 1
    return is_a(node, Kind.POOL | Kind.GLOBAL_POOL)
