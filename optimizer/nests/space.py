"""Where the factors of a layer's loops may go on a machine, and how one mapping becomes its neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.nests.count import Floats, Nests
from fadiff.costmodel.nests.machine import Machine, MachineError, Memory
from fadiff.costmodel.nests.mapping import Ints, Keeps, Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective

Move = tuple[int, int, int, int]
"""A factor elsewhere: dimension, prime, from level, to level."""


@dataclass(frozen=True)
class Space:
    """All mappings of perfect factors of one layer: every prime factor of a bound stands at one level.

    Raises:
        MachineError: a factor that the machine fixes does not divide the layer's bound.
    """

    machine: Machine
    workload: Workload
    keeps: Keeps

    @cached_property
    def fixed(self) -> Ints:
        """[levels, dimensions]: factors that the machine fixes; 0 where it does not."""
        found = np.zeros((len(self.machine.levels), len(self.workload.active)), dtype=np.int64)
        for level, row in zip(self.machine.levels, found, strict=True):
            for at, dim in enumerate(self.workload.active):
                row[at] = level.limits.exact.get(dim, 0)
        for at, dim in enumerate(self.workload.active):
            product = int(np.prod(np.maximum(found[:, at], 1)))
            if self.workload.dims[dim] % product:
                raise MachineError(
                    f"fixed factors of {dim} make {product}, which does not divide "
                    f"{self.workload.dims[dim]}, the layer's; loosen the constraint"
                )
        return found

    @cached_property
    def most(self) -> NDArray[np.float64]:
        """[levels, dimensions]: largest factors."""
        levels, dims = self.machine.levels, self.workload.active
        return np.array(
            [[level.limits.largest(dim) for dim in dims] for level in levels], dtype=float
        ).reshape(len(levels), len(dims))

    @cached_property
    def home(self) -> tuple[int, ...]:
        """Of every dimension the outermost level that is free to take what is left."""
        found = []
        for at, dim in enumerate(self.workload.active):
            free = np.flatnonzero((self.fixed[:, at] == 0) & np.isinf(self.most[:, at]))
            if not len(free):
                raise MachineError(f"no level may take what is left of {dim}; free one of them")
            found.append(int(free[0]))
        return tuple(found)

    @cached_property
    def outermost(self) -> Mappings:
        """The mapping with everything as far out as it may be: it needs the least room."""
        factors = np.maximum(self.fixed, 1)
        for at, level in enumerate(self.home):
            factors[level, at] = self.workload.bounds[at] // factors[:, at].prod()
        orders = np.array([self._order(memory) for memory in self.machine.memories], dtype=np.int64)
        return Mappings(factors[None], orders.reshape(1, -1, len(self.workload.active)), self.keeps)

    def _order(self, memory: Memory) -> list[int]:
        """Innermost what a constraint puts there."""
        active = self.workload.active
        inner = [active.index(dim) for dim in memory.limits.inner if dim in active]
        return inner + [at for at in range(len(active)) if at not in inner]

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """Of all prime factors between levels that are free to have them."""
        found = []
        for at in range(len(self.workload.active)):
            free = [level for level in range(len(self.fixed)) if self.fixed[level, at] == 0]
            for prime in dict.fromkeys(primes_of(int(self.workload.bounds[at]))):
                found += [(at, prime, a, b) for a, b in itertools.permutations(free, 2)]
        return tuple(found)

    @cached_property
    def _between(self) -> Mapping[tuple[int, int], list[Move]]:
        """Moves from one level to another."""
        found: dict[tuple[int, int], list[Move]] = {}
        for move in self.moves:
            found.setdefault(move[2:], []).append(move)
        return found

    def is_free(self, memory: int, at: int) -> bool:
        """Whether a dimension's place among a memory's loops is free."""
        return self.workload.active[at] not in self.machine.memories[memory].limits.inner

    def neighbours(self, row: Mappings) -> Mappings:
        """Of one mapping: a prime factor elsewhere, two that change places, or another order of loops."""
        factors, orders = row.factors[0], row.orders[0]
        moved = list(self._moved(factors))
        swapped = list(self._swapped(factors, moved))
        turned = list(self._turned(factors, orders))
        changed = [factors for _, factors in moved] + swapped
        return Mappings(
            np.stack([*changed, *(factors for _ in turned)]) if changed or turned else row.factors[:0],
            np.stack([*(orders for _ in changed), *turned]) if changed or turned else row.orders[:0],
            self.keeps,
        )

    def _moved(self, factors: Ints) -> Iterator[tuple[Move, Ints]]:
        for move in self.moves:
            at, prime, a, b = move
            if factors[a, at] % prime == 0 and factors[b, at] * prime <= self.most[b, at]:
                yield move, _after(factors, move)

    def _swapped(self, factors: Ints, moved: list[tuple[Move, Ints]]) -> Iterator[Ints]:
        """One factor moves in, another of the same level moves out to where the first was."""
        for (at, prime, a, b), after in moved:
            for back in self._between[b, a]:
                if back[:2] > (at, prime) and factors[b, back[0]] % back[1] == 0:
                    found = _after(after, back)
                    if (found <= self.most).all():
                        yield found

    def _turned(self, factors: Ints, orders: Ints) -> Iterator[Ints]:
        for memory, level in enumerate(self.machine.places):
            loops = [at for at in orders[memory] if factors[level, at] > 1 and self.is_free(memory, int(at))]
            for i, j in itertools.permutations(range(len(loops)), 2):
                if i - j == 1:  # the same as the other way round
                    continue
                order = [at for at in loops if at != loops[i]]
                order.insert(j, loops[i])
                rest = [at for at in orders[memory] if at not in loops]
                found = orders.copy()
                found[memory] = [*rest, *order]
                yield found

    def random(self, count: int, generator: np.random.Generator) -> Mappings:
        """Legal mappings: factors wander inwards from `outermost` as long as all fits."""
        start = self.outermost
        factors = np.repeat(start.factors, count, axis=0)
        orders = np.repeat(start.orders, count, axis=0)
        for memory in range(orders.shape[1]):
            free = [at for at in orders[0, memory] if self.is_free(memory, int(at))]
            if len(free) > 1:
                fixed = [at for at in orders[0, memory] if at not in free]
                orders[:, memory] = [[*fixed, *generator.permutation(free)] for _ in range(count)]
        found = Mappings(factors, orders, self.keeps)
        if not self.moves:
            return found
        moves = np.array(self.moves)
        home = np.array(self.home)
        inward = moves[moves[:, 2] == home[moves[:, 0]]]
        rows = np.arange(count)
        for _ in range(3 * int(sum(np.log2(self.workload.bounds))) + 4):
            at, prime, a, b = inward[generator.integers(len(inward), size=count)].T
            can = (found.factors[rows, a, at] % prime == 0) & (
                found.factors[rows, b, at] * prime <= self.most[b, at]
            )
            tried = found.factors.copy()
            tried[rows[can], a[can], at[can]] //= prime[can]
            tried[rows[can], b[can], at[can]] *= prime[can]
            fits = Nests(self.machine, self.workload, Mappings(tried, orders, self.keeps)).fits
            found = Mappings(np.where(fits[:, None, None], tried, found.factors), orders, self.keeps)
        return found

    def disturbed(self, row: Mappings, count: int, generator: np.random.Generator) -> Mappings:
        """One mapping after so many random moves of prime factors that are legal, with the loops of one
        memory in another order."""
        factors, orders = row.factors[0], row.orders.copy()
        memory = int(generator.integers(orders.shape[1]))
        free = [place for place, at in enumerate(orders[0, memory]) if self.is_free(memory, int(at))]
        orders[0, memory, free] = generator.permutation(orders[0, memory, free])
        for chosen in generator.permutation(len(self.moves)):
            at, prime, a, b = self.moves[chosen]
            if factors[a, at] % prime or factors[b, at] * prime > self.most[b, at]:
                continue
            moved = _after(factors, self.moves[chosen])
            if Nests(self.machine, self.workload, Mappings(moved[None], orders, self.keeps)).fits[0]:
                factors, count = moved, count - 1
                if not count:
                    break
        return Mappings(factors[None], orders, self.keeps)

    def mended(self, rows: Mappings) -> Mappings:
        """Rows of which the largest factors move outwards, prime by prime, until all fits or nothing can."""
        factors = rows.factors.copy()
        levels = np.arange(len(self.fixed))[:, None]
        movable = (self.fixed == 0) & (levels != np.array(self.home))
        while True:
            now = Mappings(factors, rows.orders, self.keeps)
            nests = Nests(self.machine, self.workload, now)
            wrong = (factors > self.most) & movable
            memory = -1
            for level, own in enumerate(self.machine.levels):
                if isinstance(own, Memory):
                    memory += 1
                    full, inside = nests.words(memory) > own.words, levels >= level
                else:
                    full, inside = factors[:, level].prod(axis=1) > own.size, levels == level
                wrong |= full[:, None, None] & inside & movable
            size = np.where(wrong, factors, 1).reshape(len(factors), -1)
            places = size.argmax(axis=1)
            moved = np.flatnonzero(size[np.arange(len(size)), places] > 1)
            if not len(moved):
                return now
            for row in moved:
                level, at = divmod(int(places[row]), factors.shape[2])
                prime = primes_of(int(factors[row, level, at]))[0]
                factors[row, level, at] //= prime
                factors[row, self.home[at], at] *= prime


def costs_of(machine: Machine, workload: Workload, rows: Mappings) -> tuple[Floats, Floats]:
    """pJ and cycles of every row; infinite where it does not fit."""
    energy, cycles = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    fits = np.flatnonzero(Nests(machine, workload, rows).fits)
    if len(fits):
        nests = Nests(machine, workload, rows[fits])
        energy[fits], cycles[fits] = nests.energy, nests.cycles
    return energy, cycles


def value_of(objective: Objective, energy: Floats, cycles: Floats) -> Floats:
    """Of the objective: uJ x cycles, pJ or cycles."""
    return {"edp": energy * 1e-6 * cycles, "energy": energy, "latency": cycles}[objective]


def _after(factors: Ints, move: Move) -> Ints:
    at, prime, a, b = move
    found = factors.copy()
    found[a, at] //= prime
    found[b, at] *= prime
    return found


def primes_of(number: int) -> list[int]:
    """Its prime factors, ascending, each as often as it divides."""
    found, rest, p = [], number, 2
    while rest > 1:
        if p * p > rest:
            p = rest
        while rest % p == 0:
            found.append(p)
            rest //= p
        p += 1
    return found


def keeps_of(machine: Machine) -> list[Keeps]:
    """What memories may keep, those that keep most first."""
    choices = []
    for memory in machine.memories:
        free = sorted(memory.may_keep)
        sets = [frozenset(c) for n in range(len(free), -1, -1) for c in itertools.combinations(free, n)]
        choices.append([memory.keeps | chosen for chosen in sets])
    return sorted(itertools.product(*choices), key=lambda keeps: -sum(map(len, keeps)))
