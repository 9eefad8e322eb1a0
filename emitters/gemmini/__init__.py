"""Gemmini C: the decoded schedule as bare-metal firmware.

`emit` prints; it decides nothing.  What the C moves is docs/execution-contract.md, how a runner
drives it docs/firmware-interface.md.
"""

from fadiff.emitters.gemmini.emit import emit
from fadiff.emitters.gemmini.entries import Entry, emit_entries, map_name
from fadiff.emitters.gemmini.errors import EmitError

__all__ = ["EmitError", "Entry", "emit", "emit_entries", "map_name"]
