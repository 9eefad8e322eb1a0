"""One evaluation of the relaxed model: trip counts, fetches and what they make the layers do.

Follows costmodel/count/nest.py with tensors [B, L] for integers; model.py makes costs of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fadiff.converter.ir.loops import C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.traffic import Fetches, Quantities, quantities_of
from fadiff.costmodel.mapping.tiling import tile_count, tile_extents
from fadiff.costmodel.relaxed.fetch_gradient import fetches
from fadiff.costmodel.relaxed.network import NetworkConstants
from fadiff.costmodel.relaxed.regions import cut_regions, pieces_of
from fadiff.costmodel.relaxed.straight_through import DIVISION, ROUNDING, ceil, exact, floor


@dataclass
class RelaxedPoint:
    """Where to evaluate; see costmodel/relaxed/model.py for shapes.  `sigma` may be None without edges.

    `group` is what one group tile makes each node compute along P and Q: of a group's last node the group
    tile itself, of the others that with the halo of what follows (only gradients are taken from there).
    None: everybody's scratchpad tile.
    """

    l2: Tensor
    l1: Tensor
    l0: Tensor
    rows: Tensor
    cols: Tensor
    order: Tensor
    sigma: Tensor | None = None
    group: Tensor | None = None


class Terms:
    """Intermediate tensors of one evaluation."""

    def __init__(self, model: NetworkConstants, point: RelaxedPoint) -> None:
        self.model, self.point = model, point
        # Unbound once: every separate selection would cost a full-size gradient.
        self.l2, self.l1, self.l0 = (t.unbind(-1) for t in (point.l2, point.l1, point.l0))
        self.rows, self.cols = point.rows.unbind(-1), point.cols.unbind(-1)
        self._trips()
        self._fusion()
        self._fetches()

    # -- tile counts -----------------------------------------------------------------------------
    def _trips(self) -> None:
        """Full-tile trip counts per level, and tiles that really occur (ragged) down to each level."""
        bound, p = self.model.bounds, self.point
        smooth = [bound / p.l2, p.l2 / p.l1, p.l1 / p.l0]
        with torch.no_grad():
            full = [ceil(ratio) for ratio in smooth]
            outline = ((bound, torch.ones_like(bound)),)
            sizes = (p.l2, p.l1, p.l0)
            n2, n1 = (tile_count(outline, *sizes[:levels], division=DIVISION) for levels in (2, 3))
        self.full = [exact(f, s) for f, s in zip(full, smooth, strict=True)]
        self.n3 = self.full[0]
        self.n2 = exact(n2, bound / p.l1)
        self.n1 = exact(n1, bound / p.l0)
        self.count3, self.count2, self.count1 = (n.unbind(-1) for n in (self.n3, self.n2, self.n1))

    # -- fusion ----------------------------------------------------------------------------------
    def _fusion(self) -> None:
        """Strength of incoming and outgoing fusion, and what a producer computes for its readers."""
        m, p = self.model, self.point
        batch = p.l2.shape[0]
        zero = p.l2.new_zeros(batch, m.n_layers)
        self.totals = (m.columns[P].expand_as(zero), m.columns[Q].expand_as(zero))
        self.own3 = self.count3
        self.group = [self.l2[P], self.l2[Q]] if p.group is None else list(p.group.unbind(-1))
        self.trips3 = self.full[0]
        self.runs: tuple[Tensor, Tensor, Tensor] | None = None
        self.fused = bool(m.edges) and p.sigma is not None
        if p.sigma is None or not self.fused:
            self.into, self.member, self.copied, self.written = zero, zero, zero, zero + 1
            self.operands = zero.unsqueeze(-1).expand(-1, -1, 2)
            self.inside = zero
            return
        sigma = torch.cat([p.sigma, p.sigma.new_zeros(batch, 1)], dim=1)
        self.operands = sigma[:, m.in_edges]
        self.into = self.operands.sum(dim=-1)
        self.out = sigma[:, m.out_edges]
        self.unread = torch.prod(1 - self.out, dim=-1)
        self.copied = 1 - self.unread
        every = torch.prod(torch.where(m.out_edges == len(m.edges), 1.0, self.out), dim=-1)
        self.written = 1 - (1 - m.needed) * (1 - m.unread) * every
        self.member = 1 - torch.prod(1 - self.operands, dim=-1) * self.unread
        self.strength = m.companions.strength(p.sigma)
        if not m.paper:
            self._in_groups()

    def _in_groups(self) -> None:
        """Indices and tile counts along P and Q, in between what a layer does alone and in its group."""
        m = self.model
        axes = (P, Q)
        l2, l1, l0 = (torch.stack([tile[P], tile[Q]]) for tile in (self.l2, self.l1, self.l0))
        tile = torch.stack(self.group)
        fused_out, fused_in = self.out > 0.5, (self.operands > 0.5).any(dim=-1)
        last = fused_in & ~fused_out.any(dim=-1)
        with torch.no_grad():
            self.regions = regions = m.grid(tile, fused_out, last)
            counts = cut_regions(regions, l2, l1, l0)
            happened = (regions.times * (regions.extent > 0)).sum(dim=-1).clamp(min=1)
            largest = regions.extent.amax(dim=-1).clamp(min=1)
            within = ceil(largest / l2)
        # The members of a group run as often as its last node has tiles.
        walked = (m.grid.size.squeeze(-1) / tile).gather(2, regions.sink.expand_as(tile))
        runs = exact(happened, walked)
        total = exact(regions.total, regions.growth * runs)
        smooth = (total / l2, total / l1, total / l0)
        # A producer is in a group as far as somebody reads it there, the last node as far as it reads.
        self.inside = self.copied + last * (1 - self.copied) * self.member
        own = torch.stack([self.n3, self.n2, self.n1])
        mixed, trips = list(own.unbind(-1)), list(self.full[0].unbind(-1))
        levels = [exact(count, slope) for count, slope in zip(counts, smooth, strict=True)]
        for at, d in enumerate(axes):
            group = torch.stack([level[at] for level in levels])
            mixed[d] = mixed[d] + self.inside * (group - mixed[d])
            first = exact(within[at], largest[at] / l2[at])
            trips[d] = trips[d] + self.inside * (first - trips[d])
        images = 1 + self.member * (self.full[0][..., N] - 1)
        trips[N] = trips[N] / images
        self.trips3 = torch.stack(trips, dim=-1)
        self.runs = (images, 1 + self.inside * (runs[0] - 1), 1 + self.inside * (runs[1] - 1))
        self.n3, self.n2, self.n1 = torch.stack(mixed, dim=-1).unbind(0)
        self.count3, self.count2, self.count1 = (n.unbind(-1) for n in (self.n3, self.n2, self.n1))
        alone = torch.stack(self.totals)
        totals = alone + self.copied * (total - alone)
        self.totals = (totals[0], totals[1])

    # -- how often tiles are fetched -------------------------------------------------------------
    def _fetches(self) -> None:
        """Multiplicity of W and I into the scratchpad, O into the accumulator, W into the array.

        See fadiff.costmodel.relaxed.fetch_gradient for the rule.
        """
        m = self.model
        runs = torch.ones_like(self.n3[..., :3]) if self.runs is None else torch.stack(self.runs, dim=-1)
        outer = self.own_trips()
        effective = torch.cat([self.n1 / self.n2, self.n2 / self.n3, outer, runs], dim=-1)
        started = torch.cat([self.full[2], self.full[1], self.trips3, runs], dim=-1)
        gate = (started - 1).clamp(0, 1)
        trips, gates = (x.permute(2, 0, 1).contiguous() for x in (effective - 1, gate))
        member = torch.zeros_like(self.member) if m.paper else self.member
        weights = self.point.order.permute(2, 0, 1)

        def times(what: str) -> Tensor:
            return fetches(trips, gates, member, m.fetch_orders[what]) * weights

        self.fetch_w = times("weight_fills").sum(dim=0)
        self.fetch_i = times("input_fills").sum(dim=0)
        self.fetch_o = times("outputs").sum(dim=0)
        self.fetch_w0 = times("weight_loads").sum(dim=0)
        self.gate3 = gate[..., 16:24]
        self.gate2 = gate[..., 8:16]
        self.once3 = (1 - self.gate3).unbind(-1)

    def own_trips(self) -> Tensor:
        """DRAM loops of every layer's own nest, once per group tile, [B, L, 8]."""
        if self.runs is None:
            return self.n3
        outer = list(self.count3)
        for d, runs in zip((N, P, Q), self.runs, strict=True):
            outer[d] = outer[d] / runs
        return torch.stack(outer, dim=-1)

    # -- quantities ------------------------------------------------------------------------------
    def quantities(self) -> Quantities:
        """fadiff.costmodel.count.nest.Nest.quantities with real numbers."""
        m = self.model
        b = m.columns
        total = [*b[:P], *self.totals, *b[R:]]
        weights = None
        if m.counting.loads_zeros and m.any_depthwise:
            dense = b[G] * b[K] * b[C] * b[R] * b[S]
            weights = dense + m.depthwise * (self._diagonal() - dense)
        steps = [total[d] if d in (N, P, Q) else self.count1[d] for d in range(8)]
        rows, columns = self._input_rows()
        has_bias = m.counting.moves_accumulator and m.any_bias
        return quantities_of(
            total,
            steps,
            Fetches(self.fetch_w, self.fetch_w0, self.fetch_i, self.fetch_o),
            stored=b[G] * b[K] * b[N] * b[P] * b[Q],
            inputs=b[G] * b[N] * b[C] * rows * columns,
            weights=weights,
            bias_words=m.bias * self._bias(b[N] * self.totals[0] * self.totals[1]) if has_bias else 0,
        )

    def _input_rows(self) -> tuple[Tensor, Tensor]:
        """Input rows and columns fetched in one pass over all scratchpad tiles."""
        m = self.model
        taps = [self.own3[axis.taps] for axis in m.axes]
        rows = [
            axis.rows(total, self.count3[axis.outputs], tap)
            for axis, total, tap in zip(m.axes, self.totals, taps, strict=True)
        ]
        if not m.counting.clips_padding:
            return rows[0], rows[1]
        clipped = [
            axis.clipping(
                self.l2[axis.outputs],
                self.l2[axis.taps],
                axis.rows(m.columns[axis.outputs], self.own3[axis.outputs], tap).detach(),
            )
            for axis, tap in zip(m.axes, taps, strict=True)
        ]
        if self.fused and not m.paper:
            with torch.no_grad():
                tiles = torch.stack([self.l2[P], self.l2[Q]])
                touched = m.grid.touched(self.regions, tiles, torch.stack([self.l2[R], self.l2[S]]))
                count = cut_regions(self.regions, tiles, tiles, tiles).l2
            for at, (axis, tap) in enumerate(zip(m.axes, taps, strict=True)):
                boxes = axis.rows(self.regions.total[at], count[at], tap).detach()
                clipped[at] = clipped[at] + self.inside * (touched[at] - boxes - clipped[at])
        return rows[0] + clipped[0], rows[1] + clipped[1]

    def boxes(self) -> Sequence[Tensor]:
        """Input rows and columns that one scratchpad tile holds, padding included."""
        return [axis.box(self.l2[axis.outputs], self.l2[axis.taps]) for axis in self.model.axes]

    def pieces(self, d: int) -> tuple[Tensor, Tensor]:
        """Extents of the accumulator tiles of one dimension with how often each occurs, [B, L, pieces].

        Of a layer on its own, or of the regions of one whose output is fused; no gradient.
        """
        if d in (P, Q) and self.fused and not self.model.paper:
            extents, times = self.image_pieces
            return extents[(P, Q).index(d)], times[(P, Q).index(d)]
        sizes = (self.l2[d].detach(), self.l1[d].detach())
        bound = self.model.columns[d].expand_as(sizes[0])
        pieces = tile_extents(((bound, torch.ones_like(bound)),), *sizes, division=DIVISION)
        extents, times = (torch.stack(column, dim=-1) for column in zip(*pieces, strict=True))
        return extents, times

    @cached_property
    def image_pieces(self) -> tuple[Tensor, Tensor]:
        """`pieces` of P and Q, [2, B, L, pieces]: an image alone is one region."""
        with torch.no_grad():
            inside = (self.inside > 0.5).unsqueeze(-1)
            alone = torch.zeros_like(self.regions.extent)
            alone[..., 0] = 1
            extents = torch.where(inside, self.regions.extent, alone * self.model.grid.size)
            times = torch.where(inside, self.regions.times, alone)
            return pieces_of(extents, times, *(torch.stack([t[P], t[Q]]) for t in (self.l2, self.l1)))

    def _bias(self, pixels: Tensor) -> Tensor:
        """Words read to initialise accumulator tiles: one per column and `side` rows."""
        m = self.model
        channels = m.columns[G] * m.columns[K]
        tiles = self.count2[N] * self.count2[P] * self.count2[Q]
        smooth = torch.maximum(tiles, pixels / m.target.side)
        with torch.no_grad():
            (p, p_t), (q, q_t) = self.pieces(P), self.pieces(Q)
            p, p_t = p.unsqueeze(-1) / m.target.side, p_t.unsqueeze(-1)
            fills = torch.zeros_like(pixels)
            for n, n_t in zip(*(x.unbind(-1) for x in self._images()), strict=True):
                # In place: these are the largest tensors of a step.
                rows = p * (n.unsqueeze(-1) * q).unsqueeze(-2)
                found = rows.sub_(ROUNDING).ceil_().mul_(p_t).sum(dim=-2)
                fills += n_t * (found * q_t).sum(dim=-1)
        return channels * exact(fills, smooth)

    def _images(self) -> tuple[Tensor, Tensor]:
        """`pieces` of N, which is mostly one."""
        if self.model.any_batch:
            return self.pieces(N)
        one = torch.ones_like(self.own3[N]).unsqueeze(-1)
        return one, one

    def _diagonal(self) -> Tensor:
        """Weights of a depthwise layer's block-diagonal tiles, zeros included."""
        m = self.model
        b = m.columns
        block = self.l0[G]
        with torch.no_grad():
            extent, times = self.pieces(G)
            size = block.unsqueeze(-1)
            whole = floor(extent / size)
            squares = (times * (whole * size.square() + (extent - whole * size).square())).sum(dim=-1)
        return b[R] * b[S] * exact(squares, b[G] * block)
