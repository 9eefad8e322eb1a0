"""Accesses, cycles and energy of many mappings by Timeloop's rules, on any machine.

Perfect factors only: every factor divides.  The rules are in docs/timeloop.md; tests/costmodel/test_nests.py
holds them equal to what timeloop-model counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.nests.machine import OPERANDS, Machine, Memory, Operand
from fadiff.costmodel.nests.mapping import Ints, Mappings
from fadiff.costmodel.nests.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Accesses:
    """Of one operand at one memory, in words per instance, a row for each mapping."""

    instances: Ints
    reads: Ints
    fills: Ints
    updates: Ints


@dataclass(frozen=True)
class Nests:
    """The loop nests of one layer's mappings on a machine."""

    machine: Machine
    workload: Workload
    mappings: Mappings
    _entered: dict[tuple[Operand, int], Ints] = field(default_factory=dict, repr=False)

    @cached_property
    def _held(self) -> Ints:
        """[rows, levels + 1, dimensions]: extents of what stands inside a level's loops, its own included."""
        factors = self.mappings.factors
        inner = np.ones((len(factors), 1, factors.shape[2]), dtype=np.int64)
        return np.concatenate([np.cumprod(factors[:, ::-1], axis=1)[:, ::-1], inner], axis=1)

    @cached_property
    def compute_cycles(self) -> Ints:
        """Iterations of all loops in time."""
        return np.asarray(self.mappings.factors[:, self.machine.places].prod(axis=(1, 2)), dtype=np.int64)

    def instances(self, level: int) -> Ints:
        """Instances in use of a level (one past the last: multipliers)."""
        above = [i for i in range(level) if i not in self.machine.places]
        return np.asarray(self.mappings.factors[:, above].prod(axis=(1, 2)), dtype=np.int64)

    def tile(self, operand: Operand, level: int) -> Ints:
        """[rows, axes]: extents of what one instance of a level holds of an operand."""
        steps = self.workload.steps[operand]
        return 1 + (self._held[:, level] - 1) @ steps.T

    def words(self, memory: int) -> Ints:
        """Words that one instance of a memory (outermost: 0) holds."""
        level = self.machine.places[memory]
        kept = self.mappings.keeps[memory]
        tiles = [self.tile(operand, level).prod(axis=1) for operand in OPERANDS if operand in kept]
        return np.asarray(sum(tiles, np.zeros(len(self.mappings), dtype=np.int64)))

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """Whether every memory has room for its tiles, and every fan-out for its parts."""
        ok = np.ones(len(self.mappings), dtype=bool)
        for memory, own in enumerate(self.machine.memories):
            if own.words < math.inf:
                ok &= self.words(memory) <= own.words
        for level, fan_out in enumerate(self.machine.levels):
            if not isinstance(fan_out, Memory):
                ok &= self.mappings.factors[:, level].prod(axis=1) <= fan_out.size
        return ok

    def _entering(self, operand: Operand, level: int) -> Ints:
        """Words entering one tile at a level over the whole nest (at the multipliers: operands of one)."""
        if level == len(self.machine.levels):
            return self.compute_cycles
        if (operand, level) not in self._entered:
            self._entered[operand, level] = self._entering_tile(operand, level)
        return self._entered[operand, level]

    def _entering_tile(self, operand: Operand, level: int) -> Ints:
        """The rule of costmodel.count.timeloop_counts.words_entering, in rows."""
        factors, orders, steps = self.mappings.factors, self.mappings.orders, self.workload.steps[operand]
        tile = self.tile(operand, level)
        rows = np.arange(len(tile))
        words = tile.prod(axis=1)
        total, kept = words.copy(), np.zeros_like(words)
        jumped, first = np.zeros_like(tile), np.zeros_like(tile)
        begun = np.zeros(len(tile), dtype=bool)
        for memory in reversed(range(len(self.machine.places))):
            at = self.machine.places[memory]
            if at >= level:
                continue
            inside = self._held[:, at + 1]
            for place in range(orders.shape[2]):
                dim = orders[:, memory, place]
                trips = factors[rows, at, dim]
                loops = trips > 1
                if not loops.any():
                    continue
                step = steps.T[dim] * inside[rows, dim][:, None]
                moved = step - jumped
                moves = moved.any(axis=1)
                begins = loops & moves & ~begun
                if begins.any():
                    first[begins] = step[begins]
                    kept[begins] = np.maximum(tile[begins] - step[begins], 0).prod(axis=1)
                    begun |= begins
                same = (moved == first).all(axis=1) & begun
                stays = np.where(moves, np.where(same, kept, 0), words)
                total = np.where(loops, trips * total - (trips - 1) * stays, total)
                jumped[loops] += step[loops]
        return np.asarray(total, dtype=np.int64)

    def accesses(self, operand: Operand, memory: int) -> Accesses | None:
        """Of an operand at a memory (outermost: 0); None if it passes by."""
        level = self.machine.places[memory]
        keeping = self.machine.keeping(operand, self.mappings.keeps)
        if level not in keeping:
            return None
        child = next((inner for inner in keeping if inner > level), len(self.machine.levels))
        instances = self.instances(level)
        content = self._entering(operand, child) * self.instances(child)
        content = content // self._merged(operand, level, child) // instances
        outermost = level == keeping[0]
        fills = np.zeros_like(content) if outermost else self._entering(operand, level)
        if operand != "O":
            return Accesses(instances, content, fills, np.zeros_like(content))
        # The first write of an output neither reads nor fills.
        spread = self._parts(operand, 0, level, relevant=True)
        part = self.workload.words("O") // spread
        return Accesses(instances, content - part, fills if outermost else fills - part, content)

    def _merged(self, operand: Operand, level: int, child: int) -> Ints:
        """Instances below that get the same words."""
        return self._parts(operand, level + 1, child, relevant=False)

    def _parts(self, operand: Operand, begin: int, end: int, *, relevant: bool) -> Ints:
        """Product of fan-outs' factors between two levels: of dimensions that index an operand, or do not."""
        indexes = self.workload.steps[operand].any(axis=0)
        dims = indexes if relevant else ~indexes
        between = [i for i in range(begin, end) if i not in self.machine.places]
        chosen = self.mappings.factors[:, between][:, :, dims]
        return np.asarray(chosen.prod(axis=(1, 2)), dtype=np.int64)

    @cached_property
    def counted(self) -> list[list[Accesses]]:
        """Of the kept operands of every memory, outermost first."""
        memories = range(len(self.machine.places))
        found = [[self.accesses(operand, memory) for operand in OPERANDS] for memory in memories]
        return [[counts for counts in kept if counts is not None] for kept in found]

    @cached_property
    def cycles(self) -> Ints:
        """The slowest of the multipliers and every memory at its bandwidth; no fill, no drain."""
        compute = self.compute_cycles
        slowest = compute.copy()
        for own, counted in zip(self.machine.memories, self.counted, strict=True):
            zeros = np.zeros(len(compute))
            reads = sum((c.reads / compute for c in counted), zeros)
            writes = sum(((c.fills + c.updates) / compute for c in counted), zeros)
            limits = (
                (reads, own.read_bandwidth),
                (writes, own.write_bandwidth),
                (reads + writes, own.shared_bandwidth),
            )
            slowdown = np.ones(len(compute))
            for wanted, bandwidth in limits:
                if bandwidth < math.inf:
                    over = wanted > bandwidth
                    slowdown[over] = np.minimum(slowdown, bandwidth / np.maximum(wanted, bandwidth))[over]
            slowest = np.maximum(slowest, np.ceil(compute / slowdown).astype(np.int64))
        return slowest

    @cached_property
    def energies(self) -> Floats:
        """[rows, memories + 1] in pJ, outermost memory first, the multipliers last."""
        found = [
            self._energy(own, counted)
            for own, counted in zip(self.machine.memories, self.counted, strict=True)
        ]
        macs = np.full(len(self.mappings), self.workload.dims.product * self.machine.mac_pj)
        return np.stack([*found, macs], axis=1)

    def _energy(self, own: Memory, counted: list[Accesses]) -> Floats:
        total = np.zeros(len(self.mappings))
        for c in counted:
            blocks = (-(-words // own.block) for words in (c.reads, c.fills, c.updates))
            prices = (own.read_pj, own.write_pj, own.update_pj)
            clusters = -(-c.instances // own.cluster)
            total += clusters * sum(n * price for n, price in zip(blocks, prices, strict=True))
        if own.leak_pj:
            used = np.max([c.instances for c in counted], axis=0, initial=1)
            total += own.leak_pj * self.cycles * used
        return total

    @property
    def energy(self) -> Floats:
        """Of each mapping, in pJ."""
        return np.asarray(self.energies.sum(axis=1))

    @property
    def edp(self) -> Floats:
        """uJ x cycles."""
        return self.energy * 1e-6 * self.cycles
