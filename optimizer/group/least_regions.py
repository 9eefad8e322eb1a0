"""What members of a fusion group compute at least, whatever the group tile.

Where a consumer's stride is larger than its window, small group tiles leave out pixels between windows
that one tile over everything computes: floors must not count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.group.pooling import windows
from fadiff.costmodel.mapping.tiling import Interval


def least_regions(graph: Graph, plan: Mapping[str, Member]) -> dict[str, Member]:
    """`plan`, of a group with one tile over the whole output, with regions that no group tile makes less
    expensive: one row or column of a member of which later ones, or their readers, may skip some."""
    found = dict(plan)
    skipped: dict[str, tuple[bool, bool]] = {}
    for name in reversed(list(plan)):
        member, output = plan[name], graph.by_name[name].outputs[0]
        skips = [False, False]
        for reader in graph.consumers(output) if not member.writes_outside else ():
            for axis, window in enumerate(windows(graph, reader) or (None, None)):
                apart = window and window.stride > (window.kernel - 1) * window.dilation + 1
                skips[axis] |= bool(apart) or skipped[reader.name][axis]
        skipped[name] = skips[0], skips[1]
        p, q = (_first(axis) if few else axis for few, axis in zip(skips, member.computed[3:], strict=True))
        found[name] = replace(member, computed=member.computed._replace(P=p, Q=q))
    return found


def _first(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """One index of one tile, none where readers see padding only."""
    return tuple((start, start + 1) for start, _ in intervals[:1])
