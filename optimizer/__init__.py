"""Finds the mapping of every layer and the fusion of the graph, and says how good they are."""

from optimizer.result import HistoryPoint, SearchResult
from optimizer.search import optimize
from optimizer.settings import Settings

__all__ = ["HistoryPoint", "SearchResult", "Settings", "optimize"]
