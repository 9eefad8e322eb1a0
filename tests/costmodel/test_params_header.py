from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.costmodel.target.params_header import read_params_header, target_from_header
from fadiff.costmodel.target.target import TargetError

HEADER = Path(__file__).parent / "headers" / "int8_16x16.h"


def changed(tmp_path: Path, *edits: tuple[str, str]) -> Path:
    text = HEADER.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "gemmini_params.h"
    path.write_text(text)
    return path


def test_sizes_of_the_default_configuration():
    target = target_from_header(HEADER)
    # Facts of the public default configuration: 256 KB scratchpad, 64 KB accumulator.
    assert (target.side, target.scratchpad_bytes, target.accumulator_bytes) == (16, 256 * 1024, 64 * 1024)
    assert (target.scratchpad_rows, target.accumulator_rows, target.max_block_len) == (16384, 1024, 4)
    assert target.element_type == "int8"
    assert target.has_row_packing


def test_a_macro_in_a_comment_is_not_defined():
    assert not target_from_header(HEADER).has_full_width_read


def test_flags_are_read_not_assumed(tmp_path):
    path = changed(
        tmp_path,
        ("// #define ACC_READ_FULL_WIDTH", "#define ACC_READ_FULL_WIDTH //"),
        ("#define HAS_FIRST_LAYER_OPTIMIZATIONS\n", "#define HAS_NORMALIZATIONS\n#define NORM_STAT_IDS 2\n"),
    )
    target = target_from_header(path)
    assert target.has_full_width_read and target.has_normalizations and not target.has_row_packing
    assert not target_from_header(HEADER).has_normalizations


def test_expressions_are_evaluated(tmp_path):
    path = changed(
        tmp_path,
        ("#define DIM 16", "#define LOG_DIM 5u\n#define DIM (1 << LOG_DIM)"),
        ("#define ACC_ROWS 1024", "#define ACC_KB 0x40\n#define ACC_ROWS ((ACC_KB*1024)/(DIM*4))"),
    )
    header = read_params_header(path)
    assert header.integer("DIM") == 32
    assert header.integer("MAX_BLOCK_LEN") == 2
    target = target_from_header(path)
    assert target.accumulator_bytes == 64 * 1024
    assert target.scratchpad_bytes == 4 * 4096 * 32


@pytest.mark.parametrize("value", ["(1 << (0 - 1))", "(1 << 9999999999)", "(4 / 0)", "DIM", "1.5", "f(3)"])
def test_what_is_no_integer_in_c_is_no_integer(tmp_path, value):
    path = changed(tmp_path, ("#define DIM 16", f"#define DIM {value}"))
    with pytest.raises(TargetError, match="no integer #define DIM"):
        target_from_header(path)


def test_float_hardware(tmp_path):
    path = changed(
        tmp_path,
        ("typedef int8_t elem_t", "typedef float elem_t"),
        ("typedef int32_t acc_t", "typedef float acc_t"),
    )
    target = target_from_header(path)
    assert (target.element_type, target.element_bytes) == ("float32", 4)
    assert target.scratchpad_bytes == 4 * 4096 * 16 * 4


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("#define DIM 16", "#define DIM 12", "power of two"),
        ("#define DIM 16", "#define DIM DIM", "DIM"),
        ("#define DIM 16", "", "no integer #define DIM"),
        ("#define BANK_ROWS 4096", "#define BANK_ROWS 100", "BANK_ROWS"),
        ("typedef int8_t elem_t", "typedef uint16_t elem_t", "uint16_t"),
        ("typedef int8_t elem_t", "typedef int8_t element", "elem_t"),
        ("#define ACC_SCALE_T_IS_FLOAT", "", "acc_scale_t"),
        ("#define HAS_MVIN_SCALE", "", "HAS_MVIN_SCALE"),
    ],
)
def test_what_cannot_be_scheduled_for_is_refused(tmp_path, old, new, says):
    path = changed(
        tmp_path, (old + "\n" if old.startswith("#") else old, new + "\n" if old.startswith("#") else new)
    )
    with pytest.raises(TargetError, match=says) as caught:
        target_from_header(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_header_names_the_file(tmp_path):
    with pytest.raises(TargetError, match=r"nowhere\.h"):
        target_from_header(tmp_path / "nowhere.h")
