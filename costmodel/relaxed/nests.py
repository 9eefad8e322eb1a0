"""Energy and cycles of loop nests on any machine, differentiable: Timeloop's rules (costmodel/nests/count.py)
with real factors, and for every memory a weight of each operand to be left in place by its innermost loops.

Equal to the exact counts at integers, but that windows share inputs along one axis at best.
Shapes: B points, N layers, L levels, D dimensions (all of DIMS), M memories, 3 operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS, RELEVANT
from fadiff.costmodel.nests.machine import OPERANDS, Machine, Memory, Operand
from fadiff.costmodel.nests.mapping import Keeps
from fadiff.costmodel.nests.sizes import BANDWIDTHS, Sized
from fadiff.costmodel.nests.workload import Workload


class RelaxedNests:
    """Layers on a machine whose memories keep `keeps`."""

    def __init__(self, machine: Machine, workloads: Sequence[Workload], keeps: Keeps) -> None:
        self.machine, self.keeps = machine, keeps
        self.sized = Sized(machine, {})
        """Its sizes; with tensors [B, 1] each point has its own machine."""
        self.places = machine.places
        self.steps = {o: torch.stack([_steps(workload, o) for workload in workloads]) for o in OPERANDS}
        self.relevant = {o: torch.tensor([d in RELEVANT[o] for d in DIMS]) for o in OPERANDS}
        self.bounds = torch.tensor([list(workload.dims) for workload in workloads], dtype=torch.float32)
        self.macs = self.bounds.prod(dim=-1)
        self.outputs = torch.tensor([float(workload.words("O")) for workload in workloads])

    def __call__(self, factors: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
        """pJ and cycles [B, N].

        Args:
            factors: [B, N, L, D].
            stays: Weights [B, N, M, 3] that add up to one.
        """
        spread = [torch.ones(factors.shape[:2])]
        for level in range(len(self.machine.levels)):
            parts = 1 if level in self.places else factors[..., level, :].prod(dim=-1)
            spread.append(spread[-1] * parts)
        reads, writes = ([torch.zeros(factors.shape[:2]) for _ in self.places] for _ in range(2))
        energy = (self.macs * self.machine.mac_pj).expand(factors.shape[:2])
        for operand in OPERANDS:
            stops = self.machine.keeping(operand, self.keeps)
            for parent, child in zip(stops, [*stops[1:], len(self.machine.levels)], strict=True):
                entering, alike, merged = self._entering(operand, parent, child, factors, stays)
                once = self.outputs if operand == "O" else torch.zeros(())
                memory = self.places.index(parent)
                content = entering / merged
                read = content - once * alike / merged
                written = content if operand == "O" else torch.zeros_like(content)
                energy = energy + self._add(memory, reads, writes, read, written, "update_pj")
                if child in self.places:
                    filled = entering - once * alike
                    zero = torch.zeros_like(filled)
                    energy = energy + self._add(
                        self.places.index(child), reads, writes, zero, filled, "write_pj"
                    )
        limits = [self.macs / spread[-1]]
        for memory, own in enumerate(self.machine.memories):
            r, w = (moved[memory] / spread[self.places[memory]] for moved in (reads, writes))
            for moved, name in zip((r, w, r + w), BANDWIDTHS, strict=True):
                if getattr(own, name) < math.inf:
                    limits.append(moved / self.sized.bandwidth(own, name))
        cycles = torch.stack(limits).amax(dim=0)
        for memory, own in enumerate(self.machine.memories):
            if own.leak_pj:
                used = spread[self.places[memory]]
                energy = energy + self.sized.leak(own) * own.leak_pj * cycles * used
        return energy, cycles

    def _add(
        self,
        memory: int,
        reads: list[Tensor],
        writes: list[Tensor],
        read: Tensor,
        written: Tensor,
        price: str,
    ) -> Tensor:
        """Note what is read from and written to a memory; its energy."""
        own = self.machine.memories[memory]
        reads[memory], writes[memory] = reads[memory] + read, writes[memory] + written
        moved = read * own.read_pj + written * getattr(own, price)
        return torch.as_tensor(self.sized.access(own) * moved / (own.block * own.cluster))

    def tiles(self, operand: Operand, held: Tensor) -> Tensor:
        """Extents [B, N, axes] of an operand's tiles that hold so many iterations of each dimension."""
        return 1 + torch.einsum("bnd,nad->bna", held - 1, self.steps[operand])

    def _entering(
        self, operand: Operand, parent: int, child: int, factors: Tensor, stays: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Words entering all tiles of a child; of the loops in space that are not relevant to them, those
        above the child, and those below the parent, which serves them together."""
        relevant = self.relevant[operand]
        inside = factors[..., child:, :].prod(dim=-2)
        tiles = self.tiles(operand, inside)
        words = tiles.prod(dim=-1)
        alike, merged, still = (torch.ones_like(words) for _ in range(3))
        for level in reversed(range(child)):
            own = factors[..., level, :]
            moving, other = own[..., relevant].prod(dim=-1), own[..., ~relevant].prod(dim=-1)
            if level not in self.places:
                words, alike = words * moving * other, alike * other
                merged = merged * other if level > parent else merged
                continue
            left = stays[..., self.places.index(level), OPERANDS.index(operand)]
            free = still * left if child < len(self.machine.levels) else torch.zeros_like(still)
            words = words * moving * (other - free * (other - 1))
            still = still * (1 - _several(moving)) * (1 - (1 - left) * _several(other))
        if operand == "I" and child < len(self.machine.levels):
            words = words * self._shared(inside, tiles)
        return words, alike, merged

    def _shared(self, held: Tensor, tiles: Tensor) -> Tensor:
        """Share of inputs that windows do not hand on to the next, along the axis where it is least."""
        shares = [torch.ones(tiles.shape[:2])]
        for axis, taps, outputs in ((-2, "R", "P"), (-1, "S", "Q")):
            along = [d in (taps, outputs) for d in DIMS]
            alone = tiles[..., axis] * (self.bounds / held)[..., along].prod(dim=-1)
            reached = 1 + ((self.bounds - 1) * self.steps["I"][:, axis]).sum(dim=-1)
            shares.append((reached / alone).clamp(max=1))
        return torch.stack(shares).amin(dim=0)

    def excess(self, factors: Tensor) -> Tensor:
        """How far from fitting [B, N]: squares of logs of what memories and fan-outs lack, and of factors
        whose product exceeds the bound."""
        held = factors.flip(-2).cumprod(dim=-2).flip(-2)
        over = _over(held[..., 0, :] / self.bounds).sum(dim=-1)
        for level, own in enumerate(self.machine.levels):
            if not isinstance(own, Memory):
                over = over + _over(factors[..., level, :].prod(dim=-1) / self.sized.parts(own))
            elif own.words < math.inf:
                kept = self.keeps[self.places.index(level)]
                tiles = [self.tiles(o, held[..., level, :]).prod(dim=-1) for o in OPERANDS if o in kept]
                if tiles:
                    over = over + _over(torch.stack(tiles).sum(dim=0) / self.sized.entries(own))
        return over


def _steps(workload: Workload, operand: Operand) -> Tensor:
    """[axes, D]: how far one step of a dimension moves along an axis."""
    found = np.zeros((len(workload.axes(operand)), len(DIMS)), dtype=np.float32)
    for row, axis in zip(found, workload.axes(operand), strict=True):
        for dim, step in axis:
            row[DIMS.index(dim)] = step
    return torch.from_numpy(found)


def _several(trips: Tensor) -> Tensor:
    return (trips - 1).clamp(0, 1)


def _over(ratio: Tensor) -> Tensor:
    return torch.relu(torch.log(ratio)).square()
