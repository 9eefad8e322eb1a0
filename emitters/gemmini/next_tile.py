"""The scratchpad tile that a nest fetches after this one, loaded while this one's products run.

Its loads are spread over these products, a few before each (`pace_t` in runtime/pace.h): all at
once would fill the load queue of the reservation station, and then the core, and the products behind, wait.
Same bytes, same places: only the time of the loads differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fadiff.converter.ir.loops import RELEVANT, Dim
from fadiff.emitters.gemmini.expression import bare, minimum, sub
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.nest import Loop, Nest, Tile
from fadiff.emitters.gemmini.positions import Positions
from fadiff.emitters.gemmini.printer import CPrinter


@dataclass(frozen=True)
class NextTile:
    """The next tile of one operand, in the other of two places."""

    loops: tuple[Loop, ...]
    """Around the fetch."""
    positions: Positions
    """With the variables of the next tile for theirs."""
    relevant: frozenset[Dim]
    """Dimensions of the operand."""
    products: int
    """Of this tile: the next one is loaded meanwhile."""

    @property
    def is_first(self) -> str:
        """C condition: this tile is the first of the nest, so that nothing loaded it before."""
        return " && ".join(f"{loop.variable} == 0" for loop in self.loops)

    @contextmanager
    def exists(self, c: CPrinter) -> Iterator[None]:
        """What is printed inside happens where there is a next tile; its variables are declared."""
        ahead = self.positions.nest.outer[: len(self.loops)]
        with c.scope():
            for now, then in zip(self.loops[:-1], ahead, strict=False):
                c.line(f"int32_t {then.variable} = {now.variable};")
            c.line(f"int32_t {ahead[-1].variable} = {self.loops[-1].variable} + {ahead[-1].step};")
            for outer, inner in zip(reversed(ahead[:-1]), reversed(ahead), strict=False):
                with c.block(f"if ({inner.variable} >= {bare(inner.bound)})"):
                    c.line(f"{inner.variable} = 0;")
                    c.line(f"{outer.variable} += {outer.step};")
            with c.block(f"if ({ahead[0].variable} < {bare(ahead[0].bound)})"):
                for loop in ahead:
                    if loop.extent_name is not None and loop.dim in self.relevant:
                        c.constant(loop.extent_name, loop.extent)
                yield


def next_tile_of(at: Positions, operand: str, places: tuple[int, ...]) -> NextTile | None:
    """How to load tiles of `operand` ahead, None without a second buffer at `places`."""
    nest, position = at.nest, at.nest.fetch_position(operand, "L2")
    if len(places) < 2 or position == 0:
        return None
    start, extent = dict(nest.tiles["L2"].start), dict(nest.tiles["L2"].extent)
    ahead = []
    for loop in nest.outer[:position]:
        variable, name, size = f"{loop.variable}_next", loop.extent_name, loop.extent
        if name is not None:
            name, size = f"{variable}_count", minimum(loop.step, sub(loop.bound, variable))
        start[loop.dim], extent[loop.dim] = variable, name or size
        ahead.append(replace(loop, variable=variable, extent=size, extent_name=name))
    tiles = {**nest.tiles, "L2": Tile(start, extent)}
    then = replace(nest, outer=(*ahead, *nest.outer[position:]), tiles=tiles)
    loops = nest.outer[:position]
    return NextTile(loops, replace(at, nest=then), RELEVANT[operand], products_of(at.form, nest, position))


def products_of(form: Form, nest: Nest, position: int) -> int:
    """Products in the body of the first `position` loops, outer and inner; where tiles are ragged, fewer."""
    loops = (nest.outer + nest.inner)[position:]
    return math.prod(form.mapping.trips(loop.level, nest.full)[loop.dim] for loop in loops)
