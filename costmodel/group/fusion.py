"""Fusion groups: which region of each member one group tile needs, and where every tensor lives.

A group walks the (N, P, Q) tiles of its last member's output, or (G, N, P, Q) tiles where all members have
the same groups, as the two products of attention have heads, or (K, N, P, Q) tiles where members hand on
channels one by one, as functions of one element do.  Needs are traced back from there:
a convolution needs its input box (halo included, clipped to the image), an `add` the same region, a
max pool (which the stores of the convolution before it do, fadiff.costmodel.group.pooling) its windows.
Every tile computes its whole need: halos are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from fadiff.converter.errors import BadInput
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from fadiff.costmodel.group.fused_layouts import obstacle_to_shared_layout
from fadiff.costmodel.group.group_tile import Size, obstacle_to_tile, shared_channels, shared_groups
from fadiff.costmodel.group.pooling import convolution_of, obstacle_to_pooling, pool_after, pool_of, windows
from fadiff.costmodel.group.row_operators import obstacle_to_rows, obstacle_to_storing_rows
from fadiff.costmodel.group.side_by_side import obstacle_to_side_by_side, parts_of
from fadiff.costmodel.mapping.decision import FusionGroup, GroupTile
from fadiff.costmodel.mapping.intervals import covers, cut, hull, input_box
from fadiff.costmodel.mapping.shape import Region, extents, whole
from fadiff.costmodel.mapping.tiling import Interval, Window

_G, _K, _N, _P, _Q = range(5)
"""Places of the axes in sizes and regions."""


class ScheduleError(BadInput, ValueError):
    """An illegal schedule; the message names the layer, the constraint and the numbers."""


@dataclass(frozen=True)
class Member:
    """One layer inside its group.

    `computed` has one interval per group tile and axis: what later members read, and its loop nest runs on;
    without empty ones.  `grid` is the same with them, so that the k-th interval belongs to the k-th group
    tile of its axis.
    `fused_inputs` and `writes_inside` say which of its tensors members hand over box by box;
    `writes_outside` whether the output also goes to DRAM.  Resident tensors are no boxes: they are
    written once, to their own place (then `writes_outside`), and read there, by members of the group, too.
    """

    name: str
    size: Size
    """G, K, N, P, Q of the whole output; a host layer has the groups or channels that all members hand on one
    by one, or one."""
    computed: Region
    grid: Region
    fused_inputs: frozenset[str]
    writes_inside: bool
    writes_outside: bool
    held_grid: Region
    """Like `grid` with the zero padding that readers see around the image."""
    in_place: bool = False
    """A host operator whose output replaces its input in the tile buffer: nobody else reads that."""
    pooled_by: str | None = None
    """The max pool that the stores of this member do: its output leaves the accumulator as the pool's."""


def output_size(
    layer: Layer, graph: Graph, sizes: Mapping[str, tuple[int, int, int]]
) -> tuple[int, int, int]:
    """(N, P, Q) of a layer's output; a host layer has those of the fused operand it follows, but for a max
    pool, which follows its convolution."""
    if isinstance(layer, TensorCoreLayer):
        return layer.dims.N, layer.dims.P, layer.dims.Q
    if layer.op == "max_pool":
        pool = pool_of(graph, layer)
        convolution = convolution_of(graph, layer)
        if pool is not None and convolution is not None and convolution.name in sizes:
            return pool.output_size
        raise ScheduleError(f"{layer.name}: a max pool joins the fusion group of its convolution only")
    for tensor in layer.inputs:
        for producer in graph.producers(tensor):
            if producer.name in sizes:
                return sizes[producer.name]
    raise ScheduleError(
        f"{layer.name}: only a convolution or matrix product, or an add of one, can lead a fusion group"
    )


class Along(NamedTuple):
    """Intervals of one member along one axis; the fields of `Member`."""

    held_grid: tuple[Interval, ...]
    grid: tuple[Interval, ...]
    computed: tuple[Interval, ...]
    total: int
    """Indices computed, those of overlapping intervals several times."""


class _Part(NamedTuple):
    """What no group tile changes about a member."""

    layer: Layer
    size: Size
    """Channels that are handed on one by one count as K, those of a depthwise layer, too."""
    producers: tuple[str, ...]
    """Members that it reads."""
    axes: tuple[Window, Window] | None
    fused_inputs: frozenset[str]
    writes_inside: bool
    writes_outside: bool
    may_be_in_place: bool
    pooled_by: str | None


class GroupPlanner:
    """Plans the same layers at any group tile: what no tile changes is worked out once, and intervals once
    per extent of a tile, as axes do not depend on each other."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        """`names` of two layers or more, in graph order.

        Raises:
            ScheduleError: the layers cannot be executed as one group (host operator that cannot be a member,
                member that feeds nobody inside, layouts that differ).
        """
        layers = [graph.by_name[name] for name in names]
        self._inside = set(names)
        sizes: dict[str, tuple[int, int, int]] = {}
        for layer in layers:
            _check_member(graph, layer, self._inside)
            sizes[layer.name] = output_size(layer, graph, sizes)
        self.layers, self.last, self.size = tuple(names), names[-1], sizes[names[-1]]
        self.groups, self.channels = shared_groups(graph, names), shared_channels(graph, names)
        read = {self.last}
        self._parts: list[_Part] = []
        for layer in reversed(layers):
            if layer.name not in read:
                raise ScheduleError(f"{layer.name}: no later member of its fusion group reads its output")
            part = self._part(graph, layer, sizes)
            self._parts.append(part)
            read.update(part.producers)
        self._along: dict[tuple[int, int | None], dict[str, Along]] = {}

    def _part(self, graph: Graph, layer: Layer, sizes: Mapping[str, tuple[int, int, int]]) -> _Part:
        inside, is_last = self._inside, layer.name == self.last
        fused = [
            (tensor, producer)
            for tensor in layer.inputs
            for producer in graph.producers(tensor)
            if producer.name in inside
        ]
        for tensor, producer in fused:
            reason = obstacle_to_shared_layout(graph, producer, layer, tensor, sizes[producer.name], inside)
            if reason:
                raise ScheduleError(f"{producer.name} -> {layer.name}: {reason}")
        output = layer.outputs[0]
        readers = {consumer.name for consumer in graph.consumers(output)}
        outside = output in graph.outputs or bool(readers - inside) or is_last
        is_rows = isinstance(layer, HostLayer) and layer.op not in ("add", "max_pool")
        if is_rows and outside:
            reason = obstacle_to_storing_rows(graph, layer, inside, is_last=is_last)
            if reason:
                raise ScheduleError(f"{layer.name}: {reason}")
        pool = pool_after(graph, layer, inside)
        groups, channels = self.groups, self.channels
        if isinstance(layer, TensorCoreLayer) and channels == 1:
            groups, channels = layer.dims.G, layer.dims.K
        return _Part(
            layer,
            (groups, channels, *sizes[layer.name]),
            tuple(producer.name for _, producer in fused),
            windows(graph, layer),
            frozenset(tensor for tensor, _ in fused),
            bool(readers & inside) and pool is None,
            outside,
            is_rows and not outside and _is_only_reader(graph, layer),
            pool,
        )

    def axes(self, tile: GroupTile) -> list[dict[str, Along]]:
        """Intervals of every member along G, K, N, P and Q.

        Raises:
            ScheduleError: the tile does not suit the group: too large, an output that is read outside but not
                computed everywhere, or read nowhere.
        """
        reason = obstacle_to_tile(tile, self.bounds)
        if reason:
            raise ScheduleError(f"{self.last}: {reason}")
        found = []
        for axis, extent in enumerate((tile.G, tile.K, tile.N, tile.P, tile.Q)):
            if (axis, extent) not in self._along:
                along = self._all(axis) if extent is None else self._trace(axis, extent)
                self._along[axis, extent] = along
            found.append(self._along[axis, extent])
        return found

    @property
    def bounds(self) -> Size:
        """What group tiles divide: groups and channels that all members hand on, and pixels."""
        return self.groups, self.channels, *self.size

    def _all(self, axis: int) -> dict[str, Along]:
        """One interval of every member: all groups, or channels, that it has."""
        found = {}
        for part in self._parts:
            every = ((0, part.size[axis]),)
            found[part.layer.name] = Along(every, every, every, part.size[axis])
        return found

    def _order(self, layer: Layer) -> tuple[int, ...]:
        """Axes of group tiles in the order of the layer's: channels of a depthwise one are its groups."""
        if self.channels > 1 and layer.op == "depthwise":
            return (_K, _G, _N, _P, _Q)
        return (_G, _K, _N, _P, _Q)

    def _trace(self, axis: int, extent: int) -> dict[str, Along]:
        needed = {self.last: cut(extent, self.bounds[axis])}
        found: dict[str, Along] = {}
        for part in self._parts:
            name, size = part.layer.name, part.size[axis]
            held = needed[name]
            inside = [(max(0, start), min(stop, size)) for start, stop in held]
            if part.writes_outside and name != self.last:
                _check_read_outside(part.layer, axis, inside, size)
            work = _without_empty(inside)
            if not work:
                raise ScheduleError(f"{name}: its fusion group reads nothing but padding of it")
            boxes = inside
            if axis in (_P, _Q) and part.axes is not None:
                boxes = [input_box(part.axes[axis - _P], interval) for interval in inside]
            for producer in part.producers:
                # The hull of all readers' boxes, tile by tile.
                old = needed.get(producer, boxes)
                needed[producer] = [hull(a, b) for a, b in zip(old, boxes, strict=True)]
            found[name] = Along(tuple(held), tuple(inside), work, sum(extents(work)))
        return found

    def plan(self, tile: GroupTile) -> dict[str, Member]:
        """Regions and placements of every member, in graph order, no tensor resident (`keeping`).

        Raises:
            ScheduleError: the tile does not suit the group.
        """
        axes = self.axes(tile)
        members = {}
        for part in reversed(self._parts):
            name = part.layer.name
            order = self._order(part.layer)
            held, grid, computed = (
                Region(*along) for along in zip(*(axes[axis][name][:3] for axis in order), strict=True)
            )
            g, k, n, p, q = (part.size[axis] for axis in order)
            members[name] = Member(
                name,
                (g, k, n, p, q),
                computed,
                grid,
                part.fused_inputs,
                part.writes_inside,
                part.writes_outside,
                held,
                part.may_be_in_place,
                part.pooled_by,
            )
        return members


def plan_group(graph: Graph, group: FusionGroup) -> dict[str, Member]:
    """Regions and placements of every member, in graph order.

    Raises:
        ScheduleError: the group cannot be executed as one (no tile, and whatever `GroupPlanner` refuses).
    """
    if len(group.layers) == 1:
        layer = graph.by_name[group.layers[0]]
        return {layer.name: _alone(layer)}
    if group.tile is None:
        return _side_by_side(graph, group.layers)
    plan = GroupPlanner(graph, group.layers).plan(group.tile)
    return keeping(graph, plan, group.resident_tensors)


def _side_by_side(graph: Graph, names: Sequence[str]) -> dict[str, Member]:
    """Members that need nothing of each other; those on the core have as many visits as parts."""
    reason = obstacle_to_side_by_side(graph, names)
    if reason:
        raise ScheduleError(
            f"{names[0]}: a group of {len(names)} layers needs a group tile, "
            f"and to run side by side without: {reason}"
        )
    members = {}
    for name in names:
        layer = graph.by_name[name]
        members[name] = _alone(layer, 1 if isinstance(layer, TensorCoreLayer) else parts_of(layer).count)
    return members


def keeping(graph: Graph, members: dict[str, Member], resident_tensors: Set[str]) -> dict[str, Member]:
    """A plan without resident tensors as it is with them: they are handed over in no box."""
    found = dict(members)
    for name, member in members.items() if resident_tensors else ():
        fused = member.fused_inputs - resident_tensors
        inside = member.writes_inside and graph.by_name[name].outputs[0] not in resident_tensors
        if (fused, inside) != (member.fused_inputs, member.writes_inside):
            found[name] = replace(member, fused_inputs=fused, writes_inside=inside)
    return found


def _check_member(graph: Graph, layer: Layer, inside: Set[str]) -> None:
    """Host operators that can be members are adds, max pools and functions of rows; layers on the array those
    whose rows share a scale and that store elements."""
    if isinstance(layer, TensorCoreLayer):
        reason = obstacle_to_plain_stores(graph, layer)
        if reason:
            raise ScheduleError(f"{layer.name}: cannot join a fusion group: {reason}")
    if isinstance(layer, HostLayer) and layer.op != "add":
        pools = layer.op == "max_pool"
        reason = obstacle_to_pooling(graph, layer) if pools else obstacle_to_rows(graph, layer, inside)
        if reason:
            raise ScheduleError(f"{layer.name}: {reason}")


def _check_read_outside(layer: Layer, axis: int, intervals: Sequence[Interval], size: int) -> None:
    """What others read, too, is computed everywhere."""
    if not covers(intervals, size):
        raise ScheduleError(
            f"{layer.name}: read outside its fusion group, "
            f"which does not compute all of {'GKNPQ'[axis]}={size}"
        )
    if axis == _Q and isinstance(layer, HostLayer) and layer.op == "max_pool" and len(intervals) > 1:
        raise ScheduleError(
            f"{layer.name}: a max pool also read outside its fusion group needs full-width group tiles"
        )


def _without_empty(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Without the intervals for which there is nothing to do."""
    return tuple(interval for interval in intervals if interval[1] > interval[0])


def obstacle_to_plain_stores(graph: Graph, layer: TensorCoreLayer) -> str:
    """Why stores of whole tiles with one scale do not do for a layer; empty if they do."""
    if layer.row_scale is not None:
        return "each of its rows is stored with a scale of its own"
    if layer.channel_scale is not None:
        return "each of its channels is stored with a scale of its own"
    if graph.tensors[layer.output.tensor].dtype != graph.element_type:
        return "its sums are stored as they are"
    return ""


def stored_as(members: Mapping[str, Member], name: str) -> Member:
    """The member whose output the stores of `name` write: itself, or the max pool that they do."""
    return members[members[name].pooled_by or name]


def paper_plan(graph: Graph, group: FusionGroup) -> dict[str, Member]:
    """Members of a group in the paper's model: whole layers, with the same inside and outside."""
    members = {}
    for name in group.layers:
        layer = graph.by_name[name]
        inside = set(group.layers) - {name}  # a layer may write into the tensor that it reads another part of
        alone = _alone(layer)
        fused = frozenset(
            tensor
            for tensor in layer.inputs
            if any(producer.name in inside for producer in graph.producers(tensor))
        )
        readers = {consumer.name for tensor in layer.outputs for consumer in graph.consumers(tensor)}
        outside = bool(readers - inside) or not readers or any(t in graph.outputs for t in layer.outputs)
        pool = pool_after(graph, layer, group.layers)
        members[name] = replace(
            alone,
            fused_inputs=fused,
            writes_inside=bool(readers & inside) and pool is None,
            writes_outside=outside,
            pooled_by=pool,
        )
    return members


def _alone(layer: Layer, visits: int = 1) -> Member:
    """`visits`: parts in which a host layer is computed."""
    if isinstance(layer, TensorCoreLayer):
        region = whole(layer.dims)
        size = (layer.dims.G, layer.dims.K, layer.dims.N, layer.dims.P, layer.dims.Q)
    else:
        region = Region(*[((0, 1),)] * 5)._replace(N=tuple((at, at + 1) for at in range(visits)))
        size = (1, 1, visits, 1, 1)
    return Member(layer.name, size, region, region, frozenset(), False, True, region)


def _is_only_reader(graph: Graph, layer: Layer) -> bool:
    tensor = layer.inputs[0]
    return tensor not in graph.outputs and len(graph.consumers(tensor)) == 1
