"""Who issues a product: on wide arrays gemmini.h's tiles, where RTL finds the clock's no faster."""

import pytest

from benchmarks.rtl import LIBRARY, prepare
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.finish.traffic_limit import dram_bytes


@pytest.mark.parametrize(("target", "columns"), [("gemmini-large", 64), ("gemmini-default", 32)])
def test_a_lone_product(target, columns, tmp_path):
    """On RTL at side 32 all 64 columns in one tile take 6,150 cycles, 32 take 6,753; the clock errs."""
    prepared = prepare("8x1024 fc64", load_target(target), tmp_path, library=True)
    [ours, automatic] = prepared.schedules.values()
    assert list(prepared.schedules)[-1] == LIBRARY
    [(name, mapping)] = ours.mappings.items()
    assert columns == mapping.tile_l2.K
    assert dram_bytes(evaluate(ours)) == dram_bytes(evaluate(automatic))
    if target == "gemmini-large":
        assert mapping.tile_l2 == automatic.mappings[name].tile_l2
