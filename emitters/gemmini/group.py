"""Prints a fusion group: its tiles as C loops, its members' regions as intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.converter.ir.host import Add
from fadiff.costmodel.group.additions import run_elements
from fadiff.costmodel.group.fusion import Member, stored_as
from fadiff.costmodel.group.group_tile import Size
from fadiff.costmodel.group.pipeline import loop_tiles, pipeline_axis, rounds
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.group.tile_buffer import Strides, box_channels, box_strides
from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.emitters.gemmini.expression import Expr, add, bare, div, mul, plus, sub
from fadiff.emitters.gemmini.form import PIXELS, TILED
from fadiff.emitters.gemmini.host import description
from fadiff.emitters.gemmini.library_calls import print_addition, sum_fields
from fadiff.emitters.gemmini.member_intervals import MemberIntervals
from fadiff.emitters.gemmini.operands import pointer
from fadiff.emitters.gemmini.pipeline import (
    COUNTERS,
    Lines,
    LinesBeside,
    print_lines,
    print_pipeline,
    words_of,
)
from fadiff.emitters.gemmini.plan import FirmwarePlan, GroupPlan
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.row_members import Interval, RowPrinter
from fadiff.emitters.gemmini.tile_intervals import TileIntervals

_G, _K, _N, _P, _Q = range(5)
"""Places in TILED."""


class GroupPrinter:
    """Prints one group function; layer functions come before it."""

    def __init__(self, c: CPrinter, plan: FirmwarePlan, group: GroupPlan) -> None:
        self.c, self.plan, self.group = c, plan, group
        self.graph: Graph = plan.schedule.graph
        self.index = self.graph.index
        self.intervals = MemberIntervals(self.graph, group)
        self.headers: set[str] = {"region"}
        self.beside: dict[str, LinesBeside] = {}
        """What the core computes between tiles of a member, by its name."""
        self._parts = 1
        """Of the member that is printed."""
        last = group.members[group.group.layers[-1]]
        self.tiles = tuple(len(axis) for axis in last.grid)

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

    def _types(self) -> dict[str, str]:
        """C parameters with their types."""
        written = {o for m in self.group.members.values() for o in self.graph.by_name[m.name].outputs}
        return {
            name: f"{'' if tensor in written else 'const '}elem_t *"
            for tensor, name in self.parameters().items()
        }

    def print_lines(self) -> None:
        """Functions of what the core computes in a pipeline between tiles of members, which call them."""
        if not self.group.group.pipelined:
            return
        declared = list(self.intervals.declared())
        for turn in rounds(self.graph, self.group.group)[-1]:
            found = []
            for name in (name for name in turn.computed if self.group.parts[name] > 1):
                printed = self._printed(name, self.group.parts[name])
                words = words_of(printed)
                tensors = {tensor: kind for tensor, kind in self._types().items() if tensor in words}
                function = f"lines_{self.plan.names[name]}"
                found.append(Lines(name, function, self.group.parts[name], tensors))
                print_lines(self.c, self.graph, self.group, declared, found[-1], printed)
            if found:
                mappings = self.plan.schedule.mappings
                tiles = loop_tiles(self.graph, self.group.members, mappings, turn.issued)
                self.beside[turn.issued] = LinesBeside(tuple(found), self.index[turn.issued], tiles)

    def print(self) -> None:
        """The function: loops over group tiles, members in graph order."""
        c, group = self.c, self.group.group
        signature = ", ".join(f"{kind}{name}" for name, kind in self._types().items())
        c.line()
        assert group.tile is not None
        c.comment(
            f"Fused: {', '.join(group.layers)}.",
            f"{self._described(group.tile)} of the last output.",
            *(["In a pipeline: in one step every stage has another group tile."] if group.pipelined else []),
            "m0_p: rows of its output that the first of them computes in a tile; the others alike.",
        )
        with c.function(f"static void {self.name}({signature})"):
            declared = list(self.intervals.declared())
            for intervals in declared:
                intervals.declare_table(c)
            if group.pipelined:
                print_pipeline(c, self.graph, self.group, declared, self._printed, self.beside)
            else:
                self._loops(0, declared)

    def _described(self, tile: GroupTile) -> str:
        """How many group tiles of which extents."""
        extents = {d: getattr(tile, d) for d in TILED}
        several = [count for d, count in zip(TILED, self.tiles, strict=True) if extents[d] is not None]
        text = " ".join(f"{d}{extent}" for d, extent in extents.items() if extent is not None)
        return f"{' x '.join(map(str, several))} group tiles of {text}"

    def _loops(self, axis: int, declared: list[TileIntervals]) -> None:
        """Over the tiles of every axis that has several."""
        if axis == len(TILED):
            for intervals in declared:
                intervals.declare(self.c)
            for name in self.group.group.layers:
                self._member(name)
            return
        several = self.tiles[axis] > 1
        with self.c.loop(COUNTERS[axis], self.tiles[axis]) if several else nullcontext():
            self._loops(axis + 1, declared)

    def _printed(self, name: str, count: int = 1) -> Sequence[str]:
        """The lines of a member, which no width wrapped, and of the pool that its stores do; of several parts
        those of one, `part`."""
        whole, self.c, self._parts = self.c, CPrinter(float("inf")), count
        self._member(name)
        if pool := self.group.members[name].pooled_by:
            self._member(pool)
        lines, self.c = self.c.lines, whole
        return lines

    # Members

    def _member(self, name: str) -> None:
        c, member, i = self.c, self.group.members[name], self.group.group.layers.index(name)
        layer = self.graph.by_name[name]
        empty = [
            f"{self.intervals.of(i, axis).end} > {self.intervals.of(i, axis).start}"
            for axis, intervals in enumerate(member.grid)
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
            if isinstance(layer, TensorCoreLayer):
                self._region(i, layer)
                self._tensor_core(layer)
            elif layer.op == "add":
                self._add(layer)
            else:
                self._rows(layer)
        c.call("observe", self.index[name], f"part + 1 < {self._parts} ? 3 : 1" if self._parts > 1 else 1)
        if runs_on_core(layer) and not self.group.group.pipelined:
            c.call("wait_for_gemmini")

    def _region(self, i: int, layer: TensorCoreLayer) -> None:
        """The region_t of this tile: what to compute, where the tile-buffer boxes start."""
        member = self.group.members[layer.name]
        fields: list[tuple[str, Expr]]
        axes = self.group.axes(layer)
        fields = [(d.lower(), self.intervals.of(i, TILED.index(d)).initialiser) for d in axes]
        fused = [t for t in layer.inputs if t in member.fused_inputs]
        if fused:
            producer = self._producer(fused[0])
            for axis, d in enumerate(("n", "y", "x"), _N):
                fields.append((f"in_{d}", self.intervals.of(producer, axis).start))
        stored = stored_as(self.group.members, layer.name)
        at = self.group.group.layers.index(stored.name)
        if at != i:
            fields += [
                (f"pool_{d}", self.intervals.of(at, axis).initialiser) for axis, d in ((_P, "p"), (_Q, "q"))
            ]
        if stored.writes_inside:
            for axis, d in enumerate(PIXELS, _N):
                fields.append((f"out_{d.lower()}", self.intervals.of(at, axis).start))
        if stored.writes_inside and stored.writes_outside:
            fields += [
                (f"fresh_{d}", self.intervals.of(at, axis).previous_end) for axis, d in ((_P, "p"), (_Q, "q"))
            ]
        fields.append(("first", self._first(member)))
        self.c.fields(
            "const region_t region", [f".{field} = {bare(value)}" for field, value in fields if value != 0]
        )

    def _first(self, member: Member) -> str:
        """Condition of the first tile in which the member computes something of its groups or channels."""
        starts = (
            next(at for at, (start, stop) in enumerate(axis) if stop > start) for axis in member.grid[_N:]
        )
        several = zip(COUNTERS[_N:], self.tiles[_N:], starts, strict=True)
        return " && ".join(f"{counter} == {at}" for counter, tiles, at in several if tiles > 1) or "true"

    def _producer(self, tensor: str) -> int:
        producer = self.graph.producers(tensor)[0].name
        return self.group.group.layers.index(producer)

    def _address(self, tensor: str, inside: bool) -> str:
        if inside:
            return self._box_address(tensor)
        if self.graph.tensors[tensor].data is not None:
            return pointer(self.plan.memory.tensors[tensor], self.graph.tensors[tensor])
        return self.parameters()[tensor]

    def _box_address(self, tensor: str) -> str:
        """Of the box of this group tile: in a pipeline boxes have several places."""
        place, [producer] = self.plan.memory.boxes[tensor], self.graph.producers(tensor)
        first, count = pointer(place, self.graph.tensors[tensor]), self.group.places[producer.name]
        if count == 1:
            return first
        elements = place.nbytes // count // self.plan.schedule.target.element_bytes
        return f"{first} + {COUNTERS[pipeline_axis(self.group.members)]} % {count} * {elements}"

    def _tensor_core(self, layer: TensorCoreLayer) -> None:
        member = self.group.members[layer.name]
        stored = stored_as(self.group.members, layer.name)
        output = self.graph.by_name[stored.name].outputs[0]
        arguments: list[Expr] = [self._address(layer.input.tensor, layer.input.tensor in member.fused_inputs)]
        if self.graph.tensors[layer.weight.tensor].data is None:
            arguments.append(self._address(layer.weight.tensor, False))
        arguments.append(self._address(output, stored.writes_inside))
        if stored.writes_inside and stored.writes_outside:
            arguments.append(self._address(output, False))
        beside = self.beside[layer.name].arguments if layer.name in self.beside else ()
        self.c.call(f"layer_{self.plan.names[layer.name]}", *arguments, "&region", *beside)

    def _add(self, layer: HostLayer) -> None:
        """Per image: the lines of the box, operands in memory or in the tile buffer."""
        c, member = self.c, self.group.members[layer.name]
        both = member.writes_inside and member.writes_outside
        if self.plan.schedule.additions.get(layer.name) == "tiled_resadd":
            self._tiled_resadd(layer)
            return
        own = self.group.group.layers.index(layer.name)
        lines, columns = self.intervals.of(own, _P), self.intervals.of(own, _Q)
        by_pixel = len(member.computed.K) > 1 and member.size[_Q] > 1
        passed = f"MAX({bare(sub(columns.previous_end, columns.start))}, 0)"
        with self._images(own) as image:
            if by_pixel:  # line by line: their pixels do not adjoin
                with c.block(f"for (int32_t p = {bare(lines.start)}; p < {bare(lines.end)}; p++)"):
                    self._sum(layer, (image, "p", columns.start), also=both, by_pixel=True)
                    if both:
                        c.call("add_fresh", "&sum", f"p < {lines.previous_end} ? sum.lines : {passed}", 0)
                    else:
                        c.call("add_lines", "&sum")
                return
            self._sum(layer, (image, lines.start, columns.start), also=both)
            if both:
                first = mul(passed, box_channels(self.graph, member))
                c.call(
                    "add_fresh",
                    "&sum",
                    f"MAX({bare(sub(lines.previous_end, lines.start))}, 0)",
                    f"(size_t)({bare(first)})",
                )
            else:
                c.call("add_lines", "&sum")

    @contextmanager
    def _images(self, member: int) -> Iterator[Expr]:
        """The image that every line works on, in a loop where there are several."""
        images = self.intervals.of(member, _N)
        if images.start == 0 and images.end == 1:
            yield 0
            return
        with self.c.block(f"for (int32_t n = {bare(images.start)}; n < {bare(images.end)}; n++)"):
            yield "n"

    def _tiled_resadd(self, layer: HostLayer) -> None:
        """A call of gemmini.h's per image; fadiff.costmodel.group.additions made sure that lines adjoin."""
        own, target = self.group.group.layers.index(layer.name), self.plan.schedule.target
        size = run_elements(self.graph, self.group.group, self.group.members, layer)
        with self._images(own) as image:
            assert isinstance(layer.operator, Add)
            first = (image, self.intervals.of(own, _P).start, self.intervals.of(own, _Q).start)
            addresses = [self._pixel(name, first, own, box)[0] for name, box in self._operands(layer)]
            print_addition(self.c, layer.operator, size, target, addresses)

    def _operands(self, layer: HostLayer) -> list[tuple[str, int | None]]:
        """What an addition reads and writes, with the member whose box has it; none: in memory."""
        member, own = self.group.members[layer.name], self.group.group.layers.index(layer.name)
        read = [
            (name, self._producer(name) if name in member.fused_inputs else None) for name in layer.inputs
        ]
        return [*read, (layer.outputs[0], own if member.writes_inside else None)]

    def _sum(
        self, layer: HostLayer, first: tuple[Expr, Expr, Expr], also: bool, by_pixel: bool = False
    ) -> None:
        """The sum_t of the lines from the pixel `first` on; `by_pixel`: of the pixels of one line."""
        member, add = self.group.members[layer.name], layer.operator
        assert isinstance(add, Add)
        self.headers.add("sums")
        own = self.group.group.layers.index(layer.name)
        lines, columns = self.intervals.of(own, _P), self.intervals.of(own, _Q)
        operands = dict(zip("abc", self._operands(layer), strict=True))
        if also:
            operands["also"] = (layer.outputs[0], None)
        fields = []
        for field, (tensor, producer) in operands.items():
            address, (line, pixel) = self._pixel(tensor, first, own, producer)
            fields += [f".{field} = {address}", f".{field}_line = {pixel if by_pixel else line}"]
        count = 1 if first[1] == "p" else sub(lines.end, lines.start)
        length: Expr = box_channels(self.graph, member)
        if by_pixel:
            count = sub(columns.end, columns.start)
        else:
            length = mul(sub(columns.end, columns.start), length)
        fields += [f".lines = {bare(count)}", f".length = {_size(length)}"]
        self.c.fields("const sum_t sum", [*fields, *sum_fields(add)])

    def _rows(self, layer: HostLayer) -> None:
        """A host operator on every line of its box."""
        c, member = self.c, self.group.members[layer.name]
        read, written = layer.inputs[0], layer.outputs[0]
        own = self.group.group.layers.index(layer.name)
        producers = {read: self._producer(read), written: own if member.writes_inside else None}

        lines, columns = self.intervals.of(own, _P), self.intervals.of(own, _Q)
        with self._images(own) as image:

            def pixel(tensor: str, line: Expr, column: Expr) -> str:
                return self._pixel(tensor, (image, line, column), own, producers[tensor])[0]

            boxes = [self._box(tensor, producer, member.size) for tensor, producer in producers.items()]
            (_, *of_read), (_, *of_written) = boxes
            by_line, by_pixel = zip(of_read, of_written, strict=True)
            start, end = lines.start, lines.end
            if self._parts > 1:
                count = sub(lines.end, lines.start)
                start, end = (
                    add(lines.start, div(mul(count, at), self._parts)) for at in ("part", "(part + 1)")
                )
            printer = RowPrinter(
                c, self.graph, self.plan.memory, layer, box_channels(self.graph, member), pixel
            )
            printer.print(
                image,
                Interval(start, end, by_line),
                Interval(columns.start, columns.end, by_pixel),
            )

    def _box(self, tensor: str, producer: int | None, size: Size) -> Strides:
        """How a tensor lies in the box of member `producer`, or in memory."""
        if producer is not None:
            return box_strides(self.graph, self.group.members[self.group.group.layers[producer]])
        *_, n, p, q = size
        channels = self.graph.tensors[tensor].size // (n * p * q)
        return p * q * channels, q * channels, channels

    def _pixel(
        self, tensor: str, at: tuple[Expr, Expr, Expr], own: int, producer: int | None
    ) -> tuple[str, tuple[int, int]]:
        """Address of pixel (n, p, q) in the box of member `producer`, or in memory that member `own` reads or
        writes: its first channel of the group tile.  Line and pixel strides."""
        size = self.group.members[self.group.group.layers[own]].size
        box, start = self._box(tensor, producer, size), list(at)
        first: Expr = 0
        if producer is None:
            first = self.intervals.of(own, _K).start
        else:
            start = [sub(i, self.intervals.of(producer, axis).start) for axis, i in enumerate(at, _N)]
        offset = add(first, *(mul(index, stride) for index, stride in zip(start, box, strict=True)))
        return plus(self._address(tensor, producer is not None), offset), box[1:]


def _size(count: Expr) -> str:
    """A count of elements as the size_t that it becomes."""
    return str(count) if isinstance(count, int) else f"(size_t){count}"
