"""Steps that stay in float32 on an int8 array: lowered as for a float32 array, then moved to the core.

docs/host-ops.md (Layers in float) has the operators.  Products may have 16-bit activations and run on the
array: x = 128 high + low, both int8, in steps of the largest magnitude / 16256 that the core finds when the
layer runs.  The array multiplies both planes, one after the other as two images, by the same int8 weights;
the core adds 128 times the first sums to the second.  As it multiplies every channel by a number anyway,
weights have a scale for each output channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fadiff.converter.ir import host as ops
from fadiff.converter.ir.builder import GraphBuilder, dense_strides, weight_view
from fadiff.converter.ir.graph import HostLayer, Layer, TensorCoreLayer, View
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.strided import StridedView
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.functions import without_library
from fadiff.converter.plan.floats import float_states, outputs_of
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import as_float, rounded_by_channel


def wide_product(graph: GraphBuilder, layer: TensorCoreLayer, ceiling: float | None) -> list[Layer] | None:
    """The layers that take the place of a float32 product; None where operands are no whole tensors, weights
    are computed, or there are groups."""
    d, weight = layer.dims, graph.tensors[layer.weight.tensor]
    x, out = graph.tensors[layer.input.tensor], graph.tensors[layer.output.tensor]
    if d.G > 1 or weight.data is None or layer.weight != weight_view(weight.name, d):
        return None
    rows = layer.op == "gemm"
    count, axis = (d.P, 2) if rows else (d.N, 1)
    alone = d.N == 1 or not rows
    read = list(layer.input.strides)
    if count == 1:
        read[axis] = x.size
    if not alone or layer.input.offset or read[axis] * count != x.size:
        return None
    if layer.output.offset or out.size != d.N * d.P * d.Q * d.K:  # (what fills a tensor lies as it stores)
        return None
    name, inputs = layer.name, (layer.bias,) if layer.bias is not None else ()
    integers, scales = rounded_by_channel(weight.data.reshape(-1, d.K), 1)
    content = integers.reshape(weight.shape)
    planes = graph.tensor(f"{x.name}.planes", (2, *x.shape), "int8", 1.0)
    step = graph.tensor(f"{x.name}.step", (1,), "float32")
    eight = graph.tensor(f"{weight.name}.int8", weight.shape, "int8", 1.0, content)
    channels = graph.tensor(f"{weight.name}.scales", (d.K,), "float32", None, scales)
    sums = graph.tensor(f"{out.name}.sums", (2, *out.shape), "int32")
    store = list(dense_strides((d.N, d.P, d.Q, d.K)))
    store[axis - 1] = out.size // count
    dims = replace(d, P=2 * d.P) if rows else replace(d, N=2 * d.N)
    product = replace(
        layer,
        name=graph.unique(f"{name}.product"),
        dims=dims,
        input=View(planes, 0, (read[0], read[1], read[2], read[3], read[4])),
        weight=weight_view(eight, d),
        output=View(sums, 0, (0, store[0], store[1], store[2], store[3])),
        input_size=(dims.P, 1) if rows else layer.input_size,
        bias=None,
        activation="none",
        scale=1.0,
    )
    joined = ops.FloatSums(layer.activation, ceiling)
    return [
        HostLayer(graph.unique(f"{name}.split"), ops.Planes(), (x.name,), (planes, step)),
        product,
        HostLayer(name, joined, (sums, step, channels, *inputs), layer.outputs, layer.onnx_nodes),
    ]


Handler = Callable[[Lowering, Step], None]


class FloatLayers:
    """Lowers the float steps of an int8 graph beside `integers`, which lowers the others.

    Args:
        integers: the lowering of the int8 steps; both grow one graph.
        steps: the plan.
    """

    def __init__(self, integers: Lowering, steps: Sequence[Step]) -> None:
        self.integers = integers
        kept = [step for step in steps if step.is_float]
        quantisation = as_float(integers.program, kept)
        self.floats = Lowering(integers.graph.name, integers.program, quantisation)
        self.floats.graph = integers.graph
        self._made: dict[tuple[str, float], str] = {}
        self._states = float_states(integers.program, steps)

    def lower_input(self, value: str, handler: Callable[[Lowering, str], None]) -> None:
        """Lower an input of the graph; what comes in float is rounded for steps that read it in int8."""
        states = {state.input for state in self._states}
        if value not in states | self.integers.program.float_inputs:
            handler(self.integers, value)
            return
        handler(self.floats, value)
        self._hand_over(value)

    def finish(self) -> None:
        """Leave both ends of states in float as the graph's input and output."""
        for state in self._states:
            for end in (state.input, state.output):
                self.integers.values[end] = self.floats.values[end]

    def lower(self, step: Step, handler: Handler) -> None:
        """Lower a step with a handler for float32 arrays; other steps find its outputs in int8."""
        layers = self.integers.graph.layers
        for node in step.nodes:
            for value in self.integers.program.activations(node):
                if value in self.integers.values and value not in self.floats.values:
                    self.floats.values[value] = self._in_float(self.integers.values[value])
        first = len(layers)
        handler(self.floats, step)
        graph, made = self.integers.graph, layers[first:]
        del layers[first:]
        for layer in made:
            on_array = None
            if step.is_wide and isinstance(layer, TensorCoreLayer):
                on_array = wide_product(graph, layer, step.ceiling)
            layers.extend(on_array or [_on_core(graph, layer, step.ceiling)])
        for value in outputs_of(step):
            self._hand_over(value)

    def _hand_over(self, value: str) -> None:
        if value in self.integers.quantisation.scales:
            self.integers.values[value] = self._in_int8(value)

    def _in_float(self, value: StridedView) -> StridedView:
        """The same access to the float32 form of a whole int8 tensor."""
        graph = self.integers.graph
        source, scale = graph.tensors[value.tensor], value.scale or 1.0
        key = (source.name, scale)
        if key not in self._made:
            name = f"{source.name}.float"
            self._made[key] = graph.tensor(name, source.shape, "float32", onnx_axes=source.onnx_axes)
            graph.host(f"{source.name}.to_float", ops.ToFloat(scale), (source.name,), (self._made[key],))
        return replace(value, tensor=self._made[key], scale=None)

    def _in_int8(self, name: str) -> StridedView:
        graph, value = self.integers.graph, self.floats.values[name]
        if not self.floats.is_whole(value):
            value = self.floats.copy(value)
        source, scale = graph.tensors[value.tensor], self.integers.scale(name)
        assert scale is not None
        tensor = graph.tensor(
            f"{source.name}.int8", source.shape, "int8", scale, None, source.onnx_name, source.onnx_axes
        )
        graph.host(f"{source.name}.to_int8", ops.ToInt8(scale), (source.name,), (tensor,))
        return replace(value, tensor=tensor, scale=scale)


def _on_core(graph: GraphBuilder, layer: Layer, ceiling: float | None) -> Layer:
    """A layer of a float32 graph as the core runs it beside an int8 array."""
    if isinstance(layer, TensorCoreLayer):
        return _product_on_core(layer, ceiling)
    match layer.operator:
        case ops.Add(activation=activation):
            access = Access(0, (1,))
            loops = Loops((graph.tensors[layer.outputs[0]].size,), (access, access), access)
            return replace(layer, operator=ops.Binary(loops, "add", 1.0, 1.0, 1.0, activation, ceiling))
        case ops.Binary() as operator:
            return replace(layer, operator=replace(operator, ceiling=ceiling))
        case ops.Formula(formula=formula) as operator:
            return replace(layer, operator=replace(operator, formula=without_library(formula)))
    return layer


def _product_on_core(layer: TensorCoreLayer, ceiling: float | None) -> HostLayer:
    d = layer.dims
    product = ops.FloatProduct(
        dims=(d.G, d.N, d.K, d.C, d.P, d.Q, d.R, d.S),
        input_size=layer.input_size,
        stride=layer.stride,
        dilation=layer.dilation,
        pads=layer.pads,
        input=Access(layer.input.offset, layer.input.strides),
        weight=Access(layer.weight.offset, layer.weight.strides),
        output=Access(layer.output.offset, layer.output.strides),
        activation=layer.activation,
        ceiling=ceiling,
    )
    return HostLayer(layer.name, product, layer.inputs, layer.outputs, layer.onnx_nodes)
