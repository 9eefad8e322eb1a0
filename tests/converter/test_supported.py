"""docs/SUPPORTED_OPS.md says what the table says, and the table what the rules say."""

from __future__ import annotations

from pathlib import Path

from converter.lower.table import FOR_ALL, OPERATORS
from converter.supported import supported_ops_markdown

PAGE = Path(__file__).parents[2] / "docs" / "SUPPORTED_OPS.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == supported_ops_markdown(), (
        "run python -m converter.supported > docs/SUPPORTED_OPS.md"
    )


def test_every_rule_is_written_down() -> None:
    for constraint in (*FOR_ALL, *(c for entry in OPERATORS for c in entry.constraints)):
        assert constraint.__doc__, constraint


def test_no_operator_is_listed_twice() -> None:
    keys = [(entry.domain, entry.op, entry.since) for entry in OPERATORS]
    assert len(keys) == len(set(keys))
