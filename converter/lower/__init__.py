"""Lowering: a quantised float program becomes a Graph of N K C P Q R S and host layers."""

from fadiff.converter.lower.driver import lower, unsupported
from fadiff.converter.lower.table import cannot_load, unknown_operators

__all__ = ["cannot_load", "lower", "unknown_operators", "unsupported"]
