"""The default: local search, then branch and bound, which proves its result, betters it or bounds it."""

from __future__ import annotations

from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.local import PATIENCE, climb, resume
from fadiff.optimizer.nests.proof import prove

FIRST, PROOF = 0.7, 0.9
"""Shares of the time budget at which local search goes over to the proof, and that back to it."""
PROVABLE = 2.0
"""Seconds that a proof is worth its time in: it seldom ends sooner, unless local search has long ended."""
TIMED_PATIENCE = 64
"""Restarts of local search with a time budget, which there is more to make of."""
PRICED = 150_000
"""Partial mappings that a proof prices without a time budget."""


def auto(search: LayerSearch) -> None:
    """Until proven or time is over; without a time budget, until restarts find nothing better and a fixed
    effort at a proof is spent."""
    if search.seconds is None:
        climb(search, PATIENCE)
        prove(search, PRICED)
        return
    climb(search, TIMED_PATIENCE, FIRST if search.seconds >= PROVABLE else 1.0)
    prove(search, None, PROOF)
    if search.value > search.bound:
        resume(search)


def exact(search: LayerSearch) -> None:
    """Branch and bound alone, until the best mapping is proven or time is over."""
    prove(search, None)
