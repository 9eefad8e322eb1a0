"""Prints `run`: layers and groups one after the other, equal steps of a recurrence as loops."""

from __future__ import annotations

from collections.abc import Mapping

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.converter.ir.host import Add
from fadiff.costmodel.group.copies import stored_by_core
from fadiff.costmodel.group.side_by_side import layer_on_gemmini
from fadiff.emitters.gemmini.constants import C_TYPES
from fadiff.emitters.gemmini.equal_steps import Statements, print_statements
from fadiff.emitters.gemmini.expression import Expr, plus
from fadiff.emitters.gemmini.formula import float_literal
from fadiff.emitters.gemmini.group import GroupPrinter
from fadiff.emitters.gemmini.host import description, host_call
from fadiff.emitters.gemmini.library_calls import print_addition, sum_fields
from fadiff.emitters.gemmini.operands import pointer
from fadiff.emitters.gemmini.plan import FirmwarePlan, GroupPlan
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.side_by_side import Beside


def parameters(graph: Graph) -> str:
    """Of `run` in C."""
    types = {name: C_TYPES[tensor.dtype] for name, tensor in graph.tensors.items()}
    return ", ".join(
        [f"const {types[name]} *input{i}" for i, name in enumerate(graph.arguments)]
        + [f"{types[name]} *output{i}" for i, name in enumerate(graph.results)]
    )


class RunPrinter:
    """Prints calls of what `FunctionPrinter` printed.

    Args:
        c: where to.
        plan: of the firmware.
        functions: C function of every layer on the array that has one, by layer.
        tables: names of tables of host layers that stand for others.
    """

    def __init__(
        self, c: CPrinter, plan: FirmwarePlan, functions: Mapping[str, str], tables: Mapping[str, str]
    ) -> None:
        self.c, self.plan = c, plan
        self.functions, self.tables = functions, tables
        self.graph = plan.schedule.graph
        self.headers: set[str] = set()

    def print(self) -> None:
        """The function."""
        c, graph = self.c, self.graph
        c.line()
        with c.function(f"int {self.plan.model}_run({parameters(graph)})"):
            for index, name in enumerate(graph.arguments):
                if not graph.consumers(name):
                    c.line(f"(void)input{index};")
            c.line("stopped = 0;")
            if self.plan.memory.weights.nbytes:
                c.call("RETURN_WITHOUT_WEIGHTS")
            c.call("wait_for_gemmini")
            c.call("gemmini_flush", 0)
            print_statements(c, self._statements())
            self._keep_states()
            c.line("return stopped;")

    def _statements(self) -> list[Statements]:
        """Of every group."""
        whole, found, core_stored = self.c, [], False
        for group in self.plan.groups:
            self.c = CPrinter(float("inf"))
            layer = self.graph.by_name[group.group.layers[0]]
            if group.group.side_by_side:
                layer = layer_on_gemmini(self.graph, group.group)
            on_core = stored_by_core(layer, self.plan.schedule.copies) and not group.fused
            if core_stored and not on_core:
                self.c.call("wait_for_gemmini")
            core_stored = on_core
            if group.fused:
                self._call_group(group)
            else:
                self._call_layer(layer.name, group)
            if group is not self.plan.groups[-1]:
                self.c.call("RETURN_IF_STOPPED")
            comment = description(layer) if isinstance(layer, HostLayer) and not group.fused else ""
            found.append(Statements(self.c.lines, comment))
        self.c = whole
        return found

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
        printer = GroupPrinter(self.c, self.plan, group)
        self.c.call(printer.name, *(self.address(tensor) for tensor in printer.outside_tensors()))
        for name in group.group.layers:
            self.c.call("observe", self.graph.index[name], 2)

    def _call_layer(self, name: str, group: GroupPlan) -> None:
        layer = self.graph.by_name[name]
        index = self.graph.index[name]
        self.c.call("observe", index, 0)
        if isinstance(layer, TensorCoreLayer):
            beside = self._beside(group, name) if group.group.side_by_side else ()
            self.c.call(self.functions[name], *self._arguments(layer), *beside)
        elif isinstance(layer.operator, Add):
            self._add(layer, layer.operator)
        else:
            pointers = {tensor: self.address(tensor) for tensor in (*layer.inputs, *layer.outputs)}
            if layer.name in self.plan.moved:
                self.headers.add("copies")
            call = host_call(self.graph, layer, pointers, self.tables, self.plan.moved.get(layer.name))
            self.c.call(call.function, *call.arguments)
        self.c.call("observe_end", index)
        for other in group.group.layers:
            if other != name:
                self.c.call("observe", self.graph.index[other], 2)

    def _beside(self, group: GroupPlan, name: str) -> list[str]:
        """Where what the core reads and writes meanwhile is."""
        beside = Beside.of(self.graph, self.plan.memory, group, self.plan.layers[name], self.tables)
        return [self.address(tensor) for tensor in beside.parameters]

    def _arguments(self, layer: TensorCoreLayer) -> list[Expr]:
        arguments: list[Expr] = [plus(self.address(layer.input.tensor), layer.input.offset)]
        if self.graph.tensors[layer.weight.tensor].data is None:
            arguments.append(self.address(layer.weight.tensor))
        if layer.row_scale is not None:
            arguments.append(self.address(layer.row_scale.tensor))
        if layer.channel_scale is not None:
            arguments.append(self.address(layer.channel_scale))
        return [*arguments, plus(self.address(layer.output.tensor), layer.output.offset)]

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
