"""Where the graph's integers and ONNX Runtime's run of the quantised model part.

ONNX Runtime multiplies dequantised float32 numbers where the array sums integers, so a result close to
halfway between two steps may round the other way; a layer that amplifies its input then carries the
step on.  Running every layer of the quantised model on the integers that the graph's layer read
separates the two: what differs then is the layer's own doing, one step unless the layer is wrong or its
contract rounds more than once (docs/host-ops.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from fadiff.converter.check.reference import reference_session
from fadiff.converter.check.storage import from_storage
from fadiff.converter.ir.edit import FreshNames
from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.stored import WeightFile
from fadiff.converter.pipeline import Conversion
from fadiff.converter.quantise.qdq import Written


@dataclass(frozen=True)
class Difference:
    """One stored tensor, in steps (integers) of its scale."""

    tensor: str
    elements: int
    own: int
    """Elements that differ although the layer read the same integers."""
    own_steps: int
    """The largest of these differences."""
    carried_steps: int
    """The largest difference when either model runs from its inputs, earlier differences included."""


@dataclass(frozen=True)
class Agreement:
    """The comparison on one sample, tensor by tensor in order of execution."""

    differences: tuple[Difference, ...]

    @property
    def own_steps(self) -> int | None:
        """The most by which a layer differs that read the same integers; None where nothing is compared."""
        return max((d.own_steps for d in self.differences), default=None)

    @property
    def note(self) -> str:
        """One sentence; empty where no integer differs."""
        worst = max(self.differences, key=lambda d: d.carried_steps, default=None)
        if worst is None or worst.carried_steps == 0:
            return ""
        own = sum(d.own for d in self.differences)
        elements = sum(d.elements for d in self.differences)
        largest = max(self.differences, key=lambda d: d.own_steps)
        steps = "one step" if largest.own_steps == 1 else f"up to {largest.own_steps} steps"
        where = "" if largest.own_steps <= 1 else f" (at {largest.tensor})"
        return (
            "not bit-exact with ONNX Runtime's run of the quantised model: reading the same integers, its "
            f"float arithmetic rounds {own:,} of {elements:,} values differently, by {steps}{where}; "
            f"later layers carry that to at most {worst.carried_steps} steps (at {worst.tensor})"
        )


def agreement(
    conversion: Conversion,
    inputs: Mapping[str, np.ndarray],
    integers: Mapping[str, np.ndarray],
    folder: Path | None = None,
) -> Agreement:
    """Compare every int8 tensor that both models store, on one sample.

    Args:
        conversion: the model.
        inputs: the sample, by ONNX input name.
        integers: what the integer reference computes for it, by tensor name in storage order.
        folder: for the weights of a large model, while it runs.
    """
    if folder is None:
        quantized = conversion.quantized
    else:
        with WeightFile(folder / "quantized.bin") as file:
            quantized = conversion.quantized_beside(file)
    values = _common_values(conversion.graph, quantized, integers)
    if not values:
        return Agreement(())
    steps = {quantized.pairs[value].integers: value for value in values}
    fresh = FreshNames(quantized.model.graph)
    others = {value: fresh.new(f"{value}.forced") for value in values}
    model = _with_outputs(quantized.model, list(steps))
    free = _run(model, inputs, steps, folder)
    stored = {
        value: _onnx_order(conversion.graph, tensor, integers[tensor], free[value].shape)
        for value, tensor in values.items()
    }
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in steps:
            node.input[0] = others[steps[node.input[0]]]
    model.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT8, None) for name in others.values()
    )
    given = {others[value]: array for value, array in stored.items()}
    forced = _run(model, {**inputs, **given}, steps, folder)
    return Agreement(
        tuple(
            Difference(
                tensor,
                stored[value].size,
                int(np.count_nonzero(forced[value] != stored[value])),
                _steps(forced[value], stored[value]),
                _steps(free[value], stored[value]),
            )
            for value, tensor in values.items()
        )
    )


def _common_values(graph: Graph, quantized: Written, integers: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Tensor by ONNX value, for every value that the quantised model computes and the graph stores."""
    tensors = graph.tensors
    return {
        str(tensors[name].onnx_name): name
        for name in integers
        if tensors[name].dtype == "int8" and tensors[name].onnx_name in quantized.pairs
    }


def _onnx_order(graph: Graph, tensor: str, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return from_storage(replace(graph.tensors[tensor], scale=None, along=None), stored, shape)


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy of `model` that returns `names` instead of its outputs."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.output[:]
    out.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return out


def _run(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], steps: Mapping[str, str], folder: Path | None
) -> dict[str, np.ndarray]:
    session = reference_session(model, folder, in_order=False)
    return dict(zip(steps.values(), session.run(list(steps), dict(feeds)), strict=True))


def _steps(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(np.int32) - b).max(initial=0))
