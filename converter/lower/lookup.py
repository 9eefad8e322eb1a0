"""Functions of one int8 value: a table with 256 entries, computed by ONNX Runtime."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.operators import linear_factor
from fadiff.converter.ir.strided import common_loops
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step
from fadiff.converter.read.runtime import run_region


def lower_lookup(lowering: Lowering, step: Step) -> None:
    """A chain of element-wise nodes over one value: op `lookup`, or nothing when it only scales.

    table[q + 128] = sat8(round_half_even(f((q - zero) * input scale) / output scale) + output zero) for q in
    -128..127; NaN becomes 0; a boolean result is 0 or 1, an integer result is not clipped (int32 table).
    """
    value = lowering.value(step.source)
    scale = lowering.quantisation.scales.get(step.output)
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
