"""The DeFiNES benchmark on two of its chains."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import defines
from benchmarks.__main__ import main
from benchmarks.defines import Point, parse_layer, z_rmse
from benchmarks.depth_first import DepthFirstCost
from fadiff.converter.ir.loops import Dims

DATA = Path(__file__).parent / "data/defines.csv"


def test_trends_of_two_chains(tmp_path, capsys):
    figure = tmp_path / "new" / "defines.png"
    assert defines.main(["--reference", str(DATA), "--out", str(figure.parent)]) == 0
    found = dict(word.split("=") for word in capsys.readouterr().out.splitlines()[-1].split())
    assert list(found) == ["rho_energy", "rho_latency", "zrmse_energy", "zrmse_latency"]
    assert float(found["rho_energy"]) > 0.97
    assert float(found["rho_latency"]) > 0.95
    assert float(found["zrmse_energy"]) < 0.05
    assert figure.stat().st_size > 0


def test_layers():
    shape = parse_layer("conv:N1-K256-C128-P16-Q14-R3-S1-stride2-pad0")
    assert shape.dims == Dims(K=256, C=128, P=16, Q=14, R=3, S=1)
    assert (shape.height.size, shape.width.size) == (33, 27)
    depthwise = parse_layer("dw:N1-K64-C64-P8-Q8-R3-S3-stride1-pad0")
    assert depthwise.is_depthwise
    assert depthwise.dims == Dims(G=64, P=8, Q=8, R=3, S=3)
    with pytest.raises(ValueError, match="cannot read the layer"):
        parse_layer("pool:N1")


def test_rows_that_cannot_be_priced_fail_the_run(tmp_path, capsys):
    broken = tmp_path / "broken.csv"
    lines = DATA.read_text().splitlines()
    broken.write_text("\n".join([*lines, lines[-1].replace("conv:", "pool:").replace("dw:", "pool:")]) + "\n")
    assert defines.main(["--reference", str(broken), "--out", str(tmp_path)]) == 1
    assert f"broken.csv:{len(lines) + 1}: cannot read the layer" in capsys.readouterr().err
    assert main(["defines", "--reference", str(tmp_path / "none.csv")]) == 2
    broken.write_text(lines[0].replace("mode", "kind") + "\n" + lines[1] + "\n")
    assert main(["defines", "--reference", str(broken)]) == 2


def test_z_rmse_ignores_scale_and_offset():
    values = np.array([1.0, 4.0, 2.0])
    assert z_rmse(values, 3 * values + 7) == pytest.approx(0)
    assert z_rmse(values, -values) == pytest.approx(2)


def test_rows_of_same_traffic_are_told_apart():
    ours = DepthFirstCost(1.0, 1.0, 100_000, 10_000)
    point = Point("fused_recompute", (1, 1), ours, ours)
    assert point.same_traffic
    assert not point._replace(reference=ours._replace(dram_bytes=100_200)).same_traffic
    assert not point._replace(reference=ours._replace(scratchpad_bytes=9_800)).same_traffic
    unknown = ours._replace(dram_bytes=0, scratchpad_bytes=0)
    assert not point._replace(reference=unknown).same_traffic
