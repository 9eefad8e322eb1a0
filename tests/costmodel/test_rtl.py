"""Latency model rtl: one formula for numbers, numpy and torch; increasing; the twins agree."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir.dims import Dims
from costmodel.count.nest import LoopNest
from costmodel.group.nodes import Edge, Node
from costmodel.latency.clock import error_against_rtl
from costmodel.latency.rtl import (
    Loop,
    Reuse,
    Stream,
    Work,
    cache_use,
    calibration,
    cycles,
    misses,
    pitch_lines,
    validation_error,
)
from costmodel.latency.rtl_work import layer_work
from costmodel.mapping.mapping import STREAM_ORDER, Mapping
from costmodel.mapping.shape import LayerShape, whole
from costmodel.mapping.tiling import Window
from costmodel.relaxed.model import ORDERS, RelaxedModel
from costmodel.schedule.evaluate import layer_cost
from costmodel.target.target import load_target
from tests.costmodel.relaxed_cases import point_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
DEFAULT = load_target("gemmini-default")

amounts = st.floats(1, 1e9)


@st.composite
def works(draw):
    loops = draw(st.integers(0, 3))

    def reuse():
        again = [draw(st.floats(1, 100)) for _ in range(loops)]
        touched = [draw(st.floats(64, 1e8)) for _ in range(loops)]
        return Reuse(draw(st.floats(0, 1e7)), again, touched, draw(amounts))

    plain = [draw(amounts) for _ in range(5)]
    return Work(draw(st.sampled_from([0, 1])), 16, *plain, reuse(), reuse(), reuse())


def numbers_of(work):
    """All numbers of a Work in a flat list, except the kind of instruction and the array."""
    streams = [x for r in work[7:] for x in (r.lines, *r.again, *r.touched, r.footprint)]
    return [*work[2:7], *streams]


def work_from(work, flat):
    """The inverse of numbers_of."""
    values = iter(flat)
    plain = [next(values) for _ in range(5)]
    streams = [
        Reuse(next(values), [next(values) for _ in r.again], [next(values) for _ in r.touched], next(values))
        for r in work[7:]
    ]
    return Work(work.is_matmul, work.side, *plain, *streams)


@settings(deadline=None)
@given(works())
def test_numbers_numpy_and_torch_agree(work):
    c, _ = calibration()
    flat = numbers_of(work)
    plain = cycles(work, c)
    stacked = cycles(work_from(work, [np.array([x, x]) for x in flat]), c)
    tensor = cycles(work_from(work, [torch.tensor(x, dtype=torch.float64) for x in flat]), c)
    assert stacked == pytest.approx([plain, plain], rel=1e-12)
    assert tensor.item() == pytest.approx(plain, rel=1e-12)


@settings(deadline=None)
@given(works(), st.data())
def test_more_work_never_takes_less_time_and_gradients_say_so(work, data):
    c, _ = calibration()
    flat = numbers_of(work)
    at = data.draw(st.integers(0, len(flat) - 1))
    more = list(flat)
    more[at] *= data.draw(st.floats(1, 10))
    # Below the rounding of the sum a change may disappear, but never turn round.
    assert cycles(work_from(work, more), c) >= cycles(work, c) * (1 - 1e-12)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in flat]
    cycles(work_from(work, leaves), c).backward()
    for leaf in leaves:
        assert leaf.grad is None or (leaf.grad >= 0 and torch.isfinite(leaf.grad))


@settings(deadline=None)
@given(works(), st.data())
def test_gradient_is_the_slope(work, data):
    c, _ = calibration()
    flat = numbers_of(work)
    at = data.draw(st.integers(0, len(flat) - 1))
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in flat]
    total = cycles(work_from(work, leaves), c)
    total.backward()
    step = 1e-4
    up, down = ([*flat[:at], flat[at] * factor, *flat[at + 1 :]] for factor in (1 + step, 1 - step))
    rise = (cycles(work_from(work, up), c) - cycles(work_from(work, down), c)) / (2 * step)
    slope = 0 if leaves[at].grad is None else leaves[at].grad.item() * flat[at]
    assert rise == pytest.approx(slope, rel=1e-4, abs=1e-9 * total.item())


def test_at_least_the_slowest_engine():
    nothing = Reuse(0, (), (), 1)
    work = Work(0, 16, 10, 1e6, 10, 100, 10, nothing, nothing, nothing)
    c, _ = calibration()
    assert 1e6 + c.start <= cycles(work, c) < 1.01e6 + c.start


def test_lines_that_fit_are_fetched_once():
    used = Reuse(100, [10], [1000], 1e9)
    assert misses(used, 1e6, 8) == pytest.approx(100, rel=1e-3)
    assert misses(used, 10, 8) == pytest.approx(1000, rel=1e-3)


def test_power_of_two_pitch_wastes_sets():
    assert [pitch_lines(width) for width in (32, 64, 128, 192, 4096, 1 << 20)] == [0.5, 1, 2, 1, 64, 1024]


def test_reuse_of_a_hand_counted_nest():
    """for c in 4 (16 of 64 B) { for k in 2 { 8 weight rows of 32 B; 10 pixels } }."""
    streams = [
        Stream(8, 32, 64, 64, 1),  # W: both halves of a line, next to each other in time
        Stream(10, 16, 64, 64, 1),  # I: one line per pixel, four times
        Stream(10, 32, 64, 64, 1),
    ]
    k = Loop(2, ("segment", "stay", "segment"), False)
    c = Loop(4, ("rows", "segment", "stay"), True)
    use = cache_use(streams, [k, c], max)
    tile = (8 + 10 + 10 / 4) * 64
    whole = (32 + 10 + 10) * 64
    assert use.weights == Reuse(8 * 4, [2, 1], [tile, tile], whole)
    # K does not move the input and nothing inside does: it stays in the scratchpad.
    assert use.inputs == Reuse(10, [1, 4], [tile, tile], whole)
    assert use.outputs == Reuse(10, [2, 1], [tile, tile], whole)
    assert cache_use(streams, [k, c], max, reload=True).inputs.again == [2, 4]


def test_power_of_two_pitch_crowds_its_own_operand_only():
    """8 weight rows of one line, 8 lines apart, fill one set in eight; pixels are spread evenly."""
    streams = [Stream(8, 64, 512, 64, 8), Stream(10, 64, 64, 64, 1), Stream(10, 64, 64, 64, 1)]
    use = cache_use(streams, [Loop(2, ("stay", "rows", "rows"), False)], max, reload=True)
    assert use.weights.touched == [(8 * 8 + 10 + 10) * 64]
    assert use.inputs.touched == [(8 + 10 + 10) * 64]


def conv(K=32, C=32, P=8, Q=8, R=3):
    window = Window(R, 1, 1, 0, P + R - 1)
    return LayerShape(Dims(K=K, C=C, P=P, Q=Q, R=R, S=R), window, window, False, False)


def test_work_of_a_hand_counted_convolution():
    """16 x 16 array, all in one scratchpad tile but K in two halves; the input is loaded once."""
    shape = conv()
    tile = shape.dims.replace({"K": 16})
    block = Dims(K=16, C=16)
    mapping = Mapping(tile, tile, block, Dims(C=16), Dims(K=16), STREAM_ORDER)
    work = layer_work(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT)
    assert work.tiles == 2
    assert work.array_cycles == 2 * 2 * 9 * 8 * 8  # K blocks, C blocks, taps, rows, one strip of 8 = side / 2
    assert work.requests == 2 * 9 * 32 + 10 * 10
    assert work.loaded_bytes == 9 * 32 * 32 + 10 * 10 * 32
    assert work.stored_rows == 2 * 64
    # 32-byte weight rows: two of them share a line, and both halves of K share it too.
    assert work.weights.lines == pytest.approx(9 * 32 / 2)


def test_short_strips_cost_half_an_array():
    narrow, wide = (
        layer_work(LoopNest(shape, _untiled(shape), whole(shape.dims)), DEFAULT).array_cycles
        for shape in (conv(Q=1), conv(Q=8))
    )
    assert narrow == wide


def test_rows_of_a_matrix_product_stream_together():
    """64 x 32 by 32 x 32: four strips of 16 rows for each of four weight blocks."""
    axis = Window(1, 1, 1, 0, 64)
    shape = LayerShape(Dims(K=32, C=32, P=64), axis, axis._replace(size=1), False, False)
    work = layer_work(LoopNest(shape, _untiled(shape), whole(shape.dims)), DEFAULT)
    assert work.array_cycles == 4 * 4 * 16
    assert work.is_matmul == 1


def _untiled(shape):
    return Mapping(shape.dims, shape.dims, Dims(K=16, C=16), Dims(C=16), Dims(K=16))


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_relaxed_twin_equals_exact(profile, data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, orders=ORDERS))
    exact = layer_cost(shape, mapping, SMALL, profile, "rtl")
    model = RelaxedModel([Node(shape)], [], SMALL, profile, latency="rtl", dtype=torch.float64)
    relaxed = model(point_of([mapping])).latency_cycles.item()
    assert math.ceil(relaxed - 1e-6) == exact.latency_cycles


def test_relaxed_gradients_are_finite_and_reach_every_tile():
    shape = conv(K=64, C=64)
    tile = Dims(K=16, C=32, P=4, Q=8, R=3, S=3)
    point = point_of([Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16), *(ORDERS[0][:3]))])
    point.l2.requires_grad_()
    model = RelaxedModel([Node(shape)], [], DEFAULT, latency="rtl", dtype=torch.float64)
    model(point).total_latency_cycles.sum().backward()
    gradient = point.l2.grad[0, 0]
    assert torch.isfinite(gradient).all()
    assert all(gradient[i] != 0 for i in (2, 3, 4))


def test_relaxed_fusion_stays_finite():
    """Between not fused and fused, latency and its gradient are finite, and the ends differ."""
    nodes = [Node(conv(K=64, C=64, P=34)), Node(conv(K=64, C=64, P=32))]
    tile = Dims(K=16, C=64, P=8, Q=8, R=3, S=3)
    mapping = Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16), *ORDERS[0])
    model = RelaxedModel(nodes, [Edge(0, 1)], DEFAULT, latency="rtl", dtype=torch.float64)
    latency = {}
    for strength in (0.0, 0.5, 1.0):
        sigma = torch.tensor([[strength]], dtype=torch.float64, requires_grad=True)
        total = model(point_of([mapping, mapping], sigma=sigma)).total_latency_cycles.sum()
        total.backward()
        assert torch.isfinite(total)
        assert torch.isfinite(sigma.grad).all()
        latency[strength] = total.item()
    assert latency[1.0] != latency[0.0]


def test_rtl_names_what_binds_and_its_error():
    cost = layer_cost(conv(), _untiled(conv()), DEFAULT, latency="rtl")
    assert cost.bound in ("issue", "compute", "L3")
    assert "% against RTL" in error_against_rtl("rtl")
    assert "FireSim" in validation_error()
