"""Every operator of the firmware's host library against the integer reference in ONNX Runtime."""

from __future__ import annotations

import pytest

from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.host_nets import elementwise, integers, rows, windows


@pytest.mark.parametrize("build", [elementwise, windows, rows, integers])
def test_host_library(build: object) -> None:
    graph = build()  # type: ignore[operator]
    check(Case(Schedule(graph, load_target("gemmini-default"), {}, singleton_groups(graph))))
