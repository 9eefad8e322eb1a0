"""Lowering: a quantised float program becomes a Graph of N K C P Q R S and host layers."""

from fadiff.converter.lower.driver import lower, unsupported
from fadiff.converter.lower.table import cannot_load, is_known, unknown_operators

__all__ = ["cannot_load", "is_known", "lower", "unknown_operators", "unsupported"]
