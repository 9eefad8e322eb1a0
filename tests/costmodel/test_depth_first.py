"""Depth-first chains: tiles traced back by hand, conservation of what moves, monotone memories."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.depth_first import depth_first_cost, plan_depth_first, trace
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, extents
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import load_target

LARGE = load_target("gemmini-large")
SMALL = load_target("gemmini-small")


def conv(outputs, channels=(8, 8), kernel=3, stride=1):
    window = Window(kernel, stride, 1, 0, (outputs - 1) * stride + kernel)
    k, c = channels
    return LayerShape(Dims(K=k, C=c, P=outputs, Q=outputs, R=kernel, S=kernel), window, window, False, False)


CHAIN = (conv(14), conv(12), conv(10))


def test_needs_are_traced_back_through_the_chain():
    tensors = trace(CHAIN, (5, 10), "recompute")
    assert [extents(t.rows) for t in tensors] == [(11, 11), (9, 9), (7, 7), (5, 5)]
    assert [extents(t.columns) for t in tensors] == [(16,), (14,), (12,), (10,)]
    cached = trace(CHAIN, (5, 10), "full-cache")
    assert [extents(t.fresh_rows) for t in cached] == [(11, 5), (9, 5), (7, 5), (5, 5)]
    # Columns are cached in both, rows only in full-cache: tiles side by side keep their columns.
    columns = trace(CHAIN, (5, 5), "horizontal-cache")
    assert [extents(t.fresh_columns) for t in columns] == [(11, 5), (9, 5), (7, 5), (5, 5)]
    assert [extents(t.fresh_rows) for t in columns] == [(11, 11), (9, 9), (7, 7), (5, 5)]


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 10), st.integers(1, 10)),
    st.sampled_from(["recompute", "horizontal-cache", "full-cache"]),
)
def test_full_cache_computes_everything_once_and_others_at_least(tile, overlap):
    for tensor, shape in zip(trace(CHAIN, tile, overlap)[1:], CHAIN, strict=True):
        computed = sum(extents(tensor.fresh_rows)) * sum(extents(tensor.fresh_columns))
        once = shape.dims.P * shape.dims.Q
        assert computed == once if overlap == "full-cache" else computed >= once


@settings(deadline=None)
@given(st.tuples(st.integers(1, 10), st.integers(1, 10)))
def test_caching_more_never_moves_or_computes_more(tile):
    plans = [plan_depth_first(CHAIN, tile, o, LARGE) for o in ("recompute", "horizontal-cache", "full-cache")]
    reads = [plan.from_dram for plan in plans]
    assert reads == sorted(reads, reverse=True)
    assert plans[-1].from_dram == 16 * 16 * 8


def test_places_by_size():
    """16 x 16 x 8 input, 14 x 14 x 8 and 12 x 12 x 8 intermediates, 10 x 10 x 8 output: all fit LARGE."""
    plan = plan_depth_first(CHAIN, (10, 10), "recompute", LARGE)
    assert all(stage.placement.weights_are_resident for stage in plan.stages)
    assert [stage.placement.output_is_fused for stage in plan.stages] == [True, True, False]
    assert plan.from_dram == 16 * 16 * 8
    assert plan.from_accumulator == (14 * 14 + 12 * 12) * 8
    assert plan.through_scratchpad == 10 * 10 * 8


def test_what_does_not_fit_goes_to_dram():
    """64 channels on 8 KB: a whole 30 x 30 intermediate spills, a 2 x 2 tile's does not."""
    chain = (conv(32, (64, 64)), conv(30, (64, 64)))
    whole = plan_depth_first(chain, (30, 30), "recompute", SMALL)
    assert not any(stage.placement.output_is_fused for stage in whole.stages)
    assert not whole.stages[0].placement.weights_are_resident
    tiled = plan_depth_first(chain, (2, 2), "recompute", SMALL)
    assert tiled.stages[0].placement.output_is_fused


def test_caches_that_do_not_fit_live_in_dram():
    chain = (conv(114, (32, 32)), conv(112, (32, 32)))
    plan = plan_depth_first(chain, (2, 2), "full-cache", SMALL)
    recompute = plan_depth_first(chain, (2, 2), "recompute", SMALL)
    rows_again = 2 * 32 * 55
    assert plan.to_dram == rows_again * 114
    assert plan.from_dram < recompute.from_dram + plan.to_dram + rows_again * 116


def test_cost_of_one_layer_by_hand():
    """One 1x1 layer of 32 x 32 channels on 16 x 16 pixels in one tile, priced term by term."""
    shape = conv(16, (32, 32), kernel=1)
    plan = plan_depth_first((shape,), (16, 16), "recompute", LARGE)
    mapping = Mapping(shape.dims, shape.dims, Dims(K=32, C=32), Dims(C=32), Dims(K=32))
    cost = depth_first_cost(plan, [mapping])
    pixels, weights = 256, 1024
    macs = pixels * weights
    dram = pixels * 32 + weights + pixels * 32
    scratchpad = (pixels * 32 + weights) * 2 + 2 * pixels * 32
    words = pixels * 32
    expected = (
        macs * 0.5608
        + (macs + weights) * 0.48746172
        + words * LARGE.accumulator_word_pj
        + scratchpad * LARGE.scratchpad_byte_pj
        + dram * 100
    )
    assert cost.energy_pj == pytest.approx(expected, rel=1e-9)
    # Input copied (1024 cycles), weights loaded (128) and put into the array (16), 256 pixels streamed.
    assert cost.latency_cycles == 1024 + 128 + 16 + 256
