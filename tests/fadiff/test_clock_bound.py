"""A bound is of schedules that run one layer after the other, and says so where one does not."""

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


@pytest.mark.parametrize(("options", "kind"), [((), "sequential"), (("--no-fusion",), "unfused")])
def test_what_the_bound_is_of(fadiff, tmp_path: Path, options: tuple[str, ...], kind: str) -> None:
    """The core copies beside the convolution, or after it."""
    model = write(tmp_path / "net.onnx", COPIES)
    ended = fadiff("compile", model, "-o", tmp_path / "out", "--min-sqnr", -50, *options)
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "out" / "schedule.json").read_text())
    assert found["totals"]["bound_kind"] == kind
    assert len(found["fusion"]["groups"]) == (1 if kind == "sequential" else 2)
    assert ("one layer after the other" in ended.out) == (kind == "sequential")
    assert kind == "sequential" or found["totals"]["gap"] == pytest.approx(0, abs=1e-9)
