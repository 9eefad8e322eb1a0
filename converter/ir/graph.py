"""The Graph: what an ONNX model is after the front end, and all that later stages see of it.

Everything here is frozen, hardware-free and already *lowered*:

* tensors are in storage order (images are N H W C), `Tensor.onnx_axes` says how storage order
  came from the ONNX value, so that a tool can compare the two;
* every tensor-core layer addresses its operands through a `View` (offset and element strides), so
  reshapes, transposes, splits and concatenations that a strided access can express have vanished;
* int8 tensors are symmetric: value = scale * integer (zero point 0), but for those with a zero point
  (`Tensor.zero`) and for inputs and outputs with scales along an axis (`AxisScales`); a graph for a
  float32 array has no scales, and its activations, weights and biases are float32.  In an int8 graph layers
  on the core may be kept in float32 (ops float_*), between `to_float` and `to_int8`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from fadiff.converter.ir.host import Activation as Activation
from fadiff.converter.ir.host import Copy, Fill, Gather, HostOperator, Scatter, StridedOperator
from fadiff.converter.ir.loops import Dims
from fadiff.converter.ir.recurrence import Operation, Repeat, State, find_repeats
from fadiff.converter.ir.scale import AxisScales

if TYPE_CHECKING:
    import networkx as nx

DType = Literal["int8", "uint8", "int32", "float32"]
"""Bytes (uint8) are inputs only, which a table reads."""
ElementType = Literal["int8", "float32"]
"""Element type of the array: weights, activations and booleans are stored as this type."""
TensorCoreOp = Literal["conv", "depthwise", "conv_transpose", "gemm", "bmm"]


@dataclass(frozen=True)
class Tensor:
    """A value of the graph in storage order.

    `scale` is a float32 value held in a Python float (exactly representable); None for float32.
    `data` is the constant content in storage order, None for activations.  Weights of tensor-core
    layers are stored [G, R, S, C, K] (that is HWIO per group), biases [G, K] int32 with scale
    input.scale * weight.scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scale: float | None = None
    data: np.ndarray | None = field(default=None, compare=False, repr=False)
    onnx_name: str | None = None
    onnx_axes: tuple[int, ...] | None = None
    """storage = transpose(onnx value, onnx_axes); None means the same order."""
    zero: int = 0
    """The integer that stands for 0.0 (converter/quantise/zeros.py)."""
    along: AxisScales | None = None
    """Meaning of an input's or output's integers to the program around, instead of `scale` and `zero`."""

    def meaning(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset in float32, to go with the stored integers: value = scale * integer + offset."""
        if self.along is not None:
            return self.along.broadcast(len(self.shape))
        scale = np.float32(1.0 if self.scale is None else self.scale)
        return np.asarray(scale), np.asarray(-scale * np.float32(self.zero))

    @property
    def constant(self) -> bool:
        """Whether its content is known."""
        return self.data is not None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class View:
    """Strided access to a tensor: element address = offset + sum(index * stride), in elements.

    The index order depends on the operand: input (G, N, H, W, C), weight (G, R, S, C, K),
    output and row scale (G, N, P, Q, K).  A stride of 0 broadcasts.
    """

    tensor: str
    offset: int
    strides: tuple[int, int, int, int, int]


@dataclass(frozen=True)
class TensorCoreLayer:
    """A convolution or matrix product: runs on the systolic array and has a mapping.

    out = sat8(round_half_even(float32(acc) * scale)) after `activation`, with
    acc = sum(input * weight) + bias in int32 (gemmini: config_st acc_scale and activation); in a
    float32 graph acc and out are float32, nothing is rounded to integers and scale is 1.
    `scale` = float32((input.scale * weight.scale) / output.scale), every step in float32.
    With a `row_scale` it is float32(scale * row_scale[pixel]): every row of results leaves the accumulator
    with a scale of its own, which an earlier layer computed.  An int32 output holds the sums themselves.
    pads are (top, left, bottom, right); padding reads zero.
    """

    name: str
    op: TensorCoreOp
    dims: Dims
    input: View
    weight: View
    output: View
    input_size: tuple[int, int]
    """Height and width of the unpadded input image (a GEMM: its P and 1)."""
    bias: str | None = None
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    activation: Activation = "none"
    scale: float = 1.0
    onnx_nodes: tuple[str, ...] = ()
    row_scale: View | None = None
    """View of a float32 tensor of positive factors, the same for all K (and depthwise channels)."""
    channel_scale: str | None = None
    """A constant float32 [G, K]: results of every channel leave the accumulator with its factor beside
    `scale` (not with a `row_scale`)."""
    channel_block: int = 1
    """Channels of a group, from a multiple of this on, that have one factor."""
    polynomial: tuple[int, int] | None = None
    """b <= 0 and c of I-GELU (Gemmini's CONFIG_NORM), in place of an activation: acc becomes
    acc * (sign(acc) * p + c) with p = (min(|acc|, -b) + b)^2 + c, modulo 2^32."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors read, constants included."""
        scales = self.row_scale.tensor if self.row_scale is not None else None
        names = (self.input.tensor, self.weight.tensor, self.bias, scales, self.channel_scale)
        return tuple(name for name in names if name is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors written."""
        return (self.output.tensor,)

    @property
    def has_transposed_weights(self) -> bool:
        """Whether the array transposes them: they are contiguous along input channels.  A single column that
        is may be loaded either way; its view says by the stride between columns."""
        d, (across, along) = self.dims, self.weight.strides[3:]
        return along != 1 and (d.K > 1 or (across == 1 < d.C and d.R * d.S == 1))

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self.dims.product


@dataclass(frozen=True)
class HostLayer:
    """Anything without an N K C P Q R S form: plain C on the core, or Gemmini data moves (add)."""

    name: str
    operator: HostOperator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    onnx_nodes: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        """Kind of the operator."""
        return self.operator.op


Layer = TensorCoreLayer | HostLayer


@dataclass(frozen=True)
class Graph:
    """A DAG of layers over tensors; `layers` is in a topological order.

    Raises:
        ValueError: a layer names an unknown tensor, a tensor has two producers, or the order is
            not topological.
    """

    name: str
    tensors: Mapping[str, Tensor]
    layers: tuple[Layer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sha256: str = ""
    """Digest of the model file."""
    states: tuple[State, ...] = ()
    """Outputs that are inputs of the next run, by tensor names: stored alike, kept between runs."""

    def __post_init__(self) -> None:
        known = {n for n, t in self.tensors.items() if t.data is not None} | set(self.inputs)
        names: set[str] = set()
        for tensor in self.inputs:
            if tensor not in self.tensors:
                raise ValueError(f"graph input {tensor} is no tensor")
        for layer in self.layers:
            if layer.name in names:
                raise ValueError(f"two layers are called {layer.name}")
            names.add(layer.name)
            for tensor in layer.inputs:
                if tensor not in known:
                    raise ValueError(f"layer {layer.name} reads {tensor} before it is written")
            for tensor in layer.outputs:
                if tensor not in self.tensors:
                    raise ValueError(f"layer {layer.name} writes unknown tensor {tensor}")
            known.update(layer.outputs)
        for tensor in self.outputs:
            if tensor not in known:
                raise ValueError(f"graph output {tensor} is never written")
        for state in self.states:
            if state.output not in self.outputs or state.input not in self.inputs:
                raise ValueError(f"state {state} is no output and input of the graph")
            ends = (self.tensors[state.output], self.tensors[state.input])
            forms = {(end.size, end.dtype, end.scale, end.zero) for end in ends}
            if len(forms) > 1:
                raise ValueError(f"state {state}: output and input are not stored alike")

    @cached_property
    def dag(self) -> nx.DiGraph[str]:
        """Layer names as nodes; an edge carries the name of the (first) `tensor` that flows along it."""
        import networkx as nx

        dag: nx.DiGraph[str] = nx.DiGraph()
        writers: dict[str, list[str]] = {}
        for layer in self.layers:
            dag.add_node(layer.name)
            for tensor in layer.inputs:
                for writer in writers.get(tensor, []):
                    if not dag.has_edge(writer, layer.name):
                        dag.add_edge(writer, layer.name, tensor=tensor)
            for tensor in layer.outputs:
                writers.setdefault(tensor, []).append(layer.name)
        return dag

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The inputs that a run is given: all but states."""
        return tuple(name for name in self.inputs if name not in {state.input for state in self.states})

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The outputs that a run hands out: all but states."""
        return tuple(name for name in self.outputs if name not in {state.output for state in self.states})

    @cached_property
    def element_type(self) -> ElementType:
        """Element type of the array: float32 if computed values are, and none is int8."""
        values = (*self.inputs, *(name for layer in self.layers for name in layer.outputs))
        types = {self.tensors[name].dtype for name in values}
        return "float32" if "float32" in types and "int8" not in types else "int8"

    def is_kept_float(self, layer: Layer) -> bool:
        """Whether the core computes with float32 beside an int8 array, and does not move it alone."""
        moves = isinstance(layer, HostLayer) and isinstance(layer.operator, Copy | Fill | Gather | Scatter)
        types = {self.tensors[name].dtype for name in (*layer.inputs[:1], layer.outputs[0])}
        return types == {"float32"} and self.element_type == "int8" and not moves

    @cached_property
    def by_name(self) -> Mapping[str, Layer]:
        """Layers by their unique names."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Place of every layer in graph order, by name."""
        return {layer.name: i for i, layer in enumerate(self.layers)}

    @cached_property
    def dependents(self) -> tuple[int, ...]:
        """Layers that need each layer's results, through others, too: in graph order, a bit for each."""
        masks = [0] * len(self.layers)
        for at in reversed(range(len(self.layers))):
            for name in self.dag.successors(self.layers[at].name):
                reader = self.index[name]
                masks[at] |= masks[reader] | 1 << reader
        return tuple(masks)

    @cached_property
    def tensor_core_layers(self) -> tuple[TensorCoreLayer, ...]:
        """The layers that have a mapping, in graph order."""
        return tuple(layer for layer in self.layers if isinstance(layer, TensorCoreLayer))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights of layers on the array: the least that one run streams."""
        names = {layer.weight.tensor for layer in self.tensor_core_layers} - set(self.inputs)
        return sum(self.tensors[name].nbytes for name in names if not self.producers(name))

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """Equal steps of recurrences, by layer index: weights and scales are the same."""
        return find_repeats([self._operation(layer) for layer in self.layers])

    @cached_property
    def step_roles(self) -> Mapping[str, str]:
        """Tensors that equal steps write, by what the same layer of the first step writes."""
        return {
            tensor: role
            for repeat in self.repeats
            for i in range(repeat.first, repeat.end)
            for tensor, role in zip(
                self.layers[i].outputs,
                self.layers[repeat.first + (i - repeat.first) % repeat.period].outputs,
                strict=True,
            )
        }

    def _operation(self, layer: Layer) -> Operation:
        constants = tuple(name for name in layer.inputs if self.tensors[name].data is not None)
        computed = tuple(name for name in layer.inputs if self.tensors[name].data is None)
        kind: Hashable
        if isinstance(layer, TensorCoreLayer):
            source, output = _anywhere(layer.input), _anywhere(layer.output)
            weight = layer.weight if layer.weight.tensor in constants else _anywhere(layer.weight)
            scales = layer.row_scale and _anywhere(layer.row_scale)
            kind = replace(
                layer, name="", onnx_nodes=(), input=source, weight=weight, output=output, row_scale=scales
            )
        elif isinstance(layer.operator, StridedOperator):
            loops = layer.operator.loops
            kind = replace(layer.operator, loops=loops.anywhere)
        else:
            shapes = tuple(self.tensors[name].shape for name in (*computed, *layer.outputs))
            kind = (layer.operator, shapes)
        return Operation((kind, constants, len(computed)), computed, layer.outputs)

    def consumers(self, tensor: str) -> tuple[Layer, ...]:
        """Layers that read `tensor`, in graph order."""
        return self._readers.get(tensor, ())

    def producers(self, tensor: str) -> tuple[Layer, ...]:
        """Layers that write `tensor`: several when a concatenation became destination offsets."""
        return self._writers.get(tensor, ())

    @cached_property
    def filled_first(self) -> tuple[tuple[str, str], ...]:
        """Fills of whole tensors, each with a layer that writes a part of it afterwards: no edge of `dag`."""
        return tuple(
            (first.name, later.name)
            for first in self.layers
            if isinstance(first, HostLayer) and isinstance(first.operator, Fill)
            for later in self.producers(first.outputs[0])
            if later is not first
        )

    @cached_property
    def _readers(self) -> Mapping[str, tuple[Layer, ...]]:
        return _index((tensor, layer) for layer in self.layers for tensor in dict.fromkeys(layer.inputs))

    @cached_property
    def _writers(self) -> Mapping[str, tuple[Layer, ...]]:
        return _index((tensor, layer) for layer in self.layers for tensor in dict.fromkeys(layer.outputs))


def _anywhere(view: View) -> View:
    return replace(view, tensor="", offset=0)


def _index(pairs: Iterable[tuple[str, Layer]]) -> dict[str, tuple[Layer, ...]]:
    found: dict[str, list[Layer]] = {}
    for tensor, layer in pairs:
        found.setdefault(tensor, []).append(layer)
    return {tensor: tuple(layers) for tensor, layers in found.items()}
