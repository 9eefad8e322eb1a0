"""Every dimension of an input becomes a number: bound by name, by place, or computed from names that are."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.names import did_you_mean

_NUMBERS = frozenset(
    [
        onnx.TensorProto.BOOL,
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
    ]
)
_NO_NAMES = ("", "?", "None", "unknown")
"""Names that exporters write for a dimension without one; equal ones need not be equal dimensions."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def pin_dimensions(path: Path, model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Replace symbolic dimensions of the inputs by numbers, in place.

    Args:
        path: for messages.
        model: its inputs.
        dims: sizes by dim_param, or by `input.axis`; what fills an input, by its name (a flag, a mask of
            ones).  An input that gets a size of 0 is a constant, too.  A dim_param that is a sum
            (`past + seq`) or another expression follows from its parts.

    Raises:
        ModelError: a name in `dims` that the model does not have, dimensions that `dims` does not bind, or
            an input that is no tensor.
    """
    check_names(path, model, dims)
    pin_known(path, model, dims)
    unbound: dict[str, str] = {}
    """Names to bind, and where each was first seen."""
    for value in graph_inputs(model):
        _check_tensor(path, value)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if name := _name(dim):
                where = f"input {value.name} has symbolic dimension {name!r} (axis {axis})"
                unbound |= {part: where for part in _parts(name) if part not in dims and part not in unbound}
            elif (
                not dim.HasField("dim_value") or dim.dim_value < 1
            ):  # (what is 0 on purpose is no input by now)
                given = f"size {dim.dim_value}" if dim.HasField("dim_value") else "no size"
                unbound[f"{value.name}.{axis}"] = f"input {value.name} has {given} for axis {axis}"
    if unbound:
        example = " ".join(f"--dim {name}=1" for name in unbound)
        what = "it" if len(unbound) == 1 else "all"
        seen = ", ".join(dict.fromkeys(unbound.values()))
        raise ModelError(f"{path}: {seen}; bind {what}, for example {example}")


def _bind_inputs(model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Inputs that `dims` names, and those to which it gives no elements, become constants."""
    chosen = {name for name in dims if name not in _named(model)}
    for value in graph_inputs(model):
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in _sizes(value)]
        is_empty = 0 in sizes and 0 in dims.values() and -1 not in sizes
        if not _can_be_bound(value) or -1 in sizes or not (value.name in chosen or is_empty):
            continue
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        content = np.full(sizes, dims.get(value.name, 0), kind)
        model.graph.initializer.append(onnx.numpy_helper.from_array(content, value.name))
        model.graph.input.remove(value)


def _sizes(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _can_be_bound(value: onnx.ValueInfoProto) -> bool:
    tensor_type = value.type.tensor_type
    return tensor_type.HasField("shape") and tensor_type.elem_type in _NUMBERS


def _check_tensor(path: Path, value: onnx.ValueInfoProto) -> None:
    if not value.type.HasField("tensor_type"):
        raise ModelError(
            f"{path}: input {value.name} is no tensor but a sequence, map or optional value; "
            "do this step outside of the model"
        )
    if not value.type.tensor_type.HasField("shape"):
        raise ModelError(
            f"{path}: input {value.name} has no shape at all; export the model with static shapes"
        )


def pin_known(path: Path, model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Replace those dimensions of the inputs that `dims` says, in place; others stay symbolic."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            place, name = f"{value.name}.{axis}", _name(dim)
            if place in dims:
                dim.dim_value = dims[place]
            elif name in dims or (name and all(part in dims for part in _parts(name))):
                dim.dim_value = _size(path, name, dims)
    _bind_inputs(model, dims)


def check_names(path: Path, model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Refuse names that no input has, also where other dimensions are still open.

    Raises:
        ModelError: a name in `dims` that no input has.
    """
    named, known = _named(model), dimension_names(model)
    unknown = sorted(set(dims) - known)
    if unknown:
        there = f"there are {', '.join(sorted(named))}" if named else "all dimensions are fixed: leave it out"
        advice = did_you_mean(unknown[0], known) or there
        raise ModelError(f"{path}: --dim {unknown[0]}: no input has a dimension of this name; {advice}")


def dimension_names(model: onnx.ModelProto) -> set[str]:
    """All that `--dim` may name: dimensions, their places, inputs that it may fill."""
    values = graph_inputs(model)
    places = {f"{v.name}.{i}" for v in values for i in range(len(v.type.tensor_type.shape.dim))}
    return _named(model) | places | {value.name for value in values if _can_be_bound(value)}


def _named(model: onnx.ModelProto) -> set[str]:
    dimensions = [dim for value in graph_inputs(model) for dim in value.type.tensor_type.shape.dim]
    named = {name for dim in dimensions if (name := _name(dim))}
    return named | {part for name in named for part in _parts(name)}


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives: inputs that are no initializers."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _name(dim: onnx.TensorShapeProto.Dimension) -> str:
    """The name of a symbolic dimension, empty where it has none that tells it from others."""
    return "" if dim.dim_param.strip() in _NO_NAMES else str(dim.dim_param)


def _tree(name: str) -> ast.expr | None:
    """A name that is an expression of others, None for one that is not."""
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return tree if isinstance(tree, ast.BinOp) and None not in _names(tree) else None


def _names(tree: ast.expr) -> Iterator[str | None]:
    """Names in an expression; None for what is neither a name, a number nor a known operator."""
    match tree:
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=int()):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield from _names(left)
            yield from _names(right)
        case _:
            yield None


def _parts(name: str) -> list[str]:
    """Names from which a dimension's size follows: its own, or those in it."""
    tree = _tree(name)
    return [name] if tree is None else [part for part in dict.fromkeys(_names(tree)) if part]


def _size(path: Path, name: str, dims: Mapping[str, int]) -> int:
    """The size of a dimension all of whose parts are bound."""
    tree = None if name in dims else _tree(name)

    def number(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](number(node.left), number(node.right))
        return dims[node.id] if isinstance(node, ast.Name) else int(node.value)  # type: ignore[attr-defined]

    try:
        size = dims[name] if tree is None else number(tree)
    except ZeroDivisionError:
        size = 0
    if size < (0 if name in dims else 1):
        raise ModelError(f"{path}: dimension {name} would be {size}; bind its parts to other sizes")
    return size
