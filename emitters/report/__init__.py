"""report.html: what was decided, what it costs, what was measured, and what is an estimate."""

from emitters.report.render import render, write_report

__all__ = ["render", "write_report"]
