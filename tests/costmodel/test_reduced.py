"""Schedules without what runs side by side."""

from fadiff.costmodel.schedule.reduced import as_instructions
from fadiff.costmodel.schedule.schedule import FusionGroup
from tests.emitters.gemmini.test_side_by_side import fork, schedule_of


def test_layers_side_by_side_are_counted_one_after_the_other_where_nothing_is_executed():
    together = schedule_of(fork(), FusionGroup(("l0", "l1")), P=2)
    alone = schedule_of(fork(), P=2)
    assert as_instructions(together) == as_instructions(alone)
