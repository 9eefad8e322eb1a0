"""A bound under the clock says nothing of schedules in which Gemmini copies, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fadiff.test_float32 import write

COPIES = """\
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,16,12,12] x) => (float[1,16,12,12] y, float[1,16,8,12] z)
<float[16,16,1,1] w, int64[1] start = {2}, int64[1] end = {10}, int64[1] axis = {2}>
{
  y = Conv <kernel_shape=[1,1]> (x, w)
  z = Slice (x, start, end, axis)
}
"""


@pytest.mark.parametrize(("latency", "kind"), [("clock", "sequential"), ("roofline", "proven")])
def test_what_the_bound_is_of(fadiff, tmp_path: Path, latency: str, kind: str) -> None:
    model = write(tmp_path / "net.onnx", COPIES)
    ended = fadiff("compile", model, "-o", tmp_path / "out", "--latency", latency, "--min-sqnr", -50)
    assert ended.code == 0, ended.err
    totals = json.loads((tmp_path / "out" / "schedule.json").read_text())["totals"]
    assert totals["bound_kind"] == kind
    assert kind == "sequential" or totals["gap"] >= 0
    assert ("copies by the core" in ended.out) == (kind == "sequential")
