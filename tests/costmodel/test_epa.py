"""Energy per access from a user's table."""

import pytest

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.schedule.serialize import (
    read_document,
    schedule_from_document,
    to_document,
    write_document,
)
from fadiff.costmodel.target.target import Target, TargetError, load_target
from tests.costmodel.networks import conv, graph, whole_tile

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


@pytest.mark.parametrize(
    "epa", ["sram.csv", "{tabel: sram.csv}", "{table: [sram.csv]}", "{table: sram.csv, more: 1}"]
)
def test_anything_but_a_table_is_refused_with_what_to_write(tmp_path, epa):
    write(tmp_path, "memory,capacity_kb,pj\nscratchpad,8,1\nscratchpad,16,2\nscratchpad,32,3\n")
    target = tmp_path / "other.yaml"
    target.write_text(
        "\n".join(line for line in TARGET.splitlines() if "epa" not in line) + f"\nepa: {epa}\n"
    )
    with pytest.raises(TargetError, match=r"epa: give \{table: FILE.csv\}"):
        load_target(target)


def test_prices_of_a_table_reach_energy_and_schedule_file(tmp_path):
    """The same layer costs what the table says; the fitted curve travels with schedule.json."""
    table = "memory,capacity_kb,pj\n" + "".join(
        f"scratchpad,{kb},{price}\n" for kb, price in ((64, 5), (128, 10), (256, 20), (512, 40))
    )
    target = load_target(write(tmp_path, table))
    plain = target.model_copy(update={"epa": None})
    network = graph([conv("a", "t0", "t1", 16, 16, 8, 8)], ("t0",), ("t1",))
    mappings = {"a": whole_tile(network.by_name["a"].dims, 16)}
    schedule, default = (Schedule(network, t, mappings, singleton_groups(network)) for t in (target, plain))
    cost, usual = evaluate(schedule), evaluate(default)
    moved = sum(m.bytes for _, m in cost.layers[0].moves if m.memory == "scratchpad")
    rise = target.scratchpad_byte_pj - plain.scratchpad_byte_pj
    assert cost.energy_pj - usual.energy_pj == pytest.approx(moved * rise)
    write_document(to_document(schedule, cost, generator="test"), tmp_path / "schedule.json")
    again = schedule_from_document(read_document(tmp_path / "schedule.json"))
    assert evaluate(again).energy_pj == cost.energy_pj
