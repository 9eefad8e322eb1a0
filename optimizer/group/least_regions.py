"""What members of a fusion group compute at least, whatever the group tile.

Where a consumer's stride is larger than its window, small group tiles leave out pixels between windows
that one tile over everything computes: floors must not count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.group.pooling import windows
from fadiff.costmodel.mapping.intervals import input_box
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.tiling import Interval, Window


def least_regions(graph: Graph, plan: Mapping[str, Member]) -> dict[str, Member]:
    """`plan`, of a group with one tile over the whole output, with members that compute no pixel that
    another tile leaves out: regions that no group tile makes less expensive."""
    found = dict(plan)
    least: dict[str, tuple[int, int]] = {}
    for name in reversed(list(plan)):
        member, layer = plan[name], graph.by_name[name]
        whole = (_only(member.computed.P), _only(member.computed.Q))
        readers = [c for c in graph.consumers(layer.outputs[0]) if c.name in plan]
        axes = windows(graph, layer)
        sizes: list[int] = []
        intervals: list[tuple[Interval, ...]] = []
        for axis, (start, stop) in enumerate(whole):
            count = stop - start
            if not member.writes_outside:
                count = 1
                for reader in readers:
                    outputs = (plan[reader.name].computed.P, plan[reader.name].computed.Q)[axis]
                    read = windows(graph, reader)
                    part = least[reader.name][axis]
                    count = max(count, part if read is None else _read(read[axis], _only(outputs), part))
            count = min(count, stop - start)
            sizes.append(count)
            if count < stop - start and isinstance(layer, TensorCoreLayer):
                assert axes is not None
                count = max(1, count - _doubtful(axes[axis], (start, stop)))
            intervals.append(((start, start + count),) if count else ())
        least[name] = sizes[0], sizes[1]
        p, q = intervals
        found[name] = replace(member, computed=member.computed._replace(P=p, Q=q))
    return found


def _only(intervals: tuple[Interval, ...]) -> Interval:
    """The interval of one tile, empty where readers see padding only."""
    return intervals[0] if intervals else (0, 0)


def _read(window: Window, outputs: Interval, count: int) -> int:
    """Input indices within the image that tiles for any `count` of the `outputs` of a reader cover."""
    start, stop = input_box(window, outputs)
    outside = stop - start - (min(stop, window.size) - max(start, 0))
    reach = (window.kernel - 1) * window.dilation + 1
    return max(1, (count - 1) * min(window.stride, reach) + reach - outside)


def _doubtful(window: Window, outputs: Interval) -> int:
    """Outputs to leave out so that the rest, side by side, needs no more input than as many apart: those
    may also meet the padding at the end, and share what lies between the taps of a dilated kernel."""
    _, stop = input_box(window, outputs)
    inputs = max(0, stop - window.size) + (window.kernel - 1) * (window.dilation - 1)
    reach = (window.kernel - 1) * window.dilation + 1
    return ceil_div(inputs, min(window.stride, reach))
