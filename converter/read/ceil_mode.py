"""Pools with ceil_mode whose last window would begin behind the image.

ONNX Runtime drops such a window, as PyTorch does, but before opset 22 shape inference counts it: every
shape behind the pool would be wrong.  The kept windows lie in the padded image, so the pool is written
such that both count alike, and no divisor of an average changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.program import Node, program_of

_POOLS = named(Kind.POOL)


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a pool; sizes in pixels."""

    size: int
    reach: int
    """Pixels from the first tap of a window to its last."""
    stride: int
    begin: int
    end: int

    @property
    def counted(self) -> tuple[int, int]:
        """Windows of floor and of ceil mode."""
        room = self.size + self.begin + self.end - self.reach
        return room // self.stride + 1, -(-room // self.stride) + 1

    @property
    def has_window_behind(self) -> bool:
        """Whether the last window of ceil mode begins behind the image."""
        return (self.counted[1] - 1) * self.stride >= self.size + self.begin

    @property
    def used_end(self) -> int:
        """Trailing padding that the windows before that one read; negative where they leave pixels unread."""
        return (self.counted[1] - 2) * self.stride + self.reach - self.size - self.begin


def drop_windows_behind(model: onnx.ModelProto) -> None:
    """Rewrite such pools in place; `model` is sorted, pools of unknown shape stay as they are."""
    while any(node.op_type in _POOLS and _rounds_up(node) for node in model.graph.node):
        found = next(_miscounted(model), None)
        if found is None:
            return
        _rewrite(model, *found)
        del model.graph.value_info[:]  # counted by whoever wrote the file
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")


def _rounds_up(node: NodeProto) -> bool:
    return any(a.name == "ceil_mode" and a.i for a in node.attribute)


def _miscounted(model: onnx.ModelProto) -> Iterator[tuple[int, list[_Axis]]]:
    """Pools in their order that have a window behind the image."""
    program = program_of(onnx.shape_inference.infer_shapes(model, data_prop=True))
    for i, node in enumerate(program.nodes):
        explicit = node.attributes.get("auto_pad", "NOTSET") == "NOTSET"
        if node.op in _POOLS and node.attributes.get("ceil_mode", 0) and explicit:
            axes = _axes(node, program.shapes.get(node.inputs[0], ()))
            if any(axis.has_window_behind for axis in axes):
                yield i, axes


def _axes(node: Node, shape: tuple[int, ...]) -> list[_Axis]:
    """The spatial axes of a pool, none where its input has another rank or no known shape."""
    kernel = node.attributes["kernel_shape"]
    rank = len(kernel)
    if len(shape) != rank + 2:
        return []
    ones = (1,) * rank
    dilations, strides = (node.attributes.get(name, ones) for name in ("dilations", "strides"))
    pads = node.attributes.get("pads", (0,) * (2 * rank))
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return [_Axis(*axis) for axis in zip(shape[2:], reaches, strides, pads[:rank], pads[rank:], strict=True)]


def _rewrite(model: onnx.ModelProto, at: int, axes: list[_Axis]) -> None:
    """Floor mode where that drops what is to be dropped; else what ceil mode would count is cut off."""
    node = model.graph.node[at]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    source, name = node.input[0], f"{node.name or node.output[0]}.read"
    ends = [axis.used_end if axis.has_window_behind else axis.end for axis in axes]
    cut = []
    if all(axis.has_window_behind or axis.counted[0] == axis.counted[1] for axis in axes):
        attributes["ceil_mode"] = 0
    else:
        attributes["pads"] = [*(axis.begin for axis in axes), *(max(0, end) for end in ends)]
        cut = [i for i, end in enumerate(ends) if end < 0]
    pool = helper.make_node(
        node.op_type, [name if cut else source], node.output, name=node.name, **attributes
    )
    node.CopyFrom(pool)
    if cut:
        operands = ([0] * len(cut), [axes[i].size + ends[i] for i in cut], [i + 2 for i in cut])
        names = [f"{name}.{part}" for part in ("start", "end", "axes")]
        for label, values in zip(names, operands, strict=True):
            model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), label))
        model.graph.node.insert(at, helper.make_node("Slice", [source, *names], [name], name=name))
