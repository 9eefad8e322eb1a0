"""Group tiles of a fusion group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError, output_size
from fadiff.costmodel.group.group_tile import shared_channels, shared_groups
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.optimizer.layer import candidates
from fadiff.optimizer.layer.space import Rules


def last_output(graph: Graph, layers: tuple[str, ...]) -> tuple[int, int, int] | None:
    """(N, P, Q) of the group's output; None if the group has no such thing."""
    sizes: dict[str, tuple[int, int, int]] = {}
    try:
        for name in layers:
            sizes[name] = output_size(graph.by_name[name], graph, sizes)
    except ScheduleError:
        return None
    return sizes[layers[-1]]


def groups_per_tile(graph: Graph, layers: tuple[str, ...]) -> tuple[int | None, ...]:
    """Extents of a group tile along the groups that all members have alike: all of them, or one by one."""
    return (None, 1) if shared_groups(graph, layers) > 1 else (None,)


def all_tiles(
    n: int, p: int, q: int, tiling: candidates.Tiling, groups: tuple[int | None, ...] = (None,)
) -> Iterator[GroupTile]:
    """Every pair of candidate height and width, widest first, by images and groups."""
    for some in groups:
        for batch in dict.fromkeys((1, n)):
            for width in reversed(candidates.extents(q, tiling)):
                for height in reversed(candidates.extents(p, tiling)):
                    yield GroupTile(batch, height, width, some)


def halved_tiles(graph: Graph, layers: tuple[str, ...]) -> Iterator[GroupTile]:
    """Tiles of programs: full lines of about 1, 1/2, 1/4, ... of the height, and where a max pool is a member
    of the width, too, by images and groups.  Every tile costs fences, of which narrow ones have many.

    One tile of everything is for a convolution with its max pool: others do as much one after the other, with
    tensors on chip in between (but for one that is also needed much later: energy of a U-Net 0.3 %).
    """
    size = last_output(graph, layers)
    if size is None:
        return
    n, p, q = size
    pools = any(graph.by_name[name].op == "max_pool" for name in layers)
    is_one = pools and len(layers) == 2
    for some in groups_per_tile(graph, layers):
        for batch in dict.fromkeys((1, n)):
            for width in shares(q) if pools else [q]:
                for height in shares(p):
                    if is_one or some or (batch, height, width) != size:
                        yield GroupTile(batch, height, width, some)


def shares(extent: int) -> list[int]:
    """An extent, the half of it, a quarter, an eighth, ..., rounded up."""
    return list(dict.fromkeys(ceil_div(extent, 2**halvings) for halvings in range(extent.bit_length())))


def channel_tiles(graph: Graph, layers: tuple[str, ...], rules: Rules) -> tuple[GroupTile, ...]:
    """Tiles of some of the channels that all members hand on one by one.

    Equal parts of whole array blocks, of full width and about 1, 1/2, 1/4, ... of the height; with depthwise
    members about 2, 4, 8, ... parts of full height (so that there is no halo).
    """
    every, size = shared_channels(graph, layers), last_output(graph, layers)
    parts = [k for k in reversed(candidates.divisors(every)) if k < every and k % rules.target.side == 0]
    if size is None or not parts:
        return ()
    n, p, q = size
    if any(graph.by_name[name].op == "depthwise" for name in layers):
        parts, heights = candidates.halved(every, parts), [p]
    else:
        heights = candidates.halved(p, candidates.extents(p, rules.tiling))
    tiles = product(dict.fromkeys((1, n)), parts, heights)
    return tuple(GroupTile(batch, height, q, K=channels) for batch, channels, height in tiles)
