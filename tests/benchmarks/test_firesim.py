"""The FireSim benchmark on forty rows of the data published with DOSA (BSD)."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import firesim
from benchmarks.__main__ import main
from benchmarks.dosa_format import DosaFormatError, read_points
from benchmarks.firesim_rows import array_side, as_executed, read_measurements
from benchmarks.fit_rtl import folds, scores
from converter.ir.dims import Dims
from costmodel.latency.rtl import calibration, cycles

DATA = Path(__file__).parent / "data/firesim.csv"


@pytest.fixture(scope="module")
def rows():
    return read_measurements([DATA])[0]


def test_committed_coefficients_predict_the_rows(rows):
    """These rows were fitted on: this guards the wiring, the error is cross-validated in the JSON."""
    predicted = np.asarray(cycles(rows.work, calibration()[0]))
    found = scores(predicted, rows.cycles)
    assert found["spearman"] > 0.97
    assert found["median_ape"] < 15


def test_one_row_at_a_time_gives_the_same(rows):
    together = np.asarray(cycles(rows.work, calibration()[0]))
    for i in (0, 7, 39):
        alone = rows.take(np.arange(40) == i)
        assert cycles(alone.work, calibration()[0]) == pytest.approx(together[i : i + 1])


def test_side_is_inferred_only_for_the_dummy_array():
    point = next(iter(read_points(DATA)))
    assert point.side == 128
    used = max(point.mapping.rows.product, point.mapping.cols.product)
    assert array_side(point) in (4, 8, 16, 32, 64)
    assert used <= array_side(point)
    assert array_side(point._replace(side=16)) == 16


def test_matrix_products_ran_in_blocks_of_sixteen():
    for point in read_points(DATA):
        shape, mapping = as_executed(point.shape, point.mapping, array_side(point))
        if point.shape.dims.P == point.shape.dims.S == 1:
            side = array_side(point)
            for d in ("Q", "K", "C"):
                expected = max(1, point.mapping.tile_l2[d] // 16) * side
                assert mapping.tile_l2[d] == min(expected, point.shape.dims[d])
        else:
            assert shape.dims.P == shape.dims.Q
            assert mapping.tile_l2 == point.mapping.tile_l2


def test_even_kernels_make_one_pixel_more():
    point = next(p for p in read_points(DATA) if p.shape.dims.P > 1)
    shape = point.shape._replace(
        dims=Dims(K=8, C=8, P=8, Q=8, R=2, S=2), height=point.shape.height._replace(kernel=2),
        width=point.shape.width._replace(kernel=2),
    )  # fmt: skip
    mapping = point.mapping.__class__(Dims(K=8, C=8, P=4, Q=4), Dims(K=8, C=8, P=4, Q=4), Dims())
    executed, _ = as_executed(shape, mapping, 8)
    assert (executed.dims.P, executed.dims.Q) == (9, 9)


def test_folds_never_split_a_layer(rows):
    seen = np.zeros(40, dtype=int)
    for left_out in folds(rows):
        seen += left_out
        outside = {shape for shape, out in zip(rows.shapes, left_out, strict=True) if not out}
        inside = {shape for shape, out in zip(rows.shapes, left_out, strict=True) if out}
        assert not inside & outside
    assert (seen == 1).all()


def test_command_prints_one_line_of_figures(tmp_path, capsys):
    figure = tmp_path / "new" / "firesim.png"
    assert firesim.main(["--train", str(DATA), "--test", str(DATA), "--out", str(figure.parent)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = dict(word.split("=") for word in last.split())
    assert list(found) == ["cv_spearman", "cv_mape", "test_spearman", "test_tau", "test_mape"]
    assert all(np.isfinite(float(value)) for value in found.values())
    assert figure.stat().st_size > 0


def test_without_test_file_and_with_a_bad_one(tmp_path, capsys):
    assert firesim.main(["--train", str(DATA), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no --test given" in out
    assert out.splitlines()[-1].startswith("cv_spearman=")
    assert "test_" not in out.splitlines()[-1]
    bad = tmp_path / "bad.csv"
    bad.write_text(DATA.read_text().replace("target.gemmini_cycle", "target.other"))
    assert main(["firesim", "--train", str(DATA), "--test", str(bad)]) == 2
    assert "bad.csv:2: no column target.gemmini_cycle" in capsys.readouterr().err
    with pytest.raises(DosaFormatError, match="no rows"):
        empty = tmp_path / "empty.csv"
        empty.write_text(DATA.read_text().splitlines()[0] + "\n")
        read_measurements([empty])


def without(columns, lines):
    """The CSV without some of its columns."""
    header = lines[0].split(",")
    kept = [i for i, name in enumerate(header) if not name.startswith(columns)]
    return [",".join(line.split(",")[i] for i in kept) for line in lines]


def test_columns_that_do_not_matter_may_be_missing(rows, tmp_path):
    """Neither the array nor energies; a byte-order mark and spaces in the header."""
    lines = without(
        ("arch.", "target.e", "target.cycle", "prob.N", "prob.Hd", "prob.Wd"), DATA.read_text().splitlines()
    )
    lines[0] = "\ufeff" + lines[0].replace(",", " , ")
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join([*lines, ""]), encoding="utf-8")
    found, unread = read_measurements([bare])
    assert unread == ()
    assert found.side.tolist() == rows.side.tolist()
    assert np.isnan(found.timeloop_cycles).all()
    c, _ = calibration()
    assert cycles(found.work, c) == pytest.approx(cycles(rows.work, c))
    # Said once for rows whose file does not name it, unless a mapping needs more.
    assert set(read_measurements([bare], 64)[0].side.tolist()) == {64}
    assert (read_measurements([bare], 4)[0].side >= rows.side).all()


def test_rows_that_cannot_be_scored_are_named_and_the_others_scored(tmp_path, capsys):
    lines = DATA.read_text().splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ",-1"
    lines[5] = lines[5].replace("L3[WIO]", "L7[WIO]")
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join(lines) + "\n")
    assert firesim.main(["--train", str(DATA), "--test", str(broken), str(DATA), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "broken.csv:4: target.gemmini_cycle='-1' is no positive number" in said.err
    assert "broken.csv:6: mapping" in said.err
    assert "test, fitted on train (78 rows" in said.out


def test_best_mappings_are_the_fastest_of_their_layer(rows):
    best = firesim._best_mappings(rows)
    for shape, side in {(s, d) for s, d in zip(rows.shapes, rows.side.tolist(), strict=True)}:
        same = np.array([s == shape and d == side for s, d in zip(rows.shapes, rows.side, strict=True)])
        chosen, others = rows.cycles[same & best], rows.cycles[same & ~best]
        assert len(chosen) == max(1, same.sum() // 4)
        assert not len(others) or chosen.max() <= others.min()
