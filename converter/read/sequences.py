"""Sequences of tensors whose length is constant: Split, Concat, and names.

TorchScript writes chunk and split as SplitToSequence and SequenceAt, stack as SequenceConstruct and
ConcatFromSequence.  What depends on data (a sequence through a loop, a computed index) stays, and is refused
later.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from fadiff.converter.ir.edit import FreshNames
from fadiff.converter.ir.program import static_shapes
from fadiff.converter.read.fold import constant_tensors
from fadiff.converter.read.opsets import opset_of

OPS = frozenset(
    [
        "ConcatFromSequence",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    ]
)
"""Operators of sequences, but for SequenceMap, which is a loop, and Identity."""
_SPLITS_BY_INPUT = 13


def flatten_sequences(model: onnx.ModelProto) -> None:
    """Replace sequences of constant length by the tensors in them, in place."""
    if not any(node.op_type.find("Sequence") >= 0 for node in model.graph.node):
        return
    flat = _Flattener(model)
    for node in list(model.graph.node):
        if node.op_type not in (*OPS, "Identity") or not flat.replaces(node):
            flat.nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(flat.nodes)


class _Flattener:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph, self.opset = model.graph, opset_of(model)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        self.shapes = static_shapes(inferred, (*inferred.input, *inferred.value_info))
        self.constants: Mapping[str, TensorProto] = constant_tensors(model.graph)
        self.fresh = FreshNames(model.graph)
        self.sequences: dict[str, list[str]] = {}
        """The tensors in a sequence, by its name."""
        self.nodes: list[NodeProto] = []

    def replaces(self, node: NodeProto) -> bool:
        """Whether a node is written otherwise, or not at all."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "SplitToSequence":
            return self._split(node, attributes)
        if node.op_type == "SequenceConstruct":
            self.sequences[node.output[0]] = list(node.input)
            return True
        if node.op_type == "SequenceEmpty":
            self.sequences[node.output[0]] = []
            return True
        parts = self.sequences.get(node.input[0])
        if parts is None:
            return False
        if node.op_type == "Identity":
            self.sequences[node.output[0]] = parts
        elif node.op_type == "SequenceLength":
            self.graph.initializer.append(numpy_helper.from_array(np.array(len(parts)), node.output[0]))
        elif node.op_type == "ConcatFromSequence":
            return self._concat(node, parts, attributes)
        else:
            return self._changes(node, parts)
        return True

    def _changes(self, node: NodeProto, parts: list[str]) -> bool:
        """SequenceAt, SequenceErase and SequenceInsert at a constant position."""
        inserts = node.op_type == "SequenceInsert"
        place = self._position(node, 2 if inserts else 1, len(parts) if inserts else len(parts) - 1)
        if place is None or not 0 <= place < len(parts) + inserts:
            return False
        if node.op_type == "SequenceAt":
            self.nodes.append(helper.make_node("Identity", [parts[place]], node.output, node.name))
        elif inserts:
            self.sequences[node.output[0]] = [*parts[:place], node.input[1], *parts[place:]]
        else:
            self.sequences[node.output[0]] = [*parts[:place], *parts[place + 1 :]]
        return True

    def _position(self, node: NodeProto, index: int, default: int) -> int | None:
        if len(node.input) <= index or not node.input[index]:
            return default
        tensor = self.constants.get(node.input[index])
        if tensor is None:
            return None
        place = int(numpy_helper.to_array(tensor).reshape(-1)[0])
        return place + len(self.sequences[node.input[0]]) if place < 0 else place

    def _split(self, node: NodeProto, attributes: Mapping[str, int]) -> bool:
        shape = self.shapes.get(node.input[0])
        if shape is None:
            return False
        axis = attributes.get("axis", 0) % len(shape)
        each = len(node.input) < 2 or not node.input[1]
        tensor = None if each else self.constants.get(node.input[1])
        if not each and tensor is None:
            return False
        size = shape[axis]
        given = np.array(1) if tensor is None else numpy_helper.to_array(tensor)
        sizes = (
            given.tolist()
            if given.ndim
            else [min(int(given), size - start) for start in range(0, size, int(given))]
        )
        parts = [self.fresh.new(f"{node.output[0]}.{i}") for i in range(len(sizes))]
        split = np.asarray(sizes, np.int64)
        if self.opset >= _SPLITS_BY_INPUT:
            inputs = [node.input[0], self._constant(f"{node.output[0]}.sizes", split)]
            self.nodes.append(helper.make_node("Split", inputs, parts, node.name, axis=axis))
        else:
            self.nodes.append(
                helper.make_node("Split", node.input[:1], parts, node.name, axis=axis, split=sizes)
            )
        if each and not attributes.get("keepdims", 1):
            rest = [*shape[:axis], *shape[axis + 1 :]]
            parts = [self._reshaped(part, rest) for part in parts]
        self.sequences[node.output[0]] = parts
        return True

    def _concat(self, node: NodeProto, parts: list[str], attributes: Mapping[str, int]) -> bool:
        axis = attributes["axis"]
        if attributes.get("new_axis", 0):
            shape = self.shapes.get(parts[0]) if parts else None
            if shape is None:
                return False
            place = axis % (len(shape) + 1)
            parts = [self._reshaped(part, [*shape[:place], 1, *shape[place:]]) for part in parts]
            axis = place
        if not parts:
            return False
        self.nodes.append(helper.make_node("Concat", parts, node.output, node.name, axis=axis))
        return True

    def _reshaped(self, value: str, shape: list[int]) -> str:
        out = self.fresh.new(f"{value}.reshaped")
        sizes = self._constant(f"{out}.shape", np.asarray(shape, np.int64))
        self.nodes.append(helper.make_node("Reshape", [value, sizes], [out], out))
        self.shapes[out] = tuple(shape)
        return out

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.fresh.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name
