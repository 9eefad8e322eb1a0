"""Prints a fusion group: its tiles as C loops, its members' regions as tables of intervals."""

from __future__ import annotations

import math

from converter.ir.dims import Dim
from converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from converter.ir.host import Add
from costmodel.group.fusion import stored_as
from costmodel.mapping.shape import extents
from emitters.gemmini.constants import ACTIVATIONS
from emitters.gemmini.expression import Expr
from emitters.gemmini.form import PIXELS
from emitters.gemmini.formula import float_literal
from emitters.gemmini.host import description
from emitters.gemmini.library_calls import print_addition, resadd_tile
from emitters.gemmini.operands import Box, box_of, held_fields, pointer
from emitters.gemmini.plan import FirmwarePlan, GroupPlan
from emitters.gemmini.printer import CPrinter
from emitters.gemmini.row_members import RowPrinter

_COUNTERS = ("i", "j", "k")


class GroupPrinter:
    """Prints one group function; layer functions come before it."""

    def __init__(self, c: CPrinter, plan: FirmwarePlan, group: GroupPlan, index: dict[str, int]) -> None:
        self.c, self.plan, self.group, self.index = c, plan, group, index
        self.graph: Graph = plan.schedule.graph
        self.used: set[str] = set()
        last = group.members[group.group.layers[-1]]
        self.tiles = tuple(len(axis) for axis in last.needed_grid)

    @property
    def name(self) -> str:
        """Of the C function."""
        return f"group_{self.plan.names[self.group.group.layers[-1]]}"

    def outside_tensors(self) -> list[str]:
        """Activations in memory that the group reads or writes, in order of first use."""
        names: dict[str, None] = {}
        for member in self.group.members.values():
            layer = self.graph.by_name[member.name]
            for tensor in layer.inputs:
                if tensor not in member.fused_inputs and self.graph.tensors[tensor].data is None:
                    names[tensor] = None
            if member.writes_outside:
                names[layer.outputs[0]] = None
        return list(names)

    def parameters(self) -> dict[str, str]:
        """C parameter name of each outside tensor."""
        return {tensor: f"tensor{i}" for i, tensor in enumerate(self.outside_tensors())}

    def print(self) -> None:
        """The function: loops over group tiles, members in graph order."""
        c, group, parameters = self.c, self.group.group, self.parameters()
        written = {o for m in self.group.members.values() for o in self.graph.by_name[m.name].outputs}
        signature = ", ".join(
            f"{'' if tensor in written else 'const '}elem_t *{name}" for tensor, name in parameters.items()
        )
        c.line()
        assert group.tile is not None
        c.comment(
            f"Fused: {', '.join(group.layers)}.",
            f"{' x '.join(str(t) for t in self.tiles)} group tiles of N{group.tile.N} P{group.tile.P} "
            f"Q{group.tile.Q} of the last output; halo: {group.halo}.",
            "m0_p[j]: rows of its output that the first of them computes in tile j; the others alike.",
        )
        with c.function(f"static void {self.name}({signature})"):
            for i, name in enumerate(group.layers):
                self._tables(f"m{i}", name)
            self._loops(0)

    def _tables(self, prefix: str, name: str) -> None:
        member = self.group.members[name]
        for axis, computed in zip(PIXELS, member.computed_grid, strict=True):
            if axis == "N" and self.graph.by_name[name].op == "max_pool" and not member.writes_inside:
                continue  # its convolution has the same images
            self._table(f"{prefix}_{axis.lower()}", computed)
            there = self._there(name, axis)
            if there != computed and member.writes_inside:
                self._table(f"{prefix}_{axis.lower()}_needed", there)
        if name in self.group.held and self.group.held[name].ring and member.held_grid != member.needed_grid:
            self._table(f"{prefix}_p_fresh", _fresh(member.held_grid.P))

    def _there(self, name: str, axis: Dim) -> tuple[tuple[int, int], ...]:
        """Intervals of a member's output that its readers find, in held rows with the padding around."""
        member = self.group.members[name]
        grid = member.held_grid if name in self.group.held else member.needed_grid
        return grid[PIXELS.index(axis)]

    def _table(self, name: str, intervals: tuple[tuple[int, int], ...]) -> None:
        texts = [f"{{{a}, {max(a, b)}}}" for a, b in intervals]
        self.c.line(f"static const interval_t {name}[{len(texts)}] = {{")
        for start in range(0, len(texts), 8):
            self.c.line(f"    {', '.join(texts[start : start + 8])},")
        self.c.line("};")

    def _loops(self, axis: int) -> None:
        if axis == 3:
            for i, name in enumerate(self.group.group.layers):
                self._member(i, name)
            return
        with self.c.loop(_COUNTERS[axis], self.tiles[axis]):
            self._loops(axis + 1)

    # Members

    def _interval(self, member: int, axis: int, needed: bool = False) -> str:
        """What a member computes in this tile; `needed`: what is there for its readers."""
        name = self.group.group.layers[member]
        m = self.group.members[name]
        differs = needed and self._there(name, PIXELS[axis]) != m.computed_grid[axis]
        suffix = "_needed" if differs else ""
        return f"m{member}_{PIXELS[axis].lower()}{suffix}[{_COUNTERS[axis]}]"

    def _member(self, i: int, name: str) -> None:
        c, member = self.c, self.group.members[name]
        layer = self.graph.by_name[name]
        empty = [
            f"{self._interval(i, axis)}.end > {self._interval(i, axis)}.start"
            for axis, intervals in enumerate(member.computed_grid)
            if any(b <= a for a, b in intervals)
        ]
        pooled = layer.op == "max_pool"
        if isinstance(layer, HostLayer):
            c.comment(description(layer) + (", done by the stores of the layer before" if pooled else ""))
        c.call("observe", self.index[name], 0)
        if pooled:
            c.call("observe", self.index[name], 1)
            return
        with c.block(f"if ({' && '.join(empty)})") if empty else c.scope():
            self._region(i, name)
            if isinstance(layer, TensorCoreLayer):
                self._tensor_core(layer)
            elif layer.op == "add":
                self._add(layer)
            else:
                self._rows(layer)
        if name in self.group.held and member.held_grid != member.needed_grid:
            self._clear_padding(i, name)
        c.call("observe", self.index[name], 1)
        if runs_on_core(layer):
            c.call("wait_for_gemmini")

    def _clear_padding(self, i: int, name: str) -> None:
        """Zeroes what of a held box lies outside the image; rows that are retained are zero already."""
        c, member, held = self.c, self.group.members[name], self.group.held[name]
        self.used.add("clear_padding")
        intervals = [self._interval(i, axis, True) for axis in range(3)]
        with c.scope():
            with c.initialiser("const held_t held"):
                held_fields(
                    c, held, (f"{intervals[0]}.start", f"{intervals[1]}.start", f"{intervals[2]}.start")
                )
            if held.ring:
                intervals[1] = f"m{i}_p_fresh[{_COUNTERS[1]}]"
            c.call("clear_padding", "&held", *intervals, *member.size[1:])

    def _region(self, i: int, name: str) -> None:
        """The region_t of this tile: what to compute; for the array, where the tile-buffer boxes start."""
        c, layer, member = self.c, self.graph.by_name[name], self.group.members[name]
        on_array = isinstance(layer, TensorCoreLayer)
        fields = [f".{d.lower()} = {self._interval(i, axis)}" for axis, d in enumerate(PIXELS)]
        lines = [", ".join(fields)]
        fused = [t for t in layer.inputs if t in member.fused_inputs]
        if fused and on_array:
            producer = self._producer(fused[0])
            lines.append(
                ", ".join(
                    f".in_{d} = {self._interval(producer, axis, True)}.start"
                    for axis, d in enumerate(("n", "y", "x"))
                )
            )
        stored = stored_as(self.group.members, name)
        at = self.group.group.layers.index(stored.name)
        if at != i:
            lines.append(
                ", ".join(f".pool_{d} = {self._interval(at, axis)}" for axis, d in ((1, "p"), (2, "q")))
            )
        if stored.writes_inside and on_array:
            lines.append(
                ", ".join(
                    f".out_{d.lower()} = {self._interval(at, axis, True)}.start"
                    for axis, d in enumerate(PIXELS)
                )
            )
        if stored.writes_inside and stored.writes_outside:
            fresh = [
                f".fresh_{d} = {k} == 0 ? 0 : m{at}_{d}[{k} - 1].end" for d, k in (("p", "j"), ("q", "k"))
            ]
            lines.append(", ".join(fresh))
        if on_array:
            starts = (  # before those the member has nothing to compute
                next(at for at, (start, stop) in enumerate(axis) if stop > start)
                for axis in member.computed_grid
            )
            at_first = (f"{counter} == {at}" for counter, at in zip(_COUNTERS, starts, strict=True))
            lines.append(f".first = {' && '.join(at_first)}")
        with c.initialiser("const region_t region"):
            for line in lines:
                c.line(f"{line},")

    def _producer(self, tensor: str) -> int:
        producer = self.graph.producers(tensor)[0].name
        return self.group.group.layers.index(producer)

    def _address(self, tensor: str, inside: bool) -> str:
        if inside:
            return pointer(self.plan.memory.boxes[tensor], self.graph.tensors[tensor])
        if self.graph.tensors[tensor].data is not None:
            return pointer(self.plan.memory.tensors[tensor], self.graph.tensors[tensor])
        return self.parameters()[tensor]

    def _tensor_core(self, layer: TensorCoreLayer) -> None:
        member, held = self.group.members[layer.name], self.group.held
        stored = stored_as(self.group.members, layer.name)
        output = self.graph.by_name[stored.name].outputs[0]
        arguments: list[Expr] = []
        fused = layer.input.tensor in member.fused_inputs
        if not fused or self.graph.producers(layer.input.tensor)[0].name not in held:
            arguments.append(self._address(layer.input.tensor, fused))
        if self.graph.tensors[layer.weight.tensor].data is None:
            arguments.append(self._address(layer.weight.tensor, False))
        if layer.name not in held:
            arguments.append(self._address(output, stored.writes_inside))
        if stored.writes_inside and stored.writes_outside:
            arguments.append(self._address(output, False))
        self.c.call(f"layer_{self.plan.names[layer.name]}", *arguments, "&region")

    def _add(self, layer: HostLayer) -> None:
        """Per image: the lines of the box, operands in memory or in the tile buffer."""
        c, member = self.c, self.group.members[layer.name]
        tensor = self.graph.tensors[layer.outputs[0]]
        n, p, q = member.size
        channels = tensor.size // (n * p * q)
        whole = Box((p * q * channels, q * channels, channels), 0)
        retained = self.group.group.halo == "retain"
        both = member.writes_inside and member.writes_outside
        if not retained and not both and self._adds_whole_lines(layer, whole, channels):
            return
        with c.block("for (int32_t n = region.n.start; n < region.n.end; n++)"):
            if retained:  # lines of a ring of rows go one by one: every operand may wrap elsewhere
                with c.block("for (int32_t p = region.p.start; p < region.p.end; p++)"):
                    self._sum(layer, "p", whole, channels, also=both)
                    c.call("add_lines", "&sum")
                return
            self._sum(layer, "region.p.start", whole, channels, also=both)
            if both:
                self.used.add("add_fresh")
                first = f"(size_t)(MAX(region.fresh_q - region.q.start, 0) * {channels})"
                c.call("add_fresh", "&sum", "MAX(region.fresh_p - region.p.start, 0)", first)
            else:
                c.call("add_lines", "&sum")

    def _adds_whole_lines(self, layer: HostLayer, whole: Box, channels: int) -> bool:
        """A call of gemmini.h's, where all group tiles are alike and their lines adjoin in every operand."""
        member, own = self.group.members[layer.name], self.group.group.layers.index(layer.name)
        lines, columns = (set(extents(axis)) for axis in member.computed[1:])
        producers = [self._producer(name) if name in member.fused_inputs else None for name in layer.inputs]
        places = zip(
            (*layer.inputs, layer.outputs[0]),
            (*producers, own if member.writes_inside else None),
            strict=True,
        )
        pixels = [
            self._pixel(name, "region.p.start", "region.q.start", whole, producer)
            for name, producer in places
        ]
        if len(lines) > 1 or {stride for _, stride in pixels} != {width * channels for width in columns}:
            return False
        size, target = max(lines) * max(columns) * channels, self.plan.schedule.target
        if resadd_tile(size, target) is None:
            return False
        self.used.add("library_call")
        with self.c.block("for (int32_t n = region.n.start; n < region.n.end; n++)"):
            assert isinstance(layer.operator, Add)
            print_addition(self.c, layer.operator, size, target, [address for address, _ in pixels])
        return True

    def _sum(self, layer: HostLayer, line: str, whole: Box, channels: int, also: bool) -> None:
        """The sum_t of the lines from `line` on."""
        c, member, add = self.c, self.group.members[layer.name], layer.operator
        assert isinstance(add, Add)
        self.used.add("add_lines")
        own = self.group.group.layers.index(layer.name)
        with c.initialiser("const sum_t sum"):
            for field, name in zip(("a", "b"), layer.inputs, strict=True):
                inside = name in member.fused_inputs
                self._line(field, name, line, whole, self._producer(name) if inside else None)
            self._line("c", layer.outputs[0], line, whole, own if member.writes_inside else None)
            if also:
                self._line("also", layer.outputs[0], line, whole, None)
            c.line(f".lines = {'1' if line == 'p' else 'region.p.end - region.p.start'},")
            c.line(f".length = (size_t)(region.q.end - region.q.start) * {channels},")
            scales = [float_literal(scale) for scale in (add.a_scale, add.b_scale, add.scale)]
            c.line(f".a_scale = {scales[0]}, .b_scale = {scales[1]}, .c_scale = {scales[2]},")
            c.line(f".activation = {ACTIVATIONS[add.activation]},")

    def _rows(self, layer: HostLayer) -> None:
        """A host operator on every line of its box."""
        c, member = self.c, self.group.members[layer.name]
        channels = self.graph.tensors[layer.outputs[0]].size // math.prod(member.size)
        _, p, q = member.size
        whole = Box((p * q * channels, q * channels, channels), 0)
        producers: dict[str, int | None] = {layer.inputs[0]: self._producer(layer.inputs[0])}
        own = self.group.group.layers.index(layer.name)
        producers[layer.outputs[0]] = own if member.writes_inside else None

        def pixel(tensor: str, column: str) -> str:
            return self._pixel(tensor, "p", column, whole, producers[tensor])[0]

        with (
            c.block("for (int32_t n = region.n.start; n < region.n.end; n++)"),
            c.block("for (int32_t p = region.p.start; p < region.p.end; p++)"),
        ):
            printer = RowPrinter(c, self.graph, self.plan.memory, layer, channels)
            printer.print(pixel)

    def _line(self, field: str, tensor: str, line: str, whole: Box, producer: int | None) -> None:
        """An operand's first line: in the box of member `producer`, or in memory."""
        address, stride = self._pixel(tensor, line, "region.q.start", whole, producer)
        self.c.line(f".{field} = {address},")
        self.c.line(f".{field}_line = {stride},")

    def _pixel(
        self, tensor: str, line: str, column: str, whole: Box, producer: int | None
    ) -> tuple[str, int]:
        """Address of a pixel of image n in the box of member `producer`, or in memory; line stride."""
        box = whole
        start = ["n", line, column]
        if producer is not None:
            box = box_of(self.graph, self.group, self.group.group.layers[producer])
            start = [
                f"({at} - {self._interval(producer, axis, True)}.start)" for axis, at in enumerate(start)
            ]
            if box.ring:
                start[1] = f"{line} % {box.ring}"
        offset = " + ".join(f"{at} * {stride}" for at, stride in zip(start, box.strides, strict=True))
        return f"{self._address(tensor, producer is not None)} + {offset}", box.strides[1]


def runs_on_core(layer: Layer) -> bool:
    """Whether the core stores the output: Gemmini may load it after a fence."""
    return isinstance(layer, HostLayer) and layer.op != "add"


def _fresh(intervals: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """What of each interval no earlier one has."""
    fresh, done = [], intervals[0][0]
    for start, stop in intervals:
        fresh.append((min(max(start, done), stop), stop))
        done = max(done, stop)
    return tuple(fresh)
