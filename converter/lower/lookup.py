"""Functions of one int8 value, or of an input's bytes: tables of 256 entries, computed by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fadiff.converter.ir.graph import AxisScales, Part
from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.operators import linear_factor
from fadiff.converter.ir.strided import common_loops, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.inputs import affine_of
from fadiff.converter.plan.plan import Step
from fadiff.converter.read.runtime import run_nodes, run_region


def lower_lookup(lowering: Lowering, step: Step) -> None:
    """A chain of element-wise nodes over one value: op `lookup`, or nothing when it only scales.

    table[q + 128] = sat8(round_half_even(f((q - zero) * input scale) / output scale) + output zero) for q in
    -128..127; NaN becomes 0; a boolean result is 0 or 1, an integer result is not clipped (int32 table).
    """
    value = lowering.value(step.source)
    scale = lowering.scale(step.output) if step.output in lowering.quantisation.scales else None
    if scale is not None and linear_factor(lowering.program, step.nodes) is not None:
        lowering.values[step.output] = value.with_scale(scale)
        return
    steps = np.arange(-128, 128)
    is_float = lowering.program.is_float(step.source)
    zero, scaled = lowering.zero(step.source), np.float32(value.scale or 1.0)
    inputs = (steps - zero).astype(np.float32) * scaled if is_float else steps != 0
    nodes = (node.proto for node in step.nodes)
    outputs = run_region(lowering.model, nodes, step.source, inputs, step.output)
    dtype = lowering.dtype(step.output)
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype == "int8":
            outputs = outputs.astype(np.float32) / np.float32(scale or 1.0)
        limits = np.iinfo(dtype)
        outputs = np.nan_to_num(np.rint(outputs), nan=0.0) + lowering.zero(step.output)
        table = np.clip(outputs, limits.min, limits.max).astype(dtype)
    out = lowering.output_like(step, value)
    name = lowering.graph.constant(f"{step.name}.table", (256,), dtype, scale, table)
    loops = common_loops((value, out))
    assert loops is not None
    lowering.host(step, Lookup(loops), out, value, name)


def lower_bytes(lowering: Lowering, step: Step, order: Sequence[int]) -> None:
    """An input of bytes and what is computed of it first: op `lookup`, one for each channel of its own.

    table[i] = sat8(round_half_even(f((byte - zero) * scale) / output scale) + output zero) for the byte whose
    eight bits as int8 are i - 128.
    """
    program, value = lowering.program, step.source
    shape, order = program.shapes[value], tuple(order)
    scale, zero = program.byte_inputs[value]
    shift = float(np.float32(-scale * zero))
    along = AxisScales(len(order) - 1, (Part(shape[order[-1]], scale, shift),)) if zero else None
    axes = None if order == tuple(range(len(shape))) else order
    stored = tuple(shape[i] for i in order)
    name = lowering.graph.input(
        value, stored, "uint8", scale=scale, onnx_name=value, onnx_axes=axes, zero=zero, along=along
    )
    source, out = dense(name, shape, None, order), lowering.output(step, order)
    tables, axis = _tables(lowering, step)
    starts = [i for i in range(len(tables)) if i == 0 or not np.array_equal(tables[i], tables[i - 1])]
    for start, stop in zip(starts, [*starts[1:], len(tables)], strict=True):
        parts = (source, out)
        if len(starts) > 1:
            parts = (
                lowering.sliced(source, axis, start, 1, stop - start),
                lowering.sliced(out, axis, start, 1, stop - start),
            )
        loops = common_loops(parts)
        assert loops is not None  # (both lie alike)
        entries = lowering.graph.constant(f"{step.name}.table", (256,), "int8", out.scale, tables[start])
        lowering.host(step, Lookup(loops), out, source, entries)


def _tables(lowering: Lowering, step: Step) -> tuple[np.ndarray, int]:
    """Tables [channels, 256], and the axis of the input that the channels are; one where all are alike."""
    program, value = lowering.program, step.source
    scale, zero = program.byte_inputs[value]
    shape, axis = program.shapes[value], affine_of(program, step.nodes).axis
    bytes_ = (np.arange(256) + 128) % 256
    numbers = bytes_ if program.is_integer(value) else (bytes_ - zero).astype(np.float32) * np.float32(scale)
    sizes = [256, *(1 for _ in shape)] if axis in (None, 0) else [256, *(1 for _ in shape[1:])]
    if axis is not None:
        sizes[axis + len(sizes) - len(shape)] = shape[axis]
    fed = np.broadcast_to(numbers.reshape(-1, *(1 for _ in sizes[1:])), sizes)
    feed = {value: np.ascontiguousarray(fed, program.numpy_type(value))}
    nodes, constants = [node.proto for node in step.nodes], lowering.model.graph.initializer
    (found,) = run_nodes(nodes, [feed], [step.output], constants, like=lowering.model)
    real = found[step.output].reshape(256, -1).T.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.nan_to_num(np.rint(real / np.float32(lowering.scale(step.output) or 1.0)), nan=0.0)
    return np.clip(steps + lowering.zero(step.output), -128, 127).astype(np.int8), axis or 0
