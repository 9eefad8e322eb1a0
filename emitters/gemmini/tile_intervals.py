"""What a fusion group asks of a member along one axis, tile by tile: a formula or a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fadiff.emitters.gemmini.expression import Expr, add, bare, mul
from fadiff.emitters.gemmini.printer import CPrinter


@dataclass(frozen=True)
class _Ramp:
    """Bounds MAX(index * step + start, least) and MIN(index * step + end, most)."""

    step: int
    start: int
    least: int
    end: int
    most: int

    def at(self, index: int) -> tuple[int, int]:
        """The interval of one tile."""
        return max(index * self.step + self.start, self.least), min(index * self.step + self.end, self.most)


@dataclass(frozen=True)
class TileIntervals:
    """The C variable `name`, an interval_t, in the body of the loop over tiles `counter`.

    There is none where all tiles are one: its bounds are numbers then.
    """

    name: str
    counter: str
    intervals: Sequence[tuple[int, int]]
    """Of each tile; an empty one may end before it starts."""

    @property
    def start(self) -> Expr:
        """First index."""
        return self.intervals[0][0] if self._is_constant else f"{self.name}.start"

    @property
    def end(self) -> Expr:
        """Behind the last index."""
        return max(self.intervals[0]) if self._is_constant else f"{self.name}.end"

    @property
    def initialiser(self) -> str:
        """Of a member of a struct."""
        return f"{{{self.start}, {self.end}}}" if self._is_constant else self.name

    @property
    def value(self) -> str:
        """As an argument."""
        return f"(interval_t){self.initialiser}" if self._is_constant else self.name

    @property
    def previous_end(self) -> Expr:
        """`end` of the tile before; 0 before the first."""
        if self._is_constant:
            return 0
        ramp = self._ramp
        end = (
            f"{self._table}[{self.counter} - 1].end"
            if ramp is None
            else self._end(ramp, ramp.end - ramp.step)
        )
        return f"({self.counter} == 0 ? 0 : {bare(end)})"

    def declare_table(self, c: CPrinter) -> None:
        """Before the loops: the table, where no formula fits."""
        if self._is_constant or self._ramp is not None:
            return
        texts = [f"{{{start}, {max(start, end)}}}" for start, end in self.intervals]
        with c.initialiser(f"static const interval_t {self._table}[{len(texts)}]"):
            for first in range(0, len(texts), 8):
                c.line(f"{', '.join(texts[first : first + 8])},")

    def declare(self, c: CPrinter) -> None:
        """In the body of the loops: the variable."""
        if self._is_constant:
            return
        ramp = self._ramp
        if ramp is None:
            c.line(f"const interval_t {self.name} = {self._table}[{self.counter}];")
            return
        start = bare(add(mul(self.counter, ramp.step), ramp.start))
        if ramp.start < ramp.least:
            start = f"MAX({start}, {ramp.least})"
        c.line(f"const interval_t {self.name} = {{{start}, {bare(self._end(ramp, ramp.end))}}};")

    def _end(self, ramp: _Ramp, offset: int) -> Expr:
        end = add(mul(self.counter, ramp.step), offset)
        reaches = (len(self.intervals) - 1) * ramp.step + ramp.end > ramp.most
        return f"MIN({bare(end)}, {ramp.most})" if reaches else end

    @property
    def _is_constant(self) -> bool:
        return len(self.intervals) == 1

    @property
    def _table(self) -> str:
        return f"{self.name}_of"

    @property
    def _ramp(self) -> _Ramp | None:
        (least, first_end), (last_start, most) = self.intervals[0], self.intervals[-1]
        step, last = self.intervals[1][1] - first_end, len(self.intervals) - 1
        ramp = _Ramp(step, last_start - last * step, least, first_end, most)
        fits = all(
            start <= end and ramp.at(i) == (start, end) for i, (start, end) in enumerate(self.intervals)
        )
        return ramp if fits else None
