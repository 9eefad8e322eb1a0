"""States, what one run leaves for the next; and where a sequence of operations repeats itself.

Steps of a recurrence are equal where they do the same to what they read, and what they read is the same value
in all of them, or moves on by one step from each to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, np.ndarray]

LOST_BY_STATES = "int8 loses by what is kept from step to step"
"""How a note begins that advises to keep states in float."""


@dataclass(frozen=True)
class State:
    """A state: the `output` of one run is the `input` of the next; before the first, `input` is zero."""

    output: str
    input: str

    def __str__(self) -> str:
        """As `--state` takes it."""
        return f"{self.output}={self.input}"


def first_rows(state: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """What of a state one sees who has fewer rows of it; with more, those behind are zero."""
    found = np.zeros(shape, state.dtype)
    part = tuple(slice(min(sizes)) for sizes in zip(shape, state.shape, strict=True))
    found[part] = state[part]
    return found


def with_rows(state: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
    """A state after one who sees its first rows has written them."""
    if state is None or state.size <= rows.size:
        return rows
    found = state.copy()
    found[tuple(map(slice, rows.shape))] = rows
    return found


def chained(
    run: Callable[[Arrays], Arrays], steps: Iterable[Arrays], states: Sequence[State], length: int = 0
) -> Iterator[tuple[Arrays, Arrays]]:
    """Run one step after the other; what was run and what came out of it.

    Args:
        run: computes the outputs of the states, among others, from the inputs of one step.
        steps: inputs by name; those of the states count in the first step of a sequence only.
        states: by the same names.
        length: steps of a sequence; 0: all.
    """
    kept: dict[str, np.ndarray] = {}
    for at, step in enumerate(steps):
        given = {**step, **kept} if length == 0 or at % length else step
        found = run(given)
        yield given, found
        kept = {s.input: np.reshape(found[s.output], np.shape(given[s.input])) for s in states}


LEAST_STEPS = 3
"""Fewer steps are not worth a loop."""


@dataclass(frozen=True)
class Operation:
    """One operation of a sequence.

    `kind` is what equal ones have in common; `reads` and `writes` are values by name, constants that equal
    steps share left out.
    """

    kind: Hashable
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Repeat:
    """Operations `first` to `first + period * count`: `count` equal steps of `period` operations."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The operation behind the last."""
        return self.first + self.period * self.count

    @property
    def saved(self) -> int:
        """Operations that are like one of the first step."""
        return self.period * (self.count - 1)

    def explains(self, period: int, first: int, last: int) -> bool:
        """Whether it is most of why operations up to `last` are like those one `period` later."""
        covered = min(self.end, last + period) - max(self.first, first)
        return period % self.period == 0 and 2 * covered > last + period - first


def find_repeats(operations: Sequence[Operation]) -> tuple[Repeat, ...]:
    """Repeats that do not overlap, in order; those that save most are taken first."""
    numbers: dict[Hashable, int] = {}
    kinds = np.array([numbers.setdefault(operation.kind, len(numbers)) for operation in operations], np.int64)
    writers = _writers(operations)
    found: list[Repeat] = []
    for period in range(1, len(kinds) // LEAST_STEPS + 1):
        for first, last in _alike(kinds, period):
            if not any(repeat.explains(period, first, last) for repeat in found):
                found += _linked(operations, writers, period, first, last)
    free = np.ones(len(kinds), np.bool_)
    taken = []
    for repeat in sorted(found, key=lambda r: (-r.saved, r.period, r.first)):
        if free[repeat.first : repeat.end].all():
            free[repeat.first : repeat.end] = False
            taken.append(repeat)
    return tuple(sorted(taken, key=lambda repeat: repeat.first))


def shared_roles(operations: Sequence[Operation]) -> Mapping[str, str]:
    """Values of repeated steps by what they are in their step: the first value that has the same role.

    What steps read in one place has one role, even what the first reads from outside.
    """
    roles: dict[str, str] = {}

    def role(value: str) -> str:
        while roles.setdefault(value, value) != value:
            value = roles[value]
        return value

    for repeat in find_repeats(operations):
        for i in range(repeat.first, repeat.end - repeat.period):
            now, later = operations[i], operations[i + repeat.period]
            for a, b in zip(now.reads + now.writes, later.reads + later.writes, strict=True):
                if a != b:
                    roles[role(b)] = role(a)
    return {value: role(value) for value in roles}


def _writers(operations: Sequence[Operation]) -> list[tuple[int, ...]]:
    """For what each operation reads, the last to have written some of it; -1: none."""
    last: dict[str, int] = {}
    found = []
    for i, operation in enumerate(operations):
        found.append(tuple(last.get(value, -1) for value in operation.reads))
        last.update(dict.fromkeys(operation.writes, i))
    return found


def _alike(kinds: NDArray[np.int64], period: int) -> list[tuple[int, int]]:
    """First and last (exclusive) of operations that are like those one period later, of enough steps."""
    same = np.concatenate(([False], kinds[:-period] == kinds[period:], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1])
    return [
        (int(first), int(last))
        for first, last in edges.reshape(-1, 2)
        if last - first >= period * (LEAST_STEPS - 1)
    ]


def _linked(
    operations: Sequence[Operation], writers: Sequence[Sequence[int]], period: int, first: int, last: int
) -> list[Repeat]:
    """Repeats among operations that are alike, each as long as values move on with the steps."""

    strides: dict[tuple[int, int], int] = {}

    def moves_on(start: int, i: int) -> bool:
        """Whether operation i + period reads what operation i does, one step later."""
        values = zip(operations[i].reads, operations[i + period].reads, strict=True)
        for place, (now, later) in enumerate(values):
            before, after = writers[i][place], writers[i + period][place]
            enters = before < start <= after < start + period  # what came from outside
            if enters or (now == later and before == after):
                continue
            stride = strides.setdefault(((i - start) % period, place), after - before)
            if before < 0 or after < 0 or after - before != stride:
                return False
        return True

    ends = [first - 1]
    start = first
    for i in range(first, last):
        if not moves_on(start, i):
            ends.append(i)
            start = i + 1
            strides.clear()
    ends.append(last)
    counts = [(end + 1, (stop - end - 1) // period + 1) for end, stop in pairwise(ends)]
    return [Repeat(start, period, count) for start, count in counts if count >= LEAST_STEPS]
