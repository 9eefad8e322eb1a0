"""Functions of one int8 value: a table with 256 entries, computed by ONNX Runtime."""

from __future__ import annotations

import numpy as np

from converter.lower.context import Lowering
from converter.operators import linear_factor
from converter.plan import Step
from converter.strided import common_loops


def lower_lookup(lowering: Lowering, step: Step) -> None:
    """A chain of element-wise nodes over one value: op `lookup`, or nothing when it only scales.

    table[q + 128] = sat8(round_half_even(f(q * input scale) / output scale)) for q in -128..127;
    NaN becomes 0; a boolean result is 0 or 1.
    """
    value = lowering.value(step.source)
    scale = lowering.quantisation.scales.get(step.output)
    if scale is not None and linear_factor(lowering.program, step.nodes) is not None:
        lowering.values[step.output] = value.with_scale(scale)
        return
    inputs = np.arange(-128, 128).astype(np.float32) * np.float32(value.scale or 1.0)
    outputs = lowering.subgraph.run(step, inputs).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        table = np.clip(
            np.nan_to_num(np.rint(outputs / np.float32(scale or 1.0)), nan=0.0), -128, 127
        ).astype(np.int8)
    out = lowering.output_like(step, value)
    name = lowering.graph.tensor(f"{step.name}.table", (256,), "int8", scale, table)
    loops = common_loops((value, out))
    assert loops is not None
    attributes = {
        "shape": loops.extents,
        "offset": value.offset,
        "strides": loops.strides[0],
        "out_strides": loops.strides[1],
    }
    lowering.graph.host(step.name, "lookup", (value.tensor, name), (out.tensor,), attributes, step.onnx_nodes)
