"""equalise-channels: channels of unlike weights made alike, before weights get one scale per tensor.

Where a product is followed by functions with f(s x) = s f(x) and then by another product, a channel may
be divided by s > 0 in the first and multiplied by s in the second: the model computes the same.  With
s = sqrt(r1 / r2), r the largest weight of the channel in either, both have the range sqrt(r1 r2)
(Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, eq. 11).
Rounded to powers of two the float model stays equal to the bit.  It matters for separable convolutions,
whose folded batch normalisations leave channels that differ by a factor of a hundred.

Clip(x, 0, 6) is no such function: a channel multiplied by s is clipped at 6 s, each at its own bound, which
no array does.  But int8 saturates at the largest value that calibration saw.  So channels are only
multiplied there, and by so little that no calibrated value passes 6: then saturation comes first at every
bound, and stands for all of them as it stood for the one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import are_owned, channel_axis, is_a, keeps_apart, outputs_first
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import clip_bounds
from fadiff.converter.quantise.factors import inputs_apart, largest_of_inputs, largest_of_outputs
from fadiff.converter.quantise.ranges import channel_maxima
from fadiff.converter.read.inputs import Samples

_WORTH_BITS = 1.0
_MOST_SWEEPS = 20
_MOST_BITS = 20
"""By which a channel that calibration never saw may rise."""


@dataclass(frozen=True)
class Pair:
    """Two products, the channels between them, and what makes these alike."""

    first: Node
    second: Node
    clip: Node | None
    """Clip(0, max) right behind `first`."""
    values: tuple[str, ...]
    """What lies between them, in order."""
    bias: str
    """The constant that `first` adds to each channel, or that an Add behind a MatMul does; empty: none."""
    factor: np.ndarray = field(repr=False, compare=False)
    """What each channel is divided by: float32 powers of two."""

    @property
    def constants(self) -> tuple[str, ...]:
        """What changes with the channels."""
        return tuple(name for name in (self.first.inputs[1], self.bias, self.second.inputs[1]) if name)


def find_pairs(file: str, program: Program, samples: Samples) -> tuple[Pair, ...]:
    """The pairs of a normalised model and what makes all their channels alike; none if no layer saves a bit.

    `samples` are what the model will be calibrated on; without any, channels of a limited range stay.

    Raises:
        ModelError: the samples do not fit the model.
    """
    pairs = [pair for node in program.nodes if (pair := _pair(program, node)) is not None]
    pairs = [pair for pair in pairs if samples or pair.clip is None]
    if max(_lost_bits(pairs, program.constants).values(), default=0.0) < _WORTH_BITS:
        return ()
    clips = {pair.first.name: pair.clip for pair in pairs if pair.clip is not None}
    clipped = {clip.outputs[0] for clip in clips.values()}
    largest = channel_maxima(file, program, samples, clipped) if clipped else {}
    room = {name: _room(_bound(program, clip), largest[clip.outputs[0]]) for name, clip in clips.items()}
    weights, found = equalised(program.constants, pairs), list(pairs)
    for _ in range(_MOST_SWEEPS):
        before = [pair.factor for pair in found]
        for i, pair in enumerate(found):
            factor = _factor(pair, weights, room.get(pair.first.name))
            _divide(pair, weights, factor)
            found[i] = replace(pair, factor=pair.factor * factor)
        if all(map(np.array_equal, before, (pair.factor for pair in found))):
            break
    return tuple(found) if _saved_bits(program, found) >= _WORTH_BITS else ()


def equalised(constants: Mapping[str, np.ndarray], pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """The constants of some pairs, whose channels are alike then."""
    weights = {name: np.array(constants[name], order="C") for pair in pairs for name in pair.constants}
    for pair in pairs:
        _divide(pair, weights, pair.factor)
    return weights


def equalise(program: Program, pairs: Sequence[Pair]) -> tuple[onnx.ModelProto, str, frozenset[str]]:
    """The model with the channels of some pairs made alike.

    Also a note, and the Min nodes behind a ReLU with one bound per channel: int8 saturates before the least
    of them.
    """
    edit = Editor(program.model)
    for name, array in equalised(program.constants, pairs).items():
        edit.value(name).const_value = onnx_ir.tensor(array, name=name)
    caps = [
        _cap(edit, program, pair.clip, pair.factor)
        for pair in pairs
        if pair.clip is not None and np.any(pair.factor < 1)
    ]
    note = (
        f"between {len(pairs)} pairs of layers channels are scaled by powers of two; that "
        f"leaves the float model as it is; the layer that gains most has {_saved_bits(program, pairs):.1f} "
        "bits more per weight"
    )
    return edit.model(), note, frozenset(caps)


def _bound(program: Program, clip: Node) -> float:
    """The upper bound of a Clip that `_is_ceiling`."""
    bound = clip_bounds(program, clip)[1]
    assert bound is not None
    return bound


def _room(limit: float, largest: np.ndarray) -> np.ndarray:
    """By how much channels may rise before a calibrated magnitude passes a limit: powers of two."""
    ratios = limit / np.maximum(largest, limit * 2.0**-_MOST_BITS)
    return np.asarray(np.maximum(np.exp2(np.floor(np.log2(ratios))), 1))


def _cap(edit: Editor, program: Program, clip: Node, factor: np.ndarray) -> str:
    """Clip(0, max) as a ReLU and one bound per channel; the name of the Min."""
    rank, node = len(program.shapes[clip.outputs[0]]), edit.node(clip)
    bounds = (_bound(program, clip) / factor).astype(np.float32).reshape(-1, *[1] * (rank - 2))
    node.op_type = "Relu"
    node.resize_inputs(1)
    node.attributes.clear()
    rectified, name = node.outputs[0], f"{clip.name}.bounds"
    operands = [rectified, edit.constant(name, bounds)]
    capped = edit.elementwise(node, "Min", operands, f"{rectified.name}.relu", called=name, behind=True)
    edit.replace(rectified, capped)
    return edit.name_of(capped)


def _pair(program: Program, first: Node) -> Pair | None:
    """The product that alone reads what `first` computes, through homogeneous functions of each channel."""
    if not are_owned(program, first):
        return None
    value, bias = first.outputs[0], first.input(2)
    axis = channel_axis(program, value, first)
    channels = program.shapes[value][axis]
    if first.op == "MatMul" and (added := _added(program, value, channels)) is not None:
        value, bias = added
    values = [value]
    clip = program.sole_consumer(value)
    if clip is not None and clip.op == "Clip" and _is_ceiling(program, clip) and axis == 1:
        value = clip.outputs[0]
        values.append(value)
    else:
        clip = None
    while True:
        reader = program.sole_consumer(value)
        if reader is None or reader.domain or reader.inputs[0] != value:
            return None
        if is_a(reader, Kind.PRODUCT):
            fits = are_owned(program, reader, bias=False) and channel_axis(program, value, reader) == axis
            fits = fits and program.shapes[value][axis] == channels
            ones = np.ones(channels, np.float32)
            return Pair(first, reader, clip, tuple(values), bias, ones) if fits else None
        if not _is_homogeneous(program, reader, axis) or len([v for v in reader.outputs if v]) > 1:
            return None
        value = reader.outputs[0]
        values.append(value)


def _added(program: Program, value: str, channels: int) -> tuple[str, str] | None:
    """The sum and the constant of an Add that alone reads a matrix product, one number for each channel."""
    reader = program.sole_consumer(value)
    if reader is None or reader.op != "Add":
        return None
    name = next((other for other in reader.inputs if other != value), "")
    array = None if name in program.stored else program.constant(name)
    alone = array is not None and len(program.consumers(name)) == 1 and name not in program.outputs
    if not alone or array is None or array.dtype != np.float32:
        return None
    return (reader.outputs[0], name) if array.shape[-1:] == (channels,) and array.size == channels else None


def _is_ceiling(program: Program, clip: Node) -> bool:
    low, high = clip_bounds(program, clip)
    return low == 0 and high is not None and 0 < high < np.inf


def _is_homogeneous(program: Program, node: Node, axis: int) -> bool:
    if is_a(node, Kind.HOMOGENEOUS):
        return True
    sloped = node.op == "PRelu" and node.inputs[1] in program.constants
    return axis == 1 and (sloped or keeps_apart(program, node))


def _lost_bits(pairs: Sequence[Pair], weights: Mapping[str, np.ndarray]) -> dict[str, float]:
    """By how much one scale is too coarse for an output channel, on average, product by product."""
    found = {}
    for node in (node for pair in pairs for node in (pair.first, pair.second)):
        ranges = largest_of_outputs(node, weights[node.inputs[1]])
        ranges = ranges[ranges > 0]
        found[node.name] = float(np.mean(np.log2(ranges.max()) - np.log2(ranges))) if ranges.size else 0.0
    return found


def _saved_bits(program: Program, pairs: Sequence[Pair]) -> float:
    """Bits saved in the layer that gains most."""
    after = _lost_bits(pairs, equalised(program.constants, pairs))
    before = _lost_bits(pairs, program.constants)
    return max((before[name] - lost for name, lost in after.items()), default=0.0)


def _factor(pair: Pair, weights: Mapping[str, np.ndarray], most: np.ndarray | None) -> np.ndarray:
    """What makes the channels of a pair more alike than `pair.factor` did; they rise by `most` at most."""
    one = largest_of_outputs(pair.first, weights[pair.first.inputs[1]])
    other = largest_of_inputs(pair.second, weights[pair.second.inputs[1]])
    used = (one > 0) & (other > 0)
    factor = np.ones(len(pair.factor), np.float32)
    factor[used] = np.exp2(np.rint(np.log2(one[used] / other[used]) / 2))
    if most is not None:
        factor = np.clip(pair.factor * factor, 1 / most, 1) / pair.factor
    return factor.astype(np.float32)


def _divide(pair: Pair, weights: Mapping[str, np.ndarray], factor: np.ndarray) -> None:
    """Divide the channels of a pair, in place."""
    first = outputs_first(pair.first, weights[pair.first.inputs[1]])
    second = inputs_apart(pair.second, weights[pair.second.inputs[1]])
    first /= factor[:, None]
    second *= factor.reshape(len(second), 1, -1, 1)
    if pair.bias:
        bias = weights[pair.bias]
        bias /= factor
