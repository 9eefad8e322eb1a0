"""DOSA's CSV rows read as layers and mappings."""

import gzip
import shutil
from pathlib import Path

import pytest

from benchmarks.dosa_format import DosaFormatError, parse_mapping, read_points
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.mapping.mapping import MappingError

FIRESIM = Path(__file__).parent / "data/firesim.csv"
TEXT = "L3[WIO] C8 Q7 K16 - L2[WI] N1 K4X - L1[O] K2 C4 P7 C16X - L0[W] P8"
BOUNDS = Dims(K=128, C=512, Q=56, P=7)


def test_levels_spatial_factors_and_letters():
    """Timeloop's P is the width: our Q."""
    mapping = parse_mapping(TEXT, BOUNDS)
    assert mapping.tile_l0 == Dims(K=4, C=16, Q=8)
    assert mapping.tile_l1 == mapping.tile_l2 == Dims(K=8, C=64, Q=56)
    assert mapping.rows == Dims(C=16)
    assert mapping.cols == Dims(K=4)
    assert mapping.order_l3[-3:] == ("C", "P", "K")
    assert mapping.trips("L3", BOUNDS) == Dims(C=8, P=7, K=16)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TEXT.replace("Q7", "Q8"), "factors of P make 8, not 7"),
        (TEXT.replace("C8", "8C"), "cannot read the factor '8C'"),
        (TEXT.replace("L2[WI]", "L2"), "cannot read the level"),
        (TEXT.replace("Q7", "Q7X"), "unrolls at L1"),
    ],
)
def test_unreadable_mappings_say_what_is_wrong(text, complaint):
    with pytest.raises(MappingError, match=complaint):
        parse_mapping(text, BOUNDS)


def test_every_row_of_a_file_compressed_or_not(tmp_path):
    packed = tmp_path / "firesim.csv.gz"
    with FIRESIM.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    points = list(read_points(packed))
    assert len(points) == 40
    assert [p.mapping for p in points] == [p.mapping for p in read_points(FIRESIM)]
    for point in points:
        assert point.mapping.is_divisor(point.shape.dims)
        macs = 1
        for d in DIMS:
            macs *= point.shape.dims[d]
        assert macs == eval_product(point.row["mapping.mapping"])


def eval_product(text):
    """All factors of a mapping string multiplied: the layer's MACs, whatever the levels mean."""
    product = 1
    for word in text.replace("-", " ").split():
        if "[" not in word:
            product *= int(word[1:].rstrip("X"))
    return product


def test_errors_name_file_and_line(tmp_path):
    header, first, *_ = FIRESIM.read_text().splitlines()
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([header, first, first.replace("L3[WIO]", "L3[WIO] K5")]) + "\n")
    with pytest.raises(DosaFormatError, match=r"broken.csv:3: mapping .* factors of K"):
        list(read_points(broken))
    broken.write_text(header.replace("prob.K", "prob.J") + "\n" + first + "\n")
    with pytest.raises(DosaFormatError, match=r"broken.csv:2: no column prob.K"):
        list(read_points(broken))
    with pytest.raises(DosaFormatError, match="cannot read it"):
        list(read_points(tmp_path / "missing.csv"))
