"""The default: local search, then branch and bound, which proves its result, betters it or bounds it."""

from __future__ import annotations

from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.local import PATIENCE, climb, resume
from fadiff.optimizer.nests.proof import prove

FIRST, PROOF = 0.7, 0.9
"""Shares of the time budget at which local search goes over to the proof, and that back to it."""
PRICED = 150_000
"""Partial mappings that a proof prices without a time budget."""


def auto(search: LayerSearch) -> None:
    """Until proven or time is over; without a time budget, until restarts find nothing better and a fixed
    effort at a proof is spent."""
    climb(search, PATIENCE, FIRST)
    prove(search, PRICED if search.seconds is None else None, PROOF)
    if search.seconds is not None and search.value > search.bound:
        resume(search)


def exact(search: LayerSearch) -> None:
    """Branch and bound alone, until the best mapping is proven or time is over."""
    prove(search, None)
