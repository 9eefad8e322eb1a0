"""split-channels: channels of a product sorted by their range, and cut where one scale is too coarse.

The array multiplies all sums of a layer by one number, so all weights of a layer share a scale, and channels
with small weights have few steps.  Sorted by range and cut into layers of their own, each part gets a
scale of its own; the parts write side by side into one tensor (`write-in-place`), and what reads it has its
weights in the same order.  The float model computes the same.  It costs reading the input once for each
part, so it is done where the samples gain a lot by it (converter/draft.py).

A part has a multiple of 16 channels, so that the array is as full as before, and at most half the range of
the next.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fadiff.converter.ir.operators import UNARY
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.printable import FreshNames
from fadiff.converter.quantise.channels import (
    PRODUCTS,
    are_owned,
    channel_axis,
    keeps_apart,
    magnitudes,
    output_axis,
    outputs_first,
)
from fadiff.converter.read.reserved import names_in

_COLUMNS = 16
_FINER = 2.0
_MOST_PARTS = 4
_FOLDED = ("Relu", "Clip")
"""Activations that join the product: every part has its own."""


@dataclass(frozen=True)
class _Space:
    """The channels from the product that makes them to the one that sums over them."""

    products: tuple[Node, ...]
    """The first, and depthwise ones behind it."""
    vectors: tuple[str, ...]
    """Constants with one number per channel."""
    reader: Node


def split(model: onnx.ModelProto, program: Program, whole: Collection[str] = ()) -> str:
    """Sort and cut channels of a normalised model in place, but not of nodes that stay `whole`.

    Returns a note, empty where nothing changed.
    """
    editor = _Editor(model, program)
    products = layers = 0
    taken: set[str] = set()
    for node in program.nodes:
        space = None if node.name in taken else _space(program, node)
        if space is None or any(product.name in whole for product in space.products):
            continue
        taken.update(product.name for product in space.products)
        ranges = [
            magnitudes(outputs_first(product, editor.arrays[product.inputs[1]]), 1)
            for product in space.products
        ]
        order = np.argsort(max(ranges, key=lambda r: _gain(np.sort(r))), kind="stable")
        cuts = [_cuts(r[order]) for r in ranges]
        if any(len(places) > 2 for places in cuts):
            editor.permute(space, order)
        for product, places in zip(space.products, cuts, strict=True):
            if len(places) > 2:
                editor.cut(product, places)
                products, layers = products + 1, layers + len(places) - 1
    editor.finish()
    if not products:
        return ""
    return f"split-channels: {products} products, their channels sorted by range, are {layers} layers"


class _Editor:
    """Changes a model; `arrays` are its constants as they are by then."""

    def __init__(self, model: onnx.ModelProto, program: Program) -> None:
        self.graph, self.program = model.graph, program
        self.arrays: dict[str, np.ndarray] = dict(program.constants)
        self._changed: set[str] = set()
        self._fresh = FreshNames(names_in(model.graph))
        self._parts: dict[tuple[str, int], str] = {}

    def permute(self, space: _Space, order: np.ndarray) -> None:
        """Channels in another order: in all that makes them, and in what reads them."""
        for product in space.products:
            self._set(product.inputs[1], np.take(self.arrays[product.inputs[1]], order, output_axis(product)))
        for name in space.vectors:
            array = self.arrays[name]
            self._set(name, array.reshape(-1)[order].reshape(array.shape))
        weight = space.reader.inputs[1]
        self._set(weight, np.take(self.arrays[weight], order, 1 - output_axis(space.reader)))

    def cut(self, product: Node, places: Sequence[int]) -> None:
        """A product, and bias and activation that join it, as one layer for each part and a Concat."""
        chain = [product]
        while (reader := self.program.sole_consumer(chain[-1].outputs[0])) is not None and (
            reader.op in _FOLDED or (reader.op == "Add" and product.op == "MatMul" and len(chain) == 1)
        ):
            chain.append(reader)
        result = chain[-1].outputs[0]
        axis = channel_axis(self.program, result, product.op)
        nodes = {node.output[0]: node for node in self.graph.node}
        at = next(i for i, n in enumerate(self.graph.node) if n.output[0] == product.outputs[0])
        made = []
        for number, span in enumerate(pairwise(places)):
            for link in chain:
                made += self._part(link, nodes[link.outputs[0]], number, span, axis)
        parts = [self._named(result, number) for number in range(len(places) - 1)]
        name = self._fresh.node(f"{product.name}.parts")
        made.append(helper.make_node("Concat", parts, [result], name=name, axis=axis))
        for link in chain:
            self.graph.node.remove(nodes[link.outputs[0]])
        for offset, node in enumerate(made):
            self.graph.node.insert(at + offset, node)

    def finish(self) -> None:
        """Write changed constants; those of products that were cut are gone."""
        used = {name for node in self.graph.node for name in node.input}
        kept = [t for t in self.graph.initializer if t.name in used and t.name not in self._changed]
        kept += [numpy_helper.from_array(self.arrays[name], name) for name in sorted(self._changed & used)]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)

    def _named(self, whole: str, number: int) -> str:
        """What a part of a node or value is called."""
        if (whole, number) not in self._parts:
            self._parts[whole, number] = self._fresh.new(f"{whole}.{number}")
        return self._parts[whole, number]

    def _part(
        self, link: Node, proto: onnx.NodeProto, number: int, span: tuple[int, int], axis: int
    ) -> list[onnx.NodeProto]:
        """A node of a chain for some channels."""
        first, last = span
        channels = self.program.shapes[link.outputs[0]][axis]
        out, made = onnx.NodeProto(), []
        out.CopyFrom(proto)
        out.name = f"{link.name}.{number}"
        for i, name in enumerate(link.inputs):
            array = self.arrays.get(name)
            if array is None:
                out.input[i] = name if link.op in PRODUCTS else self._named(name, number)
            elif array.size > 1:
                weighs = i == 1 and link.op in PRODUCTS
                along = output_axis(link) if weighs else array.shape.index(channels)
                out.input[i] = self._slice(name, number, array, along, span)
        if link.op == "Conv" and link.attributes.get("group", 1) > 1:
            whole, part = link.inputs[0], self._fresh.new(f"{out.name}.in")
            made.append(self._slicing(whole, part, span, out.name))
            out.input[0] = part
            for attribute in out.attribute:
                if attribute.name == "group":
                    attribute.i = last - first
        out.output[0] = self._named(link.outputs[0], number)
        self._declare(out.output[0], link.outputs[0], axis, last - first)
        return [*made, out]

    def _slicing(self, whole: str, part: str, span: tuple[int, int], name: str) -> onnx.NodeProto:
        bounds = []
        for word, value in (("from", span[0]), ("to", span[1]), ("axis", 1)):
            bounds.append(self._fresh.new(f"{part}.{word}"))
            self._set(bounds[-1], np.array([value], np.int64))
        self._declare(part, whole, 1, span[1] - span[0])
        return helper.make_node("Slice", [whole, *bounds], [part], name=f"{name}.slice")

    def _slice(self, name: str, number: int, array: np.ndarray, axis: int, span: tuple[int, int]) -> str:
        part = self._named(name, number)
        self._set(part, np.take(array, range(*span), axis))
        return part

    def _declare(self, name: str, like: str, axis: int, channels: int) -> None:
        shape = list(self.program.shapes[like])
        shape[axis] = channels
        self.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))

    def _set(self, name: str, array: np.ndarray) -> None:
        self.arrays[name] = np.ascontiguousarray(array)
        self._changed.add(name)


def _cuts(ranges: np.ndarray) -> list[int]:
    """Where to cut sorted ranges: 0, ..., all; the loudest part is last."""
    cuts, end = [len(ranges)], len(ranges)
    for start in range(_COLUMNS * ((end - 1) // _COLUMNS), 0, -_COLUMNS):
        if len(cuts) == _MOST_PARTS:
            break
        if ranges[:start].max() * _FINER <= ranges[: cuts[0]].max():
            cuts.insert(0, start)
    return [0, *cuts]


def _gain(ranges: np.ndarray) -> float:
    """Bits that the channels of a product gain, on average."""
    loudest = float(ranges.max()) or 1.0
    tops = [(b - a, float(ranges[a:b].max())) for a, b in pairwise(_cuts(ranges))]
    return float(sum(count * np.log2(loudest / max(top, loudest * 2**-8)) for count, top in tops))


def _space(program: Program, first: Node) -> _Space | None:
    """The channels that `first` makes, as far as a reader that sums over them; None where others see them."""
    if not _is_dense(first) or not are_owned(program, first):
        return None
    value, products, vectors = first.outputs[0], [first], [*filter(None, first.inputs[2:])]
    axis = channel_axis(program, value, first.op)
    channels = program.shapes[value][axis]
    while channels > _COLUMNS:
        reader = program.sole_consumer(value)
        if reader is None or reader.domain or len([v for v in reader.outputs if v]) != 1:
            break
        if reader.op in PRODUCTS:
            summed = channel_axis(program, value, reader.op)
            if reader.inputs[0] != value or axis != summed or not are_owned(program, reader):
                break
            if _is_dense(reader):
                return _Space(tuple(products), tuple(vectors), reader)
            if not _is_depthwise(program, reader):
                break
            products.append(reader)
            vectors.extend(filter(None, reader.inputs[2:]))
        elif (constants := _channel_constants(program, reader, value, axis)) is not None:
            vectors.extend(constants)
        else:
            break
        value = reader.outputs[0]
    return None


def _channel_constants(program: Program, node: Node, value: str, axis: int) -> list[str] | None:
    """Constants with a number for each channel; None where the result mixes channels, or moves them."""
    shape, result = program.shapes[value], program.shapes[node.outputs[0]]
    if keeps_apart(program, node):
        return [] if axis == 1 else None
    if result != shape or list(program.activations(node)) != [value]:
        return None
    if node.op not in UNARY and node.op not in ("Add", "Sub", "Mul", "Div", "PRelu"):
        return None
    constants = [n for n in node.inputs if n in program.constants and program.constants[n].size > 1]
    for name in constants:
        array = program.constants[name]
        padded = (1,) * (len(shape) - array.ndim) + array.shape
        alone = len(program.consumers(name)) == 1 and array.dtype == np.float32
        if not alone or not array.size == padded[axis] == shape[axis]:
            return None
    return constants


def _is_dense(node: Node) -> bool:
    return node.op in PRODUCTS and node.attributes.get("group", 1) == 1


def _is_depthwise(program: Program, node: Node) -> bool:
    outputs, inputs = program.shapes[node.inputs[1]][:2]
    return node.op == "Conv" and node.attributes.get("group", 1) == outputs and inputs == 1
