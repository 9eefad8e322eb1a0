"""A sample of onnx's own conformance suite (all of it: python -m benchmarks conformance)."""

from __future__ import annotations

import pytest

from benchmarks.conformance import cases, judge
from fadiff.converter.ir.graph import ElementType


@pytest.mark.slow
@pytest.mark.parametrize(("element", "every"), [("int8", 30), ("float32", 30)])
def test_every_case_is_verified_or_refused_by_name(element: ElementType, every: int) -> None:
    verdicts = [judge(case, element) for case in cases()[::every]]
    wrong = [verdict for verdict in verdicts if verdict.status == "wrong"]
    assert not wrong
    assert all(verdict.detail for verdict in verdicts)
    assert sum(verdict.status == "verified" for verdict in verdicts) > 0.6 * len(verdicts)
