"""Lower bounds on what mappings cost of which only the inner levels are decided.

A row of `Partial` fixes the factors of all levels from `level` inwards, and of every memory there which
operand its innermost loops leave in place.  What is left of the layer's bounds stands further out, no one
knows where, in time or in space.  Of every operand's way from one memory to the next, the bound knows:

* The innermost loop is relevant to all operands but one: the other two are moved anew by every iteration of
  all loops, that one at least by those that are relevant to it.  All three choices are priced, each for the
  cycles and the energy together.
* Inputs that windows share are moved once along one axis at best, and fully along the other.
* Loops in space between two memories may serve all their instances by one read (multicast, or a sum).
* A tile that is not decided yet takes in each word once.

tests/emitters/timeloop/test_nests.py holds it below the exact counts (costmodel/nests/count.py) of random
mappings, from every level, and holds what is called proven to trying everything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.nests.count import Floats
from fadiff.costmodel.nests.machine import OPERANDS, Machine, Memory, Operand
from fadiff.costmodel.nests.mapping import Ints, Keeps
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.layer.candidates import divisors

NOBODY = -1
"""Stands for the operand that innermost loops leave in place, where there is none, or no loop."""


@dataclass(frozen=True)
class Partial:
    """`factors` [rows, levels, active dimensions], one above `level`; `stays` [rows, memories], places in
    OPERANDS."""

    level: int
    factors: Ints
    stays: Ints

    def __len__(self) -> int:
        return len(self.factors)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> Partial:
        return Partial(self.level, self.factors[rows], self.stays[rows])


@dataclass(frozen=True)
class Move:
    """Of an operand from the memory at level `parent` to that at `child` (one past the last: multipliers)."""

    operand: Operand
    parent: int
    child: int


class Bound:
    """Of the mappings of one layer on a machine whose memories keep `keeps`."""

    def __init__(self, machine: Machine, workload: Workload, keeps: Keeps, objective: Objective) -> None:
        self.machine, self.workload, self.keeps, self.objective = machine, workload, keeps, objective
        self.places = machine.places
        self.options = Options(machine, workload)
        whole = tuple(int(n) for n in workload.bounds)
        self.sizes = [
            1 if level in self.places else int(self.options(level, whole).prod(axis=1).max(initial=1))
            for level in range(len(machine.levels))
        ]
        """Parts that a fan-out can have of this layer at most; 1 of memories."""
        self.bounds = workload.bounds.astype(float)
        self.relevant = {o: workload.steps[o].any(axis=0) for o in OPERANDS}
        self.macs = float(workload.dims.product)

    @cached_property
    def left_in_place(self) -> Ints:
        """Of every dimension the operand (its place in OPERANDS) that its loops leave in place, or NOBODY."""
        found = np.full(len(self.workload.active), NOBODY)
        for place, operand in enumerate(OPERANDS):
            found[~self.relevant[operand]] = place
        return found

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """All of them."""
        found = []
        for operand in OPERANDS:
            stops = [*self.machine.keeping(operand, self.keeps), len(self.machine.levels)]
            found += [Move(operand, a, b) for a, b in itertools.pairwise(stops)]
        return tuple(found)

    @cached_property
    def once(self) -> dict[Operand, float]:
        """Words of every operand that its products read or write, each counted once."""
        found = {o: float(self.workload.words(o)) for o in OPERANDS}
        steps = self.workload.steps["I"]
        single = [(1,) * int((step > 0).sum()) for step in steps]
        found["I"] = float(math.prod(self.reached(axis, held) for axis, held in enumerate(single)))
        return found

    @cache  # noqa: B019 (a search holds its bounds)
    def reached(self, axis: int, held: tuple[int, ...]) -> int:
        """Words along an axis of the inputs that all tiles cover together, of a tile that holds so many
        iterations of the dimensions that move along it."""
        steps = self.workload.steps["I"][axis]
        along = np.flatnonzero(steps)
        extent = 1 + sum((n - 1) * int(steps[at]) for n, at in zip(held, along, strict=True))
        starts = np.zeros(1, dtype=np.int64)
        for n, at in zip(held, along, strict=True):
            trips = np.arange(self.workload.bounds[at] // n) * n * steps[at]
            starts = np.unique(starts[:, None] + trips)
        gaps = np.diff(starts)
        return extent + int(np.minimum(gaps, extent).sum())

    def __call__(self, partial: Partial) -> Floats:
        """Of every row, in the objective's unit: pJ, cycles, or uJ x cycles."""
        rows = _Rows(self, partial)
        costs = [rows.cost(stays) for stays in range(len(OPERANDS))]
        if self.objective == "edp":
            values = [energy * cycles * 1e-6 for energy, cycles in costs]
        else:
            values = [cost[self.objective == "latency"] for cost in costs]
        return np.asarray(np.min(values, axis=0))

    def fits(self, partial: Partial) -> NDArray[np.bool_]:
        """Whether the tiles of the memory at `partial.level` have room (all if that is a fan-out)."""
        ok = np.ones(len(partial), dtype=bool)
        if partial.level not in self.places:
            return ok
        memory = self.places.index(partial.level)
        held = partial.factors[:, partial.level :].prod(axis=1)
        words = np.zeros(len(partial))
        for operand in self.keeps[memory]:
            words += (1 + (held - 1) @ self.workload.steps[operand].T).prod(axis=1, dtype=float)
        return np.asarray(words <= self.machine.memories[memory].words)


class _Rows:
    """What the decided levels of many rows say."""

    def __init__(self, bound: Bound, partial: Partial) -> None:
        self.bound, self.partial = bound, partial
        self.level = partial.level
        self.factors = partial.factors.astype(float)
        self.left = bound.bounds / self.factors.prod(axis=1)
        sizes = bound.sizes[: self.level]
        self.room = float(math.prod(sizes))
        """Instances of a decided level at most, that undecided fan-outs make."""
        self.split = {o: self._split(self.left, o) for o in OPERANDS}
        """Iterations that are left: of dimensions relevant to an operand, and of the others."""
        self.spread = [
            np.ones(len(partial)) if i in bound.places else self.factors[:, i].prod(axis=1)
            for i in range(len(bound.sizes))
        ]
        self.travels = [self._travel(move) for move in bound.moves]

    def _split(self, factors: Floats, operand: Operand) -> tuple[Floats, Floats]:
        relevant = self.bound.relevant[operand]
        return factors[:, relevant].prod(axis=1), factors[:, ~relevant].prod(axis=1)

    def _travel(self, move: Move) -> _Travel | None:
        """Of a move whose child is decided; None of another."""
        bound, operand = self.bound, move.operand
        if move.child < self.level:
            return None
        n = len(self.partial)
        ones = np.ones(n)
        held = self.factors[:, move.child :].prod(axis=1)
        tiles = 1 + (held - 1) @ bound.workload.steps[operand].T
        words, begun, alike, merged = tiles.prod(axis=1), np.zeros(n, dtype=bool), ones, ones
        place = OPERANDS.index(operand)
        for level in reversed(range(self.level, move.child)):
            relevant, other = self._split(self.factors[:, level], operand)
            if level not in bound.places:
                words, alike = words * relevant * other, alike * other
                merged = merged * (other if level > move.parent else 1)
                continue
            stays = ~begun & (self.partial.stays[:, bound.places.index(level)] == place)
            words = words * relevant * np.where(stays, 1.0, other)
            begun |= (relevant > 1) | (~stays & (other > 1))
        if move.child == len(bound.sizes):  # multipliers: everything is read by each of them
            left = self.left.prod(axis=1)
            words, begun = bound.macs / left, np.ones(n, dtype=bool)
        elif operand == "I":
            words = words * self._shared(held, tiles)
        return _Travel(words, begun, alike, merged)

    def _shared(self, held: Floats, tiles: Floats) -> Floats:
        """Least share of the inputs that all windows reach together, by all of theirs one by one."""
        least = np.ones(len(tiles))
        for axis, step in enumerate(self.bound.workload.steps["I"]):
            along = np.flatnonzero(step)
            if len(along) < 2 and step.max() < 2:
                continue
            kinds, of_row = np.unique(held[:, along], axis=0, return_inverse=True)
            reached = np.array([self.bound.reached(axis, tuple(map(int, kind))) for kind in kinds])
            alone = tiles[:, axis] * (self.bound.bounds[along] / held[:, along]).prod(axis=1)
            least = np.minimum(least, reached[of_row.ravel()] / alone)
        return least

    def cost(self, stays: int) -> tuple[Floats, Floats]:
        """pJ and cycles if the innermost loop that is left leaves an operand in place."""
        bound, machine = self.bound, self.bound.machine
        n = len(self.partial)
        reads, writes, updates = (np.zeros((len(bound.places), n)) for _ in range(3))
        pairs = list(zip(bound.moves, self.travels, strict=True))
        for move, travel in pairs:
            once = bound.once[move.operand]
            parent, child = (
                bound.places.index(move.parent),
                bound.places.index(move.child) if move.child < len(bound.sizes) else None,
            )
            if travel is None:
                assert child is not None
                if move.operand == "O":
                    updates[parent] += once
                else:
                    reads[parent] += once
                    writes[child] += once
                continue
            relevant, other = self.split[move.operand]
            free = ~travel.begun & (OPERANDS[stays] == move.operand)
            entering = travel.words * relevant * np.where(free, 1.0, other)
            served = np.minimum(other, self.room)
            if move.parent >= self.level:
                content = entering / travel.merged
            else:
                content = entering / travel.merged / np.where(free, 1.0, served)
            content = np.maximum(content, once)
            if move.operand != "O":
                reads[parent] += content
                if child is not None:
                    writes[child] += np.maximum(entering, once)
                continue
            # Whatever is spread over instances, each of them writes without reading first.
            alike = travel.alike / travel.merged
            first = once * np.where(free | (move.parent < self.level), 1.0, served)
            updates[parent] += content
            reads[parent] += np.maximum(content - first * alike, 0)
            if child is not None:
                first = once * np.where(free, 1.0, served)
                writes[child] += np.maximum(entering - first * travel.alike, 0)
        cycles = self._cycles(reads, writes + updates)
        energy = np.full(n, bound.macs * machine.mac_pj)
        for memory, own in enumerate(machine.memories):
            priced = reads[memory] * own.read_pj + writes[memory] * own.write_pj
            energy += (priced + updates[memory] * own.update_pj) / (own.block * own.cluster)
            if own.leak_pj:
                used = self._instances(bound.places[memory])[0] if bound.keeps[memory] else 1.0
                energy += own.leak_pj * cycles * used
        return energy, cycles

    def _instances(self, level: int) -> tuple[Floats, Floats]:
        """Of a level, at least and at most."""
        least = np.ones(len(self.partial))
        for at in range(self.level, level):
            least = least * self.spread[at]
        return least, least * math.prod(self.bound.sizes[: min(level, self.level)])

    def _cycles(self, reads: Floats, writes: Floats) -> Floats:
        machine = self.bound.machine
        spread = np.minimum(self.room, self.left.prod(axis=1))
        cycles = self.bound.macs / (self._instances(len(self.bound.sizes))[0] * spread)
        for memory, own in enumerate(machine.memories):
            words, bandwidths = (
                (reads[memory], writes[memory], reads[memory] + writes[memory]),
                (own.read_bandwidth, own.write_bandwidth, own.shared_bandwidth),
            )
            most = self._instances(self.bound.places[memory])[1]
            for moved, bandwidth in zip(words, bandwidths, strict=True):
                if bandwidth < math.inf:
                    cycles = np.maximum(cycles, moved / most / bandwidth)
        return np.asarray(cycles)


@dataclass(frozen=True)
class _Travel:
    """Words that enter all tiles of a child by the decided loops, whether one of those in time has moved the
    operand, and of decided loops in space that are not relevant to it: all above the child, those that
    its parent serves together."""

    words: Floats
    begun: NDArray[np.bool_]
    alike: Floats
    merged: Floats


class Options:
    """The factors that one level may take of what is left of the bounds."""

    def __init__(self, machine: Machine, workload: Workload) -> None:
        active = workload.active
        self.exact = [[level.limits.exact.get(d, 0) for d in active] for level in machine.levels]
        self.most = [[level.limits.largest(d) for d in active] for level in machine.levels]
        self.parts = [math.inf if isinstance(level, Memory) else level.size for level in machine.levels]
        self._known: dict[tuple[int, tuple[int, ...]], Ints] = {}

    def __call__(self, level: int, left: tuple[int, ...]) -> Ints:
        """[options, dimensions]; the levels further out can take the rest."""
        if (level, left) not in self._known:
            self._known[level, left] = self._found(level, left)
        return self._known[level, left]

    def _found(self, level: int, left: tuple[int, ...]) -> Ints:
        limits = list(zip(left, self.exact[level], self.most[level], strict=True))
        if level == 0:
            fits = all((not exact or n == exact) and n <= most for n, exact, most in limits)
            return np.array([left] if fits else np.zeros((0, len(left))), dtype=np.int64)
        found = np.ones((1, 0), dtype=np.int64)
        for at, (n, exact, most) in enumerate(limits):
            outer = math.prod(self.most[above][at] for above in range(level))
            factors = [exact] if exact else [f for f in divisors(n) if f <= most and n // f <= outer]
            allowed = np.array([f for f in factors if n % f == 0], dtype=np.int64)
            found = np.column_stack([np.repeat(found, len(allowed), axis=0), np.tile(allowed, len(found))])
            found = found[found.prod(axis=1) <= self.parts[level]]
        return found


class Children:
    """How partial mappings go on: the factors of one more level."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound

    def root(self) -> Partial:
        """Nothing is decided."""
        levels, memories = len(self.bound.sizes), len(self.bound.places)
        dims = len(self.bound.workload.active)
        return Partial(levels, np.ones((1, levels, dims), dtype=np.int64), np.full((1, memories), NOBODY))

    @cache  # noqa: B019 (a search holds its trees)
    def _further_in(self, level: int) -> tuple[int, ...]:
        """Operands whose place innermost loops need not leave to them at a memory: right below is the only
        one that keeps the operand and nothing else, and these loops may as well be its outermost."""
        bound, active = self.bound, self.bound.workload.active
        if level + 1 not in bound.places:
            return ()
        kept = bound.keeps[bound.places.index(level + 1)]
        if len(kept) != 1:
            return ()
        [operand] = kept
        inside = bound.machine.levels[level + 1].limits
        dims = [active[at] for at in np.flatnonzero(~bound.relevant[operand])]
        bad = [d for d in dims if d in inside.exact or d in inside.most or d in inside.inner]
        return () if bad else (OPERANDS.index(operand),)

    def of(self, partial: Partial) -> Iterator[Partial]:
        """The children of some rows, a block for each choice of what stays; all of them fit."""
        level = partial.level - 1
        left = self.bound.workload.bounds // partial.factors.prod(axis=1)
        kinds, of_row = np.unique(left, axis=0, return_inverse=True)
        options = [self.bound.options(level, tuple(int(n) for n in kind)) for kind in kinds]
        counts = np.array([len(options[k]) for k in of_row.ravel()])
        rows = np.repeat(np.arange(len(partial)), counts)
        if not len(rows):
            return
        factors = partial.factors[rows]
        factors[:, level] = np.concatenate([options[k] for k in of_row.ravel()])
        grown = Partial(level, factors, partial.stays[rows].copy())
        grown = grown[np.flatnonzero(self.bound.fits(grown))]
        yield from self._staying(grown)

    def _staying(self, grown: Partial) -> Iterator[Partial]:
        """One block for every operand that the innermost loops may leave in place."""
        bound, level = self.bound, grown.level
        if level not in bound.places or not any(
            kept for place, kept in zip(bound.places, bound.keeps, strict=True) if place > level
        ):
            yield grown
            return
        memory = bound.places.index(level)
        loops = grown.factors[:, level] > 1
        own = bound.machine.memories[memory].limits.inner
        inner = [bound.workload.active.index(d) for d in own if d in bound.workload.active]
        forced = np.full(len(grown), len(OPERANDS))
        for at in reversed(inner):
            forced[loops[:, at]] = bound.left_in_place[at]
        some = np.zeros(len(grown), dtype=bool)
        for place in (*range(len(OPERANDS)), NOBODY):
            possible = (loops & (bound.left_in_place == place)).any(axis=1)
            possible = np.where(forced < len(OPERANDS), forced == place, possible)
            if place == NOBODY:
                possible |= ~some
            some |= possible
            rows = np.flatnonzero(possible)
            if len(rows) and place not in self._further_in(level):
                chosen = grown[rows]
                chosen.stays[:, memory] = place
                yield chosen
