"""A schedule as Timeloop files: `emit.py` is the entry, `units.py` says what becomes one run."""
