"""Mapping files: dialects, defaults, and what is wrong with them."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping, MappingError
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.timeloop.read.mapping import check_tiles, read_mapping
from fadiff.emitters.timeloop.read.problem import read_problem
from fadiff.emitters.timeloop.read.yaml_lines import TimeloopFormatError
from tests.emitters.timeloop.examples import MAPPING, PROBLEM, load_pair, replaced


def test_hand_written_files(tmp_path: Path) -> None:
    dims, mapping = load_pair(tmp_path)
    assert dims == Dims(K=32, C=32, P=8)
    assert mapping == Mapping(
        tile_l2=Dims(K=16, C=16, P=8),
        tile_l1=Dims(K=16, C=16, P=4),
        tile_l0=Dims(K=16, C=16),
        rows=Dims(C=16),
        cols=Dims(K=16),
        # C is innermost in the file's DRAM loops: outermost first it comes last; G stands first.
        order_l3=("G", "S", "R", "Q", "P", "N", "K", "C"),
        order_l2=("G", "S", "R", "Q", "P", "C", "K", "N"),
        order_l1=("G", "S", "R", "Q", "P", "C", "K", "N"),
        order_l0=("G", "S", "R", "Q", "P", "C", "K", "N"),
    )


def test_a_flat_architecture_unrolls_both_below_one_accumulator(tmp_path: Path) -> None:
    flat = [line for line in MAPPING.splitlines() if "Scratchpad, type: spatial" not in line]
    text = "\n".join(flat).replace("N=1 K=1 C=16", "N=1 K=16 C=16")
    text = text.replace("split: 0", "permutation: KNCPQRS, split: 1")
    assert load_pair(tmp_path, mapping=text) == load_pair(tmp_path)


def test_what_is_left_out_is_one_and_later_directives_win(tmp_path: Path) -> None:
    lines = [line for line in MAPPING.splitlines() if "Registers, type: temporal" not in line]
    lines.append('- {target: DRAM, type: temporal, factors: "K=2, C2", permutation: "KC"}')
    _, mapping = load_pair(tmp_path, mapping="\n".join(lines))
    assert mapping.tile_l2 == Dims(K=16, C=16, P=8)
    assert mapping.order_l3[-2:] == ("C", "K")


def test_keys_with_hyphens_lists_and_a_bounds_beside_the_shape(tmp_path: Path) -> None:
    problem = PROBLEM.replace("data_spaces", "data-spaces").replace("read_write", "read-write")
    problem = (
        problem.replace("  instance: {", "  ").replace("}\n", "}\n").replace(", Wstride: 1}", ", Wstride: 1")
    )
    head, bounds = problem.rsplit("  N: 1", 1)
    problem = head + "  " + ("N: 1" + bounds).replace(", ", "\n  ")
    mapping = MAPPING.replace('"N=1 K=2 C=2 P=1 Q=1 R=1 S=1"', "[N=1, K=2, C=2, P=1, Q=1, R=1, S=1]")
    mapping = mapping.replace('"CKNPQRS"', "[C, K, N, P, Q, R, S]")
    assert load_pair(tmp_path, problem, mapping) == load_pair(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mapping:", "mapping: {", r"m.yaml:2: not YAML"),
        (
            "target: DRAM, type: temporal",
            "target: Dram2, type: temporal",
            r"m.yaml:11: .*target: unknown level 'Dram2'",
        ),
        (
            "target: DRAM, type: temporal",
            "type: temporal",
            r"m.yaml:11: mapping\[9\]: a directive needs `target:`",
        ),
        (
            "target: DRAM, type: temporal",
            "target: DRAM, type: spatial",
            r"m.yaml:11: .*DRAM has no fan-out below it",
        ),
        ("DRAM, type: temporal", "DRAM, type: loops", r"m.yaml:11: .*unknown directive type 'loops'"),
        (
            "K=2 C=2",
            "K=2 X=2",
            r"m.yaml:11: mapping\[9\].factors: unknown dimension 'X'; the problem has C K N P Q R S",
        ),
        ("K=2 C=2", "K=2 C=", r"m.yaml:11: mapping\[9\].factors: cannot read 'C= P=1"),
        ("P=2 Q=1", "P=4,5 Q=1", r"m.yaml:10: mapping\[8\].factors: P=4,5: the remainder must be in 1..4"),
        ('"CKNPQRS"', '"CKNPQRC"', r"m.yaml:11: mapping\[9\].permutation: C is given twice"),
        (
            "keep: [Weights], bypass: [Inputs, Outputs]",
            "keep: [Weights]",
            r"m.yaml:2: mapping\[0\]: Registers keeps I",
        ),
        (
            "keep: [Outputs], bypass",
            "keep: [Output], bypass",
            r"m.yaml:3: mapping\[1\].keep\[0\]: unknown data space",
        ),
        (
            "target: DRAM, type: temporal",
            "target: TileBuffer, type: temporal",
            r"m.yaml:11: .*TileBuffer: tensors of this layer stay on chip; .* --no-fusion",
        ),
        (
            "Inputs, Outputs], bypass: []",
            "Inputs], bypass: [Outputs]",
            r"m.yaml:5: mapping\[3\]: DRAM keeps Inputs, W",
        ),
        ("N=1 K=16 C=1", "N=1 K=16 C=2", r"m.yaml:9: mapping\[7\].factors: C is unrolled below Scratchpad"),
        (
            "N=1 K=1 C=16",
            "N=1 K=2 C=8",
            r"m.yaml:7: mapping\[5\].factors: K is unrolled along the array rows \(`split` puts it on Y\)",
        ),
        ("split: 0", "split: all", r"m.yaml:7: mapping\[5\].split: 'all' is no number of letters"),
        (
            "C=16 P=1",
            "P=16",
            r"m.yaml:7: mapping\[5\].factors: P is unrolled below Accumulator; Gemmini takes K",
        ),
    ],
)
def test_mapping_errors_name_file_line_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(TimeloopFormatError, match=message) as caught:
        load_pair(tmp_path, mapping=replaced(MAPPING, old, new))
    assert "\n" not in str(caught.value)


def test_factors_that_do_not_multiply_to_the_bound(tmp_path: Path) -> None:
    message = r"m.yaml:11: mapping\[9\].factors: K: the factors multiply to 48, the problem's bound is 32"
    with pytest.raises(MappingError, match=message):
        load_pair(tmp_path, mapping=replaced(MAPPING, "K=2 C=2", "K=3 C=2"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"K=2 C=2": "K=2 C=1", "C=16": "C=32"},
            r"m.yaml:7: mapping\[5\].factors: .*32 rows unrolled, .* has 16",
        ),
        (
            {"K=2 C=2": "K=1 C=2", "K=16": "K=32"},
            r"m.yaml:9: mapping\[7\].factors: .*32 columns unrolled, .* has 16",
        ),
        (
            {"K=2 C=2": "K=1 C=2", "N=1 K=1 C=1 P=1": "N=1 K=2 C=1 P=1"},
            r"m.yaml:6: .*2 weights per processing element",
        ),
    ],
)
def test_tiles_over_capacity(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    text = MAPPING
    for old, new in changes.items():
        text = replaced(text, old, new)
    load_pair(tmp_path, mapping=text)
    problem = read_problem(tmp_path / "p.yaml")
    mapping = read_mapping(tmp_path / "m.yaml", problem)
    with pytest.raises(MappingError, match=message):
        check_tiles(tmp_path / "m.yaml", problem, mapping, load_target("gemmini-small"))


def test_tiles_over_the_memories(tmp_path: Path) -> None:
    problem = PROBLEM.replace("P: 8", "P: 800")
    for old, new, message in (
        ("P=4", "P=400", r"m.yaml:8: .*Accumulator temporal: 400 words of Outputs per column, .* has 128"),
        ("P=2", "P=200", None),
    ):
        text = replaced(MAPPING, old, new)
        dims, mapping = load_pair(tmp_path, problem, text)
        assert dims.P == 800
        read = read_problem(tmp_path / "p.yaml")
        if message is None:
            message = r"m.yaml:10: .*Scratchpad temporal: 13056 bytes of Weights and Inputs, .* has 8192"
        with pytest.raises(MappingError, match=message):
            check_tiles(tmp_path / "m.yaml", read, mapping, load_target("gemmini-small"))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_read_or_refused_in_one_line(data: st.DataObject) -> None:
    texts = {"problem": PROBLEM, "mapping": MAPPING}
    which = data.draw(st.sampled_from(sorted(texts)))
    text = texts[which]
    start = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.sampled_from((0, 1, 1, 2, 5, 20)))
    pieces = (
        "",
        "0",
        "-1",
        "99999999999",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "\n",
        "- ",
        "null",
        "K",
        "&a ",
        "*a",
        "!x ",
        "\t",
    )
    piece = data.draw(st.sampled_from(pieces))
    texts[which] = text[:start] + piece + text[start + length :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            load_pair(Path(folder), texts["problem"], texts["mapping"])
        except (TimeloopFormatError, MappingError) as error:
            assert "\n" not in str(error)
            assert re.search(r"[pm]\.yaml:\d+: ", str(error))
