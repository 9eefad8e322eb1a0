"""Workloads: files with shapes and without weights, as tools that only schedule exchange them.

Layers, schedule and Timeloop files need no numbers; for those that the program needs, weights are drawn:
normal, with the deviation that keeps a layer's outputs as large as its inputs.  Spelled in several ways:
constants without data, external data whose file nobody has, weights as inputs, int8 types on operators of
float.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter.ir.kinds import WEIGHTED, Kind, named
from fadiff.converter.read.external_data import is_lost

_WEIGHTED = named(WEIGHTED) & named(Kind.IMAGE)
"""Products whose further inputs are weights and biases, from wherever (a Gemm may have two activations)."""
_FLOAT_ONLY = frozenset(
    ("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "Gemm", "Relu", "Softmax")
)
_NARROW = frozenset((TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16))
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
_MOST_DRAWN = 2**20
"""Numbers of one constant; a larger one has them again and again."""
DRAWN = "fadiff: drawn weights"
"""Key of the model's metadata: the first of the constants that were drawn, and how many there are."""


def draw_weights(path: Path, model: onnx.ModelProto, given: Collection[str] = ()) -> None:
    """Give weights of which a file has only the sizes drawn numbers, in place, and note it in its metadata.

    Inputs that are `given` are none.
    """
    graph = model.graph
    if _is_int8_typed(model):
        _as_float(graph)
    drawn = [*_without_data(path, graph), *_as_inputs(graph, given)]
    weights = {name for node in graph.node for i in (1, 2) for name in node.input[i : i + 1] if name}
    products = [tensor for tensor in graph.initializer if tensor.name in weights and tensor.name in drawn]
    if products:
        model.metadata_props.add(key=DRAWN, value=f"{products[0].name}, {len(drawn)} in all")


def drawn_weights(model: onnx.ModelProto) -> str:
    """The work of `draw_weights`, in words; empty where the file has its weights."""
    return next((entry.value for entry in model.metadata_props if entry.key == DRAWN), "")


def _without_data(path: Path, graph: onnx.GraphProto) -> Iterator[str]:
    """Float constants without data; external data only where all of it is lost."""
    external = [t for t in graph.initializer if t.data_location == TensorProto.EXTERNAL]
    lost = bool(external) and all(is_lost(path, tensor) for tensor in external)
    for tensor in graph.initializer:
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if tensor.data_type not in _FLOATS or not math.prod(tensor.dims):
            continue
        if (is_external and lost) or (not is_external and _is_bare(tensor)):
            yield tensor.name
            _draw(tensor)


def _is_bare(tensor: TensorProto) -> bool:
    field = helper.tensor_dtype_to_field(tensor.data_type)
    return not tensor.raw_data and not len(getattr(tensor, field))


def _as_inputs(graph: onnx.GraphProto, given: Collection[str]) -> Iterator[str]:
    """Inputs that only products read, as weights or biases."""
    constants = {tensor.name for tensor in graph.initializer}
    places: dict[str, set[bool]] = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            places.setdefault(name, set()).add(i in (1, 2) and node.op_type in _WEIGHTED)
    for value in list(graph.input):
        tensor_type = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor_type.shape.dim]
        if (
            value.name in constants
            or value.name in given
            or places.get(value.name) != {True}
            or not sizes
            or min(sizes) < 1
        ):
            continue
        if tensor_type.elem_type in _FLOATS:
            tensor = graph.initializer.add(name=value.name, data_type=tensor_type.elem_type, dims=sizes)
            graph.input.remove(value)
            _draw(tensor)
            yield tensor.name


def _draw(tensor: TensorProto) -> None:
    generator = np.random.default_rng(list(tensor.name.encode()))  # (the same for the same name)
    inputs = math.prod(tensor.dims[1:]) if len(tensor.dims) > 1 else 1
    drawn = generator.standard_normal(min(math.prod(tensor.dims), _MOST_DRAWN)) / np.sqrt(inputs)
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.resize(drawn.astype(kind), tuple(tensor.dims))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _is_int8_typed(model: onnx.ModelProto) -> bool:
    """Whether operators that ONNX has for floats only read small integers, and nothing gives them a scale."""
    graph = model.graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kinds |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
    says = any("Quantize" in node.op_type or node.op_type.startswith("QLinear") for node in graph.node)
    reads = any(
        kinds.get(n) in _NARROW for node in graph.node if node.op_type in _FLOAT_ONLY for n in node.input
    )
    return reads and not says


def _as_float(graph: onnx.GraphProto) -> None:
    """All small integers, and the words that sums of them have, as float32; weights of zeros have no data."""
    read = {name for node in graph.node if node.op_type in _FLOAT_ONLY for name in node.input}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor_type = value.type.tensor_type
        if tensor_type.elem_type in _NARROW or tensor_type.elem_type == TensorProto.INT32:
            tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        if tensor.name not in read or tensor.data_type in _FLOATS:
            continue
        lost = tensor.data_location == TensorProto.EXTERNAL or _is_bare(tensor)
        array = None if lost else numpy_helper.to_array(tensor).astype(np.float32)
        if array is None or not array.any():
            dims = list(tensor.dims)
            external = list(tensor.external_data) if lost else []
            location = tensor.data_location
            name = tensor.name
            tensor.Clear()
            tensor.name, tensor.data_type, tensor.data_location = name, TensorProto.FLOAT, location
            tensor.dims.extend(dims)
            tensor.external_data.extend(external)
        else:
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
