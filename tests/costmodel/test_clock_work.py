"""What the clock counts, by hand; and its differentiable twin, held equal to it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.group.nodes import Edge, Node
from fadiff.costmodel.latency.clock_work import NestWork, nest_counts
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping
from fadiff.costmodel.mapping.shape import LayerShape, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.relaxed.model import ORDERS, RelaxedModel
from fadiff.costmodel.schedule.evaluate import layer_cost
from fadiff.costmodel.target.target import load_target
from tests.costmodel.relaxed_cases import point_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
DEFAULT = load_target("gemmini-default")


def conv(K=32, C=32, P=8, Q=8, R=3):
    window = Window(R, 1, 1, 0, P + R - 1)
    return LayerShape(Dims(K=K, C=C, P=P, Q=Q, R=R, S=R), window, window, False, False)


def counts(shape, mapping, issue="instructions"):
    return nest_counts(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT, ALONE, 0, issue)


def test_counts_of_a_hand_counted_convolution():
    """16 x 16 array, all in one scratchpad tile but K in two halves; the input is loaded once."""
    shape = conv()
    tile = shape.dims.replace({"K": 16})
    block = Dims(K=16, C=16)
    mapping = Mapping(tile, tile, block, Dims(C=16), Dims(K=16), STREAM_ORDER)
    found = counts(shape, mapping)
    assert found.tiles == 2
    assert sum(rows * times for rows, times in found.short_strips) == 2 * 2 * 9 * 8 * 8  # K, C, taps, pixels
    # Weight rows of 16 bytes, aligned to them, and input pixels of 32 bytes: one request each.
    assert found.requests == 2 * 9 * 32 + 10 * 10
    assert found.loaded_bytes == 9 * 32 * 32 + 10 * 10 * 32
    assert found.stored_rows == 2 * 64
    on_loop = counts(shape, mapping, "loop_ws")
    assert on_loop.commands == 0 and on_loop.loops == 2


def test_what_the_core_issues_of_the_same_convolution():
    """Strips of 8 pixels; the second half of the weights is worked out while products of the first run."""
    shape = conv()
    tile = shape.dims.replace({"K": 16})
    block = Dims(K=16, C=16)
    mapping = Mapping(tile, tile, block, Dims(C=16), Dims(K=16), STREAM_ORDER)
    work = NestWork(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT, 0)
    found = work.issued(ALONE)
    assert found.products == 2 * 2 * 9 * 8
    assert found.moves == 2 * 9 * 32 / 16 + 10 * 10 / 8 + 2 * 64 / 8  # weights, input, results
    assert found.blocks == 2 * 2 * 9, "all pixels are one accumulator tile"
    assert found.boxes == 1 + 1
    by_rows = work.issued(ALONE._replace(has_row_scale=True))
    assert found.moves - by_rows.moves == 2 * 64 / 8, "rows are stored by row commands"
    assert work.issued(ALONE._replace(weights_are_resident=True)).boxes == 1
    issued = 2 * found.products + found.moves + 5.6 * found.blocks + 15.1 * found.boxes
    assert work.counts(ALONE).commands == pytest.approx(issued)


def test_what_the_core_issues_of_tiles_laid_out_as_by_the_loop_unit():
    """A product of 32 rows in two tiles of K: a row is configured once and stored at once in each."""
    axis = Window(1, 1, 1, 0, 32)
    shape = LayerShape(Dims(K=128, C=64, P=32), axis, axis._replace(size=1), False, False)
    tile = shape.dims.replace({"K": 64})
    mapping = Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16), STREAM_ORDER, issue="core_ws")
    work = NestWork(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT, 0)
    placement = ALONE._replace(has_row_scale=True)
    found, issued = work.counts(placement, "core_ws"), work.issued(placement)
    assert issued.products == 8 * 4 * 2, "blocks of weights, each met by two strips"
    assert found.commands == pytest.approx(0.4 * (2 * issued.products + issued.moves))
    assert found.row_commands * 0.41 == pytest.approx(0.4 * 32 * 2 * (1 + 1) + 10 * 2)
    assert work.counts(ALONE, "core_ws").row_commands * 0.41 == pytest.approx(10 * 2)


def test_of_a_layer_of_one_tile_nothing_is_worked_out():
    """All is known when it is compiled: its commands take what commands take, issued either way."""
    axis = Window(1, 1, 1, 0, 32)
    shape = LayerShape(Dims(K=64, C=64, P=32), axis, axis._replace(size=1), False, False)
    mapping = Mapping(shape.dims, shape.dims, Dims(K=16, C=16), Dims(C=16), Dims(K=16), STREAM_ORDER)
    work = NestWork(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT, 0)
    issued = work.issued(ALONE)
    assert issued.blocks == issued.boxes == 0
    assert work.counts(ALONE).commands == 2 * issued.products + issued.moves
    assert work.counts(ALONE, "core_ws").row_commands == 0
    by_rows = work.counts(ALONE._replace(has_row_scale=True), "core_ws")
    assert by_rows.row_commands * 0.41 == pytest.approx(0.4 * 32 * (1 + 1))


@pytest.mark.parametrize(("transposed", "boxes"), [(False, 4 + 3), (True, 4)])
def test_transposed_weights_are_not_loaded_early(transposed, boxes):
    axis = Window(1, 1, 1, 0, 16)
    shape = LayerShape(Dims(K=16, C=64, P=16), axis, axis._replace(size=1), False, False)
    shape = shape._replace(has_transposed_weights=transposed)
    tile = shape.dims.replace({"C": 16})
    mapping = Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16))
    work = NestWork(LoopNest(shape, mapping, whole(shape.dims)), DEFAULT, 0)
    assert work.issued(ALONE).boxes == boxes


def test_rows_of_a_matrix_product_stream_together():
    """64 x 32 by 32 x 32: four strips of 16 rows for each of four weight blocks."""
    axis = Window(1, 1, 1, 0, 64)
    shape = LayerShape(Dims(K=32, C=32, P=64), axis, axis._replace(size=1), False, False)
    assert counts(shape, _untiled(shape)).full_rows == 4 * 4 * 16


def _untiled(shape):
    return Mapping(shape.dims, shape.dims, Dims(K=16, C=16), Dims(C=16), Dims(K=16))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_relaxed_twin_equals_exact(data):
    shape = data.draw(layer_shapes())
    mapping, weights = data.draw(mappings(shape, orders=ORDERS)), data.draw(st.integers(0, 1 << 24))
    looped = replace(mapping, issue="loop_ws")
    exact = layer_cost(shape, looped, SMALL, network_weights=weights)
    options = {"network_weights": weights, "dtype": torch.float64}
    relaxed = RelaxedModel([Node(shape)], [], SMALL, "hw", **options)(point_of([mapping]))
    assert relaxed.latency_cycles.item() == pytest.approx(exact.latency_cycles, abs=0.5 + 1e-6)


def test_relaxed_gradients_are_finite_and_reach_every_tile():
    shape = conv(K=64, C=64)
    tile = Dims(K=16, C=32, P=4, Q=8, R=3, S=3)
    point = point_of([Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16), *(ORDERS[0][:3]))])
    point.l2.requires_grad_()
    model = RelaxedModel([Node(shape)], [], DEFAULT, dtype=torch.float64)
    model(point).total_latency_cycles.sum().backward()
    gradient = point.l2.grad[0, 0]
    assert torch.isfinite(gradient).all()
    assert all(gradient[i] != 0 for i in (2, 3, 4))


def test_relaxed_fusion_stays_finite():
    """Between not fused and fused, latency and its gradient are finite, and the ends differ."""
    nodes = [Node(conv(K=64, C=64, P=34)), Node(conv(K=64, C=64, P=32))]
    tile = Dims(K=16, C=64, P=8, Q=8, R=3, S=3)
    mapping = Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16), *ORDERS[0])
    model = RelaxedModel(nodes, [Edge(0, 1)], DEFAULT, dtype=torch.float64)
    latency = {}
    for strength in (0.0, 0.5, 1.0):
        sigma = torch.tensor([[strength]], dtype=torch.float64, requires_grad=True)
        total = model(point_of([mapping, mapping], sigma=sigma)).total_latency_cycles.sum()
        total.backward()
        assert torch.isfinite(total)
        assert torch.isfinite(sigma.grad).all()
        latency[strength] = total.item()
    assert latency[1.0] != latency[0.0]


def test_the_clock_names_what_binds():
    cost = layer_cost(conv(), _untiled(conv()), DEFAULT)
    assert cost.bound == "issue"  # every command by the core
    looped = layer_cost(conv(), replace(_untiled(conv()), issue="loop_conv_ws"), DEFAULT)
    assert looped.bound in ("compute", "L3") and looped.latency_cycles < cost.latency_cycles
