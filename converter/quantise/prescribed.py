"""What a quantised file says of its integers, and how much of it the array can have.

Gemmini has one scale for a store and no zero points.  Scales of activations stay.  A zero point stays where
biases and tables can take it back (converter/quantise/zeros.py).  Weights with a scale for each output
channel keep their integers: such a product is stored channel by channel (emitters/gemmini/runtime/stores.h).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX, symmetric_scale
from fadiff.converter.ir.kinds import REARRANGE, Kind
from fadiff.converter.ir.operators import is_a, keeps_scale, output_axis
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Prescribed, Scale
from fadiff.converter.plan.plan import Step, clip_bounds
from fadiff.converter.quantise.scales import saturates_at
from fadiff.converter.quantise.zeros import LOWEST, is_product, is_read_shifted, is_table, readers_of


def inherited(program: Program, steps: Sequence[Step], known: Mapping[str, float]) -> dict[str, float]:
    """`known`, and what follows from it.

    A fused layer takes the scale that was prescribed before its ReLU.  A value that only one
    operator reads, which moves its elements, has the scale of the moved value: tools quantise
    behind the Transpose that follows a convolution.  What only a Clip reads may saturate where it clips.
    """
    out = dict(known)
    for step in reversed(steps):
        alone = program.sole_consumer(step.source) is not None and step.source not in program.inputs
        if step.kind == "lookup" and step.nodes[0].op == "Clip" and alone and step.output in known:
            low, high = clip_bounds(program, step.nodes[0])
            if low is not None and high is not None and np.isfinite(low) and np.isfinite(high):
                out.setdefault(step.source, symmetric_scale(low, high))
        if step.kind != "node":
            continue
        if step.output not in out:
            before = [node.outputs[0] for node in step.nodes[:-1] if node.outputs[0] in known]
            if before:
                out[step.output] = known[before[-1]]
        if keeps_scale(step.head) and step.output in out and step.source not in out and alone:
            out[step.source] = out[step.output]
    return out


def unfit_clips(steps: Sequence[Step], known: Mapping[str, float]) -> frozenset[str]:
    """Clip nodes whose upper bound a prescribed scale would let pass: they need a table of their own."""
    return frozenset(
        step.nodes[-1].name
        for step in steps
        if step.ceiling is not None
        and step.output in known
        and not saturates_at(step.ceiling, known[step.output])
    )


def kept_zeros(
    program: Program, steps: Sequence[Step], given: Mapping[str, Scale], *, bordered: bool
) -> dict[str, Scale]:
    """Those of a file's zero points that the array can have; inputs and outputs, too; `bordered`: where
    convolutions pad, too.

    Saturation has to do what a ReLU or Clip in the same layer does.  What is only moved keeps its own if what
    it becomes has the same.
    """
    writers, readers = {step.output: step for step in steps}, readers_of(program, steps)
    states = {end for state in program.states for end in (state.input, state.output)}
    fixed = {*program.common_scales, *program.float_inputs, *states}
    found = {value: scale for value, scale in given.items() if value not in fixed}

    def moves(step: Step) -> bool:
        is_move = step.kind == "node" and is_a(step.head, REARRANGE)
        return is_move and found.get(step.source) == found.get(step.output)

    def is_written(value: str) -> bool:
        step = writers.get(value)
        if step is None:
            return value in program.inputs and value not in program.byte_inputs
        if step.kind == "node" and is_a(step.head, REARRANGE):
            return moves(step)
        return is_table(program, step) or (is_product(program, step) and _saturates(step, found[value]))

    while lost := [
        value
        for value in found
        if not is_written(value)
        or not all(
            moves(step) or is_read_shifted(program, step, value, bordered=bordered) for step in readers[value]
        )
    ]:
        for value in lost:
            del found[value]
    return found


def _saturates(step: Step, scale: Scale) -> bool:
    """Whether integers with a zero point end where the ReLU or Clip of a layer does."""
    top = (INT8_MAX - scale.zero) * scale.step
    return (step.activation != "relu" or scale.zero == LOWEST) and (
        step.ceiling is None or saturates_at(step.ceiling, top / INT8_MAX)
    )


def kept_channels(
    program: Program, steps: Sequence[Step], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Scales of constants whose readers all are products of int8 with an output channel for each scale."""
    found = {name: scales for name, scales in given.items() if name in program.constants}
    for step in steps:
        for name in [name for node in step.nodes for name in node.inputs if name in found]:
            if not _fits(program, step, name, found[name]):
                del found[name]
    return found


def _fits(program: Program, step: Step, name: str, scales: np.ndarray) -> bool:
    head, array = step.head, program.constants[name]
    if step.kind != "node" or step.is_float or not is_a(head, Kind.PRODUCT) or head.op == "ConvTranspose":
        return False
    if name in program.stored or [i for i, value in enumerate(head.inputs) if value == name] != [1]:
        return False
    axis = output_axis(head)
    is_plain = (head.op == "Conv" or array.ndim == 2) and scales.ndim == array.ndim
    if not is_plain or not scales.size == array.shape[axis] == scales.shape[axis] or not np.all(scales > 0):
        return False
    bias, integers = program.constant(step.bias or head.input(2)), np.rint(array / scales)
    return (bias is None or bias.size == scales.size) and -128 <= integers.min() <= integers.max() <= INT8_MAX


def notes_of(program: Program, stored: Collection[str], given: Prescribed, kept: Prescribed) -> list[str]:
    """What became of the zero points of stored values, and of scales of channels."""
    notes = [f"{len(kept.zeros)} zero points of the file are kept"] if kept.zeros else []
    if lost := [value for value in stored if value in given.zeros and value not in kept.zeros]:
        coarsest = max(kept.steps.get(value, 0.0) / given.zeros[value].step for value in lost)
        notes.append(
            f"{len(lost)} activations had zero points that others than products and tables read (first: "
            f"{lost[0]}): requantised symmetrically over the same range; not bit-exact with the file: off by "
            f"at most half a step, and a step is up to {coarsest:.2f} of the file's"
        )
    if kept.channels:
        first = next(iter(kept.channels))
        notes.append(
            f"{len(kept.channels)} weights have a scale for each channel (first: {first}): their integers "
            "stay, stored channel by channel (--without channel-scales: one scale for a layer, fewer cycles)"
        )
    channels = {name: of for name, of in given.channels.items() if name in program.constants}
    losses = [_loss(n, program.constants[n], of) for n, of in channels.items() if n not in kept.channels]
    if losses:
        steps, name, decibels = max(losses)
        notes.append(
            f"{len(losses)} weights had per-channel scales or zero points: requantised per tensor (worst: "
            f"{name}, off by at most {steps / 2:.1f} steps of its finest channel, SQNR {decibels:.1f} dB); "
            "not bit-exact with the file"
        )
    return notes


def _loss(name: str, array: np.ndarray, scales: np.ndarray) -> tuple[float, str, float]:
    """A step of one symmetric scale in steps of the finest channel, and what it comes to in dB."""
    coarse = symmetric_scale(float(array.min()), float(array.max()))
    rounded = np.clip(np.rint(array / coarse), -INT8_MAX, INT8_MAX) * np.float64(coarse)
    noise, signal = float(((array - rounded) ** 2).sum()), float((array.astype(np.float64) ** 2).sum())
    decibels = float("inf") if noise == 0 or signal == 0 else float(10 * np.log10(signal / noise))
    return coarse / float(scales[scales > 1e-6 * scales.max()].min()), name, decibels
