"""Prints the steps of a pipelined fusion group: in each of them every stage has a group tile of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.pipeline import pipeline_axis, pipeline_tiles, rounds, stages
from fadiff.emitters.gemmini.expression import sub
from fadiff.emitters.gemmini.plan import GroupPlan
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.tile_intervals import TileIntervals

COUNTERS = ("g", "g", "i", "j", "k")
"""C variables of the group tiles along G, K, N, P and Q: of one of G and K there is only one."""


def print_pipeline(
    c: CPrinter,
    graph: Graph,
    group: GroupPlan,
    declared: Sequence[TileIntervals],
    printed: Callable[[str], Sequence[str]],
) -> None:
    """The loop over steps, with a fence before everything that is issued in it.

    Args:
        c: Where to.
        graph: Of the network.
        group: A pipelined one.
        declared: All intervals that members use.
        printed: The lines of a member in a group tile, by its name.
    """
    stage, tiles, counter = (
        stages(graph, group.group),
        pipeline_tiles(group.members),
        COUNTERS[pipeline_axis(group.members)],
    )
    depth = max(stage.values())
    with c.loop("step", tiles + depth):
        for turns in rounds(graph, group.group):
            c.call("wait_for_gemmini")
            for name in (name for turn in turns for name in (turn.issued, *turn.computed)):
                late, lines = stage[name], printed(name)
                words = set(re.findall(r"\w+", " ".join(lines)))
                used = [intervals for intervals in declared if intervals.name in words]
                when = [f"step >= {late}"] if late else []
                when += [f"step < {tiles + late}"] if late < depth else []
                with c.block(f"if ({' && '.join(when)})"):
                    if used or counter in words:
                        c.constant(counter, sub("step", late))
                    for intervals in used:
                        intervals.declare(c)
                    c.relay(lines)
    c.call("wait_for_gemmini")
