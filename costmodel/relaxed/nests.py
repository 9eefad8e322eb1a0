"""Energy and cycles of loop nests on any machine, differentiable: Timeloop's rules (costmodel/nests/count.py)
with real factors, and for every memory a weight of each operand to be left in place by its innermost loops.

Equal to the exact counts at integers, but that windows share inputs along one axis at best.
Shapes: B points, L levels, D active dimensions, M memories, 3 operands.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fadiff.costmodel.nests.machine import OPERANDS, Machine, Memory, Operand
from fadiff.costmodel.nests.mapping import Keeps
from fadiff.costmodel.nests.sizes import BANDWIDTHS, Sized
from fadiff.costmodel.nests.workload import Workload


class RelaxedNests:
    """One layer on a machine whose memories keep `keeps`."""

    def __init__(self, machine: Machine, workload: Workload, keeps: Keeps) -> None:
        self.machine, self.workload, self.keeps = machine, workload, keeps
        self.sized = Sized(machine, {})
        """Its sizes; with tensors [B] each point has its own machine."""
        self.places = [i for i, level in enumerate(machine.levels) if isinstance(level, Memory)]
        self.steps = {o: torch.from_numpy(workload.steps[o]).float() for o in OPERANDS}
        self.relevant = {o: (steps > 0).any(dim=0) for o, steps in self.steps.items()}
        self.bounds = torch.from_numpy(workload.bounds).float()
        self.macs = float(workload.dims.product)

    def __call__(self, factors: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
        """pJ and cycles [B] at `factors` [B, L, D] and weights `stays` [B, M, 3] that add up to one."""
        held = factors.flip(1).cumprod(dim=1).flip(1)
        spread = [torch.ones(len(factors))]
        for level in range(len(self.machine.levels)):
            parts = 1 if level in self.places else factors[:, level].prod(dim=1)
            spread.append(spread[-1] * parts)
        reads, writes = ([torch.zeros(len(factors)) for _ in self.places] for _ in range(2))
        energy = torch.full((len(factors),), self.macs * self.machine.mac_pj)
        for operand in OPERANDS:
            pairs = list(zip(self.places, self.keeps, strict=True))
            stops = [level for level, kept in pairs if operand in kept]
            for parent, child in zip(stops, [*stops[1:], len(self.machine.levels)], strict=True):
                entering, alike, merged = self._entering(operand, parent, child, factors, held, stays)
                once = float(self.workload.words(operand)) if operand == "O" else 0.0
                memory = self.places.index(parent)
                content = entering / merged
                read = content - once * alike / merged
                written = content if operand == "O" else torch.zeros_like(content)
                self._add(energy, memory, reads, writes, read, written, "update_pj")
                if child in self.places:
                    filled = entering - once * alike
                    zero = torch.zeros_like(filled)
                    self._add(energy, self.places.index(child), reads, writes, zero, filled, "write_pj")
        limits = [self.macs / spread[-1]]
        for memory, own in enumerate(self.machine.memories):
            r, w = (moved[memory] / spread[self.places[memory]] for moved in (reads, writes))
            for moved, name in zip((r, w, r + w), BANDWIDTHS, strict=True):
                if getattr(own, name) < math.inf:
                    limits.append(moved / self.sized.bandwidth(own, name))
        cycles = torch.stack(limits).amax(dim=0)
        for memory, own in enumerate(self.machine.memories):
            energy = energy + self.sized.leak(own) * own.leak_pj * cycles * spread[self.places[memory]]
        return energy, cycles

    def _add(
        self,
        energy: Tensor,
        memory: int,
        reads: list[Tensor],
        writes: list[Tensor],
        read: Tensor,
        written: Tensor,
        price: str,
    ) -> None:
        own = self.machine.memories[memory]
        reads[memory], writes[memory] = reads[memory] + read, writes[memory] + written
        moved = read * own.read_pj + written * getattr(own, price)
        energy += self.sized.access(own) * moved / (own.block * own.cluster)

    def _entering(
        self, operand: Operand, parent: int, child: int, factors: Tensor, held: Tensor, stays: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Words entering all tiles of a child; of the loops in space that are not relevant to them, those
        above the child, and those below the parent, which serves them together."""
        relevant = self.relevant[operand]
        ones = torch.ones(len(factors))
        inside = held[:, child] if child < len(self.machine.levels) else torch.ones_like(self.bounds)[None]
        tiles = 1 + (inside - 1) @ self.steps[operand].T
        words, alike, merged, still = tiles.prod(dim=1) * ones, ones, ones, ones
        for level in reversed(range(child)):
            own = factors[:, level]
            moving, other = own[:, relevant].prod(dim=1), own[:, ~relevant].prod(dim=1)
            if level not in self.places:
                words, alike = words * moving * other, alike * other
                merged = merged * other if level > parent else merged
                continue
            left = stays[:, self.places.index(level), OPERANDS.index(operand)]
            free = still * left if child < len(self.machine.levels) else torch.zeros_like(still)
            words = words * moving * (other - free * (other - 1))
            still = still * (1 - _several(moving)) * (1 - (1 - left) * _several(other))
        if operand == "I" and child < len(self.machine.levels):
            words = words * self._shared(inside, tiles)
        return words, alike, merged

    def _shared(self, held: Tensor, tiles: Tensor) -> Tensor:
        """Share of inputs that windows do not hand on to the next, along the axis where it is least."""
        shares = [torch.ones(len(tiles))]
        for axis, step in enumerate(self.steps["I"]):
            along = step > 0
            if along.sum() > 1:
                alone = tiles[:, axis] * (self.bounds[along] / held[:, along]).prod(dim=1)
                shares.append(((1 + (self.bounds - 1) @ step) / alone).clamp(max=1))
        return torch.stack(shares).amin(dim=0)

    def excess(self, factors: Tensor) -> Tensor:
        """How far from fitting [B]: squares of logs of what memories and fan-outs lack, and of factors whose
        product exceeds the bound."""
        held = factors.flip(1).cumprod(dim=1).flip(1)
        over = _over(held[:, 0] / self.bounds).sum(dim=1)
        for level, own in enumerate(self.machine.levels):
            if not isinstance(own, Memory):
                over = over + _over(factors[:, level].prod(dim=1) / self.sized.parts(own))
            elif own.words < math.inf:
                kept = self.keeps[self.places.index(level)]
                tiles = [
                    (1 + (held[:, level] - 1) @ self.steps[o].T).prod(dim=1) for o in OPERANDS if o in kept
                ]
                over = (
                    over + _over(torch.stack(tiles).sum(dim=0) / self.sized.entries(own)) if tiles else over
                )
        return over


def _several(trips: Tensor) -> Tensor:
    return (trips - 1).clamp(0, 1)


def _over(ratio: Tensor) -> Tensor:
    return torch.relu(torch.log(ratio)).square()
