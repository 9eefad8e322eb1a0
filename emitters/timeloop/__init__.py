"""Timeloop files (v0.4) of a schedule, and the comparison with what Timeloop makes of them."""

from emitters.timeloop.emit import Dialect, emit

__all__ = ["Dialect", "emit"]
