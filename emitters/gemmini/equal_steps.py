"""Equal steps of a recurrence as a loop: statements that differ in numbers, by as much from step to step.

What the loop does in its turns is, number by number, what would have been printed for the steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.recurrence import LEAST_STEPS, Operation, Repeat, find_repeats
from fadiff.emitters.gemmini.expression import bare
from fadiff.emitters.gemmini.printer import CPrinter

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True)
class Statements:
    """What runs one layer or group, unwrapped; `comment` is of the layer that it is printed for."""

    lines: tuple[str, ...]
    comment: str = ""

    @cached_property
    def pattern(self) -> str:
        """The text without its numbers."""
        return _NUMBER.sub("#", "\n".join(self.lines))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """In order."""
        return tuple(map(int, _NUMBER.findall("\n".join(self.lines))))

    def with_numbers(self, numbers: Sequence[str]) -> Statements:
        """The same with other expressions in the place of the numbers."""
        left, text = iter(numbers), "\n".join(self.lines)

        def written(number: re.Match[str]) -> str:
            around = text[number.start() - 2 : number.start()], text[number.end() : number.end() + 1]
            alone = around[0][-1:] == "(" or around[0] == ", "
            return bare(next(left)) if alone and around[1] in ",)" else next(left)

        return Statements(tuple(_NUMBER.sub(written, text).split("\n")), self.comment)


def print_statements(c: CPrinter, statements: Sequence[Statements]) -> None:
    """All in order, equal steps as loops."""
    done = 0
    for loop in _loops(statements):
        for one in statements[done : loop.first]:
            _print(c, one)
        _print_loop(c, statements, loop)
        done = loop.end
    for one in statements[done:]:
        _print(c, one)


def _print(c: CPrinter, statements: Statements) -> None:
    if statements.comment:
        c.comment(statements.comment)
    c.relay(statements.lines)


def _print_loop(c: CPrinter, statements: Sequence[Statements], loop: Repeat) -> None:
    c.comment(f"{loop.count} equal steps, named after the first")
    with c.loop("step", loop.count):
        for i in range(loop.first, loop.first + loop.period):
            pairs = zip(statements[i].numbers, statements[i + loop.period].numbers, strict=True)
            _print(c, statements[i].with_numbers([_at_step(a, b - a) for a, b in pairs]))


def _at_step(first: int, stride: int) -> str:
    if not stride:
        return str(first)
    moved = "step" if abs(stride) == 1 else f"step * {abs(stride)}"
    if stride < 0:
        return f"({first} - {moved})"
    return f"({first} + {moved})" if first else f"({moved})"


def _loops(statements: Sequence[Statements]) -> Iterator[Repeat]:
    """Steps whose numbers all move on by as much from each to the next, in order."""
    for repeat in find_repeats([Operation(one.pattern, (), ()) for one in statements]):
        once = list(_even(statements, repeat))
        two = Repeat(repeat.first, 2 * repeat.period, repeat.count // 2)  # (two places by turns)
        yield from max((once, list(_even(statements, two))), key=lambda loops: sum(r.saved for r in loops))


def _even(statements: Sequence[Statements], repeat: Repeat) -> Iterator[Repeat]:
    """The parts of a repeat whose numbers move on evenly."""
    steps = np.array(
        [
            [n for i in range(repeat.period) for n in statements[start + i].numbers]
            for start in range(repeat.first, repeat.end, repeat.period)
        ],
        np.int64,
    ).reshape(repeat.count, -1)
    strides: NDArray[np.int64] = np.diff(steps, axis=0)
    start = 0
    while start + LEAST_STEPS <= repeat.count:
        same = (strides[start:] == strides[start]).all(axis=1)
        count = 1 + (len(same) if same.all() else int(np.argmin(same)))
        if count >= LEAST_STEPS:
            yield Repeat(repeat.first + start * repeat.period, repeat.period, count)
        start += max(count - 1, 1) if count < LEAST_STEPS else count
