"""Prints the C functions of the model: one per layer, one per fusion group, and `run`."""

from __future__ import annotations

from converter.graph import HostLayer, Tensor, TensorCoreLayer
from costmodel.evaluate import LayerCost, NetworkCost
from emitters.gemmini.expression import Expr
from emitters.gemmini.form import PIXELS
from emitters.gemmini.host import HostCall, float_literal, host_call
from emitters.gemmini.memory import Place
from emitters.gemmini.plan import FirmwarePlan, GroupPlan, LayerPlan
from emitters.gemmini.printer import CPrinter
from emitters.gemmini.tensor_core import LayerPrinter, Region, psum_of

C_TYPES = {"int8": "int8_t", "int32": "int32_t", "float32": "float"}
_ACTIVATIONS = {"none": "NO_ACTIVATION", "relu": "RELU"}


class FunctionPrinter:
    """Prints all functions and remembers which primitives and host operators they use."""

    def __init__(self, plan: FirmwarePlan, cost: NetworkCost) -> None:
        self.c = CPrinter()
        self.plan = plan
        self.cost = cost
        self.graph = plan.schedule.graph
        self.used: set[str] = set()
        self.used_host: set[str] = set()
        self.index = {layer.name: i for i, layer in enumerate(self.graph.layers)}

    def print(self) -> str:
        """Everything, callees first."""
        for group in self.plan.groups:
            for name in group.group.layers:
                layer = self.graph.by_name[name]
                if isinstance(layer, TensorCoreLayer):
                    self._tensor_core(layer, self.plan.layers[name], group)
            if group.fused:
                self._group(group)
        self._run()
        return self.c.text

    # Tensor-core layers

    def _tensor_core(self, layer: TensorCoreLayer, plan: LayerPlan, group: GroupPlan) -> None:
        c, form = self.c, plan.form
        self.used |= {"load_image", "load_weights", "multiply", "store_tile"}
        c.line()
        c.comment(*self._describe(layer, self.cost.by_name[layer.name]))
        parameters = ["const elem_t *input"]
        if self.graph.tensors[layer.weight.tensor].data is None:
            parameters.append("const elem_t *stationary")
        parameters.append("elem_t *result")
        region = Region({}, {})
        if group.fused:
            parameters += ["const box_t *box"]
            region = Region({d: f"{d.lower()}_start" for d in PIXELS}, {d: f"{d.lower()}_count" for d in PIXELS})
        with c.function(f"static void layer_{self.plan.names[layer.name]}({', '.join(parameters)})"):
            if group.fused:
                self._region_constants()
            self._operands(layer, plan)
            c.call(
                "gemmini_extended_config_ex", "WEIGHT_STATIONARY", "NO_ACTIVATION", 0, form.x.stride, "false", "false"
            )
            LayerPrinter(c, form, plan.nest, plan.local, region).print(load_weights=not plan.resident)
            c.call("wait_for_gemmini")

    def _region_constants(self) -> None:
        for d in PIXELS:
            self.c.constant(f"{d.lower()}_start", f"box->{d.lower()}.start")
            self.c.constant(f"{d.lower()}_count", f"box->{d.lower()}.count")

    def _describe(self, layer: TensorCoreLayer, cost: LayerCost) -> list[str]:
        m = self.plan.schedule.mappings[layer.name]
        traffic = cost.bytes_in("dram")
        moved = ", ".join(f"{tensor} {r} read {w} written" for tensor, (r, w) in sorted(traffic.items()))
        nodes = f" (ONNX {', '.join(layer.onnx_nodes)})" if layer.onnx_nodes else ""
        orders = " ".join(f"{level} {''.join(m.order(level))}" for level in ("L3", "L2", "L1"))  # type: ignore[arg-type]
        return [
            f"{layer.name}: {layer.op} {layer.dims}{nodes}",
            f"tiles: scratchpad {m.tile_l2}; accumulator {m.tile_l1}; array rows {m.rows}, columns {m.cols}",
            f"loop orders, outermost first: {orders}",
            f"DRAM bytes: {moved or 'none'}",
        ]

    def _operands(self, layer: TensorCoreLayer, plan: LayerPlan) -> None:
        """Declare image, weights, bias, output and psum as the primitives expect them."""
        c, form = self.c, plan.form
        _, n, h, w = form.input_strides
        with c.initialiser("const image_t image"):
            c.line(f".data = input{_plus(form.input_offset)}, .stride_n = {n}, .stride_y = {h}, .stride_x = {w},")
            c.line(f".height = {form.y.size}, .width = {form.x.size}, .block = {form.depth},")
            c.line(f".repeats = {form.repeats},")
        if form.depthwise:
            g = form.columns
            strides = (form.dims.S * g, g, form.dims.R * form.dims.S * g)
        else:
            strides = form.weight_strides[1:]
        blob = self.plan.memory.weight_place(layer)
        if blob.symbol == "weights":
            source = f"WEIGHTS(elem_t, {blob.offset + layer.weight.offset * self.plan.schedule.target.element_bytes})"
        else:
            source = f"stationary{_plus(layer.weight.offset)}"
        with c.initialiser("const weights_t weights"):
            c.line(f".data = {source},")
            c.line(
                f".stride_r = {strides[0]}, .stride_s = {strides[1]}, .stride_c = {strides[2]}, "
                f".block = {form.columns},"
            )
        if layer.bias is not None:
            self.used.add("load_bias")
            place = self.plan.memory.tensors[layer.bias]
            c.line(f"const acc_t *const bias = WEIGHTS(acc_t, {place.offset});")
        _, n, p, q = form.output_strides
        with c.initialiser("const output_t output"):
            c.line(f".data = (uintptr_t)(result{_plus(layer.output.offset)}),")
            c.line(f".stride_n = {n}, .stride_p = {p}, .stride_q = {q}, .size = sizeof(elem_t),")
            c.line(
                f".block = {form.columns}, .activation = {_ACTIVATIONS[layer.activation]}, "
                f".scale = {float_literal(layer.scale)},"
            )
        psum = psum_of(form, plan.nest)
        if psum is not None:
            n, p, q = psum.strides
            place = self.plan.memory.psums[layer.name]
            with c.initialiser("const output_t psum"):
                c.line(f".data = (uintptr_t)ARENA(acc_t, {place.offset}),")
                c.line(f".stride_n = {n}, .stride_p = {p}, .stride_q = {q}, .size = sizeof(acc_t),")
                c.line(f".block = {form.columns}, .activation = NO_ACTIVATION, .scale = ACC_SCALE_IDENTITY,")

    # Groups

    def _group(self, group: GroupPlan) -> None:
        raise NotImplementedError

    # Run

    def _run(self) -> None:
        c, graph = self.c, self.graph
        parameters = [
            f"const {C_TYPES[graph.tensors[name].dtype]} *input{i}" for i, name in enumerate(graph.inputs)
        ] + [f"{C_TYPES[graph.tensors[name].dtype]} *output{i}" for i, name in enumerate(graph.outputs)]
        c.line()
        with c.function(f"int {self.plan.model}_run({', '.join(parameters)})"):
            c.call("gemmini_flush", 0)
            for group in self.plan.groups:
                if group.fused:
                    self._call_group(group)
                else:
                    self._call_layer(group.group.layers[0])
            c.line("return 0;")

    def _call_layer(self, name: str) -> None:
        layer = self.graph.by_name[name]
        index = self.index[name]
        self.c.call("observe", index, 0)
        if isinstance(layer, HostLayer):
            call = self._host(layer)
            self.c.call(call.function, *call.arguments)
        else:
            self.c.call(f"layer_{self.plan.names[name]}", *self._arguments(layer))
        self.c.call("observe", index, 1)
        self.c.call("observe", index, 2)

    def _arguments(self, layer: TensorCoreLayer) -> list[Expr]:
        arguments: list[Expr] = [self.address(layer.input.tensor)]
        if self.graph.tensors[layer.weight.tensor].data is None:
            arguments.append(self.address(layer.weight.tensor))
        return [*arguments, self.address(layer.output.tensor)]

    def _host(self, layer: HostLayer) -> HostCall:
        pointers = {name: self.address(name) for name in (*layer.inputs, *layer.outputs)}
        if layer.op == "add":
            self.used.add("add_tensors")
            return self._add(layer, pointers)
        call = host_call(self.graph, layer, pointers)
        self.used_host |= call.needs
        return call

    def _add(self, layer: HostLayer, at: dict[str, str]) -> HostCall:
        a = layer.attributes
        scales = [float_literal(float(str(a[key]))) for key in ("a_scale", "b_scale", "scale")]
        first, second = layer.inputs
        output = layer.outputs[0]
        size = self.graph.tensors[output].size
        activation = _ACTIVATIONS[str(a.get("activation", "none"))]
        return HostCall(
            "add_tensors", (at[first], at[second], at[output], size, *scales, activation), frozenset()
        )

    def address(self, name: str) -> str:
        """C expression of a tensor's address, typed as its elements."""
        return pointer(self.plan.memory.tensors[name], self.graph.tensors[name])


def pointer(place: Place, tensor: Tensor) -> str:
    """C expression of the first element at `place`."""
    ctype = C_TYPES[tensor.dtype]
    if place.symbol in ("input", "output"):
        return f"{place.symbol}{place.index}"
    macro = {"arena": "ARENA", "weights": "WEIGHTS", "tile_buffer": "TILE_BUFFER"}[place.symbol]
    return f"{macro}({ctype}, {place.offset})"


def _plus(offset: int) -> str:
    return f" + {offset}" if offset else ""
