"""One evaluation of the relaxed model: trip counts, fetches, bytes, prices, penalties.

Follows costmodel/traffic.py line by line, with tensors [B, L] for integers; see costmodel/relaxed.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from costmodel.energy import picojoules_per_byte
from costmodel.fetch_gradient import fetches
from costmodel.host import add_moves
from costmodel.latency import bandwidths
from costmodel.relaxed import (
    RelaxedCost,
    RelaxedModel,
    RelaxedPoint,
)
from costmodel.relaxed_penalties import penalties
from costmodel.rtl_relaxed import rtl_cycles
from costmodel.schedule import Profile
from costmodel.straight_through import ceil, exact
from costmodel.traffic import Fusion, Memory, Quantities, count_moves, path_of

G, N, K, C, P, Q, R, S = range(8)
ADD_CHAIN = 2
"""Adds in a row (a sum of three) over which a needed region is handed back."""


class Terms:
    """Intermediate tensors of one evaluation."""

    def __init__(self, model: RelaxedModel, point: RelaxedPoint) -> None:
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
            n3, f2, f1 = full
            last2 = bound - (n3 - 1) * p.l2
            m = ceil(last2 / p.l1)
            n2 = (n3 - 1) * f2 + m
            blocks = (f2 - 1) * f1 + ceil((p.l2 - (f2 - 1) * p.l1) / p.l0)
            n1 = (n3 - 1) * blocks + (m - 1) * f1 + ceil((last2 - (m - 1) * p.l1) / p.l0)
        self.full = [exact(f, s) for f, s in zip(full, smooth, strict=True)]
        self.n3 = self.full[0]
        self.n2 = exact(n2, bound / p.l1)
        self.n1 = exact(n1, bound / p.l0)
        self.count3, self.count2, self.count1 = (n.unbind(-1) for n in (self.n3, self.n2, self.n1))

    # -- fusion ----------------------------------------------------------------------------------
    def _fusion(self) -> None:
        """Strength of incoming and outgoing fusion, and what overlapping regions add to a producer."""
        m, p = self.model, self.point
        batch = p.l2.shape[0]
        zero = p.l2.new_zeros(batch, m.n_layers)
        self.rho_p = self.rho_q = zero + 1
        self.tiles_p, self.tiles_q = self.count3[P], self.count3[Q]
        self.fused = bool(m.edges) and p.sigma is not None
        if p.sigma is None or not self.fused:
            self.into, self.member, self.copied, self.written = zero, zero, zero, zero + 1
            self.operands = zero.unsqueeze(-1).expand(-1, -1, 2)
            return
        sigma = torch.cat([p.sigma, p.sigma.new_zeros(batch, 1)], dim=1)
        self.operands = sigma[:, m.in_edges]
        self.into = self.operands.sum(dim=-1)
        out = sigma[:, m.out_edges]
        self.out = out
        unfused = torch.prod(1 - out, dim=-1)
        self.copied = 1 - unfused
        every = torch.prod(torch.where(m.out_edges == len(m.edges), torch.ones_like(out), out), dim=-1)
        self.written = 1 - (1 - m.needed) * (1 - m.unread) * every
        self.member = 1 - torch.prod(1 - self.operands, dim=-1) * unfused
        if m.paper:
            return
        rho, tiles = [], []
        for axis, own in zip(m.axes, (self.tiles_p, self.tiles_q), strict=True):
            n = self.count3[axis.outputs]
            rows = axis.hull(self.l2[axis.outputs], n)
            ratio = torch.maximum(rows / axis.size, torch.ones_like(rows))[:, m.readers]
            grown, count = self._handed_back(ratio, n[:, m.readers], own)
            for _ in range(ADD_CHAIN if m.any_add else 0):
                # An add needs of its operands what its own readers need of it.
                add = m.adds[m.readers] > 0
                ratio = torch.where(add, grown[:, m.readers], ratio)
                grown, count = self._handed_back(
                    ratio, torch.where(add, count[:, m.readers], n[:, m.readers]), own
                )
            rho.append(grown)
            tiles.append(count)
        self.rho_p, self.rho_q = rho
        self.tiles_p, self.tiles_q = tiles

    def _handed_back(self, ratio: Tensor, n: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Growth of a producer's region and its tile count, of its readers' [B, L, readers]."""
        out = self.out
        grown = 1 + (out * (ratio - 1)).amax(dim=-1) * (self.model.halo == "recompute")
        theirs = (out * (n - own.unsqueeze(-1))).sum(dim=-1)
        return grown, own + theirs / out.sum(dim=-1).clamp(min=1)

    # -- how often tiles are fetched -------------------------------------------------------------
    def _fetches(self) -> None:
        """Multiplicity of W and I into the scratchpad, O into the accumulator, W into the array.

        See costmodel.fetch_gradient for the rule.
        """
        m = self.model
        effective = torch.cat([self.n1 / self.n2, self.n2 / self.n3, self.outer_trips()], dim=-1)
        started = torch.cat([self.full[2], self.full[1], self.full[0]], dim=-1)
        gate = (started - 1).clamp(0, 1)
        trips, gates = (x.permute(2, 0, 1).contiguous() for x in (effective - 1, gate))
        member = torch.zeros_like(self.member) if m.paper else self.member
        weights = self.order_weights().permute(2, 0, 1)

        def times(what: str) -> Tensor:
            return fetches(trips, gates, member, m.fetch_orders[what]) * weights

        self.fetch_w = times("weight_fills").sum(dim=0)
        inputs = times("input_fills")
        self.fetch_i = (inputs * self._slide(gate) if m.sliding_window else inputs).sum(dim=0)
        self.fetch_o = times("outputs").sum(dim=0)
        self.fetch_w0 = times("weight_loads").sum(dim=0)
        self.gate3 = gate[..., 16:]
        self.gate2 = gate[..., 8:16]
        self.once3 = (1 - self.gate3).unbind(-1)

    def outer_trips(self) -> Tensor:
        """DRAM trips, with the group's tile count along the image axes of fused layers."""
        if not self.fused or self.model.paper:
            return self.n3
        n3 = list(self.count3)
        n3[P], n3[Q] = self.tiles_p, self.tiles_q
        return torch.stack(n3, dim=-1)

    def order_weights(self) -> Tensor:
        """Weight of every loop order, those of fused layers included, [B, L, O]."""
        m = self.model
        own = self.point.order @ m.identity
        if not self.fused or m.paper:
            return own
        member = self.member.unsqueeze(-1)
        return own * (1 - member) + (self.point.order @ m.to_group) * member

    def _slide(self, gate: Tensor) -> Tensor:
        """Share of the input fetched anew when the innermost relevant loop keeps halos, [O, B, L]."""
        m = self.model
        relevant = m.relevant["I"][:, 16:] * gate[..., m.loops[:, 16:]]
        before = torch.cumprod(1 - relevant, dim=-1)
        innermost = relevant * torch.cat([torch.ones_like(before[..., :1]), before[..., :-1]], dim=-1)
        fresh = [torch.ones_like(self.count3[P])] * 8
        for axis, box in zip(m.axes, self.boxes(), strict=True):
            for d, step in ((axis.outputs, axis.stride), (axis.taps, axis.dilation)):
                n = self.count3[d]
                fresh[d] = (box + (n - 1) * torch.minimum(box, step * self.l2[d])) / (n * box)
        ratio = torch.stack(fresh, dim=-1)[..., m.loops[:, 16:] % 8]
        return (1 + (innermost * (ratio - 1)).sum(dim=-1)).permute(2, 0, 1)

    # -- bytes -----------------------------------------------------------------------------------
    def cost(self, softness: float | None) -> RelaxedCost:
        """Bytes of every memory, then energy, latency and penalties."""
        m = self.model
        q = self._quantities()
        profile: Profile = "hw" if m.hw else "dosa"
        path = path_of(m.target, profile, paper=m.paper)
        fusion = Fusion(self.into, self.copied, self.written, path, path)
        memory: dict[Memory, Tensor] = {}
        for move in count_moves(q, fusion, m.target, profile, paper=m.paper):
            memory[move.memory] = memory[move.memory] + move.bytes if move.memory in memory else move.bytes
        if m.any_add:
            q = q._replace(macs=q.macs * (1 - m.adds), compute_cycles=q.compute_cycles * (1 - m.adds))
            memory = self._with_adds(memory, q)
        energy = q.macs * m.target.energy.mac
        price = picojoules_per_byte(m.target)
        for name, moved in memory.items():
            energy = energy + moved * price[name]
        if m.latency == "rtl":
            latency = rtl_cycles(self, q, fusion)
            if m.any_add:
                stream = _greatest(self._busy(q.compute_cycles, memory), softness)
                latency = torch.where(m.adds > 0, stream, latency)
        else:
            latency = _greatest(self._busy(q.compute_cycles, memory), softness)
        total = (latency * m.repeat).sum(dim=-1)
        if m.overlap:
            busy = (self._busy(q.compute_cycles, memory) * m.repeat).sum(dim=-1)
            total = _greatest(busy, softness)
        return RelaxedCost(
            energy,
            latency,
            (energy * m.repeat).sum(dim=-1),
            total,
            penalties(self),
            memory,
        )

    def _with_adds(self, memory: dict[Memory, Tensor], q: Quantities) -> dict[Memory, Tensor]:
        """Bytes with those of adds in their places; profile dosa has them for free."""
        m = self.model
        mixed = {name: moved * (1 - m.adds) for name, moved in memory.items()}
        if m.hw:
            fused = self.operands.unbind(-1)
            for move in add_moves(q.outputs, q.stored, fused, self.copied, self.written, m.target):
                before = mixed.get(move.memory, torch.zeros_like(self.copied))
                mixed[move.memory] = before + move.bytes * m.adds
        return mixed

    def _quantities(self) -> Quantities:
        """costmodel.nest.Nest.quantities with real numbers."""
        m = self.model
        b = m.columns
        stored = b[G] * b[K] * b[N] * b[P] * b[Q]
        recomputed = self.rho_p * self.rho_q
        weights = b[G] * b[K] * b[C] * b[R] * b[S]
        pixels = b[N] * b[P] * b[Q] * recomputed
        macs = weights * pixels
        if m.hw and m.any_depthwise:
            weights = weights + m.depthwise * (self._diagonal() - weights)
        outputs = stored * recomputed
        steps = self.count1[C] * self.count1[R] * self.count1[S]
        rows, columns = self._input_rows()
        return Quantities(
            macs=macs,
            compute_cycles=self.count1[G] * self.count1[K] * steps * pixels,
            outputs=outputs,
            stored=stored,
            updates=outputs * steps,
            spills=outputs * (self.fetch_o - 1),
            weight_fills=weights * self.fetch_w,
            weight_loads=weights * self.fetch_w0,
            input_fills=b[G] * b[N] * b[C] * rows * columns * self.fetch_i,
            input_reads=macs / b[K] * self.count1[K],
            bias_words=m.bias * self._bias(pixels) if m.hw and m.any_bias else 0,
        )

    def _busy(self, cycles: Tensor, memory: Mapping[Memory, Tensor]) -> Tensor:
        """Cycles that the array and every memory need, [resources, B, L]."""
        m = self.model
        columns = self.point.cols.prod(dim=-1)
        if m.any_add:
            columns = torch.where(m.adds > 0, float(m.target.side), columns)
        needed = [cycles]
        for name, bandwidth in bandwidths(m.target, 1).items():
            if name in memory:
                per_cycle = bandwidth * columns if name == "accumulator" else bandwidth
                needed.append(memory[name] / per_cycle)
        return torch.stack(needed)

    def _input_rows(self) -> tuple[Tensor, Tensor]:
        """Input rows and columns fetched in one pass over all scratchpad tiles."""
        m = self.model
        result = []
        recomputed = ((self.rho_p, self.tiles_p), (self.rho_q, self.tiles_q))
        for index, (axis, (rho, tiles)) in enumerate(zip(m.axes, recomputed, strict=True)):
            bound, taps = m.columns[axis.outputs], self.count3[axis.taps]
            rows = axis.rows(bound * rho, tiles, taps)
            if m.hw:
                own = axis.rows(bound, self.count3[axis.outputs], taps).detach()
                clipped = axis.clipping(self.l2[axis.outputs], self.l2[axis.taps], own)
                if self.fused and not m.paper:
                    with torch.no_grad():
                        needed = self._reader_rows(index)
                        needed = torch.cat([needed, torch.zeros_like(needed[:, :1])], dim=1)[:, m.out_edges]
                        share = self.out / self.out.amax(dim=-1, keepdim=True).clamp(min=1e-9)
                        whole = axis.rows(bound * rho, tiles, torch.ones_like(taps))
                        theirs = (share * needed).amax(dim=-1) - whole
                    clipped = clipped + self.copied * (theirs - clipped)
                rows = rows + clipped
            result.append(rows)
        return result[0], result[1]

    def _reader_rows(self, index: int) -> Tensor:
        """Input rows that each edge's producer fetches along an image axis for its reader, [B, E]."""
        m, sigma = self.model, self.point.sigma
        assert sigma is not None
        tile = self.l2[m.axes[index].outputs]
        rows = m.chained[index](tile[:, m.sink])
        if not len(m.first):
            return rows
        strength = sigma[:, m.onward]
        beyond = m.through[index](tile[:, m.sink[m.onward]])
        beyond = strength * beyond + (1 - strength) * rows[:, m.first]
        return rows.scatter_reduce(1, m.first.expand_as(beyond), beyond, "amax", include_self=False)

    def boxes(self) -> Sequence[Tensor]:
        """Input rows and columns that one scratchpad tile holds, padding included."""
        return [axis.box(self.l2[axis.outputs], self.l2[axis.taps]) for axis in self.model.axes]

    def pieces(self, d: int) -> tuple[Tensor, Tensor]:
        """Extents of the accumulator tiles of one dimension with how often each occurs, [B, L, 4]."""
        l2, l1, n3 = self.l2[d], self.l1[d], self.count3[d]
        extents: list[Tensor] = []
        times: list[Tensor] = []
        for piece, count in ((l2, n3 - 1), (self.model.columns[d] - (n3 - 1) * l2, torch.ones_like(n3))):
            n = ceil(piece / l1)
            extents += [l1, piece - (n - 1) * l1]
            times += [count * (n - 1), count]
        return torch.stack(extents, dim=-1), torch.stack(times, dim=-1)

    def _bias(self, pixels: Tensor) -> Tensor:
        """Words read to initialise accumulator tiles: one per column and `side` rows."""
        m = self.model
        channels = m.columns[G] * m.columns[K]
        tiles = self.count2[N] * self.count2[P] * self.count2[Q]
        smooth = torch.maximum(tiles, pixels / m.target.side)
        with torch.no_grad():
            (n, n_t), (p, p_t), (q, q_t) = (self.pieces(d) for d in (N, P, Q))
            np_ = (n.unsqueeze(-1) * p.unsqueeze(-2)).flatten(-2)
            np_t = (n_t.unsqueeze(-1) * p_t.unsqueeze(-2)).flatten(-2)
            rows = np_.unsqueeze(-1) * q.unsqueeze(-2)
            fills = (ceil(rows / m.target.side) * np_t.unsqueeze(-1) * q_t.unsqueeze(-2)).sum(dim=(-1, -2))
            fills = fills * self.rho_p * self.rho_q
        return channels * exact(fills, smooth)

    def _diagonal(self) -> Tensor:
        """Weights of a depthwise layer's block-diagonal tiles, zeros included."""
        m = self.model
        b = m.columns
        block = self.l0[G]
        with torch.no_grad():
            extent, times = self.pieces(G)
            size = block.unsqueeze(-1)
            whole = torch.floor(extent / size + 1e-4)
            squares = (times * (whole * size.square() + (extent - whole * size).square())).sum(dim=-1)
        return b[R] * b[S] * exact(squares, b[G] * block)


def _greatest(stacked: Tensor, softness: float | None) -> Tensor:
    """Maximum over the first axis, softened to logsumexp(beta log x) / beta."""
    if softness is None:
        return stacked.amax(dim=0)
    return torch.exp(torch.logsumexp(softness * torch.log(stacked + 1e-6), dim=0) / softness)
