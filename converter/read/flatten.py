"""Control flow without decisions and sequences of constant length: branches inlined, loops unrolled.

What stays has a condition, a trip count or an index that is computed at run time, and is refused later.
TorchScript writes chunk and split as SplitToSequence and SequenceAt, stack as SequenceConstruct and
ConcatFromSequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx_ir import Value

from fadiff.converter.ir.edit import Editor, content_of
from fadiff.converter.ir.kinds import ARITHMETIC, Kind, named
from fadiff.converter.ir.program import static_shapes
from fadiff.converter.read.fold import constant_sizes, fold_constants
from fadiff.converter.read.opsets import opset_of
from fadiff.converter.read.runtime import run_operator

_DEEPEST = 16
"""Branches within branches: each round of folding opens one level."""
_MOST_STEPS = 1024
_MOST_NODES = 50_000
_AXES_AS_INPUT = 13


def flatten_control_flow(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every If, Loop and Scan inlined whose course is known."""
    for _ in range(_DEEPEST):
        if not any(node.op_type in _INLINED for node in model.graph.node):
            return model
        model = _with_constant_shapes(model)
        fold_constants(model)
        inliner = _Inliner(model)
        if not inliner.inline():
            return model
        model = inliner.edit.model()
    return model


def _with_constant_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Shape operators replaced by constants where the shape is static."""
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    constant_sizes(model, static_shapes(model.graph, (*model.graph.input, *model.graph.value_info)))
    return model


class _Inliner:
    """Copies subgraphs into the main graph of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.edit = Editor(model)
        self.opset = opset_of(model)
        self.shapes = static_shapes(model.graph, (*model.graph.input, *model.graph.value_info))

    def inline(self) -> bool:
        """Whether anything was inlined."""
        found = [node for node in self.edit.nodes() if node.op_type in _INLINED]
        return sum(_INLINED[node.op_type](self, node) for node in found) > 0

    def branch(self, node: onnx_ir.Node) -> bool:
        """If."""
        condition = content_of(node.inputs[0])
        if condition is None:
            return False
        name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        body, prefix = node.attributes[name].as_graph(), f"{node.name}/"
        self.edit.give(node, self.edit.inline(node, body, prefix, (), self.edit.hoisted(body, prefix)))
        return True

    def loop(self, node: onnx_ir.Node) -> bool:
        """Loop."""
        body = node.attributes["body"].as_graph()
        most, condition = (*node.inputs, None)[:2]
        states = _there(node.inputs[2:])
        trips = content_of(most)
        go = np.asarray(True) if condition is None else content_of(condition)
        if trips is None or go is None or not _fits(body, int(trips.reshape(-1)[0])) or not _goes_on(body):
            return False
        count = len(states)
        collected: list[list[Value]] = [[] for _ in body.outputs[1 + count :]]
        steps = int(trips.reshape(-1)[0]) if bool(go.reshape(-1)[0]) else 0
        if collected and not steps:
            return False
        if steps:
            true = self.edit.constant(f"{node.name}/go", np.asarray(True))
            constants = self.edit.hoisted(body, f"{node.name}/")
        for t in range(steps):
            prefix = f"{node.name}/{t}/"
            number = self.edit.constant(f"{prefix}number", np.int64(t))
            results = self.edit.inline(node, body, prefix, [number, true, *states], constants)[1:]
            states = results[:count]
            for values, value in zip(collected, results[count:], strict=True):
                values.append(value)
        joined = [self._stacked(node, i, values, 0) for i, values in enumerate(collected)]
        self.edit.give(node, [*states, *joined])
        return True

    def scan(self, node: onnx_ir.Node) -> bool:
        """Scan."""
        body, inputs = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
        count = len(node.inputs) - inputs
        states, scanned = _there(node.inputs[:count]), _there(node.inputs[count:])
        outputs = len(node.outputs) - count
        axes_in, backwards_in = (_listed(node, f"scan_input_{k}", inputs) for k in ("axes", "directions"))
        axes_out, backwards_out = (_listed(node, f"scan_output_{k}", outputs) for k in ("axes", "directions"))
        if self.opset < 9 or any(value.name not in self.shapes for value in scanned):
            return False
        steps = self.shapes[str(scanned[0].name)][axes_in[0]]
        if not steps or not _fits(body, steps):
            return False
        collected: list[list[Value]] = [[] for _ in range(outputs)]
        constants = self.edit.hoisted(body, f"{node.name}/")
        for t in range(steps):
            prefix = f"{node.name}/{t}/"
            slices = list[Value]()
            for i, value in enumerate(scanned):
                at = self.edit.constant(f"{prefix}at{i}", np.int64(steps - 1 - t if backwards_in[i] else t))
                slices += self.edit.insert(node, "Gather", [value, at], f"{prefix}slice{i}", axis=axes_in[i])
            results = self.edit.inline(node, body, prefix, [*states, *slices], constants)
            states = results[:count]
            for values, value in zip(collected, results[count:], strict=True):
                values.append(value)
        joined = [
            self._stacked(node, i, values[::-1] if backwards_out[i] else values, axes_out[i])
            for i, values in enumerate(collected)
        ]
        self.edit.give(node, [*states, *joined])
        return True

    def _stacked(self, node: onnx_ir.Node, index: int, values: Sequence[Value], axis: int) -> Value:
        """The values of all steps along a new axis."""
        name, parts = f"{node.name}/all{index}", list[Value]()
        for t, value in enumerate(values):
            out = f"{name}.{t}"
            if self.opset >= _AXES_AS_INPUT:
                axes = self.edit.constant(f"{out}.axes", np.asarray([axis], np.int64))
                parts += self.edit.insert(node, "Unsqueeze", [value, axes], out)
            else:
                parts += self.edit.insert(node, "Unsqueeze", [value], out, axes=[axis])
        return self.edit.insert(node, "Concat", parts, name, axis=axis)[0]


_INLINED = {"If": _Inliner.branch, "Loop": _Inliner.loop, "Scan": _Inliner.scan}


def _there(values: Sequence[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]


def _fits(body: onnx_ir.Graph, steps: int) -> bool:
    return steps <= _MOST_STEPS and steps * len(body) <= _MOST_NODES


def _listed(node: onnx_ir.Node, name: str, count: int) -> Sequence[int]:
    return node.attributes[name].as_ints() if name in node.attributes else [0] * count


def _goes_on(body: onnx_ir.Graph) -> bool:
    """Whether a loop body never ends the loop: it returns true, or the condition it was given."""
    value: Value | None = body.outputs[0]
    while value is not None and (node := value.producer()) and node.op_type in _SAME:
        value = node.inputs[0]
    content = content_of(value)
    return value is body.inputs[1] or (content is not None and bool(content.all()))


_SAME = named(Kind.SAME | Kind.CONVERT)
_COUNTING = named(ARITHMETIC)
SEQUENCE_OPERATORS = named(Kind.SEQUENCE)
_OPS = SEQUENCE_OPERATORS | {"Identity"} | _COUNTING
"""But for SequenceMap, which is a loop; arithmetic of lengths and positions."""
_SPLITS_BY_INPUT = 13


def flatten_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with sequences of constant length replaced by the tensors in them."""
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
        if node.op_type in _COUNTING:
            return self._count(node)
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

    def _count(self, node: onnx_ir.Node) -> bool:
        """A number that is known: the last place, say."""
        numbers = [content_of(value) for value in node.inputs]
        known = [number for number in numbers if number is not None and number.size == 1]
        if len(known) < len(numbers) or node.attributes:
            return False
        (out,) = node.outputs
        result = run_operator(node.op_type, self.opset, known, {})
        self.edit.replace(out, self.edit.constant(f"{out.name}.number", result))
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
