"""One schedule under both fusion models."""

from dataclasses import replace

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.readings import as_instructions, readings
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import conv, graph
from tests.emitters.gemmini.test_side_by_side import fork, schedule_of

TARGET = load_target("gemmini-default")


def under(found, fusion_model):
    """Those of one fusion model, none if it cannot be counted so."""
    return tuple(row for row in found.rows if row.fusion_model == fusion_model)


def fused_pair(target=TARGET, fusion_model="sound"):
    """Two 3x3 convolutions in tiles of four rows: the halo is computed again."""
    network = graph(
        [conv(name, a, b, 16, 16, 12, 12, 3, 1, 1) for name, a, b in (("a", "t0", "t1"), ("b", "t1", "t2"))],
        ("t0",),
        ("t2",),
    )

    def tile(rows):
        dims = Dims(K=16, C=16, P=rows, Q=12, R=3, S=3)
        return Mapping(dims, dims, Dims(K=16, C=16, P=rows, Q=12), Dims(C=16), Dims(K=16))

    group = FusionGroup(("a", "b"), GroupTile(1, 4, 12), "recompute", frozenset(("a", "b")))
    mappings = {"a": tile(6 if fusion_model == "sound" else 4), "b": tile(4)}
    return Schedule(network, target, mappings, (group,), "hw", fusion_model)


def test_every_reading_is_what_the_evaluator_says():
    schedule = fused_pair()
    found = readings(schedule)
    assert found.obstacle is None
    paper = replace(schedule, fusion_model="paper")
    # Only what is executed has a clock.
    assert [(r.fusion_model, r.latency_model) for r in found.rows] == [
        ("sound", "clock"),
        ("paper", "roofline"),
    ]
    for one, row in zip((schedule, paper), found.rows, strict=True):
        cost = evaluate(one)
        assert (row.latency_cycles, row.energy_pj) == (cost.latency_cycles, cost.energy_pj)
    # Only a program computes the halo again.
    assert under(found, "sound")[0].energy_pj > under(found, "paper")[0].energy_pj


def test_counted_by_the_paper_even_where_its_capacity_rule_is_broken():
    """The scratchpad holds the tiles of one layer at a time, not of both together (Eq. 24)."""
    rows = 2 * 9 * 16 + 2 * 8 * 14 + 16
    schedule = fused_pair(TARGET.model_copy(update={"scratchpad_bytes": 16 * rows}))
    found = readings(schedule)
    assert found.obstacle is not None and "Eq. 24" in found.obstacle
    assert [row.latency_model for row in under(found, "paper")] == ["roofline"]


def test_what_no_program_does_has_no_sound_reading():
    """In the paper's model the producer's tile has no halo, and no group tile is needed."""
    claimed = fused_pair(fusion_model="paper")
    claimed = replace(claimed, groups=(replace(claimed.groups[0], tile=None),))
    found = readings(claimed)
    assert under(found, "sound") == ()
    assert found.obstacle is not None and "group tile" in found.obstacle


def test_layers_side_by_side_are_counted_one_after_the_other_where_nothing_is_executed():
    together = schedule_of(fork(), FusionGroup(("l0", "l1")), P=2)
    alone = schedule_of(fork(), P=2)
    assert as_instructions(together) == as_instructions(alone)
    assert {row.energy_pj for row in under(readings(together), "paper")} == {
        row.energy_pj for row in under(readings(alone), "paper")
    }
    assert readings(together).obstacle is None
