"""Sequences of tensors whose length is constant: Split, Concat, and names.

TorchScript writes chunk and split as SplitToSequence and SequenceAt, stack as SequenceConstruct and
ConcatFromSequence.  What depends on data (a sequence through a loop, a computed index) stays, and is refused
later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor, content_of
from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.program import static_shapes
from fadiff.converter.read.opsets import opset_of

_OPS = named(Kind.SEQUENCE) | {"Identity"}
"""But for SequenceMap, which is a loop."""
_SPLITS_BY_INPUT = 13


def flatten_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with sequences of constant length replaced by the tensors in them."""
    if not any("Sequence" in node.op_type for node in model.graph.node):
        return model
    flat = _Flattener(model)
    known = [n for n in flat.edit.nodes() if n.op_type in _OPS and flat.replaces(n)]
    for node in reversed(known):
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            flat.edit.remove(node)
            heir = flat.heirs.get(node)
            if heir is not None:
                heir.name = node.name
    return flat.edit.model()


class _Flattener:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.edit, self.opset = Editor(model), opset_of(model)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        self.shapes = static_shapes(inferred, (*inferred.input, *inferred.value_info))
        self.sequences: dict[Value, list[Value]] = {}
        """The tensors in a sequence."""
        self.heirs: dict[onnx_ir.Node, onnx_ir.Node | None] = {}
        """What does the work of a node, and has its name once that is gone."""

    def replaces(self, node: onnx_ir.Node) -> bool:
        """Whether what a node gives is written otherwise, or known."""
        (out,) = node.outputs
        if node.op_type == "SplitToSequence":
            return self._split(node)
        if node.op_type in ("SequenceConstruct", "SequenceEmpty"):
            self.sequences[out] = [value for value in node.inputs if value is not None]
            return True
        parts = self.sequences.get(node.inputs[0]) if node.inputs[0] is not None else None
        if parts is None:
            return False
        if node.op_type == "Identity":
            self.sequences[out] = parts
        elif node.op_type == "SequenceLength":
            self.edit.replace(out, self.edit.constant(f"{out.name}.length", np.array(len(parts))))
        elif node.op_type == "ConcatFromSequence":
            return self._concat(node, parts)
        else:
            return self._changes(node, parts)
        return True

    def _changes(self, node: onnx_ir.Node, parts: list[Value]) -> bool:
        """SequenceAt, SequenceErase and SequenceInsert at a constant position."""
        inserts, (out,) = node.op_type == "SequenceInsert", node.outputs
        place = self._position(node, 2 if inserts else 1, len(parts), len(parts) - (not inserts))
        if place is None or not 0 <= place < len(parts) + inserts:
            return False
        if node.op_type == "SequenceAt":
            self._gives(node, "Identity", [parts[place]])
        elif inserts:
            assert node.inputs[1] is not None
            self.sequences[out] = [*parts[:place], node.inputs[1], *parts[place:]]
        else:
            self.sequences[out] = [*parts[:place], *parts[place + 1 :]]
        return True

    def _position(self, node: onnx_ir.Node, index: int, count: int, default: int) -> int | None:
        given = node.inputs[index] if index < len(node.inputs) else None
        if given is None:
            return default
        content = content_of(given)
        place = None if content is None else int(content.reshape(-1)[0])
        return place if place is None or place >= 0 else place + count

    def _split(self, node: onnx_ir.Node) -> bool:
        source, given = (*node.inputs, None)[:2]
        shape = self.shapes.get(str(source.name)) if source is not None else None
        sizes = np.array(1) if given is None else content_of(given)
        if source is None or shape is None or sizes is None:
            return False
        axis = _integer(node, "axis", 0) % len(shape)
        if not sizes.ndim:
            each = int(sizes)
            sizes = np.array([min(each, shape[axis] - start) for start in range(0, shape[axis], each)])
        (out,) = node.outputs
        operands, options = [source], dict[str, Any](axis=axis, called=node.name, outputs=len(sizes))
        if self.opset >= _SPLITS_BY_INPUT:
            operands.append(self.edit.constant(f"{out.name}.sizes", sizes.astype(np.int64)))
        else:
            options["split"] = sizes.tolist()
        parts = list(self.edit.insert(node, "Split", operands, f"{out.name}.part", **options))
        self.heirs[node] = parts[0].producer()
        if given is None and not _integer(node, "keepdims", 1):
            parts = [self._reshaped(node, part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]
        self.sequences[out] = parts
        return True

    def _concat(self, node: onnx_ir.Node, parts: list[Value]) -> bool:
        axis = _integer(node, "axis", 0)
        if _integer(node, "new_axis", 0):
            shape = self.shapes.get(str(parts[0].name)) if parts else None
            if shape is None:
                return False
            axis %= len(shape) + 1
            parts = [self._reshaped(node, part, [*shape[:axis], 1, *shape[axis:]]) for part in parts]
        if not parts:
            return False
        self._gives(node, "Concat", parts, axis=axis)
        return True

    def _gives(self, node: onnx_ir.Node, op: str, inputs: list[Value], **attributes: Any) -> None:
        """What a node gives another one does, by this name."""
        out = node.outputs[0]
        (made,) = self.edit.insert(node, op, inputs, str(out.name), called=node.name or "", **attributes)
        self.edit.replace(out, made)
        self.heirs[node] = made.producer()

    def _reshaped(self, node: onnx_ir.Node, value: Value, shape: list[int]) -> Value:
        wanted = f"{value.name}.reshaped"
        sizes = self.edit.constant(f"{wanted}.shape", np.asarray(shape, np.int64))
        (out,) = self.edit.insert(node, "Reshape", [value, sizes], wanted)
        self.shapes[str(out.name)] = tuple(shape)
        return out


def _integer(node: onnx_ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default
