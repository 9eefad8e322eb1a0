"""Prints the steps of a pipelined fusion group: in each of them every stage has a group tile of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.pipeline import pipeline_axis, pipeline_tiles, rounds, stages
from fadiff.emitters.gemmini.expression import Expr, sub
from fadiff.emitters.gemmini.plan import GroupPlan
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.tile_intervals import TileIntervals

COUNTERS = ("g", "g", "i", "j", "k")
"""C variables of the group tiles along G, K, N, P and Q: of one of G and K there is only one."""


@dataclass(frozen=True)
class Lines:
    """A member that the core computes in `parts`: `function` does those that are due."""

    member: str
    function: str
    parts: int
    tensors: Mapping[str, str]
    """C parameters of the group that it needs, with their types."""

    @property
    def done(self) -> str:
        """C variable that counts parts."""
        return f"done_{self.function}"

    def compute(self, c: CPrinter, done: str, due: Expr) -> None:
        """The call; `done` points to the variable."""
        c.call(self.function, *self.tensors, "step", done, due)


@dataclass(frozen=True)
class LinesBeside:
    """What the core computes between tiles of a member of a pipeline that a loop unit runs."""

    lines: tuple[Lines, ...]
    on_gemmini: int
    """Index of that member,"""
    tiles: int
    """and how many calls of the loop unit run it, at most."""

    @property
    def parameters(self) -> dict[str, str]:
        """Of that member's function, besides its own, with their types."""
        tensors = {name: kind for lines in self.lines for name, kind in lines.tensors.items()}
        return tensors | {"step": "int32_t "} | {lines.done: "int32_t *" for lines in self.lines}

    @property
    def signature(self) -> list[str]:
        """These parameters with their types."""
        return [f"{kind}{name}" for name, kind in self.parameters.items()]

    @property
    def arguments(self) -> list[str]:
        """What the group calls the function with."""
        return [f"&{name}" if kind == "int32_t *" else name for name, kind in self.parameters.items()]

    def declare(self, c: CPrinter) -> None:
        """The counter of tiles."""
        c.line("int32_t given = 0;")

    def print(self, c: CPrinter) -> None:
        """After a tile: what is due while the unit has this one and the one before."""
        c.call("observe", self.on_gemmini, 3)
        for lines in self.lines:
            lines.compute(c, lines.done, f"given * {lines.parts} / {self.tiles}")
        c.call("observe", self.on_gemmini, 0)
        c.line("given++;")


def print_lines(
    c: CPrinter,
    graph: Graph,
    group: GroupPlan,
    declared: Sequence[TileIntervals],
    lines: Lines,
    printed: Sequence[str],
) -> None:
    """The function of a member that the core computes in parts; `printed` are the lines of one `part` in a
    group tile."""
    late, tiles = stages(graph, group.group)[lines.member], pipeline_tiles(group.members)
    parameters = [f"{kind}{name}" for name, kind in lines.tensors.items()]
    parameters += ["int32_t step", "int32_t *done", "int32_t due"]
    c.line()
    c.comment(f"In a step of the pipeline those of {lines.parts} parts of {lines.member} that are due.")
    with c.function(f"static void {lines.function}({', '.join(parameters)})"):
        for intervals in _used(declared, printed):
            intervals.declare_table(c)
        with c.block(f"for (; step >= {late} && step < {tiles + late} && *done < due; ++*done)"):
            c.constant("part", "*done")
            _print_tile(c, group, declared, printed, late)


def print_pipeline(
    c: CPrinter,
    graph: Graph,
    group: GroupPlan,
    declared: Sequence[TileIntervals],
    printed: Callable[[str], Sequence[str]],
    beside: Mapping[str, LinesBeside],
) -> None:
    """The loop over steps, with a fence before everything that is issued in it.

    Args:
        c: Where to.
        graph: Of the network.
        group: A pipelined one.
        declared: All intervals that members use.
        printed: The lines of a member in a group tile, by its name.
        beside: What is computed between tiles of a member, by its name.
    """
    stage, tiles = stages(graph, group.group), pipeline_tiles(group.members)
    depth = max(stage.values())
    with c.loop("step", tiles + depth):
        for turns in rounds(graph, group.group):
            c.call("wait_for_gemmini")
            for turn in turns:
                found = beside[turn.issued].lines if turn.issued in beside else ()
                between = {lines.member: lines for lines in found}
                for lines in between.values():
                    c.line(f"int32_t {lines.done} = 0;")
                for name in (turn.issued, *turn.computed):
                    if name in between:
                        between[name].compute(c, f"&{between[name].done}", between[name].parts)
                        continue
                    late = stage[name]
                    when = [f"step >= {late}"] if late else []
                    when += [f"step < {tiles + late}"] if late < depth else []
                    with c.block(f"if ({' && '.join(when)})"):
                        _print_tile(c, group, declared, printed(name), late)
    c.call("wait_for_gemmini")


def _print_tile(
    c: CPrinter, group: GroupPlan, declared: Sequence[TileIntervals], printed: Sequence[str], late: int
) -> None:
    """The lines of a member in its group tile of a step."""
    counter, used = COUNTERS[pipeline_axis(group.members)], _used(declared, printed)
    if used or counter in words_of(printed):
        c.constant(counter, sub("step", late))
    for intervals in used:
        intervals.declare(c)
    c.relay(printed)


def _used(declared: Sequence[TileIntervals], printed: Sequence[str]) -> list[TileIntervals]:
    words = words_of(printed)
    return [intervals for intervals in declared if intervals.name in words]


def words_of(lines: Sequence[str]) -> set[str]:
    """C identifiers, among others, in lines."""
    return set(re.findall(r"\w+", " ".join(lines)))
