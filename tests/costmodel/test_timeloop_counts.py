"""Profile dosa counts like Timeloop; the general counter is checked against known answers of the binary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.timeloop_counts import LevelLoops, Workload, count
from fadiff.converter.ir.dims import DIMS, Dims
from fadiff.costmodel.count.nest import LoopNest, layer_traffic
from fadiff.costmodel.count.sliding_window import sliding_input_words
from fadiff.costmodel.count.timeloop_counts import Count, Loop, cycles_at, words_entering
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, whole
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import load_target
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
ONES = dict.fromkeys("NKCPQRS", 1)
CONV = Workload(
    {"N": 1, "K": 32, "C": 32, "P": 8, "Q": 1, "R": 1, "S": 1},
    {
        "W": tuple(((d, 1),) for d in "KCRS"),
        "I": ((("N", 1),), (("C", 1),), (("R", 1), ("P", 1)), (("S", 1), ("Q", 1))),
        "O": tuple(((d, 1),) for d in "NKPQ"),
    },
)


def test_known_answer():
    """Printed by timeloop-model for a 32 x 32 x 8 product on gemmini-small (SMALL's energy table)."""
    levels = [
        LevelLoops(ONES, ONES, "NKCPQRS"),
        LevelLoops({**ONES, "C": 16}, {**ONES, "P": 4}, "NKCPQRS"),
        LevelLoops({**ONES, "K": 16}, {**ONES, "P": 2}, "NKCPQRS"),
        LevelLoops(ONES, {**ONES, "K": 2, "C": 2}, "CKNPQRS"),
    ]
    counts = count(CONV, levels)
    assert counts.by_level["L0"]["W"] == Count(256, 32, 4, 0)
    assert counts.by_level["L1"]["O"] == Count(16, 16, 16, 32)
    assert counts.by_level["L2"]["W"] == Count(1, 1024, 1024, 0)
    assert counts.by_level["L2"]["I"] == Count(1, 512, 512, 0)
    assert counts.by_level["L3"]["W"] == Count(1, 1024, 0, 0)
    assert counts.by_level["L3"]["I"] == Count(1, 512, 0, 0)
    assert counts.by_level["L3"]["O"] == Count(1, 256, 0, 512)


@pytest.mark.parametrize("bandwidth, cycles", [(2, 250), (3, 167), (5, 100), (8, 100)])
def test_a_level_that_is_too_slow_takes_its_words_over_its_bandwidth(bandwidth, cycles):
    """500 words in 100 cycles of compute: 250, 166.7 and 100 cycles of transfers."""
    counts = [Count(1, 200, 100, 0), Count(1, 100, 0, 100)]
    assert cycles_at(counts, 100, bandwidth) == cycles


def test_factors_must_multiply_to_the_bounds():
    with pytest.raises(ValueError, match="factors of K multiply to 1, not 32"):
        count(CONV, [LevelLoops(ONES, ONES, "NKCPQRS")] * 4)


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
    """The same nest in the general counter: G is a dimension like any other."""
    h, w = shape.height, shape.width
    workload = Workload(
        {d: shape.dims[d] for d in DIMS},
        {
            "W": tuple(((d, 1),) for d in "GKCRS"),
            "I": (
                (("G", 1),),
                (("N", 1),),
                (("C", 1),),
                (("R", h.dilation), ("P", h.stride)),
                (("S", w.dilation), ("Q", w.stride)),
            ),
            "O": tuple(((d, 1),) for d in "GNKPQ"),
        },
    )
    ones = dict.fromkeys(DIMS, 1)
    spatial = (ones, mapping.rows.as_dict(), mapping.cols.as_dict(), ones)
    return count(
        workload,
        [
            LevelLoops(
                spatial[i],
                mapping.trips(level, shape.dims).as_dict(),
                "".join(reversed(mapping.order(level))),
            )
            for i, level in enumerate(("L0", "L1", "L2", "L3"))
        ],
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_profile_dosa_is_timeloop(data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, divisor=True))
    traffic = layer_traffic(shape, mapping, whole(shape.dims), SMALL, "dosa", sliding_window=True)
    counts = timeloop_of(shape, mapping)
    words = {}
    for move in traffic.moves:
        operand = "O" if move.role == "psum" else move.role
        size = 4 if move.memory == "accumulator" else 1
        key = (move.level, operand)
        words[key] = words.get(key, 0) + move.bytes // size
    for level, tensors in counts.by_level.items():
        for operand, theirs in tensors.items():
            assert words.get((level, operand), 0) == theirs.total, (level, operand)
    assert traffic.compute_cycles == counts.compute_cycles


def test_sliding_window_keeps_the_halo():
    window = Window(3, 1, 1, 1, 8)
    shape = LayerShape(Dims(C=4, K=2, P=8, Q=8, R=3, S=3), window, window, False, False)
    tile = Dims(C=4, K=2, P=2, Q=8, R=3, S=3)
    mapping = Mapping(tile, tile, Dims())
    whole_tiles = LoopNest(shape, mapping, whole(shape.dims)).quantities(SMALL, "dosa", resident=False)
    assert whole_tiles.input_fills == 4 * 4 * 4 * 10
    assert sliding_input_words(shape, mapping) == 4 * 10 * 10
