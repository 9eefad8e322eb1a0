"""int8 quantisation for an array without zero points: symmetric, one scale per tensor.

A float32 array takes the same route with nothing to round (`as_float`).

Ranges come from calibration; which values get a scale comes from the plan (only
stored values: what lives inside a fused layer keeps full precision).  `qdq.py` writes
the decision back as a standard QDQ model, so that ONNX Runtime can run exactly what is lowered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import numpy_helper

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.builder import INT8_MAX, symmetric_scale
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.ir.kinds import WEIGHTED, Kind
from fadiff.converter.ir.operators import is_a, output_axis, outputs_first
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.scale import NOTHING, Prescribed, Scale
from fadiff.converter.ir.stored import release, spooled
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.scales import assign_scales, int8_steps, joined_outputs
from fadiff.converter.quantise.zeros import shifted

_BLOCK = 2**20
_BIAS_STEPS = 2.0**24
_MOST_BIAS_STEPS = 2.0**30
_LEAST_UNIT = 2.0**-120
"""Least unit of sums: weights too small for it are zero."""
_HUGE = 1e30
"""Larger constants, infinity too, saturate wherever they go: ratios of scales stay finite in float32."""


@dataclass(frozen=True)
class Quantised:
    """Integers and the float32 value of one step (of float32 numbers: 1): of all, or one for each output
    channel, which broadcast to the integers."""

    data: np.ndarray = field(repr=False, compare=False)
    step: np.ndarray | np.float32
    block: int = 1
    """Output channels, from a multiple of it on, that share a step."""

    @property
    def scale(self) -> float:
        """The step of all; 1 where every channel has its own."""
        return 1.0 if self.step.ndim else float(self.step)


@dataclass(frozen=True)
class Quantisation:
    """Scales of the stored values, and the constants as integers.

    `weights` are keyed by constant name, `biases` by the name of the step they belong to.  With
    `element` float32 there are no scales, and the constants are float32 (scale 1).  Steps that are kept in
    float have none of it here.
    """

    scales: Mapping[str, Scale]
    weights: Mapping[str, Quantised]
    biases: Mapping[str, Quantised]
    element: ElementType = "int8"
    joined: frozenset[str] = frozenset()
    """Stored values whose parts keep scales of their own (converter/quantise/scales.py)."""


def to_int8(
    array: np.ndarray, scale: float, lowest: int = -INT8_MAX, out: np.ndarray | None = None
) -> np.ndarray:
    """Round half to even, clipped to [`lowest`, 127]; into `out`, if there is one."""
    out = np.empty(array.shape, np.int8) if out is None else out
    if array.ndim == 0:
        return np.asarray(np.clip(np.rint(float(array) / scale), lowest, INT8_MAX), np.int8)
    rows = max(1, _BLOCK * len(array) // max(array.size, 1))  # (a large weight may be mapped from its file)
    for start in range(0, len(array), rows):
        steps = np.rint(array[start : start + rows].astype(np.float64) / scale)
        out[start : start + rows] = np.clip(steps, lowest, INT8_MAX)
    return out


class Integers:
    """Constants as integers at the scale last asked for: what calibration tries mostly shares them."""

    def __init__(self) -> None:
        self._scales: dict[str, float] = {}
        self._zero: dict[str, bool] = {}
        self._quantised: dict[str, tuple[tuple[float, int], Quantised]] = {}
        self._by_channel: dict[str, Quantised] = {}

    def scale(self, name: str, array: np.ndarray) -> float:
        """The scale that the constant has by itself.

        Raises:
            ModelError: it holds NaN.
        """
        if name not in self._scales:
            self._scales[name] = _weight_scale(name, array)
        return self._scales[name]

    def is_zero(self, name: str, array: np.ndarray) -> bool:
        """Whether all of the constant is."""
        if name not in self._zero:
            self._zero[name] = not array.any()
        return self._zero[name]

    def quantised(
        self, name: str, array: np.ndarray, scale: float, lowest: int, *, on_disk: bool
    ) -> Quantised:
        """`to_int8` at a scale; `on_disk`: the array is mapped from a file, and so are the integers."""
        known = self._quantised.get(name)
        if known is None or known[0] != (scale, lowest):
            integers = to_int8(array, scale, lowest, spooled(array.shape) if on_disk else None)
            release(integers)
            known = (scale, lowest), Quantised(integers, np.float32(scale))
            self._quantised[name] = known
        return known[1]

    def by_channel(self, name: str, array: np.ndarray, scales: np.ndarray, block: int) -> Quantised:
        """Integers where every output channel, or block of them, has a scale of its own."""
        if name not in self._by_channel:
            steps = np.clip(np.rint(array.astype(np.float64) / scales), -128, INT8_MAX)
            self._by_channel[name] = Quantised(steps.astype(np.int8), scales, block)
        return self._by_channel[name]


def quantise(
    program: Program,
    steps: Sequence[Step],
    ranges: Mapping[str, tuple[float, float]],
    given: Prescribed = NOTHING,
    corrections: Mapping[str, np.ndarray] | None = None,
    rounded: Mapping[str, Quantised] | None = None,
    *,
    zero_points: bool = False,
    look: bool = False,
    integers: Integers | None = None,
) -> Quantisation:
    """Scales for every stored value and integers for every constant that layers read.

    Args:
        program: the float program.
        steps: its plan.
        ranges: calibrated range per stored value.
        given: scales that an imported quantised model prescribes.
        corrections: what to add to biases, by the name of the step (converter/quantise/bias_correction.py).
        rounded: weights that are integers already, by constant name (converter/quantise/rounding.py).
        zero_points: values have one where it costs nothing.
        look: leave weights on disk unread (they become zero): for looking at layers only.
        integers: of this program's constants, from one call to the next.

    Raises:
        ModelError: a constant holds NaN.
    """
    known, integers = given.steps, integers or Integers()
    symmetric = assign_scales(program, steps, ranges, known)
    steps = int8_steps(steps)
    apart = shifted(program, steps, ranges) if zero_points else {}
    apart = {value: scale for value, scale in apart.items() if value not in known} | dict(given.zeros)
    scales = {value: Scale(step) for value, step in symmetric.items()} | apart
    channels = _fitting(program, steps, scales, given.channels)
    weights: dict[str, Quantised] = {}
    biases: dict[str, Quantised] = {}
    unread = program.stored if look else frozenset()
    read = _quantised_constants(program, steps)
    weight_scales = {
        name: known.get(name) or (1.0 if name in unread else integers.scale(name, program.constants[name]))
        for name in read
    }
    _make_room_for_biases(program, steps, scales, weight_scales, known, channels, integers)
    for name in read:
        if rounded and name in rounded:
            weights[name] = rounded[name]
            continue
        array, scale = program.constants[name], weight_scales[name]
        if name in channels:
            weights[name] = integers.by_channel(name, array, channels[name], given.block)
            continue
        lowest = -128 if name in known else -INT8_MAX  # integers of an imported model stay as they are
        if name in unread:
            weights[name] = Quantised(np.zeros(array.shape, np.int8), np.float32(scale))
        else:
            on_disk = name in program.stored
            weights[name] = integers.quantised(name, array, scale, lowest, on_disk=on_disk)
    for step in steps:
        bias = _bias(program, step)
        if bias is not None:
            unit = np.float32(scales[step.source].step) * _product_scale(weights, step.head)
            accumulator = np.where(unit > 0, unit, np.float32(_LEAST_UNIT))  # (a file's may multiply to zero)
            limit = 2**31 - 1
            corrected = bias + (corrections or {}).get(step.name, 0.0)
            steps_of_bias = np.rint(corrected / accumulator.astype(np.float64))
            bounded = np.clip(steps_of_bias, -limit, limit).astype(np.int32)
            biases[step.name] = Quantised(bounded, accumulator)
    return Quantisation(scales, weights, biases, joined=_joined(program, steps, scales, weights, known))


def _fitting(
    program: Program,
    steps: Sequence[Step],
    scales: Mapping[str, Scale],
    channels: Mapping[str, np.ndarray],
) -> Mapping[str, np.ndarray]:
    """Scales of channels but those that a bias in such steps would overflow int32 by."""
    found = dict(channels)
    for step in steps:
        bias, name = _bias(program, step), step.head.input(1)
        if bias is not None and name in found:
            unit = scales[step.source].step * found[name].reshape(-1).astype(np.float64)
            if np.abs(bias / unit).max() > _MOST_BIAS_STEPS:
                del found[name]
    return found


def _joined(
    program: Program,
    steps: Sequence[Step],
    scales: Mapping[str, Scale],
    weights: Mapping[str, Quantised],
    known: Mapping[str, float],
) -> frozenset[str]:
    """Outputs, and what becomes them, that join values of unlike scales."""
    found = set[str]()
    for value, names in joined_outputs(program, steps, known).items():
        operands = program.producer[value].inputs
        parts = {Scale(weights[v].scale) if v in weights else scales[v] for v in operands}
        if parts != {Scale(scales[value].step)}:
            found.update(names)
    return frozenset(found)


def _make_room_for_biases(
    program: Program,
    steps: Sequence[Step],
    scales: Mapping[str, Scale],
    weight_scales: dict[str, float],
    known: Mapping[str, float],
    channels: Collection[str],
    integers: Integers,
) -> None:
    """Coarser weights where a bias would overflow int32; finer ones where weights are all zero.

    A bias has the scale of input times weights, and what a batch normalisation with a factor of zero leaves
    of a convolution is its bias alone.
    """
    for step in steps:
        bias = _bias(program, step)
        name = next((v for v in step.head.inputs[:2] if v in weight_scales), "")
        if name in channels:
            continue
        if is_a(step.head, WEIGHTED) and name and name not in known:  # (float32 holds their product)
            weight_scales[name] = max(weight_scales[name], _LEAST_UNIT / scales[step.source].step)
        largest = 0.0 if bias is None else float(np.abs(bias).max(initial=0.0))
        if not name or name in known or not np.isfinite(largest) or largest == 0:
            continue
        step_of_one = largest / (scales[step.source].step * float(step.head.attributes.get("alpha", 1.0)))
        if integers.is_zero(name, program.constants[name]):
            weight_scales[name] = step_of_one / _BIAS_STEPS
        else:
            weight_scales[name] = max(weight_scales[name], step_of_one / _MOST_BIAS_STEPS)


def _weight_scale(name: str, array: np.ndarray) -> float:
    lowest, highest = float(array.min()), float(array.max())
    if np.isnan(lowest):
        raise ModelError(f"constant {name} holds NaN: export the model with trained weights")
    return symmetric_scale(max(lowest, -_HUGE), min(highest, _HUGE))


def as_float(program: Program, steps: Sequence[Step]) -> Quantisation:
    """What `quantise` gives, for a float32 array: no scales, and every constant in float32."""
    weights = {
        name: Quantised(program.constants[name].astype(np.float32, copy=False), np.float32(1))
        for name in _quantised_constants(program, steps)
    }
    biases = {step.name: _bias(program, step) for step in steps}
    return Quantisation(
        {},
        weights,
        {
            name: Quantised(bias.astype(np.float32), np.float32(1))
            for name, bias in biases.items()
            if bias is not None
        },
        "float32",
    )


def _quantised_constants(program: Program, steps: Sequence[Step]) -> tuple[str, ...]:
    """Constants that layers read as elements of the array (weights, and operands of binary operators), and
    those that are outputs."""
    names = [name for step in steps if step.kind == "node" and not step.mask for name in _elements(step.head)]
    floats = (v for v in (*names, *program.outputs) if v in program.constants and program.is_float(v))
    return tuple(dict.fromkeys(floats))


def _elements(node: Node) -> Sequence[str]:
    if is_a(node, WEIGHTED):
        return node.inputs[:2]
    return node.inputs if is_a(node, Kind.BINARY | Kind.JOIN | Kind.SCATTER) or node.op == "Gather" else ()


def product_scale(step: Step, quantisation: Quantisation) -> np.ndarray:
    """What one unit of a product's sums stands for, in float32: of all, or of each channel."""
    scale = _product_scale(quantisation.weights, step.head)
    return np.asarray(np.float32(quantisation.scales[step.source].step) * scale)


def shift_of_bias(step: Step, quantisation: Quantisation) -> np.ndarray | None:
    """What zero points add to the bias of a product, by output channel; None where there are none.

    The weights' sum times what the input's integers are too large by, and the output's zero point in units
    of the sums.
    """
    read, written = (quantisation.scales.get(value) for value in (step.source, step.output))
    if read is None or written is None or not (read.zero or written.zero):
        return None
    head = step.head
    data = quantisation.weights[head.inputs[1]].data.astype(np.int64)
    sums = outputs_first(head, data).sum(1)
    unit = product_scale(step, quantisation) / written.step
    return np.asarray(np.rint(written.zero / unit) - read.zero * sums).astype(np.int64)


def _product_scale(weights: Mapping[str, Quantised], node: Node) -> np.ndarray:
    """Scale of the constant operand (of all, or of each channel), a Gemm's alpha included."""
    weight = next(weights[v] for v in node.inputs[:2] if v in weights)
    scale = weight.step.reshape(-1) if weight.step.ndim else weight.step
    alpha = np.float32(node.attributes.get("alpha", 1.0)) if node.op == "Gemm" else np.float32(1)
    return np.asarray(scale * alpha)


def _bias(program: Program, step: Step) -> np.ndarray | None:
    """Bias of a product as a vector over output channels (or one number), in float."""
    if step.kind != "node" or not is_a(step.head, WEIGHTED):
        return None
    array = program.constant(step.bias or step.head.input(2))
    if array is None:
        return None
    beta = step.head.attributes.get("beta", 1.0) if step.head.op == "Gemm" and not step.bias else 1.0
    return np.asarray(array, dtype=np.float64).reshape(-1) * beta


def rounded_by_channel(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 [...] and the float32 value of one step of each channel along `axis`."""
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(others, keepdims=True).astype(np.float32)
    scales = np.where(largest > 0, largest / np.float32(INT8_MAX), np.float32(1))
    integers = np.clip(np.rint(weights / scales), -INT8_MAX, INT8_MAX).astype(np.int8)
    return integers, scales.reshape(-1)


def with_rounded_weights(program: Program, steps: Sequence[Step]) -> Program:
    """With the weights of its wide products in the model as they are rounded."""
    names = {
        step.head.inputs[1]: output_axis(step.head)
        for step in steps
        if step.is_float and step.is_wide and step.kind == "node" and is_a(step.head, Kind.PRODUCT)
    }
    found = onnx.ModelProto()
    found.CopyFrom(program.model)
    for tensor in found.graph.initializer:
        array = program.constant(tensor.name) if tensor.name in names else None
        if array is not None and array.ndim > 1:
            axis = names[tensor.name]
            integers, scales = rounded_by_channel(array, axis)
            shape = [-1 if i == axis else 1 for i in range(array.ndim)]
            tensor.CopyFrom(numpy_helper.from_array(integers * scales.reshape(shape), tensor.name))
    return replace(program, model=found)
