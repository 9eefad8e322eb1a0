"""Rewrites of a lowered Graph: each keeps every number, says what it did, and can be left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from converter.graph import Graph
from converter.rewrites.destinations import write_in_place
from converter.rewrites.duplicates import merge_duplicates


@dataclass(frozen=True)
class Rewrite:
    """A named rewrite; `apply` returns the new graph and one line per change."""

    name: str
    apply: Callable[[Graph], tuple[Graph, tuple[str, ...]]]


REWRITES: Mapping[str, Rewrite] = {
    rewrite.name: rewrite
    for rewrite in (
        Rewrite("merge-duplicates", merge_duplicates),
        Rewrite("write-in-place", write_in_place),
    )
}


def rewrite(graph: Graph, without: Collection[str] = ()) -> tuple[Graph, tuple[str, ...]]:
    """Apply all rewrites but those named; returns the graph and what was done, line by line.

    Raises:
        ValueError: an unknown name in `without`.
    """
    unknown = sorted(set(without) - set(REWRITES))
    if unknown:
        raise ValueError(f"no rewrite called {unknown[0]!r}: choose from {', '.join(REWRITES)}")
    notes: list[str] = []
    for name, entry in REWRITES.items():
        if name not in without:
            graph, done = entry.apply(graph)
            notes.extend(f"{name}: {line}" for line in done)
    return graph, tuple(notes)
