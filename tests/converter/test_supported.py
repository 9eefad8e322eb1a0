"""The operator table: every rule is written down, none twice."""

from __future__ import annotations

from fadiff.converter.decompose.contrib import FUNCTIONS
from fadiff.converter.lower.table import FOR_ALL, OPERATORS


def test_every_rule_is_written_down() -> None:
    lowered = (c for entry in OPERATORS for c in entry.constraints)
    contrib = (c for entry in FUNCTIONS for c in entry.constraints)
    for constraint in (*FOR_ALL, *lowered, *contrib):
        assert constraint.__doc__, constraint


def test_no_operator_is_listed_twice() -> None:
    keys = [(entry.domain, entry.op, entry.since) for entry in OPERATORS]
    assert len(keys) == len(set(keys))
