"""Prints the C functions of the model: one per layer, one per fusion group, and `run`."""

from __future__ import annotations

from converter.ir.graph import HostLayer, TensorCoreLayer
from converter.ir.host import Add
from costmodel.group.fusion import stored_as
from costmodel.group.issue import obstacle_to_loops
from costmodel.group.loop_products import row_pitches
from costmodel.group.pooling import Pool, pool_of
from costmodel.mapping.mapping import CALLS, ISSUED, Level, Mapping
from costmodel.schedule.evaluate import LayerCost, NetworkCost
from emitters.gemmini.constants import ACTIVATIONS, C_TYPES
from emitters.gemmini.early_loads import EarlyPrinter
from emitters.gemmini.expression import Expr
from emitters.gemmini.form import PIXELS
from emitters.gemmini.formula import float_literal, print_formulas
from emitters.gemmini.group import GroupPrinter, runs_on_core
from emitters.gemmini.host import description, host_call, print_tables
from emitters.gemmini.library_calls import print_addition, print_library_call, print_tiled_call, sum_fields
from emitters.gemmini.loop_convolutions import ConvolutionLoops
from emitters.gemmini.loop_products import ProductLoops
from emitters.gemmini.operands import Box, OperandPrinter, box_of, pointer, weight_source
from emitters.gemmini.outputs import Destinations
from emitters.gemmini.plan import FirmwarePlan, GroupPlan, LayerPlan
from emitters.gemmini.positions import Positions, Region
from emitters.gemmini.printer import CPrinter
from emitters.gemmini.tensor_core import LayerPrinter

_LEVELS: tuple[Level, ...] = ("L3", "L2", "L1")


class FunctionPrinter:
    """Prints all functions and remembers which headers of `runtime` they need."""

    def __init__(self, plan: FirmwarePlan, cost: NetworkCost) -> None:
        self.c = CPrinter()
        self.plan = plan
        self.cost = cost
        self.graph = plan.schedule.graph
        self.headers: set[str] = set()
        self.index = {layer.name: i for i, layer in enumerate(self.graph.layers)}

    def print(self) -> str:
        """Everything, callees first."""
        print_formulas(self.c, self.graph)
        fused = {name for group in self.plan.groups if group.fused for name in group.group.layers}
        print_tables(self.c, self.graph, fused)
        for group in self.plan.groups:
            for name in group.group.layers:
                layer = self.graph.by_name[name]
                if isinstance(layer, TensorCoreLayer):
                    self._tensor_core(layer, self.plan.layers[name], group)
            if group.fused:
                printer = GroupPrinter(self.c, self.plan, group, self.index)
                printer.print()
                self.headers |= printer.headers
        self._run()
        return self.c.text

    # Tensor-core layers

    def _tensor_core(self, layer: TensorCoreLayer, plan: LayerPlan, group: GroupPlan) -> None:
        issue = plan.form.mapping.issue
        if layer.name in self.plan.library or issue in CALLS:
            tiled = [f"{layer.name}: {layer.op} {layer.dims}, tiled by gemmini.h"]
            described = self._describe(layer, self.cost.by_name[layer.name]) if issue in CALLS else tiled
            self._library_call(layer, described)
            return
        c, local = self.c, plan.local
        stored = stored_as(group.members, layer.name)
        after = self.graph.by_name[stored.name]
        destinations = Destinations(
            output=local.held_output is None,
            held=local.held_output is not None and not local.held_output.in_accumulator,
            whole=stored.writes_inside and stored.writes_outside,
            boxed=group.in_tile_buffer(stored.name),
            pool=pool_of(self.graph, after) if isinstance(after, HostLayer) else None,
        )
        input_box = self._input_box(layer, group)
        c.line()
        c.comment(*self._describe(layer, self.cost.by_name[layer.name]))
        parameters = [] if local.held_input else ["const elem_t *input"]
        if self.graph.tensors[layer.weight.tensor].data is None:
            parameters.append("const elem_t *stationary")
        if destinations.output:
            parameters.append("elem_t *result")
        region = Region()
        if destinations.whole:
            parameters.append("elem_t *whole")
        if group.fused:
            parameters.append("const region_t *region")
            region = Region({d: f"{d.lower()}_start" for d in PIXELS}, "region->first")
        with c.function(f"static void layer_{self.plan.names[layer.name]}({', '.join(parameters)})"):
            if group.fused:
                self._region_constants(plan)
            output_box = box_of(self.graph, group, stored.name) if destinations.boxed else None
            if issue == "instructions":
                self._instructions(plan, region, input_box, output_box, destinations)
            else:
                self._loops(plan, region, input_box, output_box, destinations.pool)
            c.call("wait_for_gemmini")

    def _loops(
        self,
        plan: LayerPlan,
        region: Region,
        input_box: Box | None,
        output_box: Box | None,
        pool: Pool | None,
    ) -> None:
        """Scratchpad tiles run by a loop unit of Gemmini's."""
        layer, memory, e = plan.form.layer, self.plan.memory, self.plan.schedule.target.element_bytes
        at = Positions(plan.form, plan.nest, region)
        weights = weight_source(layer, memory, e)
        bias = "" if layer.bias is None else f"WEIGHTS(acc_t, {memory.tensors[layer.bias].offset})"
        pinned = plan.setting.pinned
        if plan.form.mapping.issue == "loop_ws":
            self.headers.add("loop_products")
            pitches = row_pitches(plan.setting)
            ProductLoops(self.c, at, pinned, pitches, weights, bias, input_box, output_box).print()
        else:
            self.headers.add("loop_convolutions")
            ConvolutionLoops(self.c, at, pinned, weights, bias, input_box, output_box, pool).print()

    def _instructions(
        self,
        plan: LayerPlan,
        region: Region,
        input_box: Box | None,
        output_box: Box | None,
        destinations: Destinations,
    ) -> None:
        """Moves and products that the core issues one by one."""
        c, memory, e = self.c, self.plan.memory, self.plan.schedule.target.element_bytes
        layer = plan.form.layer
        OperandPrinter(c, self.graph, memory, plan, e, input_box, output_box, destinations).print()
        self._configure_array(layer, plan)
        loads = self.plan.early.get(layer.name)
        self.headers |= {"loads", "products", "stores"} | ({"held_rows"} if destinations.held else set())
        LayerPrinter(
            c,
            plan.form,
            plan.nest,
            plan.local,
            region,
            resident=plan.resident,
            prefetched=plan.prefetched,
            early=None if loads is None else EarlyPrinter(c, loads, memory, e, region.first),
            boxed_input=input_box is not None,
            destinations=destinations,
        ).print()

    def _configure_array(self, layer: TensorCoreLayer, plan: LayerPlan) -> None:
        """Weight stationary; operands in the accumulator are activated and scaled as the array reads them."""
        stride, transpose = plan.form.x.stride, "true" if plan.form.transposed else "false"
        held = plan.local.held_input
        if held is None or not held.in_accumulator:
            config = ("WEIGHT_STATIONARY", "NO_ACTIVATION", 0, stride, "false", transpose)
            self.c.call("gemmini_extended_config_ex", *config)
            return
        producer = self.graph.producers(layer.input.tensor)[0]
        assert isinstance(producer, TensorCoreLayer)
        activation, scale = ACTIVATIONS[producer.activation], float_literal(producer.scale)
        read = ("WEIGHT_STATIONARY", activation, 0, scale, 1, stride, "false", transpose, "false")
        self.c.call("gemmini_extended3_config_ex", *read)

    def _library_call(self, layer: TensorCoreLayer, described: list[str]) -> None:
        memory = self.plan.memory
        place = memory.weight_place(layer)
        constant = place.symbol == "weights"
        parameters = ["const elem_t *input", "elem_t *result"]
        if not constant:
            parameters.insert(1, "const elem_t *stationary")
        self.c.line()
        self.c.comment(*described)
        with self.c.function(f"static void layer_{self.plan.names[layer.name]}({', '.join(parameters)})"):
            weights = f"WEIGHTS(elem_t, {place.offset})" if constant else "stationary"
            bias = "NULL" if layer.bias is None else f"WEIGHTS(acc_t, {memory.tensors[layer.bias].offset})"
            if layer.name in self.plan.library:
                print_library_call(self.c, layer, weights, bias)
            else:
                mapping, side = self.plan.schedule.mappings[layer.name], self.plan.schedule.target.side
                print_tiled_call(self.c, layer, mapping, side, weights, bias)
            self.c.call("wait_for_gemmini")

    def _input_box(self, layer: TensorCoreLayer, group: GroupPlan) -> Box | None:
        if layer.input.tensor not in group.members[layer.name].fused_inputs:
            return None
        producer = self.graph.producers(layer.input.tensor)[0].name
        return box_of(self.graph, group, producer) if group.in_tile_buffer(producer) else None

    def _region_constants(self, plan: LayerPlan) -> None:
        for d in PIXELS:
            low = d.lower()
            self.c.constant(f"{low}_start", f"region->{low}.start")
            if plan.varies[d]:
                self.c.constant(f"{low}_count", f"region->{low}.end - region->{low}.start")

    def _describe(self, layer: TensorCoreLayer, cost: LayerCost) -> list[str]:
        m = self.plan.schedule.mappings[layer.name]
        tiles = f"scratchpad {m.tile_l2}; accumulator {m.tile_l1}"
        if m.tile_l1 == m.tile_l2:
            tiles = f"scratchpad and accumulator {m.tile_l2}"
        lines = [
            f"{layer.name}: {layer.op} {layer.dims}",
            f"tiles: {tiles}; array rows {m.rows}, columns {m.cols}",
            f"issued as {ISSUED[m.issue]}; loops, outermost first: {self._loop_orders(layer, m)}",
        ]
        if m.issue == "instructions" and (reason := obstacle_to_loops(self.plan.layers[layer.name].setting)):
            lines.append(f"no hardware loop: {reason}")
        if layer.onnx_nodes not in ((), (layer.name,)):
            lines.insert(1, f"ONNX nodes: {', '.join(layer.onnx_nodes)}")
        if layer.name in self.plan.early:
            lines.append(
                f"loads the first weights of {self.plan.early[layer.name].form.layer.name} meanwhile"
            )
        if self.plan.layers[layer.name].prefetched:
            lines.append("finds its first weights in the scratchpad; their bytes are among those below")
        for memory, label in (("dram", "DRAM bytes"), ("tile-buffer", "tile buffer bytes")):
            moved = [
                f"{tensor} {count} {way}"
                for tensor, counts in sorted(cost.bytes_in(memory).items())
                for way, count in zip(("read", "written"), counts, strict=True)
                if count
            ]
            if moved:
                lines.append(f"{label}: {', '.join(moved)}")
        return lines

    def _loop_orders(self, layer: TensorCoreLayer, mapping: Mapping) -> str:
        """Of the loops that turn more than once; a loop unit orders those of its tile itself."""
        levels = _LEVELS if mapping.issue == "instructions" else _LEVELS[:1]
        full = self.plan.layers[layer.name].nest.full
        orders = []
        for level in levels:
            trips = mapping.trips(level, full)
            turning = "".join(d for d in mapping.order(level) if trips[d] > 1)
            orders.append(f"{level} {turning or 'none'}")
        return ", ".join(orders)

    # Run

    def _run(self) -> None:
        c, graph = self.c, self.graph
        parameters = [
            f"const {C_TYPES[graph.tensors[name].dtype]} *input{i}" for i, name in enumerate(graph.arguments)
        ] + [f"{C_TYPES[graph.tensors[name].dtype]} *output{i}" for i, name in enumerate(graph.results)]
        c.line()
        with c.function(f"int {self.plan.model}_run({', '.join(parameters)})"):
            for index, name in enumerate(graph.arguments):
                if not graph.consumers(name):
                    c.line(f"(void)input{index};")
            c.line("stopped = 0;")
            if self.plan.memory.weights.nbytes:
                c.call("RETURN_WITHOUT_WEIGHTS")
            c.call("wait_for_gemmini")
            c.call("gemmini_flush", 0)
            core_stored = False
            for group in self.plan.groups:
                first = self.graph.by_name[group.group.layers[0]]
                on_core = runs_on_core(first) and not group.fused
                if core_stored and not on_core:
                    c.call("wait_for_gemmini")
                core_stored = on_core
                if group.fused:
                    self._call_group(group)
                else:
                    self._call_layer(first.name)
                if group is not self.plan.groups[-1]:
                    c.call("RETURN_IF_STOPPED")
            self._keep_states()
            c.line("return stopped;")

    def _keep_states(self) -> None:
        """What of the states was not written where the next run reads it."""
        places = self.plan.memory.tensors
        moved = [state for state in self.graph.states if places[state.output] != places[state.input]]
        if moved:
            self.c.call("gemmini_fence")
        for state in moved:
            nbytes = self.graph.tensors[state.input].nbytes
            self.c.call("memcpy", self.address(state.input), self.address(state.output), nbytes)

    def _call_group(self, group: GroupPlan) -> None:
        printer = GroupPrinter(self.c, self.plan, group, self.index)
        self.c.call(printer.name, *(self.address(tensor) for tensor in printer.outside_tensors()))
        for name in group.group.layers:
            self.c.call("observe", self.index[name], 2)

    def _call_layer(self, name: str) -> None:
        layer = self.graph.by_name[name]
        index = self.index[name]
        if isinstance(layer, HostLayer):
            self.c.comment(description(layer))
        self.c.call("observe", index, 0)
        if isinstance(layer, TensorCoreLayer):
            self.c.call(f"layer_{self.plan.names[name]}", *self._arguments(layer))
        elif isinstance(layer.operator, Add):
            self._add(layer, layer.operator)
        else:
            pointers = {tensor: self.address(tensor) for tensor in (*layer.inputs, *layer.outputs)}
            call = host_call(self.graph, layer, pointers)
            self.c.call(call.function, *call.arguments)
        self.c.call("observe_end", index)

    def _arguments(self, layer: TensorCoreLayer) -> list[Expr]:
        arguments: list[Expr] = [self.address(layer.input.tensor)]
        if self.graph.tensors[layer.weight.tensor].data is None:
            arguments.append(self.address(layer.weight.tensor))
        return [*arguments, self.address(layer.output.tensor)]

    def _add(self, layer: HostLayer, add: Add) -> None:
        """One line as long as the tensor."""
        operands = [self.address(tensor) for tensor in (*layer.inputs, *layer.outputs)]
        shape = self.graph.tensors[layer.outputs[0]].shape
        size = self.graph.tensors[layer.outputs[0]].size
        if self.plan.library_adds:
            relu = "true" if add.activation == "relu" else "false"
            rows = (size // shape[-1], shape[-1])
            scales = [float_literal(scale) for scale in (add.a_scale, add.b_scale, add.scale)]
            self.c.call("tiled_resadd_auto", *rows, *scales, *operands, relu, "WS")
            return
        if self.plan.schedule.additions.get(layer.name) == "tiled_resadd":
            print_addition(self.c, add, size, self.plan.schedule.target, operands)
            return
        self.headers.add("sums")
        with self.c.scope():
            places = [f".{field} = {operand}" for field, operand in zip("abc", operands, strict=True)]
            fields = [*places, f".lines = 1, .length = {size}", *sum_fields(add)]
            self.c.fields("const sum_t sum", fields)
            self.c.call("add_lines", "&sum")

    def address(self, name: str) -> str:
        """C expression of a tensor's address, typed as its elements."""
        return pointer(self.plan.memory.tensors[name], self.graph.tensors[name])
