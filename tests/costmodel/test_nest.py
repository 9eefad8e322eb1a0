"""Closed-form traffic against an interpreter of the loop nest, ragged tiles and any order included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.count.nest import layer_traffic
from fadiff.costmodel.count.traffic import Placement
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, Region, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import load_target
from tests.costmodel.loop_nest import walk
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
LEVELS = {"register": "L0", "accumulator": "L1", "scratchpad": "L2", "tile-buffer": "L3", "dram": "L3"}


def moved(traffic, level, role, direction, memory=None):
    return sum(
        m.bytes
        for m in traffic.moves
        if (m.level, m.role, m.direction) == (level, role, direction) and memory in (None, m.memory)
    )


@st.composite
def regions(draw, dims):
    axes = []
    for bound in (dims.G, dims.K):
        part = draw(st.sampled_from([size for size in range(1, bound + 1) if bound % size == 0]))
        axes.append(tuple((start, start + part) for start in range(0, bound, part)))
    for bound in (dims.N, dims.P, dims.Q):
        starts = draw(st.lists(st.integers(0, bound - 1), min_size=1, max_size=2))
        axes.append(tuple((start, draw(st.integers(start + 1, bound))) for start in starts))
    return Region(*axes)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_hw_traffic_is_what_the_nest_does(data):
    shape = data.draw(layer_shapes(channels=7, pixels=5, taps=3))
    fused = data.draw(st.booleans())
    region = data.draw(regions(shape.dims)) if fused else whole(shape.dims)
    largest = {d: max(b - a for a, b in axis) for d, axis in zip("GKNPQ", region, strict=True)}
    mapping = data.draw(mappings(shape._replace(dims=shape.dims.replace(largest))))
    traffic = layer_traffic(shape, mapping, region, SMALL, "hw", Placement(output_is_fused=fused))
    seen = walk(shape, mapping, region, SMALL.side)
    counts = seen.counts
    assert moved(traffic, "L3", "W", "read") == counts["W dram"]
    assert moved(traffic, "L3", "I", "read") == counts["I dram"]
    assert moved(traffic, "L2", "W", "read") == counts["W array"]
    assert moved(traffic, "L2", "I", "read") == counts["I array"]
    assert moved(traffic, "L3", "bias", "read") == 4 * counts["bias"] * shape.has_bias
    assert moved(traffic, "L3", "psum", "write") == 4 * counts["O spill"]
    assert moved(traffic, "L3", "psum", "read") == 4 * counts["O refill"]
    assert moved(traffic, "L1", "psum", "write") == 4 * (counts["updates"] + counts["O spill"])
    # Every result is added to what a load put into the accumulator; DRAM and the copy drain it.
    assert moved(traffic, "L1", "psum", "read") == 4 * (counts["updates"] + counts["O refill"])
    assert moved(traffic, "L1", "bias", "write") == 4 * counts["O final"]
    assert moved(traffic, "L1", "O", "read") == 4 * counts["O final"] * (1 + fused)
    assert traffic.compute_cycles == seen.cycles
    outputs = moved(traffic, "L3", "O", "write", "tile-buffer" if fused else "dram")
    assert outputs == counts["O final"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fused_operands_go_through_the_tile_buffer(data):
    shape = data.draw(layer_shapes(groups=False, channels=7, pixels=5, taps=3))
    mapping = data.draw(mappings(shape))
    fused = Placement(input_is_fused=True, output_is_fused=True, output_to_dram=False)
    traffic = layer_traffic(shape, mapping, whole(shape.dims), SMALL, "hw", fused)
    counts = walk(shape, mapping, whole(shape.dims), SMALL.side).counts
    filled, read, outputs = counts["I dram"], counts["I array"], counts["O final"]
    inputs = {"tile-buffer read": filled, "scratchpad write": filled, "scratchpad read": read}
    drained = {"accumulator read": 4 * outputs, "tile-buffer write": outputs}
    for role, expected in (("I", inputs), ("O", drained)):
        found = {f"{m.memory} {m.direction}": m.bytes for m in traffic.moves if m.role == role and m.bytes}
        assert found == {path: count for path, count in expected.items() if count}  # of padding none is
    assert all(m.level == LEVELS[m.memory] for m in traffic.moves)


def test_hand_computed_layer():
    """A 4-channel 3x3 convolution in two row tiles: weights twice, halo refetched, padding free."""
    window = Window(3, 1, 1, 1, 8)
    shape = LayerShape(Dims(K=8, C=4, P=8, Q=8, R=3, S=3), window, window, False, True)
    l2 = Dims(K=8, C=4, P=4, Q=8, R=3, S=3)
    order = ("G", "N", "P", "Q", "K", "C", "R", "S")
    mapping = Mapping(
        l2, Dims(K=8, C=4, P=2, Q=8, R=3, S=3), Dims(K=8, C=4, P=2, Q=8), Dims(C=4), Dims(K=8), order
    )
    traffic = layer_traffic(shape, mapping, whole(shape.dims), SMALL, "hw")
    assert moved(traffic, "L3", "W", "read") == 8 * 4 * 9  # P is irrelevant to W and innermost
    assert moved(traffic, "L3", "I", "read") == 4 * (5 + 5) * 8  # rows 0-4 and 3-7
    assert moved(traffic, "L3", "O", "write") == 8 * 64
    assert moved(traffic, "L3", "bias", "read") == 4 * 8 * 4 * (2 * 8 // 16)  # 4 tiles of 16 pixels
    assert moved(traffic, "L3", "psum", "write") == 0
    assert traffic.compute_cycles == 64 * 9


@pytest.mark.parametrize(
    "innermost, weights, inputs, spills", [("P", 1, 2, 1), ("K", 2, 1, 1), ("C", 2, 2, 0)]
)
def test_innermost_loop_is_the_stationary_one(innermost, weights, inputs, spills):
    window = Window(1, 1, 1, 0, 4)
    shape = LayerShape(Dims(K=8, C=8, P=4), window, Window(1, 1, 1, 0, 1), False, False)
    half = Dims(K=4, C=4, P=2)
    order = (*(d for d in DIMS if d != innermost), innermost)
    mapping = Mapping(half, half, Dims(K=4, C=4, P=2), Dims(C=4), Dims(K=4), order)
    traffic = layer_traffic(shape, mapping, whole(shape.dims), SMALL, "hw")
    assert moved(traffic, "L3", "W", "read") == 64 * weights
    assert moved(traffic, "L3", "I", "read") == 32 * inputs
    assert moved(traffic, "L3", "psum", "write") == 4 * 32 * spills
