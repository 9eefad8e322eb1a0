"""equalise-channels: channels of unlike weights made alike, before weights get one scale per tensor.

Where a product is followed by functions with f(s x) = s f(x) and then by another product, a channel may
be divided by s > 0 in the first and multiplied by s in the second: the model computes the same.  With
s = sqrt(r1 / r2), r the largest weight of the channel in either, both have the range sqrt(r1 r2)
(Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, eq. 11).
Rounded to powers of two the float model stays equal to the bit.  It matters for separable convolutions,
whose folded batch normalisations leave channels that differ by a factor of a hundred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from converter.operators import reduction_axes
from converter.program import Node, Program

_PRODUCTS = ("Conv", "Gemm")
_HOMOGENEOUS = frozenset(
    ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity")
)
"""f(s x) = s f(x) for every s > 0, channel by channel."""
_RESHAPES = ("Flatten", "Reshape", "Squeeze")
_WORTH_BITS = 1.0
_MOST_SWEEPS = 20


@dataclass(frozen=True)
class _Pair:
    """Two products, and the channels between them."""

    first: Node
    second: Node
    channels: int


def equalise(model: onnx.ModelProto, program: Program) -> str:
    """Scale channels of a normalised model in place, where that saves a layer a bit; a note if it did."""
    pairs = [pair for node in program.nodes if (pair := _pair(program, node)) is not None]
    products = {node.name: node for pair in pairs for node in (pair.first, pair.second)}
    before = {name: _lost_bits(node, program.constants) for name, node in products.items()}
    if max(before.values(), default=0.0) < _WORTH_BITS:
        return ""
    weights = {
        name: np.array(program.constants[name], order="C")
        for pair in pairs
        for name in (*pair.first.inputs[1:3], pair.second.inputs[1])
        if name
    }
    for _ in range(_MOST_SWEEPS):
        changed = [_scale(pair, weights) for pair in pairs]
        if not any(changed):
            break
    saved = max(bits - _lost_bits(products[name], weights) for name, bits in before.items())
    if saved < _WORTH_BITS:
        return ""
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return (
        f"equalise-channels: between {len(pairs)} pairs of layers channels are scaled by powers of two; that "
        f"leaves the float model as it is; the layer that gains most has {saved:.1f} bits more per weight"
    )


def _pair(program: Program, first: Node) -> _Pair | None:
    """The product that alone reads what `first` computes, through homogeneous functions of each channel."""
    if first.op not in _PRODUCTS or not _is_owned(program, first, bias=True):
        return None
    value = first.outputs[0]
    channels = program.shapes[value][1]
    while True:
        reader = program.sole_consumer(value)
        if reader is None or reader.domain or reader.inputs[0] != value:
            return None
        if reader.op in _PRODUCTS:
            fits = _is_owned(program, reader, bias=False) and program.shapes[value][1] == channels
            return _Pair(first, reader, channels) if fits else None
        if not _is_homogeneous(program, reader) or len([v for v in reader.outputs if v]) > 1:
            return None
        value = reader.outputs[0]


def _is_homogeneous(program: Program, node: Node) -> bool:
    shape, result = (program.shapes[value] for value in (node.inputs[0], node.outputs[0]))
    if node.op in _RESHAPES:
        return shape[:2] == result[:2] and all(size == 1 for size in (*shape[2:], *result[2:]))
    if node.op in ("ReduceMean", "ReduceMax"):
        return min(reduction_axes(program, node) or (0,)) > 1
    return node.op in _HOMOGENEOUS or (node.op == "PRelu" and node.inputs[1] in program.constants)


def _is_owned(program: Program, node: Node, *, bias: bool) -> bool:
    """Whether a product's weights (and bias) are float32 constants in memory that nobody else reads."""
    if node.op == "Gemm" and node.attributes.get("transA", 0):
        return False
    names = [node.inputs[1], *([node.input(2)] if bias and node.input(2) else [])]
    arrays = [program.constant(name) for name in names if name not in program.stored]
    return (
        len(arrays) == len(names)
        and all(array is not None and array.dtype == np.float32 for array in arrays)
        and all(len(program.consumers(name)) == 1 and name not in program.outputs for name in names)
        and (len(names) < 2 or program.shapes[names[1]] == (program.shapes[node.outputs[0]][1],))
    )


def _outputs_first(node: Node, weight: np.ndarray) -> np.ndarray:
    """The weights as [output channels, all others]: a view."""
    transposed = node.op == "Gemm" and not node.attributes.get("transB", 0)
    return weight.T if transposed else weight.reshape(len(weight), -1)


def _by_input(node: Node, weight: np.ndarray, channels: int) -> np.ndarray:
    """The weights as [groups, outputs of a group, inputs of a group, taps]: a view."""
    if node.op == "Gemm":
        rows = weight if node.attributes.get("transB", 0) else weight.T
        return rows[None, :, :, None]
    groups = int(node.attributes.get("group", 1))
    return weight.reshape(groups, -1, channels // groups, int(np.prod(weight.shape[2:])))


def _ranges(weight: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """The largest magnitude over some axes, without a copy of all magnitudes."""
    return np.asarray(np.maximum(weight.max(axes), -weight.min(axes)))


def _lost_bits(node: Node, weights: Mapping[str, np.ndarray]) -> float:
    """By how much one scale is too coarse for a channel, on average over output channels."""
    ranges = _ranges(_outputs_first(node, weights[node.inputs[1]]), 1)
    ranges = ranges[ranges > 0]
    return float(np.mean(np.log2(ranges.max() / ranges))) if ranges.size else 0.0


def _scale(pair: _Pair, weights: dict[str, np.ndarray]) -> bool:
    """Equalise one pair in place; whether that changed anything."""
    first = _outputs_first(pair.first, weights[pair.first.inputs[1]])
    second = _by_input(pair.second, weights[pair.second.inputs[1]], pair.channels)
    one, other = _ranges(first, 1), _ranges(second, (1, 3)).reshape(-1)
    used = (one > 0) & (other > 0)
    factor = np.ones(pair.channels, np.float32)
    factor[used] = np.exp2(np.rint(np.log2(one[used] / other[used]) / 2))
    first /= factor[:, None]
    second *= factor.reshape(len(second), 1, -1, 1)
    if pair.first.input(2):
        weights[pair.first.inputs[2]] /= factor
    return bool(np.any(factor != 1))
