"""Profile dosa counts like Timeloop; counts of machines are checked against known answers of the binary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.count.nest import LoopNest, layer_traffic
from fadiff.costmodel.count.sliding_window import sliding_input_words
from fadiff.costmodel.count.timeloop_counts import Count, Loop, cycles_at, words_entering
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.nests.count import Nests
from fadiff.costmodel.nests.machine import OPERANDS
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.timeloop.machines import machine_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
NEST = machine_of("gemmini-small-nest")
MEMORIES = ("L3", "L2", "L1", "L0")


def nests(workload, factors, orders):
    """`factors` of L3, L2, columns, L1, rows, L0 and `orders` of L3 to L0, innermost first, by dimension."""
    active = workload.active
    rows = [[level.get(d, 1) for d in active] for level in factors]
    walked = [[active.index(d) for d in order if d in active] for order in orders]
    keeps = tuple(memory.keeps for memory in NEST.memories)
    return Nests(NEST, workload, Mappings(np.array([rows]), np.array([walked]), keeps))


def counts_of(found):
    """By memory and operand."""
    counts = {
        (level, operand): found.accesses(operand, at)
        for at, level in enumerate(MEMORIES)
        for operand in OPERANDS
    }
    return {
        key: Count(*(int(x[0]) for x in (c.instances, c.reads, c.fills, c.updates)))
        for key, c in counts.items()
        if c is not None
    }


def test_known_answer():
    """Printed by timeloop-model for a 32 x 32 x 8 product on gemmini-small (SMALL's energy table)."""
    found = nests(
        Workload(Dims(K=32, C=32, P=8)),
        [{"K": 2, "C": 2}, {"P": 2}, {"K": 16}, {"P": 4}, {"C": 16}, {}],
        ["CKP", "CKP", "CKP", "CKP"],
    )
    assert counts_of(found) == {
        ("L0", "W"): Count(256, 32, 4, 0),
        ("L1", "O"): Count(16, 16, 16, 32),
        ("L2", "W"): Count(1, 1024, 1024, 0),
        ("L2", "I"): Count(1, 512, 512, 0),
        ("L3", "W"): Count(1, 1024, 0, 0),
        ("L3", "I"): Count(1, 512, 0, 0),
        ("L3", "O"): Count(1, 256, 0, 512),
    }


@pytest.mark.parametrize("bandwidth, cycles", [(2, 250), (3, 167), (5, 100), (8, 100)])
def test_a_level_that_is_too_slow_takes_its_words_over_its_bandwidth(bandwidth, cycles):
    """500 words in 100 cycles of compute: 250, 166.7 and 100 cycles of transfers."""
    counts = [Count(1, 200, 100, 0), Count(1, 100, 0, 100)]
    assert cycles_at(counts, 100, bandwidth) == cycles


@given(tile=st.integers(1, 6), step=st.integers(0, 8), trips=st.integers(1, 6))
def test_one_sliding_loop_fetches_the_union(tile, step, trips):
    touched = {start * step + i for start in range(trips) for i in range(tile)}
    assert words_entering((tile,), [Loop(trips, (step,))]) == len(touched)


@pytest.mark.parametrize("loops", [[Loop(2, (0,)), Loop(4, (1,))], [Loop(2, (1,)), Loop(3, (1,))]])
def test_releases_before_2025_forget_the_overlap(loops):
    """Three words in a row: four tiles that each keep two of the last, and a tile that stays."""
    assert words_entering((3,), loops) == 6
    assert words_entering((3,), loops, forgets_direction=True) == 12


def timeloop_of(shape, mapping):
    """The same nest by the rules for any machine."""
    h, w = shape.height, shape.width
    workload = Workload(shape.dims, (h.stride, w.stride), (h.dilation, w.dilation))
    trips = [mapping.trips(level, shape.dims).as_dict() for level in MEMORIES]
    factors = [*trips[:2], mapping.cols.as_dict(), trips[2], mapping.rows.as_dict(), trips[3]]
    return nests(workload, factors, [tuple(reversed(mapping.order(level))) for level in MEMORIES])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_profile_dosa_is_timeloop(data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, divisor=True))
    traffic = layer_traffic(shape, mapping, whole(shape.dims), SMALL, "dosa", sliding_window=True)
    found = timeloop_of(shape, mapping)
    words = {}
    for move in traffic.moves:
        operand = "O" if move.role == "psum" else move.role
        size = 4 if move.memory == "accumulator" else 1
        key = (move.level, operand)
        words[key] = words.get(key, 0) + move.bytes // size
    for key, theirs in counts_of(found).items():
        assert words.get(key, 0) == theirs.total, key
    assert traffic.compute_cycles == found.compute_cycles[0]


def test_sliding_window_keeps_the_halo():
    window = Window(3, 1, 1, 1, 8)
    shape = LayerShape(Dims(C=4, K=2, P=8, Q=8, R=3, S=3), window, window, False, False)
    tile = Dims(C=4, K=2, P=2, Q=8, R=3, S=3)
    mapping = Mapping(tile, tile, Dims())
    whole_tiles = LoopNest(shape, mapping, whole(shape.dims)).quantities(SMALL, "dosa", resident=False)
    assert whole_tiles.input_fills == 4 * 4 * 4 * 10
    assert sliding_input_words(shape, mapping) == 4 * 10 * 10
