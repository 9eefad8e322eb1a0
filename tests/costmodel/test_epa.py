"""Energy per access from a user's table."""

import pytest

from costmodel.target import Target, TargetError, load_target

TARGET = "name: mine\nside: 16\nscratchpad_bytes: 98304\naccumulator_bytes: 65536\nepa: {table: sram.csv}\n"


def write(tmp_path, table):
    (tmp_path / "sram.csv").write_text(table)
    target = tmp_path / "mine.yaml"
    target.write_text(TARGET)
    return target


def test_interpolates_the_table(tmp_path):
    """A square-root law, as CACTI's SRAMs roughly follow, sampled at powers of two."""
    rows = [f"scratchpad,{kb},{0.4 + 0.1 * kb**0.5}" for kb in (8, 16, 32, 64, 128, 256, 512)]
    target = load_target(write(tmp_path, "memory,capacity_kb,pj\n" + "\n".join(rows)))
    assert target.scratchpad_byte_pj == pytest.approx(0.4 + 0.1 * 96**0.5, rel=0.01)
    assert target.accumulator_word_pj == pytest.approx(1.94 + 0.1005 * 4)


def test_survives_a_round_trip(tmp_path):
    rows = "\n".join(f"accumulator,{kb},{2 + kb}" for kb in (1, 2, 4, 8))
    target = load_target(write(tmp_path, "memory,capacity_kb,pj\n" + rows))
    assert target.accumulator_word_pj == pytest.approx(6, rel=0.02)
    again = Target.model_validate(target.model_dump(exclude_none=True))
    assert again.accumulator_word_pj == target.accumulator_word_pj
    smaller = Target.model_validate({**target.model_dump(exclude_none=True), "accumulator_bytes": 32768})
    assert smaller.accumulator_word_pj == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize(
    "table, message",
    [
        ("memory,capacity_kb\nscratchpad,8\n", "no column pj"),
        ("memory,capacity_kb,pj\nscratchpad,8,x\n", "sram.csv:2: capacity_kb and pj must be numbers"),
        ("memory,capacity_kb,pj\nregister,8,1\n", "memory 'register' is none of"),
        ("memory,capacity_kb,pj\nscratchpad,0,1\n", "must be positive"),
        (
            "memory,capacity_kb,pj\nscratchpad,8,1\nscratchpad,16,2\n",
            "scratchpad needs at least three capacities",
        ),
        ("memory,capacity_kb,pj\n", "the table has no rows"),
    ],
)
def test_bad_tables(tmp_path, table, message):
    with pytest.raises(TargetError, match=message):
        load_target(write(tmp_path, table))


def test_missing_table(tmp_path):
    target = tmp_path / "mine.yaml"
    target.write_text(TARGET)
    with pytest.raises(TargetError, match=r"epa: .*cannot read the table"):
        load_target(target)
