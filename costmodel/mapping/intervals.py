"""Tiles along one axis as half-open intervals: cut, traced back through windows, joined."""

from __future__ import annotations

from collections.abc import Sequence

from fadiff.costmodel.mapping.tiling import Interval, Window


def cut(extent: int, bound: int) -> list[Interval]:
    """Tiles of `extent` indices along an axis, the last one ragged."""
    return [(start, min(start + extent, bound)) for start in range(0, bound, extent)]


def input_box(window: Window, outputs: Interval) -> Interval:
    """Input indices that an interval of outputs reads, padding included."""
    start, stop = outputs
    if start == stop:
        return (0, 0)
    return (
        start * window.stride - window.pad,
        (stop - 1) * window.stride + (window.kernel - 1) * window.dilation - window.pad + 1,
    )


def hull(a: Interval, b: Interval) -> Interval:
    """The smallest interval around two; an empty one counts for nothing."""
    if a[0] == a[1]:
        return b
    if b[0] == b[1]:
        return a
    return min(a[0], b[0]), max(a[1], b[1])


def covers(intervals: Sequence[Interval], size: int) -> bool:
    """Whether advancing intervals leave out no index of 0 .. size."""
    done = 0
    for start, stop in intervals:
        if start > done:
            return False
        done = max(done, stop)
    return done >= size
