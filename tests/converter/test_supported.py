"""The operator table: every rule is written down, none twice."""

from __future__ import annotations

from types import SimpleNamespace

from fadiff.converter.decompose.contrib import FUNCTIONS
from fadiff.converter.lower.rows import _softmax_axes
from fadiff.converter.lower.table import FOR_ALL, OPERATORS, find


def test_every_rule_is_written_down() -> None:
    lowered = (c for entry in OPERATORS for c in entry.constraints)
    contrib = (c for entry in FUNCTIONS for c in entry.constraints)
    for constraint in (*FOR_ALL, *lowered, *contrib):
        assert constraint.__doc__, constraint


def test_no_operator_is_listed_twice() -> None:
    names = [entry.op for entry in OPERATORS]
    assert len(names) == len(set(names))


def test_an_operator_is_onnx_own() -> None:
    for entry in OPERATORS:
        assert find(SimpleNamespace(domain="", op=entry.op)) is entry
        assert find(SimpleNamespace(domain="my.ops", op=entry.op)) is None


def test_a_softmax_without_an_axis() -> None:
    """ONNX: the last axis from opset 13 on, before that all from the second on."""
    versions = {1: (1, 2, 3), 11: (1, 2, 3), 13: (3,)}
    found = {v: _softmax_axes(SimpleNamespace(attributes={}, version=v), 4) for v in versions}
    assert found == versions
