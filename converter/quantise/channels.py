"""channel-scales: weights of a file with a scale for each output channel keep their integers.

The array has one scale for a store: such a product is stored channel by channel
(emitters/gemmini/runtime/stores.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX, symmetric_scale
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import output_axis
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step

Channels = Mapping[str, np.ndarray]
"""Scales by constant: they broadcast to it."""


def scaled_by_channel(program: Program, steps: Sequence[Step], given: Channels) -> Channels:
    """Those whose readers all are products of int8 with an output channel for each scale."""
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


def channel_notes(program: Program, given: Channels, kept: Channels) -> list[str]:
    """What became of them."""
    notes = list[str]()
    if kept:
        notes.append(
            f"{len(kept)} weights have a scale for each channel (first: {next(iter(kept))}): their integers "
            "stay, stored channel by channel (--without channel-scales: one scale for a layer, fewer cycles)"
        )
    lost = [_loss(name, program.constants[name], given[name]) for name in given if name not in kept]
    if lost:
        steps, name, decibels = max(lost)
        notes.append(
            f"{len(lost)} weights had per-channel scales or zero points: requantised per tensor (worst: "
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
