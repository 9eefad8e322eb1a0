"""report.html: what was decided, what it costs, what was measured, and what is an estimate."""

from fadiff.emitters.report.render import render

__all__ = ["render"]
