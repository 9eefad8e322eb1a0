"""A sample of onnx's own conformance suite (all of it: python -m benchmarks conformance)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from benchmarks.conformance import cases, judge
from fadiff.converter.ir.graph import ElementType


@cache
def sampled() -> list[Any]:
    """One case in thirty."""
    return cases()[::30]


@pytest.mark.slow
@pytest.mark.parametrize("element", ["int8", "float32"])
def test_every_case_is_verified_or_refused_by_name(element: ElementType) -> None:
    verdicts = [judge(case, element) for case in sampled()]
    wrong = [verdict for verdict in verdicts if verdict.status == "wrong"]
    assert not wrong
    assert all(verdict.detail for verdict in verdicts)
    assert sum(verdict.status == "verified" for verdict in verdicts) > 0.6 * len(verdicts)
