"""The default: local search, then branch and bound, which proves its result, betters it or bounds it."""

from __future__ import annotations

from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.local import PATIENCE, climb
from fadiff.optimizer.nests.proof import prove

FIRST = 0.3
"""Share of the time budget for local search before the proof."""
PRICED = 150_000
"""Partial mappings that a proof prices without a time budget."""


def auto(search: LayerSearch) -> None:
    """Until proven or time is over; without a time budget, until restarts find nothing better and a fixed
    effort at a proof is spent."""
    climb(search, PATIENCE, FIRST)
    prove(search, PRICED if search.seconds is None else None)
    if search.seconds is not None and search.value > search.bound:
        climb(search, None)


def exact(search: LayerSearch) -> None:
    """Branch and bound alone, until the best mapping is proven or time is over."""
    prove(search, None)
