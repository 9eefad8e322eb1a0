"""Prints the C functions of the model: of layers (equal ones share theirs), of fusion groups, and `run`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fadiff.converter.ir.graph import HostLayer, TensorCoreLayer
from fadiff.costmodel.group.fusion import stored_as
from fadiff.costmodel.group.issue import obstacle_to_loops
from fadiff.costmodel.group.loop_products import factor_pitch, row_pitches
from fadiff.costmodel.group.placement import stores_sums
from fadiff.costmodel.group.pooling import pool_of
from fadiff.costmodel.group.side_by_side import parts_of
from fadiff.costmodel.group.tile_buffer import Strides, box_strides
from fadiff.costmodel.mapping.mapping import BY_CORE, ISSUED, Level, Mapping
from fadiff.costmodel.schedule.evaluate import LayerCost, NetworkCost
from fadiff.emitters.gemmini.formula import print_formulas
from fadiff.emitters.gemmini.group import GroupPrinter
from fadiff.emitters.gemmini.host import ROW_FACTORS, print_tables
from fadiff.emitters.gemmini.library_calls import print_library_call
from fadiff.emitters.gemmini.loop_convolutions import ConvolutionLoops
from fadiff.emitters.gemmini.loop_products import CoreProducts, ProductLoops
from fadiff.emitters.gemmini.operands import OperandPrinter, weight_source
from fadiff.emitters.gemmini.outputs import Destinations
from fadiff.emitters.gemmini.pipeline import LinesBeside
from fadiff.emitters.gemmini.plan import FirmwarePlan, GroupPlan, LayerPlan
from fadiff.emitters.gemmini.positions import Positions, Region
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.run import RunPrinter
from fadiff.emitters.gemmini.side_by_side import Beside
from fadiff.emitters.gemmini.tensor_core import LayerPrinter

_LEVELS: tuple[Level, ...] = ("L3", "L2", "L1")


class FunctionPrinter:
    """Prints all functions and remembers which headers of `runtime` they need."""

    def __init__(self, plan: FirmwarePlan, cost: NetworkCost) -> None:
        self.c = CPrinter()
        self.plan = plan
        self.cost = cost
        self.graph = plan.schedule.graph
        self.headers: set[str] = set()
        self.functions: dict[str, str] = {}
        """The C function of each layer outside of groups, by layer."""
        self._known: dict[tuple[str, ...], str] = {}
        """By what they do."""
        self.tables: dict[str, str] = {}
        """Of host layers: names that stand for others."""

    def print(self) -> str:
        """Everything, callees first."""
        print_formulas(self.c, self.graph)
        self.tables = print_tables(self.c, self.graph, self._called(), self.plan.moved)
        for group in self.plan.groups:
            printer = GroupPrinter(self.c, self.plan, group)
            printer.print_lines()
            for name in group.group.layers:
                layer = self.graph.by_name[name]
                if isinstance(layer, TensorCoreLayer):
                    self._function(layer, group, printer.beside.get(name))
            if group.fused:
                printer.print()
                self.headers |= printer.headers
        run = RunPrinter(self.c, self.plan, self.functions, self.tables)
        run.print()
        self.headers |= run.headers
        if any(layer.op in ROW_FACTORS for layer in self.graph.layers):
            self.headers.add("row_factors")
        return self.c.text

    def _called(self) -> Iterator[HostLayer]:
        """What is called of the host operators that run alone, or in parts beside a layer on Gemmini."""
        whole = {group.group.layers[0] for group in self.plan.groups if len(group.group.layers) == 1}
        parted = {
            name for group in self.plan.groups if group.group.side_by_side for name in group.group.layers
        }
        for layer in self.graph.layers:
            if isinstance(layer, HostLayer) and layer.op != "add":
                if layer.name in whole:
                    yield layer
                elif layer.name in parted:
                    yield parts_of(layer).layer

    # Tensor-core layers

    def _function(self, layer: TensorCoreLayer, group: GroupPlan, lines: LinesBeside | None) -> None:
        """The function of a layer; outside of groups one that is there already, where it does the same.

        `lines` of other members are computed between its tiles.
        """
        whole, self.c = self.c, CPrinter()
        name, plan = f"layer_{self.plan.names[layer.name]}", self.plan.layers[layer.name]
        if group.fused:
            described = self._tensor_core(name, layer, plan, group, lines)
        else:
            described = self._tensor_core(name, *_at_first_elements(layer, plan), group)
        own, *body = self.c.lines
        self.c = whole
        key = (own.replace(name, "", 1), *body)
        if not group.fused and key in self._known:
            self.functions[layer.name] = self._known[key]
            return
        self.functions[layer.name] = self._known[key] = name
        self.c.line()
        self.c.comment(*described)
        for line in (own, *body):
            self.c.line(line)

    def _tensor_core(
        self,
        function: str,
        layer: TensorCoreLayer,
        plan: LayerPlan,
        group: GroupPlan,
        lines: LinesBeside | None = None,
    ) -> list[str]:
        """Prints a layer's function; what it is called in the comment above."""
        issue = plan.form.mapping.issue
        if layer.name in self.plan.library:
            self._library_call(function, layer)
            return [f"{layer.name}: {layer.op} {layer.dims}, tiled by gemmini.h"]
        c = self.c
        stored = stored_as(group.members, layer.name)
        after = self.graph.by_name[stored.name]
        destinations = Destinations(
            whole=stored.writes_inside and stored.writes_outside,
            box=box_strides(self.graph, group.members[stored.name]) if stored.writes_inside else None,
            pool=pool_of(self.graph, after) if isinstance(after, HostLayer) else None,
        )
        input_box = self._input_box(layer, group)
        parameters = ["const elem_t *input"]
        if self.graph.tensors[layer.weight.tensor].data is None:
            parameters.append("const elem_t *stationary")
        if layer.row_scale is not None:
            parameters.append("const float *row_scales")
        if layer.channel_scale is not None:
            parameters.append("const float *channel_scales")
        parameters.append(f"{'acc_t' if stores_sums(self.graph, layer) else 'elem_t'} *result")
        region = Region()
        if destinations.whole:
            parameters.append("elem_t *whole")
        if group.fused:
            parameters.append("const region_t *region")
            region = Region({d: f"{d.lower()}_start" for d in group.axes(layer)}, "region->first")
        beside: Beside | LinesBeside | None = lines
        if group.group.side_by_side:
            beside = Beside.of(self.graph, self.plan.memory, group, plan, self.tables)
        if beside is not None:
            parameters += beside.signature
        with c.function(f"static void {function}({', '.join(parameters)})"):
            if group.fused:
                self._region_constants(plan, group)
            if layer.polynomial is not None:
                c.call("gemmini_config_norm", 0, 0, 0, 0, 0, *layer.polynomial)
            if issue == "instructions":
                self._instructions(plan, region, input_box, destinations)
            else:
                self._loops(plan, region, input_box, destinations, beside)
            if not group.group.pipelined:
                c.call("wait_for_gemmini")
        return self._describe(layer, self.cost.by_name[layer.name])

    def _loops(
        self,
        plan: LayerPlan,
        region: Region,
        input_box: Strides | None,
        destinations: Destinations,
        beside: Beside | LinesBeside | None,
    ) -> None:
        """Scratchpad tiles run by a loop unit of Gemmini's."""
        layer, memory, e = plan.form.layer, self.plan.memory, self.plan.schedule.target.element_bytes
        at = Positions(plan.form, plan.nest, region)
        weights = weight_source(layer, memory, e)
        bias = "" if layer.bias is None else f"WEIGHTS(acc_t, {memory.tensors[layer.bias].offset})"
        tiles = (self.c, at, plan.setting.pinned, beside, weights, bias, input_box, destinations.box)
        if plan.form.mapping.issue == "loop_ws":
            self.headers.add("loop_products")
            ProductLoops(*tiles, row_pitches(plan.setting)).print()
        elif plan.form.mapping.issue == "core_ws":
            self.headers.add("core_products")
            sums = stores_sums(self.graph, layer)
            CoreProducts(*tiles, row_pitches(plan.setting), factor_pitch(plan.setting) or 0, sums).print()
        else:
            self.headers.add("loop_convolutions")
            ConvolutionLoops(*tiles, destinations.pool).print()

    def _instructions(
        self, plan: LayerPlan, region: Region, input_box: Strides | None, destinations: Destinations
    ) -> None:
        """Moves and products that the core issues one by one."""
        c, memory, e = self.c, self.plan.memory, self.plan.schedule.target.element_bytes
        layer = plan.form.layer
        sums = stores_sums(self.graph, layer)
        OperandPrinter(c, memory, plan, e, input_box, destinations, sums).print()
        transpose = "true" if plan.form.transposed else "false"
        config = ("WEIGHT_STATIONARY", "NO_ACTIVATION", 0, plan.form.x.stride, "false", transpose)
        c.call("gemmini_extended_config_ex", *config)
        self.headers |= {"loads", "products", "stores"}
        LayerPrinter(
            c,
            plan,
            region,
            boxed_input=input_box is not None,
            destinations=destinations,
        ).print()

    def _library_call(self, function: str, layer: TensorCoreLayer) -> None:
        memory = self.plan.memory
        place = memory.weight_place(layer)
        constant = place.symbol == "weights"
        parameters = ["const elem_t *input", "elem_t *result"]
        if not constant:
            parameters.insert(1, "const elem_t *stationary")
        with self.c.function(f"static void {function}({', '.join(parameters)})"):
            weights = f"WEIGHTS(elem_t, {place.offset})" if constant else "stationary"
            bias = "NULL" if layer.bias is None else f"WEIGHTS(acc_t, {memory.tensors[layer.bias].offset})"
            print_library_call(self.c, layer, weights, bias)
            self.c.call("wait_for_gemmini")

    def _input_box(self, layer: TensorCoreLayer, group: GroupPlan) -> Strides | None:
        if layer.input.tensor not in group.members[layer.name].fused_inputs:
            return None
        producer = self.graph.producers(layer.input.tensor)[0].name
        return box_strides(self.graph, group.members[producer])

    def _region_constants(self, plan: LayerPlan, group: GroupPlan) -> None:
        for d in group.axes(plan.form.layer):
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
        if m.issue in BY_CORE and (reason := obstacle_to_loops(self.plan.layers[layer.name].setting)):
            lines.append(f"no hardware loop: {reason}")
        if layer.onnx_nodes not in ((), (layer.name,)):
            lines.insert(1, f"ONNX nodes: {', '.join(layer.onnx_nodes)}")
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


def _at_first_elements(layer: TensorCoreLayer, plan: LayerPlan) -> tuple[TensorCoreLayer, LayerPlan]:
    """A layer that is called with the first elements that it reads and writes, not with their tensors."""
    first = replace(layer, input=replace(layer.input, offset=0), output=replace(layer.output, offset=0))
    form = replace(plan.form, layer=first, input_offset=plan.form.input_offset - layer.input.offset)
    return first, replace(plan, form=form)
