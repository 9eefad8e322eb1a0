"""Lowering: a quantised float program becomes a Graph of N K C P Q R S and host layers."""

from converter.lower.driver import lower, unsupported

__all__ = ["lower", "unsupported"]
