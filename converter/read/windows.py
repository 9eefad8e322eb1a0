"""Windows that ONNX Runtime and shape inference see differently, or not at all, written out.

Pools with ceil_mode whose last window would begin behind the image: ONNX Runtime drops such a window, as
PyTorch does, but before opset 22 shape inference counts it: every shape behind the pool would be wrong.  The
kept windows lie in the padded image, so the pool is written such that both count alike, and no divisor of an
average changes.  Dilated windows padded by `auto_pad` SAME, as PyTorch writes `padding="same"`: ONNX Runtime
has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.operators import is_a, pads_of
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


def drop_windows_behind(model: onnx.ModelProto) -> onnx.ModelProto:
    """A sorted model with such pools rewritten; those of unknown shape stay as they are."""
    while any(node.op_type in _POOLS and _rounds_up(node) for node in model.graph.node):
        found = next(_miscounted(model), None)
        if found is None:
            break
        model = _rewritten(model, *found)
        del model.graph.value_info[:]  # counted by whoever wrote the file
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
    return model


def _rounds_up(node: NodeProto) -> bool:
    return any(a.name == "ceil_mode" and a.i for a in node.attribute)


def _miscounted(model: onnx.ModelProto) -> Iterator[tuple[Node, list[_Axis]]]:
    """Pools in their order that have a window behind the image."""
    program = program_of(onnx.shape_inference.infer_shapes(model, data_prop=True))
    for node in program.nodes:
        explicit = node.attributes.get("auto_pad", "NOTSET") == "NOTSET"
        if node.op in _POOLS and node.attributes.get("ceil_mode", 0) and explicit:
            axes = _axes(node, program.shapes.get(node.inputs[0], ()))
            if any(axis.has_window_behind for axis in axes):
                yield node, axes


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


def _rewritten(model: onnx.ModelProto, node: Node, axes: list[_Axis]) -> onnx.ModelProto:
    """Floor mode where that drops what is to be dropped; else what ceil mode would count is cut off."""
    edit = Editor(model)
    pool = edit.node(node)
    if all(axis.has_window_behind or axis.counted[0] == axis.counted[1] for axis in axes):
        edit.set(pool, ceil_mode=0)
        return edit.model()
    ends = [axis.used_end if axis.has_window_behind else axis.end for axis in axes]
    edit.set(pool, pads=[*(axis.begin for axis in axes), *(max(0, end) for end in ends)])
    cut = [i for i, end in enumerate(ends) if end < 0]
    if cut:
        name = f"{node.name or node.outputs[0]}.read"
        bounds = ([0] * len(cut), [axes[i].size + ends[i] for i in cut], [i + 2 for i in cut])
        operands = [edit.constant(f"{name}.bound", np.array(bound, np.int64)) for bound in bounds]
        pool.replace_input_with(0, edit.insert(pool, "Slice", [pool.inputs[0], *operands], name)[0])
    return edit.model()


def write_out_padding(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with shapes and such nodes rewritten; those whose sizes are unknown stay as they are."""
    given = (attribute for node in model.graph.node for attribute in node.attribute)
    if not any(attribute.name == "auto_pad" for attribute in given):  # (reading all of it takes time)
        return model
    edit, program = Editor(model), program_of(model)
    for node in program.nodes:
        same = node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
        windowed = is_a(node, Kind.POOL) or node.op == "Conv"
        if not windowed or not same or max(node.attributes.get("dilations", (1,))) == 1:
            continue
        size = program.shapes.get(node.inputs[0], ())[2:]
        kernel = node.attributes.get("kernel_shape") or program.shapes.get(node.input(1), ())[2:]
        if len(size) == len(kernel) and size:
            edit.set(edit.node(node), auto_pad="NOTSET", pads=pads_of(node, size, kernel))
    return edit.model()
