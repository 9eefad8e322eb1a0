"""Which part of every node a fusion group computes, tile by tile: group.fusion.plan_group on tensors.

A group walks the tiles of its last node.  What every other member computes follows from its readers:
their boxes (halo included), the hull of several, clipped to the image.  Intervals are whole numbers
and follow the readers whose edges are strong (sigma above a half); a node without a strong edge gets
the region it would compute if all its edges were, so that a gradient knows what fusing would cost.

Tiles far from both ends of an axis look alike: a few of each end and one in between, which stands
for all the others, are enough.  Shapes: [2, B, L, T] for P and Q, restarts, nodes and these tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import networkx as nx
import torch
from torch import Tensor

from fadiff.costmodel.mapping.tiling import Window, tile_count, tile_extents
from fadiff.costmodel.relaxed.groups import REACH
from fadiff.costmodel.relaxed.straight_through import DIVISION, ceil, floor


class Regions(NamedTuple):
    """What nodes compute inside their groups; no gradients."""

    start: Tensor
    stop: Tensor
    """Computed intervals, empty ones with start = stop, [2, B, L, T]."""
    times: Tensor
    """Group tiles that each interval stands for, [2, B, L, T]."""
    largest: Tensor
    """Extent of the largest interval that later members read, [2, B, L]."""
    covered: Tensor
    """Indices that some group tile computes, [2, B, L]."""
    sink: Tensor
    """Last node of the group, [B, L]."""
    growth: Tensor
    """Indices computed more for every further group tile, [2, B, L]."""

    @property
    def extent(self) -> Tensor:
        """Of every interval."""
        return self.stop - self.start

    @property
    def total(self) -> Tensor:
        """Indices computed by all group tiles together, [2, B, L]."""
        return (self.extent * self.times).sum(dim=-1)


class TileCounts(NamedTuple):
    """Tiles per level that cut the regions, ragged ones included, [2, B, L]."""

    l2: Tensor
    l1: Tensor
    l0: Tensor


class GroupGrid:
    """The network's windows and edges, ready to trace batches of group tiles back."""

    def __init__(
        self,
        windows: Sequence[Sequence[Window]],
        bounds: Sequence[Sequence[int]],
        readers: Sequence[Sequence[int]],
        dtype: torch.dtype,
    ) -> None:
        """`windows` and `bounds` of P and Q for every node; `readers`: nodes at the end of its edges."""

        def column(values: Sequence[Sequence[float]]) -> Tensor:
            return torch.tensor([list(axis) for axis in values], dtype=dtype)[:, None, :, None]

        self.stride = column([[w.stride for w in axis] for axis in windows])
        self.pad = column([[w.pad for w in axis] for axis in windows])
        self.kernel = column([[w.kernel for w in axis] for axis in windows])
        self.dilation = column([[w.dilation for w in axis] for axis in windows])
        self.input_size = column([[w.size for w in axis] for axis in windows])
        # Nodes whose kernel may have a piece 0, 1, ...
        longest = self.kernel.amax(dim=0).flatten()
        self.walks = [torch.nonzero(longest > piece).flatten() for piece in range(int(longest.max()))]
        self.size = column(bounds)
        self.overlap = (self.kernel - 1) * self.dilation + 1 - self.stride
        # An interval is held as (start, -stop), so that a box is one product and sum, a hull one minimum.
        self.shift = torch.stack([-self.pad, self.pad - self.overlap])
        self.lowest = torch.stack([torch.zeros_like(self.size), -self.size])
        self.highest = torch.stack([self.size, torch.zeros_like(self.size)])
        self.growth = self.overlap.squeeze(-1)
        self.readers = [list(r) for r in readers]
        graph: nx.DiGraph[int] = nx.DiGraph(
            [(node, reader) for node, r in enumerate(readers) for reader in r]
        )
        graph.add_nodes_from(range(len(readers)))
        # Readers first.  Merged layers may read each other: then again, until what is far has arrived.
        acyclic = nx.is_directed_acyclic_graph(graph)
        order = list(nx.topological_sort(graph)) if acyclic else sorted(graph)
        self.order = [node for node in reversed(order) if readers[node]] * (1 if acyclic else REACH)
        self.ends = max(_clipped_tiles(windows, bounds, readers), default=0) + 2

    def __call__(self, tile: Tensor, strong: Tensor, last: Tensor) -> Regions:
        """Regions for group tiles [2, B, L] of every node as a group's last one, the edges that are fused,
        [B, L, width], and the nodes that are last, [B, L]: their regions are the group tiles."""
        tile = torch.minimum(tile.round().clamp(min=1).unsqueeze(-1), self.size)
        count = ceil(self.size / tile)
        kept = min(2 * self.ends + 1, int(count.max()))
        at = torch.arange(kept, dtype=tile.dtype)
        skipped = (count - kept).clamp(min=0)
        start = (at + skipped * (at > self.ends)) * tile
        ends = torch.stack([start, -torch.minimum(start + tile, self.size)])
        times = (1 + skipped * (at == self.ends)) * (at < count)
        traced = self._traced_back(_without_empty(ends), strong, last)
        start, stop = traced.ends[0], -traced.ends[1]
        empty = torch.isinf(start)
        start, stop = (torch.where(empty, 0.0, end) for end in (start, stop))
        sink = traced.sink.unsqueeze(-1)
        times = times.gather(2, sink.expand_as(start)) * ~empty
        done = self._done(stop, skipped.gather(2, sink.expand(2, -1, -1, -1)))
        fresh = torch.minimum(torch.maximum(start, done), stop)
        largest = (stop - start).amax(dim=-1)
        covered = ((stop - fresh) * times).sum(dim=-1)
        return Regions(start, stop, times * (stop > start), largest, covered, traced.sink, traced.growth)

    def _traced_back(self, own: Tensor, strong: Tensor, last: Tensor) -> _Traced:
        """Every node's hull of its readers' boxes, readers first; `own` are the ends of group tiles."""
        # Unbound once and by hand: small tensors, many of them.
        fused = strong.any(dim=-1).unbind(1)
        edge = [column.unbind(-1) for column in strong.unbind(1)]
        tiles = own.unbind(3)
        state = list(tiles)
        hulls = list(tiles)
        sinks = [torch.full((len(strong),), node) for node in range(len(tiles))]
        growths = [own.new_zeros(2, len(strong))] * len(tiles)
        sink, growth = list(sinks), list(growths)
        for node in self.order:
            asked: list[tuple[Tensor, Tensor, Tensor]] = []
            for reader, taken in zip(self.readers[node], edge[node], strict=False):
                box, grown = self._box(reader, state[reader], growth[reader])
                where = sink[reader]
                if len(self.readers[node]) > 1:
                    # Readers whose edge is open do not ask; if all are, what they would ask counts.
                    asks = taken | ~fused[node]
                    box = torch.where(asks.unsqueeze(-1), box, torch.inf)
                    grown = torch.where(asks, grown, 0.0)
                    where = torch.where(asks, where, 0)
                asked.append((box, grown, where))
            hull, farthest, walker = asked[0]
            for box, grown, where in asked[1:]:
                hull = torch.minimum(hull, box)
                farthest, walker = torch.maximum(farthest, grown), torch.maximum(walker, where)
            hull = torch.minimum(torch.maximum(hull, self.lowest[:, :, :, node]), self.highest[:, :, :, node])
            hulls[node] = _without_empty(hull)
            sinks[node], growths[node] = walker, farthest
            inside = fused[node]
            state[node] = torch.where(inside.unsqueeze(-1), hulls[node], tiles[node])
            sink[node] = torch.where(inside, walker, node)
            growth[node] = torch.where(inside, farthest, 0.0)
        itself = torch.arange(len(tiles)).expand_as(last)
        return _Traced(
            torch.where(last.unsqueeze(-1), own, torch.stack(hulls, dim=3)),
            torch.where(last, itself, torch.stack(sinks, dim=1)),
            torch.where(last, 0.0, torch.stack(growths, dim=2)),
        )

    def _box(self, reader: int, ends: Tensor, growth: Tensor) -> tuple[Tensor, Tensor]:
        """What a reader's intervals [2, 2, B, T] need of its producer; how much that grows per tile."""
        stride = self.stride[:, :, reader]
        box = ends * stride + self.shift[:, :, :, reader]
        return box, growth * stride.squeeze(-1) + self.growth[:, :, reader]

    def _done(self, stop: Tensor, skipped: Tensor) -> Tensor:
        """Where earlier tiles stopped, [2, B, L, T]."""
        before = torch.cat([torch.zeros_like(stop[..., :1]), stop[..., :-1]], dim=-1)
        ends = self.ends
        if stop.shape[-1] > ends + 1:
            step = stop[..., ends : ends + 1] - stop[..., ends - 1 : ends]
            before[..., ends + 1 : ends + 2] += skipped * step
        return torch.cummax(before, dim=-1).values

    def touched(self, regions: Regions, tile: Tensor, taps: Tensor) -> Tensor:
        """Input rows and columns inside the image that the regions fetch, [2, B, L].

        Regions are cut by scratchpad tiles [2, B, L], kernels into pieces of `taps` [2, B, L];
        fadiff.costmodel.mapping.tiling.fetched_rows.
        """
        start, stop, times, *_ = regions
        taps = torch.minimum(taps.round().clamp(min=1).unsqueeze(-1), self.kernel)
        tile = tile.round().clamp(min=1).unsqueeze(-1)
        whole = floor((stop - start) / tile)
        total = torch.zeros_like(start)
        for piece, nodes in enumerate(self.walks):
            kernel, dilation, taken, stride, pad, size, begin, end, step, count = (
                x[:, :, nodes]
                for x in (
                    *(self.kernel, self.dilation, taps, self.stride, self.pad, self.input_size),
                    *(start, stop, tile, whole),
                )
            )
            low = piece * taken
            high = torch.minimum(low + taken, kernel) - 1
            first, reach = begin * stride - pad + low * dilation, (high - low) * dilation + 1
            past = first + (step - 1) * stride + reach
            rows = _clipped_sum(past, step * stride, count, size)
            rows -= _clipped_sum(first, step * stride, count, size)
            # What whole tiles leave over.
            bottom = (first + count * step * stride).clamp_(min=0)
            top = torch.minimum((end - 1) * stride - pad + high * dilation + 1, size)
            rows += (top - bottom).clamp_(min=0) * (count * step < end - begin)
            total.index_add_(2, nodes, rows.mul_(low < kernel))
        # Kernel 1: stride skips what lies between two touched rows.
        inside = torch.minimum(stop - 1, torch.floor((self.input_size - 1 + self.pad) / self.stride))
        inside = (inside - torch.maximum(start, ceil(self.pad / self.stride)) + 1).clamp(min=0)
        return (torch.where(self.kernel == 1, inside, total) * times).sum(dim=-1)


def _clipped_sum(first: Tensor, step: Tensor, count: Tensor, size: Tensor) -> Tensor:
    """Sum of first, first + step, ... (`count` of them), each clipped to 0 .. size."""
    below = torch.minimum(ceil(-first / step).clamp_(min=0), count)
    inside = torch.minimum(ceil((size - first) / step).clamp_(min=0), count)
    between = inside - below
    return between * (first + step * (below + inside - 1) / 2) + (count - inside) * size


class _Traced(NamedTuple):
    """Regions on their way back through the edges; see Regions."""

    ends: Tensor
    """(start, -stop) of every interval, infinite if it is empty, [2, 2, B, L, T]."""
    sink: Tensor
    growth: Tensor


def _without_empty(ends: Tensor) -> Tensor:
    """Infinite ends for intervals that end before they start: nobody's hull sees them."""
    return torch.where(ends[0] + ends[1] >= 0, torch.inf, ends)


def cut_regions(regions: Regions, l2: Tensor, l1: Tensor, l0: Tensor) -> TileCounts:
    """Tiles of the regions under tile extents [2, B, L]."""
    sizes = [tile.unsqueeze(-1) for tile in (l2, l1, l0)]
    outline = ((regions.extent, regions.times),)
    counts = (tile_count(outline, *sizes[:levels], division=DIVISION) for levels in (1, 2, 3))
    return TileCounts(*(count.sum(dim=-1) for count in counts))


def pieces_of(extent: Tensor, times: Tensor, l2: Tensor, l1: Tensor) -> tuple[Tensor, Tensor]:
    """Extents of the accumulator tiles of regions [2, B, L, T] and how often each occurs, [.., T + 2]."""
    sizes = (l2.unsqueeze(-1), l1.unsqueeze(-1))
    extents, counts = zip(*tile_extents(((extent, times),), *sizes, division=DIVISION), strict=True)
    # Whole tiles are the same in all regions.
    alike = (
        count if piece.shape[-1] > 1 else count.sum(dim=-1, keepdim=True)
        for piece, count in zip(extents, counts, strict=True)
    )
    return torch.cat(extents, dim=-1), torch.cat(tuple(alike), dim=-1)


def _clipped_tiles(
    windows: Sequence[Sequence[Window]], bounds: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]
) -> Sequence[int]:
    """Tiles at an end of an axis that the border of some member's image may cut short."""
    found = []
    for axis, size in zip(windows, bounds, strict=True):
        for node in range(len(axis)):
            # (node, rows of this one per row of that, rows above the image, rows below it)
            frontier = {(node, 1, 0, 0)}
            for _ in range(REACH):
                further = set()
                for at, scale, above, below in frontier:
                    for reader in readers[at]:
                        w = axis[reader]
                        beyond = (size[reader] - 1) * w.stride + (w.kernel - 1) * w.dilation - w.pad
                        over = max(0, beyond - w.size + 1)
                        step = (
                            reader,
                            scale * w.stride,
                            above + w.pad * scale,
                            below + over * scale,
                        )
                        found.append(-(-max(step[2:]) // step[1]))
                        further.add(step)
                frontier = further
    return found
