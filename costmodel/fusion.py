"""Fusion groups: which region of each member one group tile needs, and where every tensor lives.

A group walks the (N, P, Q) tiles of its last member's output.  Needs are traced back from there:
a convolution needs its input box (halo included, clipped to the image), an `add` the same region, a
max pool (which the stores of the convolution before it do, costmodel.pooling) its windows.
With halo `recompute` every tile computes its whole need; with `retain` only the rows that no
earlier tile computed (tiles are then full-width and the tile buffer keeps the rest).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from converter.graph import Graph, HostLayer, Layer, TensorCoreLayer
from costmodel.decision import FusionGroup, GroupTile
from costmodel.pooling import convolution_of, obstacle_to_pooling, pool_after, pool_of
from costmodel.row_operators import obstacle_to_rows, source, stores_channels_together
from costmodel.shape import Region, extents, shape_of, whole
from costmodel.tiling import Interval, Window
from costmodel.traffic import Pooled


class ScheduleError(ValueError):
    """An illegal schedule; the message names the layer, the constraint and the numbers."""


@dataclass(frozen=True)
class Member:
    """One layer inside its group.

    `needed` has one interval per group tile and axis (what later members read); `computed` the
    intervals its loop nest runs on; both without empty ones.  `needed_grid` and `computed_grid` are
    the same with them, so that the k-th interval belongs to the k-th group tile of its axis.
    `fused_inputs` and `writes_inside` say which of its tensors members hand over box by box;
    `writes_outside` whether the output also goes to DRAM.  Resident tensors are no boxes: they are
    written once, to their own place (then `writes_outside`), and read there, by members of the group, too.
    """

    name: str
    size: tuple[int, int, int]
    """N, P, Q of the whole output."""
    needed: Region
    computed: Region
    needed_grid: Region
    computed_grid: Region
    fused_inputs: frozenset[str]
    writes_inside: bool
    writes_outside: bool
    held_grid: Region
    """Like `needed_grid` with the zero padding that readers see around the image."""
    in_place: bool = False
    """A host operator whose output replaces its input in the tile buffer: nobody else reads that, and
    no rows are retained."""
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


def plan_group(graph: Graph, group: FusionGroup) -> dict[str, Member]:
    """Regions and placements of every member, in graph order.

    Raises:
        ScheduleError: the group cannot be executed as one (unknown tile, host operator that cannot be a
            member, member that feeds nobody inside, layouts that differ, output that is read outside
            but not computed everywhere).
    """
    layers = [graph.by_name[name] for name in group.layers]
    if len(layers) == 1:
        return {layers[0].name: _alone(layers[0])}
    if group.tile is None:
        raise ScheduleError(f"{group.layers[0]}: a group of {len(layers)} layers needs a group tile")
    last = layers[-1].name
    inside = {layer.name for layer in layers}
    sizes = _output_sizes(graph, layers, inside)
    tile = _checked_tile(group, group.tile, sizes[last])
    needed: dict[str, list[list[Interval]]] = {
        last: [cut(extent, bound) for extent, bound in zip(tile, sizes[last], strict=True)]
    }
    computed: dict[str, list[list[Interval]]] = {}
    members: dict[str, Member] = {}
    for layer in reversed(layers):
        name = layer.name
        if name not in needed:
            raise ScheduleError(f"{name}: no later member of its fusion group reads its output")
        held = Region(*(tuple(axis) for axis in needed[name]))
        axes = [
            [(max(0, a), min(b, size)) for a, b in axis] for axis, size in zip(held, sizes[name], strict=True)
        ]
        pool = pool_after(graph, layer, group.layers)
        computed[name] = list(axes)
        if group.halo == "retain" and pool is None:  # nobody keeps what is pooled on its way out
            computed[name][1] = uncovered(axes[1])
        if not all(any(a < b for a, b in axis) for axis in computed[name]):
            raise ScheduleError(f"{name}: its fusion group reads nothing but padding of it")
        fused_inputs = set()
        for tensor in layer.inputs:
            for producer in graph.producers(tensor):
                if producer.name in inside:
                    _check_layouts(graph, producer, layer, tensor, sizes[producer.name], inside)
                    if tensor not in group.resident_tensors:
                        fused_inputs.add(tensor)
                    _need(needed, producer.name, _boxes(graph, layer, computed[name]))
        tensor = layer.outputs[0]
        readers = {consumer.name for consumer in graph.consumers(tensor)}
        outside = tensor in graph.outputs or bool(readers - inside) or name == last
        is_rows = isinstance(layer, HostLayer) and layer.op not in ("add", "max_pool")
        if is_rows and outside:
            _check_last_rows(graph, layer, inside, is_last=name == last)
        if outside and name != last:
            _check_read_outside(layer, axes, sizes[name])
        members[name] = Member(
            name,
            sizes[name],
            _region(axes),
            _region(computed[name]),
            Region(*(tuple(axis) for axis in axes)),
            Region(*(tuple(axis) for axis in computed[name])),
            frozenset(fused_inputs),
            bool(readers & inside) and pool is None and tensor not in group.resident_tensors,
            outside,
            held,
            is_rows and not outside and computed[name] == axes and _is_only_reader(graph, layer),
            pool,
        )
    return {layer.name: members[layer.name] for layer in layers}


def _output_sizes(graph: Graph, layers: Sequence[Layer], inside: Set[str]) -> dict[str, tuple[int, int, int]]:
    """(N, P, Q) of every member's output, host operators that cannot be members refused."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for layer in layers:
        if isinstance(layer, HostLayer) and layer.op != "add":
            pools = layer.op == "max_pool"
            reason = obstacle_to_pooling(graph, layer) if pools else obstacle_to_rows(graph, layer, inside)
            if reason:
                raise ScheduleError(f"{layer.name}: {reason}")
        sizes[layer.name] = output_size(layer, graph, sizes)
    return sizes


def _checked_tile(group: FusionGroup, tile: GroupTile, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """Extents of the group tile; `size` is that of the last member's output."""
    last, width = group.layers[-1], size[2]
    n, p, q = tile.N, tile.P, tile.Q
    for axis, extent, bound in zip("NPQ", (n, p, q), size, strict=True):
        if not 1 <= extent <= bound:
            raise ScheduleError(f"{last}: group tile {axis}={extent} is outside 1..{bound}")
    if group.halo == "retain" and q != width:
        raise ScheduleError(f"{last}: halo retain needs full-width group tiles, Q={q} of {width}")
    return n, p, q


def stored_as(members: Mapping[str, Member], name: str) -> Member:
    """The member whose output the stores of `name` write: itself, or the max pool that they do."""
    return members[members[name].pooled_by or name]


def pooled(graph: Graph, members: Mapping[str, Member], name: str) -> Pooled | None:
    """What a max pool makes of the output of a member on its way out; None if there is none."""
    member = stored_as(members, name)
    if member.name == name:
        return None
    layer = graph.by_name[member.name]
    assert isinstance(layer, HostLayer)
    pool = pool_of(graph, layer)
    assert pool is not None
    size = graph.tensors[layer.outputs[0]].size
    pixels = math.prod(sum(extents(axis)) for axis in member.computed)
    return Pooled(pixels * (size // math.prod(member.size)), size, pool.kernel**2, pool.steps)


def boundary(graph: Graph, group: FusionGroup) -> dict[str, Member]:
    """Members of a group in the paper's model: whole layers, with the same inside and outside."""
    inside = set(group.layers)
    members = {}
    for name in group.layers:
        layer = graph.by_name[name]
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


def _alone(layer: Layer) -> Member:
    if isinstance(layer, TensorCoreLayer):
        region = whole(layer.dims)
        size = (layer.dims.N, layer.dims.P, layer.dims.Q)
    else:
        region, size = Region(((0, 1),), ((0, 1),), ((0, 1),)), (1, 1, 1)
    return Member(layer.name, size, region, region, region, region, frozenset(), False, True, region)


def _check_last_rows(graph: Graph, layer: Layer, inside: Set[str], *, is_last: bool) -> None:
    """A host operator writes the tile buffer, or, as the last member, whole lines of its tensor."""
    first = source(graph, layer, inside)
    if not is_last:
        raise ScheduleError(f"{layer.name}: a host operator amid a fusion group is read inside it only")
    if first is None or not stores_channels_together(first, first.output, first.dims.K):
        raise ScheduleError(
            f"{layer.name}: its output is stored group by group and cannot end a fusion group"
        )


def _check_read_outside(layer: Layer, axes: list[list[Interval]], size: tuple[int, int, int]) -> None:
    """What others read, too, is computed everywhere."""
    for axis, intervals, extent in zip("NPQ", axes, size, strict=True):
        if not _covers(intervals, extent):
            raise ScheduleError(
                f"{layer.name}: read outside its fusion group, which does not compute all of {axis}={extent}"
            )
    if isinstance(layer, HostLayer) and layer.op == "max_pool" and len(axes[2]) > 1:
        raise ScheduleError(
            f"{layer.name}: a max pool also read outside its fusion group needs full-width group tiles"
        )


def _is_only_reader(graph: Graph, layer: Layer) -> bool:
    tensor = layer.inputs[0]
    return tensor not in graph.outputs and len(graph.consumers(tensor)) == 1


def _region(axes: list[list[Interval]]) -> Region:
    """Drop the intervals for which there is nothing to do."""
    n, p, q = (tuple((a, b) for a, b in axis if b > a) for axis in axes)
    return Region(n, p, q)


def cut(extent: int, bound: int) -> list[Interval]:
    """Tiles of `extent` indices along an axis, the last one ragged."""
    return [(start, min(start + extent, bound)) for start in range(0, bound, extent)]


def uncovered(intervals: list[Interval]) -> list[Interval]:
    """What no earlier interval covers (needs advance monotonically)."""
    done = 0
    fresh = []
    for start, stop in intervals:
        fresh.append((min(max(start, done), stop), stop))
        done = max(done, stop)
    return fresh


def _boxes(graph: Graph, consumer: Layer, computed: list[list[Interval]]) -> list[list[Interval]]:
    """Input boxes of the consumer's regions in the producer's output coordinates, unclipped."""
    n, p, q = computed
    axes = windows(graph, consumer)
    if axes is None:
        return [list(axis) for axis in computed]
    height, width = axes
    return [list(n), [input_box(height, i) for i in p], [input_box(width, i) for i in q]]


def windows(graph: Graph, consumer: Layer) -> tuple[Window, Window] | None:
    """How a convolution or max pool reads its producer's image, height and width; None: pixel by pixel."""
    if isinstance(consumer, TensorCoreLayer):
        shape = shape_of(consumer)
        return shape.height, shape.width
    pool = pool_of(graph, consumer)
    return pool.axes if pool else None


def input_box(window: Window, outputs: Interval) -> Interval:
    """Input indices that an interval of outputs reads, padding included."""
    start, stop = outputs
    if start == stop:
        return (0, 0)
    return (
        start * window.stride - window.pad,
        (stop - 1) * window.stride + (window.kernel - 1) * window.dilation - window.pad + 1,
    )


def _need(needed: dict[str, list[list[Interval]]], name: str, boxes: list[list[Interval]]) -> None:
    """Widen the producer's needs to the hull of all consumers' boxes, tile by tile."""
    if name not in needed:
        needed[name] = boxes
        return
    needed[name] = [
        [_hull(a, b) for a, b in zip(old, new, strict=True)]
        for old, new in zip(needed[name], boxes, strict=True)
    ]


def _hull(a: Interval, b: Interval) -> Interval:
    if a[0] == a[1]:
        return b
    if b[0] == b[1]:
        return a
    return min(a[0], b[0]), max(a[1], b[1])


def _covers(intervals: list[Interval], size: int) -> bool:
    done = 0
    for start, stop in intervals:
        if start > done:
            return False
        done = max(done, stop)
    return done >= size


def _check_layouts(
    graph: Graph,
    producer: Layer,
    consumer: Layer,
    tensor: str,
    size: tuple[int, int, int],
    inside: Set[str],
) -> None:
    """A fused tensor has one producer, and both ends address it as the same (N, H, W, C) image.

    `size`: N, P, Q of the producer.
    """
    edge = f"{producer.name} -> {consumer.name}"
    if len(graph.producers(tensor)) > 1:
        raise ScheduleError(f"{edge}: {tensor} is a concatenation and cannot be fused")
    first = source(graph, producer, inside)
    if first is None:  # a max pool, or an add of what no array layer computes: a dense image
        if isinstance(consumer, TensorCoreLayer) and not _reads_image(graph, consumer, size):
            raise ScheduleError(f"{edge}: the two layers address {tensor} differently and cannot be fused")
        return
    d, written = first.dims, first.output
    together = stores_channels_together(first, written, d.K)
    if isinstance(consumer, HostLayer):
        if consumer.op == "add" and not together:
            raise ScheduleError(f"{edge}: {tensor} is stored group by group and cannot be fused with an add")
        return
    if consumer.weight.tensor == tensor:
        raise ScheduleError(f"{edge}: {tensor} is the stationary operand and cannot be fused")
    c, read = consumer.dims, consumer.input
    same = written.offset == read.offset and (c.N, *consumer.input_size) == (d.N, d.P, d.Q)
    for extent, a, b in zip((d.N, d.P, d.Q), written.strides[1:4], read.strides[1:4], strict=True):
        same = same and (extent == 1 or a == b)
    if not (together and stores_channels_together(consumer, read, c.C)):
        same = same and d.G == c.G and d.K == c.C and written.strides[0] == read.strides[0]
    if not same:
        raise ScheduleError(f"{edge}: the two layers address {tensor} differently and cannot be fused")


def _reads_image(graph: Graph, layer: TensorCoreLayer, size: tuple[int, int, int]) -> bool:
    """Whether a layer streams all of a dense tensor of N, H, W pixels and their channels as an image."""
    c, view = layer.dims, layer.input
    _, h, w = size
    channels = graph.tensors[view.tensor].size // math.prod(size)
    strides = zip(size, view.strides[1:4], (h * w * channels, w * channels, channels), strict=True)
    return (
        layer.weight.tensor != view.tensor
        and not view.offset
        and (c.N, *layer.input_size) == size
        and channels == c.G * c.C
        and stores_channels_together(layer, view, c.C)
        and all(extent == 1 or stride == wanted for extent, stride, wanted in strides)
    )
