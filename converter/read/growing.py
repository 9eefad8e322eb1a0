"""Caches that grow, `present = Concat(past, new)`, as caches of fixed size that are written at a position.

Exporters write decoders so that every run returns a longer past.  Here the past has as many rows as a whole
sequence may have, new rows are written behind those that are there, and where the file counts positions by
the length of its past, an input says where the new tokens stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx import NodeProto, ValueInfoProto, helper
from onnx_ir import Value

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import KEEPS_SCALE, Kind, named
from fadiff.converter.ir.program import static_shapes
from fadiff.converter.ir.recurrence import State
from fadiff.converter.read.dimensions import dimension_names, graph_inputs, pin_known
from fadiff.converter.read.flatten import flatten_control_flow
from fadiff.converter.read.fold import constant_sizes, fold_constants
from fadiff.converter.read.runtime import explaining, open_session
from fadiff.converter.read.validate import without_large_constants

POSITION = "cache_position"
"""The input that says where new rows are written: [new rows], int64."""
_SEEN = 3
"""Rows of the past in the comparison with the file."""
_SAME_NUMBER = named(KEEPS_SCALE | Kind.CONVERT)
"""What a length goes through between a Shape and where it counts."""

_ROUNDS = 4
"""Of inferring shapes and folding what is computed from them."""


@dataclass(frozen=True)
class _Cache:
    past: ValueInfoProto
    present: str
    node: NodeProto
    """The Concat."""

    @property
    def axis(self) -> int:
        """That it grows along."""
        (axis,) = (attribute.i for attribute in self.node.attribute if attribute.name == "axis")
        return int(axis) % len(self.past.type.tensor_type.shape.dim)

    @property
    def length(self) -> onnx.TensorShapeProto.Dimension:
        """Rows of the past."""
        length: onnx.TensorShapeProto.Dimension = self.past.type.tensor_type.shape.dim[self.axis]
        return length


def fix_caches(
    path: Path, model: onnx.ModelProto, dims: Mapping[str, int], context: int, *, compare: bool
) -> tuple[onnx.ModelProto, dict[str, int], tuple[State, ...]]:
    """The model with caches of fixed size, what of `dims` is left to bind, and the caches as states.

    Args:
        path: for messages.
        model: as in the file; changed in place.
        dims: sizes by name, but for the lengths of pasts.
        context: rows of every cache: tokens of the longest sequence.
        compare: whether the weights are there, to run both forms on random numbers.

    Raises:
        ModelError: no cache grows, `context` is too short for what a run adds, or the file does something
            with the length of its past that a position cannot stand for.
    """
    pin_known(path, model, dims)
    model = flatten_control_flow(model)
    if not _growing(model):
        raise ModelError(f"{path}: --context: no output is an input with new rows behind it; leave it out")
    rows = _new_rows(path, model, dims)
    if context < rows:
        raise ModelError(f"{path}: --context {context}: one run adds {rows} rows; give at least {rows}")
    seen = min(_SEEN, context - rows)
    grown = _with_length(path, model, dims, seen) if compare else None
    states = tuple(State(cache.present, cache.past.name) for cache in _growing(model))
    names = _lengths(model)
    for cache in _growing(model):
        cache.length.dim_value = context
    pin_known(path, model, {**dims, **dict.fromkeys(names, context - rows)})
    model, position = _write_at_position(model, rows, context)
    if grown is not None:
        _compare(path, grown, model, position, seen)
    known = dimension_names(model)
    return model, {name: size for name, size in dims.items() if name in known}, states


def _growing(model: onnx.ModelProto) -> list[_Cache]:
    inputs = {value.name: value for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    passed = {n.input[0]: n.output[0] for n in model.graph.node if n.op_type == "Identity"}
    found = []
    for node in model.graph.node:
        if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in inputs:
            (present,) = node.output
            present = present if present in outputs else passed.get(present, "")
            if present in outputs:
                found.append(_Cache(inputs[node.input[0]], present, node))
    return found


def _with_length(path: Path, model: onnx.ModelProto, dims: Mapping[str, int], length: int) -> onnx.ModelProto:
    """A copy with pasts of this length, and shapes that follow from it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = _lengths(copy)
    for cache in _growing(copy):
        cache.length.dim_value = length
    pin_known(path, copy, {**dims, **dict.fromkeys(names, length)})
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def _lengths(model: onnx.ModelProto) -> set[str]:
    """Names of the lengths of pasts."""
    return {cache.length.dim_param for cache in _growing(model)} - {""}


def _new_rows(path: Path, model: onnx.ModelProto, dims: Mapping[str, int]) -> int:
    """How many rows a run adds to its caches."""
    light = _with_length(path, without_large_constants(model), dims, _SEEN)
    wanted = {cache.present: cache.axis for cache in _growing(light)}
    for _ in range(_ROUNDS):
        graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
        shapes = static_shapes(graph, (*graph.input, *graph.value_info, *graph.output))
        found = {shapes[name][axis] - _SEEN for name, axis in wanted.items() if name in shapes}
        if len(found) == 1 and min(found) > 0:
            return found.pop()
        constant_sizes(light, shapes)
        fold_constants(light)
    raise ModelError(
        f"{path}: --context: how many rows a run adds to its caches is not known; bind all other dimensions"
    )


def _write_at_position(model: onnx.ModelProto, rows: int, context: int) -> tuple[onnx.ModelProto, str]:
    """The model without the Concats, and with positions that were counted from the length of a past as a new
    input; its name."""
    caches = {cache.node.output[0]: cache for cache in _growing(model)}
    pasts = {cache.past.name: cache for cache in caches.values()}
    del model.graph.value_info[:]
    edit = Editor(model)
    nodes = edit.nodes()
    counted = [node for node in nodes if node.op_type == "Range" and _is_length(node.inputs[0], pasts)]
    position = edit.input(POSITION, onnx_ir.DataType.INT64, [rows])
    shape = edit.constant(f"{POSITION}.shape", np.array([rows, 1], np.int64))
    (column,) = edit.insert(nodes[0], "Reshape", [position, shape], f"{position.name}.column")
    for node in nodes:
        cache = _measured(node, pasts)
        if cache is not None:
            sizes = [dim.dim_value for dim in cache.past.type.tensor_type.shape.dim]
            sizes[cache.axis] = context - rows
            part = slice(
                *(node.attributes[k].value if k in node.attributes else None for k in ("start", "end"))
            )
            edit.give(node, [edit.constant(f"{POSITION}.sizes", np.array(sizes[part], np.int64))])
        elif node in counted:
            edit.give(node, [position])
        elif node.outputs and node.outputs[0].name in caches:
            cache = caches[node.outputs[0].name]
            order = list(range(len(cache.past.type.tensor_type.shape.dim)))
            order.insert(0, order.pop(cache.axis))
            past, new = (
                edit.insert(node, "Transpose", [value], f"{value.name}.rows", perm=order)[0]
                for value in node.inputs
                if value is not None
            )
            present, back = node.outputs[0], [order.index(axis) for axis in range(len(order))]
            (rows_of,) = edit.insert(node, "ScatterND", [past, column, new], f"{present.name}.rows")
            (turned,) = edit.insert(node, "Transpose", [rows_of], str(present.name), perm=back)
            edit.replace(present, turned)
            edit.remove(node)
    return edit.model(), str(position.name)


def _measured(node: onnx_ir.Node, pasts: Mapping[str, _Cache]) -> _Cache | None:
    """The cache whose past a Shape reads."""
    source = node.inputs[0] if node.op_type == "Shape" else None
    return None if source is None else pasts.get(str(source.name))


def _is_length(value: Value | None, pasts: Mapping[str, _Cache]) -> bool:
    """Whether a value is the length of a past, and not computed with it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _SAME_NUMBER:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and _measured(node, pasts) is not None


def _compare(path: Path, grown: onnx.ModelProto, fixed: onnx.ModelProto, position: str, seen: int) -> None:
    """Raises ModelError where a run behind `seen` rows has other outputs than the file."""
    states = {cache.past.name for cache in _growing(grown)}
    shapes = {value.name: _shape(value) for value in graph_inputs(fixed)}
    given: dict[str, np.ndarray] = {}
    for value in graph_inputs(grown):
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        generator = np.random.default_rng(len(given))
        drawn: np.ndarray
        if np.issubdtype(kind, np.floating):
            drawn = generator.standard_normal(_shape(value))
        elif shapes.get(value.name) == _shape(value):
            drawn = generator.integers(0, 2, _shape(value))
        else:  # (as long as the cache: it says which rows are there)
            drawn = np.ones(_shape(value))
        given[value.name] = drawn.astype(kind)
    fed: dict[str, np.ndarray] = {
        name: np.zeros(shape, np.float32) for name, shape in shapes.items()
    }  # (a past without rows)
    for name in given.keys() & shapes.keys():
        room = [(0, size - there) for size, there in zip(shapes[name], given[name].shape, strict=True)]
        fed[name] = np.pad(given[name], room, constant_values=0 if name in states else 1)
    fed[position] = np.arange(seen, seen + shapes[position][0])
    names = [value.name for value in fixed.graph.output]
    expected, found = (_run(model, names, feeds) for model, feeds in ((grown, given), (fixed, fed)))
    for name, wanted, got in zip(names, expected, found, strict=True):
        part = got[tuple(slice(size) for size in wanted.shape)] if got.ndim == wanted.ndim else got
        if not np.allclose(part, wanted, rtol=1e-3, atol=1e-4 * (1 + np.abs(wanted).max(initial=0))):
            raise ModelError(
                f"{path}: --context: with caches of fixed size {name} is another: the file looks at all "
                "of its past, or uses its length for something else than positions; export a static cache"
            )


def _shape(value: ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _run(model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with explaining():
        found: list[np.ndarray] = open_session(model).run(list(names), dict(feeds))
    return found
