"""Columns of mappings cost what their rows cost one by one, and are legal where they are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.legality import check_mapping, legal
from fadiff.costmodel.latency.clock import clock_of, layer_cycles
from fadiff.costmodel.latency.clock_work import nest_counts
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.shape import whole
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.schedule.evaluate import layer_cost
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import layer_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_exact(profile, data):
    shape = data.draw(layer_shapes())
    target = SMALL.model_copy(update={"has_full_width_read": data.draw(st.booleans())})
    several = data.draw(st.lists(mappings(shape), min_size=1, max_size=5))
    columns = MappingColumns.of(several)
    costs, fits = evaluate_columns(shape, columns, target, profile), legal(shape, columns, target, profile)
    for index, mapping in enumerate(several):
        assert columns.mapping(index) == mapping
        exact = layer_cost(shape, mapping, target, profile)
        assert costs.energy[index] == pytest.approx(exact.energy_pj, rel=1e-12)
        assert costs.latency[index] == exact.latency_cycles
        try:
            check_mapping(layer_of(shape), mapping, target, profile)
            accepted = True
        except ScheduleError:
            accepted = False
        assert fits[index] == accepted


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_clock_of_columns_is_that_of_each(data):
    """As they are issued, with what all weights of the network displace in the cache."""
    shape = data.draw(layer_shapes())
    several = data.draw(st.lists(mappings(shape), min_size=1, max_size=5))
    issue = data.draw(st.sampled_from(["instructions", "loop_ws", "loop_conv_ws"]))
    placement = ALONE._replace(weights_are_resident=data.draw(st.booleans()))
    columns, region = MappingColumns.folded(several, issue), whole(shape.dims)
    costs = evaluate_columns(shape, columns, SMALL, placement=placement, network_weights=10_000)
    for cycles, mapping in zip(costs.latency, several, strict=True):
        mapping = replace(mapping, issue=issue)
        counts = nest_counts(LoopNest(shape, mapping, region), SMALL, placement, 10_000, issue)
        assert cycles == pytest.approx(round(layer_cycles(counts, clock_of(SMALL))), rel=1e-9)
        exact = layer_cost(shape, mapping, SMALL, placement=placement, network_weights=10_000)
        assert cycles == exact.latency_cycles
