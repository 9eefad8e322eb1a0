"""Emit: append ONNX nodes for the arithmetic of stored tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import StridedOperator
from fadiff.converter.ir.stored import WeightFile, initializer

OPSET = 20


class Emit:
    """Nodes and constants of the reference model; every method returns the name of a value."""

    def __init__(self, graph: Graph, file: WeightFile | None = None) -> None:
        self.graph = graph
        self.tensors = graph.tensors
        self._file = file
        self.is_float = graph.element_type == "float32"
        self.lowest = np.finfo(np.float32).min if self.is_float else np.int8(-128)
        """The smallest element."""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.current: dict[str, str] = {}
        """The ONNX value that holds the latest content of a tensor, flat in storage order."""
        self.unclipped: dict[str, list[str]] = {}
        """float32 sums that a ReLU of a tensor cuts off, by tensor."""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._numbers = itertools.count()

    def _fresh(self, letter: str) -> str:
        """A value name that no tensor of the graph has."""
        return next(n for i in self._numbers if (n := f"{letter}{i}") not in self.tensors)

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One node with one output."""
        out = self._fresh("v")
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{op}_{out}", **attributes))
        return out

    def constant(self, array: np.ndarray | np.generic) -> str:
        """A constant; equal small constants are shared."""
        array = np.asarray(array, order="C")  # (ascontiguousarray makes scalars vectors)
        key = (str(array.dtype), array.shape, array.tobytes() if array.nbytes <= 4096 else b"")
        if array.nbytes <= 4096 and key in self._constants:
            return self._constants[key]
        name = self._fresh("c")
        self.initializers.append(initializer(name, array, self._file))
        self._constants[key] = name
        return name

    def ints(self, values: Sequence[int]) -> str:
        """An int64 vector (axes, shapes)."""
        return self.constant(np.asarray(values, np.int64))

    def cast(self, value: str, dtype: str) -> str:
        """Conversion to bool, int8, int32, int64, float32 or float64."""
        names = {"float32": "FLOAT", "float64": "DOUBLE"}
        return self.op("Cast", value, to=getattr(TensorProto, names.get(dtype, dtype.upper())))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """The same elements under another shape."""
        return self.op("Reshape", value, self.ints(shape))

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:
        """`value` as an output of the model."""
        self.nodes.append(helper.make_node("Reshape", [value, self.ints(shape)], [name], name=f"out {name}"))

    def lowest_of(self, tensor: str) -> np.generic:
        """The smallest element that a tensor can have."""
        return np.finfo(np.float32).min if self.tensors[tensor].dtype == "float32" else self.lowest

    # numbers -------------------------------------------------------------------------------

    def element(self, value: str) -> str:
        """A float32 value as an element: sat8(round_half_even(value)), float32 as it is."""
        if self.is_float:
            return value
        low, high = self.constant(np.float32(-128)), self.constant(np.float32(127))
        return self.cast(self.op("Clip", self.op("Round", value), low, high), "int8")

    def zero(self) -> str:
        """Zero as an accumulator word."""
        return self.constant(np.float32(0) if self.is_float else np.int32(0))

    def word(self, value: str) -> str:
        """Elements as accumulator words: int32, or float32."""
        return value if self.is_float else self.cast(value, "int32")

    def wide(self, value: str) -> str:
        """Elements as int64, or float64, for long sums."""
        return self.cast(value, "float64" if self.is_float else "int64")

    def scaled(self, value: str, scale: float) -> str:
        """float32(value) * scale, both roundings in float32."""
        if self.is_float and scale == 1.0:
            return value
        return self.op("Mul", self.cast(value, "float32"), self.constant(np.float32(scale)))

    # storage -------------------------------------------------------------------------------

    def flat(self, tensor: str) -> str:
        """The whole content of a tensor as a vector in storage order."""
        data = self.tensors[tensor].data
        if data is not None and tensor not in self.current:
            self.current[tensor] = self.constant(np.asarray(data).reshape(-1))
        return self.current[tensor]

    def dense(self, tensor: str) -> str:
        """The whole content in the tensor's storage shape."""
        return self.reshape(self.flat(tensor), self.tensors[tensor].shape)

    def read(self, tensor: str, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> str:
        """Strided access: element [i...] = content[offset + sum(i * stride)], shaped `sizes`."""
        moving = [i for i in range(len(sizes)) if sizes[i] > 1 and strides[i]]
        order = sorted(moving, key=lambda i: (-strides[i], i))
        flat, total = self.flat(tensor), self.tensors[tensor].size
        radices = _radices(total, offset, [sizes[i] for i in order], [strides[i] for i in order])
        if radices is None:
            index = _addresses(offset, sizes, strides)
            return self.op("Gather", flat, self.constant(index.astype(np.int32)))
        shape, starts = radices
        value = self.reshape(flat, shape)
        ends = [start + size for start, size in zip(starts, [*(sizes[i] for i in order), 1], strict=True)]
        if starts != [0] * len(starts) or ends != shape:
            value = self.op("Slice", value, self.ints(starts), self.ints(ends), self.ints(range(len(shape))))
        value = self.reshape(value, [sizes[i] for i in order])
        kept = sorted(order)
        if order != kept:
            value = self.op("Transpose", value, perm=[order.index(i) for i in kept])
        broadcast = [size if i in moving else 1 for i, size in enumerate(sizes)]
        value = self.reshape(value, broadcast)
        return value if broadcast == list(sizes) else self.op("Expand", value, self.ints(sizes))

    def write(
        self, tensor: str, value: str, offset: int, sizes: Sequence[int], strides: Sequence[int]
    ) -> None:
        """Store a dense value shaped `sizes` through a strided access."""
        total = self.tensors[tensor].size
        moving = [i for i in range(len(sizes)) if sizes[i] > 1]
        order = sorted(moving, key=lambda i: -strides[i])
        reach = 1
        for i in reversed(order):
            if strides[i] != reach:
                break
            reach *= sizes[i]
        else:
            if reach == total and offset == 0:
                value = self.reshape(value, [sizes[i] for i in moving])
                if order != moving:
                    value = self.op("Transpose", value, perm=[moving.index(i) for i in order])
                self.current[tensor] = self.reshape(value, [total])
                return
        if tensor not in self.current:
            zeros = np.zeros(total, self.tensors[tensor].dtype)
            self.current[tensor] = self.constant(zeros)
        index = self.constant(_addresses(offset, sizes, strides).reshape(-1).astype(np.int64))
        updates = self.reshape(value, [math.prod(sizes)])
        self.current[tensor] = self.op("ScatterElements", self.current[tensor], index, updates)

    def write_dense(self, tensor: str, value: str) -> None:
        """Store a value that is the whole tensor in storage order."""
        self.current[tensor] = self.reshape(value, [self.tensors[tensor].size])


def _addresses(offset: int, sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    index = np.asarray(offset, np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        index = index[..., None] + np.arange(size, dtype=np.int64) * stride
    return index


def _radices(
    total: int, offset: int, sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Shape of the flat content and start of each axis so that slicing it gives the access.

    Strides fall; the last axis of the shape is what lies below the smallest stride.
    """
    shape, starts, above = [], [], total
    for size, stride in zip(sizes, strides, strict=True):
        if above % stride:
            return None
        radix, start = above // stride, offset // stride
        if start + size > radix:
            return None
        shape.append(radix)
        starts.append(start)
        offset -= start * stride
        above = stride
    return [*shape, above], [*starts, offset]


def operand(emit: Emit, layer: HostLayer, index: int) -> str:
    """An input through its strided access, shaped like the loops."""
    loops = _operator(layer).loops
    access = loops.inputs[index]
    return emit.read(layer.inputs[index], access.offset, loops.shape, access.strides)


def store(emit: Emit, layer: HostLayer, value: str) -> None:
    """A value shaped like the loops, through the output's strided access."""
    loops = _operator(layer).loops
    emit.write(layer.outputs[0], value, loops.output.offset, loops.shape, loops.output.strides)


def _operator(layer: HostLayer) -> StridedOperator:
    assert isinstance(layer.operator, StridedOperator)
    return layer.operator


def sloped(emit: Emit, a: str, positive: str, negative: str) -> str:
    """PRelu's choice: `negative`, the product with a slope, where `a` is below zero."""
    is_positive = emit.op("GreaterOrEqual", emit.cast(a, "float32"), emit.constant(np.float32(0)))
    return emit.op("Where", is_positive, positive, negative)
