"""Constant linear maps of rows, rotary embeddings above all, as products with blocks of a matrix.

What an addition sums may be copies, negations and products with constants of elements of one tensor.  Then
every block of a row of the result is a product of one or two blocks of the same row of that tensor, two as
taps of a convolution, with weights for each position; rows of one position (heads) share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Add, Binary, Copy, Lookup
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised

_NEAR = 0.75
"""Steps by which a table of a linear function may be off."""


@dataclass(frozen=True)
class _Map:
    """Elements of a tensor as sums of terms [terms, size], coefficient times element of `source`."""

    source: str
    elements: np.ndarray
    coefficients: np.ndarray
    layers: frozenset[str] = frozenset()


class _Rows(NamedTuple):
    """What a map has in common: [positions, heads, width] of the result."""

    positions: int
    heads: int
    width: int


def realised_linear_map(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """A product for every block of a row; None of what is no such map, reads other rows, or differs from
    head to head."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, Add | Binary):
        return None
    out = graph.tensors[layer.outputs[0]]
    rows = _rows(graph, layer)
    if (
        rows is None
        or {out.dtype, target.element_type} != {"int8"}
        or out.size != rows[0] * rows[1] * rows[2]
    ):
        return None
    found = _map(graph, out.name)
    if found is None or len(found.layers) < 3 or not _alone(graph, found, out.name):
        return None
    shape = (len(found.elements), *rows)
    lanes = found.elements.reshape(shape) - np.arange(out.size).reshape(rows) // rows.width * rows.width
    coefficients = found.coefficients.reshape(shape)
    same = (lanes == lanes[:, :1, :1]).all() and (coefficients == coefficients[:, :, :1]).all()
    if not same or lanes.min() < 0 or lanes.max() >= rows.width or not coefficients.any():
        return None
    block = max(n for n in range(1, target.side + 1) if rows.width % n == 0)
    return _products(graph, layer, found, rows, (lanes[:, 0, 0], coefficients[:, :, 0]), block)


def _products(
    graph: Graph,
    layer: HostLayer,
    found: _Map,
    rows: _Rows,
    terms: tuple[np.ndarray, np.ndarray],
    block: int,
) -> Realised | None:
    lanes, coefficients = terms  # [terms, width] and [terms, positions, width]
    x, out = graph.tensors[found.source], graph.tensors[layer.outputs[0]]
    step = float(np.abs(coefficients).max()) / 127
    scale = float(np.float32((x.scale or 1.0) * step / (out.scale or 1.0)))
    layers, tensors = list[Layer](), list[Tensor]()
    image = rows.heads * rows.width
    for first in range(0, rows.width, block):
        read = lanes[:, first : first + block]
        sources = np.unique(read // block)
        if len(sources) > 2:
            return None
        weights = np.zeros((rows.positions, len(sources), block, block))
        for of_term, values in zip(read, coefficients[:, :, first : first + block], strict=True):
            tap = np.searchsorted(sources, of_term // block)
            weights[:, tap, of_term % block, np.arange(block)] += values
        dims = Dims(G=rows.positions, R=len(sources), Q=rows.heads, C=block, K=block)
        data = np.clip(np.rint(weights / step), -127, 127).astype(np.int8)
        name = f"{layer.name}.{first}" if first else layer.name
        weight = Tensor(
            f"{layer.name}.weight.{first}", (dims.G, dims.R, 1, block, block), "int8", _float32(step), data
        )
        weight = replace(weight, data=data.reshape(weight.shape))
        apart = int(sources[-1] - sources[0]) * block
        layers.append(
            TensorCoreLayer(
                name,
                "conv",
                dims,
                View(x.name, int(sources[0]) * block, (image, 0, apart, rows.width, 1)),
                weight_view(weight.name, dims),
                View(out.name, first, (image, 0, 0, rows.width, 1)),
                (dims.R, rows.heads),
                scale=scale,
                onnx_nodes=layer.onnx_nodes,
            )
        )
        tensors.append(weight)
    replaced = tuple(one.name for one in graph.layers if one.name in found.layers)
    form = "product with constant blocks"
    return Realised(form, replaced, tuple(layers), tuple(tensors), exact=False)


def _rows(graph: Graph, layer: HostLayer) -> _Rows | None:
    """From the loops of a product with a constant that the layer adds."""
    for name in layer.inputs[:2]:
        for writer in graph.producers(name):
            if isinstance(writer, HostLayer) and isinstance(writer.operator, Binary):
                constant = _constant(graph, writer)
                if writer.operator.function == "mul" and constant is not None:
                    loops = writer.operator.loops
                    repeated = 1
                    for extent, stride in zip(
                        loops.shape[-2::-1], loops.inputs[constant].strides[-2::-1], strict=True
                    ):
                        if stride:
                            break
                        repeated *= extent
                    width = loops.shape[-1]
                    return _Rows(int(np.prod(loops.shape)) // (width * repeated), repeated, width)
    return None


def _alone(graph: Graph, found: _Map, result: str) -> bool:
    """Whether nobody else reads what lies between source and result."""
    between = {name for one in found.layers for name in graph.by_name[one].outputs} - {result}
    read = all(reader.name in found.layers for name in between for reader in graph.consumers(name))
    return read and not between.intersection(graph.outputs)


def _map(graph: Graph, tensor: str) -> _Map | None:
    """Of a tensor's elements; None where they are no sums of terms of one other tensor's."""
    t, writers = graph.tensors[tensor], graph.producers(tensor)
    if t.dtype != "int8" or t.scale is None or t.zero or t.along is not None:
        return None
    pieces = [_written(graph, writer, t) for writer in writers]
    if not pieces or any(piece is None for piece in pieces):
        return _Map(tensor, np.arange(t.size)[None], np.ones((1, t.size)))
    terms = max(len(piece[1].elements) for piece in pieces if piece)
    elements, coefficients = np.zeros((terms, t.size), np.int64), np.zeros((terms, t.size))
    elements[:] = np.arange(t.size)  # (terms that are not there)
    layers, sources = {writer.name for writer in writers}, set()
    for places, part in (piece for piece in pieces if piece):
        elements[: len(part.elements), places] = part.elements
        coefficients[: len(part.elements), places] = part.coefficients
        layers |= part.layers
        sources.add(part.source)
    if len(sources) > 1:
        return None
    return _Map(sources.pop(), elements, coefficients, frozenset(layers))


def _written(graph: Graph, layer: Layer, out: Tensor) -> tuple[np.ndarray, _Map] | None:
    """Which elements a layer writes, and what they are; None where it is not linear."""
    if not isinstance(layer, HostLayer):
        return None
    operator = layer.operator
    if isinstance(operator, Add) or (isinstance(operator, Binary) and operator.function == "add"):
        if operator.activation != "none" or any(graph.tensors[name].constant for name in layer.inputs):
            return None
        maps = [_map(graph, name) for name in layer.inputs]
        if None in maps or len({one.source for one in maps if one}) > 1:
            return None
        loops = operator.loops if isinstance(operator, Binary) else None
        parts = [_taken(one, loops, i) for i, one in enumerate(maps) if one]
        places = np.arange(out.size) if loops is None else _places(loops.shape, loops.output)
        joined = _Map(
            parts[0].source,
            np.concatenate([part.elements for part in parts]),
            np.concatenate([part.coefficients for part in parts]),
            parts[0].layers | parts[1].layers,
        )
        return places, joined
    factor: float | np.ndarray = 1.0
    if isinstance(operator, Binary):
        constant = _constant(graph, layer)
        if operator.function != "mul" or operator.activation != "none" or constant is None:
            return None
        at, given = 1 - constant, graph.tensors[layer.inputs[constant]]
        data = np.asarray(given.data, np.float64).reshape(-1) * (given.scale or 1.0)
        factor = data[_places(operator.loops.shape, operator.loops.inputs[constant])]
    elif isinstance(operator, Lookup):
        slope = _slope(np.asarray(graph.tensors[layer.inputs[1]].data, np.float64))
        if slope is None:
            return None
        at, factor = 0, slope * (out.scale or 1.0) / (graph.tensors[layer.inputs[0]].scale or 1.0)
    elif isinstance(operator, Copy):
        at = 0
    else:
        return None
    source = _map(graph, layer.inputs[at])
    if source is None:
        return None
    taken = _taken(source, operator.loops, at)
    places = _places(operator.loops.shape, operator.loops.output)
    return places, replace(taken, coefficients=taken.coefficients * factor)


def _taken(found: _Map, loops: Loops | None, at: int) -> _Map:
    """As an operand of loops."""
    if loops is None:
        return found
    places = _places(loops.shape, loops.inputs[at])
    return replace(found, elements=found.elements[:, places], coefficients=found.coefficients[:, places])


def _places(shape: tuple[int, ...], access: Access) -> np.ndarray:
    """Elements that loops visit, in order."""
    places = np.full((), access.offset)
    for extent, stride in zip(shape, access.strides, strict=True):
        places = places[..., None] + np.arange(extent) * stride
    return places.reshape(-1)


def _constant(graph: Graph, layer: HostLayer) -> int | None:
    """Which of two operands is constant, if one is."""
    known = [i for i, name in enumerate(layer.inputs[:2]) if graph.tensors[name].constant]
    return known[0] if len(known) == 1 else None


def _slope(table: np.ndarray) -> float | None:
    """Of a table that is linear but for rounding and saturation."""
    steps = np.arange(-128, 128)
    free = np.abs(table) < 127
    if not (steps[free] ** 2).sum():
        return None
    slope = float((table[free] * steps[free]).sum() / (steps[free] ** 2).sum())
    straight = np.abs(np.clip(slope * steps, -128, 127) - table).max() <= _NEAR + (slope < 0)
    return slope if slope and straight else None


def _float32(value: float) -> float:
    return float(np.float32(value))
