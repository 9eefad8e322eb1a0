"""Which part of every node a fusion group computes, tile by tile: costmodel.fusion.plan_group on tensors.

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

import torch
from torch import Tensor

from costmodel.relaxed_groups import REACH
from costmodel.schedule import Halo
from costmodel.straight_through import ceil
from costmodel.tiling import Window


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
        halo: Halo,
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
        self.size = column(bounds)
        self.overlap = (self.kernel - 1) * self.dilation + 1 - self.stride
        #: An interval is held as (start, -stop), so that a box is one product and sum, a hull one minimum.
        self.shift = torch.stack([-self.pad, self.pad - self.overlap])
        self.lowest = torch.stack([torch.zeros_like(self.size), -self.size])
        self.highest = torch.stack([self.size, torch.zeros_like(self.size)])
        self.retains = halo == "retain"
        self.growth = self.overlap.squeeze(-1).clone()
        if self.retains:
            self.growth[0] = 0
        self.width = max((len(r) for r in readers), default=0) or 1
        self.readers = torch.tensor([list(r) + [0] * (self.width - len(r)) for r in readers]).reshape(-1)
        self.exists = torch.tensor([[i < len(r) for i in range(self.width)] for r in readers])
        self.nodes = torch.arange(len(readers))
        self.ends = max(_clipped_tiles(windows, bounds, readers), default=0) + 2

    def __call__(self, tile: Tensor, strong: Tensor) -> Regions:
        """Regions for tiles [2, B, L] of every node and the edges that are fused, [B, L, width]."""
        tile = torch.minimum(tile.round().clamp(min=1).unsqueeze(-1), self.size)
        count = ceil(self.size / tile)
        kept = min(2 * self.ends + 1, int(count.max()))
        at = torch.arange(kept, dtype=tile.dtype)
        skipped = (count - kept).clamp(min=0)
        start = (at + skipped * (at > self.ends)) * tile
        own = _Traced(
            torch.stack([start, -torch.minimum(start + tile, self.size)]),
            self.nodes.expand(strong.shape[:2]),
            torch.zeros_like(tile.squeeze(-1)),
        )
        own = own._replace(ends=_without_empty(own.ends))
        times = (1 + skipped * (at == self.ends)) * (at < count)
        fused = strong.any(dim=-1)
        traced = own
        for _ in range(REACH - 1):
            before = traced
            traced = self._handed_back(traced, own, skipped, strong, fused)
            if torch.equal(before.sink, traced.sink):
                break
        asked = torch.where(fused.unsqueeze(-1), strong, self.exists)
        anybody = self.exists.any(dim=-1).expand_as(fused)
        traced = self._handed_back(traced, own, skipped, asked, anybody)
        start, stop = traced.ends[0], -traced.ends[1]
        empty = torch.isinf(start)
        start, stop = (torch.where(empty, 0.0, end) for end in (start, stop))
        sink = traced.sink.unsqueeze(-1)
        times = times.gather(2, sink.expand_as(start)) * ~empty
        done = self._done(stop, skipped.gather(2, sink.expand(2, -1, -1, -1)))
        fresh = torch.minimum(torch.maximum(start, done), stop)
        largest = (stop - start).amax(dim=-1)
        covered = ((stop - fresh) * times).sum(dim=-1)
        if self.retains:
            start = torch.stack([fresh[0], start[1]])
        return Regions(start, stop, times * (stop > start), largest, covered, traced.sink, traced.growth)

    def _handed_back(
        self, traced: _Traced, own: _Traced, skipped: Tensor, asked: Tensor, fused: Tensor
    ) -> _Traced:
        """One edge further back: every fused node gets the hull of its readers' boxes."""
        ends = traced.ends
        if self.retains:
            stop = torch.where(torch.isinf(ends[0]), 0.0, -ends[1])
            done = self._done(stop, skipped.gather(2, traced.sink.unsqueeze(-1).expand(2, -1, -1, -1)))
            rows = torch.maximum(ends[0, 0], done[0])
            ends = torch.stack([torch.stack([rows, ends[0, 1]]), ends[1]])
            ends = _without_empty(ends)
        boxes = self._of_readers(ends * self.stride + self.shift, 3)
        hull = torch.where(asked.unsqueeze(-1), boxes, torch.inf).amin(dim=-2)
        hull = torch.minimum(torch.maximum(hull, self.lowest), self.highest)
        growth = self._of_readers(traced.growth * self.stride.squeeze(-1) + self.growth, 2)
        growth = (growth * asked).amax(dim=-1)
        sink = torch.where(asked, self._of_readers(traced.sink, 1), 0).amax(dim=-1)
        return _Traced(
            torch.where(fused.unsqueeze(-1), _without_empty(hull), own.ends),
            torch.where(fused, sink, own.sink),
            torch.where(fused, growth, own.growth),
        )

    def _of_readers(self, values: Tensor, axis: int) -> Tensor:
        """Values of nodes, along `axis`, as those of every node's readers: [.., L, readers, ..]."""
        shape = values.shape
        picked = values.index_select(axis, self.readers)
        return picked.reshape(*shape[:axis], -1, self.width, *shape[axis + 1 :])

    def _done(self, stop: Tensor, skipped: Tensor) -> Tensor:
        """Where earlier tiles stopped, [2, B, L, T]."""
        before = torch.cat([torch.zeros_like(stop[..., :1]), stop[..., :-1]], dim=-1)
        ends = self.ends
        if stop.shape[-1] > ends + 1:
            step = stop[..., ends : ends + 1] - stop[..., ends - 1 : ends]
            before[..., ends + 1 : ends + 2] += skipped * step
        return torch.cummax(before, dim=-1).values

    def touched(self, regions: Regions, taps: Tensor) -> Tensor:
        """Input rows and columns inside the image that the regions fetch in one go, [2, B, L].

        Kernels are walked in pieces of `taps` [2, B, L]; costmodel.tiling.touched_rows.
        """
        start, stop, times, *_ = regions
        taps = torch.minimum(taps.round().clamp(min=1).unsqueeze(-1), self.kernel)
        first, last = start * self.stride - self.pad, (stop - 1) * self.stride - self.pad
        total = torch.zeros_like(first)
        for piece in range(int(ceil(self.kernel / taps).max())):
            low = piece * taps
            high = torch.minimum(low + taps, self.kernel) - 1
            top = torch.minimum(last + high * self.dilation, self.input_size - 1)
            rows = top - (first + low * self.dilation).clamp(min=0) + 1
            total += torch.where(low < self.kernel, rows.clamp(min=0), 0.0)
        # Kernel 1: stride skips what lies between two touched rows.
        inside = torch.minimum(stop - 1, torch.floor((self.input_size - 1 + self.pad) / self.stride))
        inside = (inside - torch.maximum(start, ceil(self.pad / self.stride)) + 1).clamp(min=0)
        return (torch.where(self.kernel == 1, inside, total) * times).sum(dim=-1)


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
    l2, l1, l0 = (tile.unsqueeze(-1) for tile in (l2, l1, l0))

    def blocks(extent: Tensor) -> Tensor:
        whole = floor(extent / l1)
        return whole * ceil(l1 / l0) + ceil((extent - whole * l1) / l0)

    extent, times = regions.extent, regions.times
    whole = floor(extent / l2)
    rest = extent - whole * l2
    counts = (
        ceil(extent / l2),
        whole * ceil(l2 / l1) + ceil(rest / l1),
        whole * blocks(l2) + blocks(rest),
    )
    return TileCounts(*((count * times).sum(dim=-1) for count in counts))


def pieces_of(extent: Tensor, times: Tensor, l2: Tensor, l1: Tensor) -> tuple[Tensor, Tensor]:
    """Extents of the accumulator tiles of regions [2, B, L, T] and how often each occurs, [.., T + 2]."""
    l2, l1 = l2.unsqueeze(-1), l1.unsqueeze(-1)
    whole = floor(extent / l2)
    rest = extent - whole * l2
    in_rest, in_whole = floor(rest / l1), floor(l2 / l1)
    full = ((whole * in_whole + in_rest) * times).sum(dim=-1, keepdim=True)
    last = (whole * times).sum(dim=-1, keepdim=True)
    extents = torch.cat([l1, l2 - in_whole * l1, rest - in_rest * l1], dim=-1)
    return extents, torch.cat([full, last, times], dim=-1)


def floor(ratio: Tensor) -> Tensor:
    """Floor that forgives rounding errors of integral ratios; no gradient."""
    return torch.floor(ratio + 1e-4)


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
