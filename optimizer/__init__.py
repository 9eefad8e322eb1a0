"""Finds the mapping of every layer and the fusion of the graph, and says how good they are.

`search.optimize` is the entry.  Rooms, each needing only those before it: `layer` (map-spaces and
fronts), `group` (ways to fuse), `cut` (where groups begin and end), `gradient` (descent, torch),
`baselines`, `finish` (what is changed afterwards).
"""

from fadiff.optimizer.cut.result import HistoryPoint, SearchResult
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.search import optimize

__all__ = ["HistoryPoint", "SearchResult", "Settings", "optimize"]
