"""Differentiable twin of the exact model: energy and latency of [restart, layer] real-valued mappings.

    model = RelaxedModel(nodes, edges, target, profile, orders)      # once per network
    cost = model(point)                                              # every step; all torch, no loops

Shapes: B restarts, L nodes, O candidate orders, E fusion edges; the last axis of a tile is always
`fadiff.converter.ir.loops.DIMS` (G N K C P Q R S).

`point` (RelaxedPoint): tile extents l2, l1, l0 and spatial factors rows, cols, each [B, L, 8] and
positive (l0 = rows * cols * stream); order weights [B, L, O] that sum to one; sigma [B, E]; group tiles
[B, L, 2] along P and Q.
`cost` (RelaxedCost): energy_pj and latency_cycles [B, L], network totals [B] (every node times its
`repeat`), and penalties, a dict of [B] tensors, zero exactly where the rule holds:
    mapping   tiles nest inside each other and inside the layer (Eq. 21)
    array     rows and columns fit the array (Eq. 22, as two limits)
    memory    scratchpad and accumulator capacity, fused residents included (Eq. 24-25)
    buffer    tile-buffer capacity, group by group (fused tensors of one group live side by side)
    grid      a fused layer's tile lies inside what one group tile makes it compute, halo included
              (Eq. 26, made satisfiable)
    final     a fused producer leaves the accumulator finished (not needed for the tile buffer)
    reuse     a fused consumer fetches its input once (no hard rule: fused inputs are held whole)
    shape     strong edges make groups that a program can walk: one last layer, not led by an add, no
              path that leaves and comes back, all of a tensor that is also read outside
Penalties are squares of log ratios, so they have one scale for all layers.

Trip counts have exact values of ceil division and the gradient of plain division; so at integer
extents with one-hot orders and sigma of 0 or 1 the values equal fadiff.costmodel.schedule.evaluate's to float
precision (latency up to its rounding to whole cycles), in groups of up to `relaxed_groups.REACH`
fused edges in a row whose members tile N as their groups do.  Along P and Q a member walks its part of a
group tile in scratchpad tiles of its own.  Weights that fit whole are taken to be resident in their group.

A residual add is a node, too (`Node.is_add`): it has no mapping of its own, only a tile along N, P, Q;
both its operands are fusable edges, and what it needs of them is what its own readers need of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fadiff.costmodel.count.energy import picojoules
from fadiff.costmodel.count.traffic import Fusion, Memory, Quantities, count_moves
from fadiff.costmodel.group.host import add_moves
from fadiff.costmodel.latency.clock import clock_of
from fadiff.costmodel.latency.roofline import bandwidths, bytes_per_memory
from fadiff.costmodel.relaxed.clock import clock_cycles, visits
from fadiff.costmodel.relaxed.network import IS, ORDERS, OS, WS, NestOrder, NetworkConstants
from fadiff.costmodel.relaxed.penalties import penalties
from fadiff.costmodel.relaxed.terms import RelaxedPoint, Terms

__all__ = [
    "IS",
    "ORDERS",
    "OS",
    "WS",
    "NestOrder",
    "RelaxedCost",
    "RelaxedModel",
    "RelaxedPoint",
]


@dataclass
class RelaxedCost:
    """Result of one evaluation; see the module text for shapes."""

    energy_pj: Tensor
    latency_cycles: Tensor
    total_energy_pj: Tensor
    total_latency_cycles: Tensor
    penalties: Mapping[str, Tensor]
    memory_bytes: Mapping[Memory, Tensor]
    """Bytes per memory, [B, L]."""


class RelaxedModel(NetworkConstants):
    """A network on a target, ready to evaluate batches of points."""

    def __call__(self, point: RelaxedPoint, softness: float | None = None) -> RelaxedCost:
        """Evaluate a batch; `softness` beta replaces max by logsumexp(beta log x)/beta in the roofline."""
        terms = Terms(self, point)
        q = terms.quantities()
        fusion = Fusion(terms.into, terms.copied, terms.written)
        memory = bytes_per_memory(count_moves(q, fusion, self.target, self.profile, paper=self.paper))
        if self.any_add:
            q = q._replace(macs=q.macs * (1 - self.adds), compute_cycles=q.compute_cycles * (1 - self.adds))
            memory = self._with_adds(terms, memory, q)
        energy = picojoules(memory, q.macs, self.target)
        latency = _greatest(self._busy(point, q.compute_cycles, memory), softness)
        if self.latency == "clock":
            latency = clock_cycles(terms, q, fusion)
            if self.any_add:  # without the waits between operands that come from elsewhere
                c = clock_of(self.target)
                added = (memory["dram"] + memory.get("tile-buffer", 0)) * c.added_byte
                latency = torch.where(self.adds > 0, added + visits(terms) * c.visit, latency)
        total = (latency * self.repeat).sum(dim=-1)
        return RelaxedCost(
            energy, latency, (energy * self.repeat).sum(dim=-1), total, penalties(terms), memory
        )

    def _with_adds(self, terms: Terms, memory: dict[Memory, Tensor], q: Quantities) -> dict[Memory, Tensor]:
        """Bytes with those of adds in their places; profile dosa has them for free."""
        mixed = {name: moved * (1 - self.adds) for name, moved in memory.items()}
        if self.counting.charges_operators:
            fused = terms.operands.unbind(-1)
            for move in add_moves(q.outputs, q.stored, fused, terms.copied, terms.written, self.target):
                before = mixed.get(move.memory, torch.zeros_like(terms.copied))
                mixed[move.memory] = before + move.bytes * self.adds
        return mixed

    def _busy(self, point: RelaxedPoint, cycles: Tensor, memory: Mapping[Memory, Tensor]) -> Tensor:
        """Cycles that the array and every memory need, [resources, B, L]."""
        columns = point.cols.prod(dim=-1)
        if self.any_add:
            columns = torch.where(self.adds > 0, torch.as_tensor(self.target.side).to(columns), columns)
        rates = bandwidths(self.target, columns).items()
        return torch.stack([cycles, *(memory[name] / rate for name, rate in rates if name in memory)])


def _greatest(stacked: Tensor, softness: float | None) -> Tensor:
    """Maximum over the first axis, softened to logsumexp(beta log x) / beta."""
    if softness is None:
        return stacked.amax(dim=0)
    return torch.exp(torch.logsumexp(softness * torch.log(stacked + 1e-6), dim=0) / softness)
