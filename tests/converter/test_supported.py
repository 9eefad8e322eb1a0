"""The operator table: every rule is written down, none twice."""

from __future__ import annotations

from converter.lower.table import FOR_ALL, OPERATORS


def test_every_rule_is_written_down() -> None:
    for constraint in (*FOR_ALL, *(c for entry in OPERATORS for c in entry.constraints)):
        assert constraint.__doc__, constraint


def test_no_operator_is_listed_twice() -> None:
    keys = [(entry.domain, entry.op, entry.since) for entry in OPERATORS]
    assert len(keys) == len(set(keys))
