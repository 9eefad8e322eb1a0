"""Finds the mapping of every layer and the fusion of the graph, and says how good they are."""

from optimizer.cut.result import HistoryPoint, SearchResult
from optimizer.cut.settings import Settings
from optimizer.search import optimize

__all__ = ["HistoryPoint", "SearchResult", "Settings", "optimize"]
