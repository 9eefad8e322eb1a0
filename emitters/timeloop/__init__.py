"""Everything that knows Timeloop's formats (v0.4): writing, reading, running it, comparing its counts.

`nest.py` is a mapping in Timeloop's terms, `index.py` the manifest of a folder of files.  `write` makes
problem, architecture and mapping of every layer of a schedule; `read` takes such files from elsewhere as
layers, mappings and schedules; `compare.py` runs Timeloop and puts its counts (`stats.py`) beside ours.
"""

from fadiff.emitters.timeloop.write.emit import Dialect, emit

__all__ = ["Dialect", "emit"]
