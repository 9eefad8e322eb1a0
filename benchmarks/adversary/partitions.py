"""Partitions of a graph, one by one: nothing that the optimiser uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fadiff.converter.ir.graph import Graph

Layers = tuple[str, ...]


def partitions(names: Sequence[str], groups: Sequence[Layers]) -> Iterator[tuple[Layers, ...]]:
    """Every way to cover `names` with disjoint groups."""
    if not names:
        yield ()
        return
    for group in groups:
        if group[0] == names[0] and set(group) <= set(names):
            for rest in partitions([n for n in names if n not in group], groups):
                yield (group, *rest)


def executable(graph: Graph, partition: Sequence[Layers]) -> bool:
    """Whether the groups can run one after the other: no cycle between them."""
    group_of = {name: i for i, group in enumerate(partition) for name in group}
    done: set[int] = set()
    pending = set(range(len(partition)))
    while pending:
        ready = [
            i
            for i in pending
            if all(
                group_of[p] == i or group_of[p] in done
                for name in partition[i]
                for p in graph.dag.predecessors(name)
            )
        ]
        if not ready:
            return False
        done.update(ready)
        pending -= set(ready)
    return True
