"""Weights of products whose activations have 16 bits: int8 with a scale for every output channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import output_axis
from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import Step


def rounded_by_channel(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 [...] and the float32 value of one step of each channel along `axis`."""
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(others, keepdims=True).astype(np.float32)
    scales = np.where(largest > 0, largest / np.float32(INT8_MAX), np.float32(1))
    integers = np.clip(np.rint(weights / scales), -INT8_MAX, INT8_MAX).astype(np.int8)
    return integers, scales.reshape(-1)


def with_rounded_weights(model: onnx.ModelProto, program: Program, steps: Sequence[Step]) -> onnx.ModelProto:
    """The float model with the weights of its wide products as they are rounded."""
    names = {
        step.head.inputs[1]: output_axis(step.head)
        for step in steps
        if step.is_float and step.is_wide and step.kind == "node" and is_a(step.head, Kind.PRODUCT)
    }
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        array = program.constant(tensor.name) if tensor.name in names else None
        if array is not None and array.ndim > 1:
            axis = names[tensor.name]
            integers, scales = rounded_by_channel(array, axis)
            shape = [-1 if i == axis else 1 for i in range(array.ndim)]
            tensor.CopyFrom(numpy_helper.from_array(integers * scales.reshape(shape), tensor.name))
    return found
