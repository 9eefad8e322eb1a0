"""Cache lines that are found again, and those that are lost."""

import pytest

from fadiff.costmodel.latency.cache import Loop, Reuse, Stream, cache_use, misses, pitch_lines


def test_lines_that_fit_are_fetched_once():
    used = Reuse(100, [10], [1000], 1e9)
    assert misses(used, 1e6) == pytest.approx(100, rel=1e-3)
    assert misses(used, 10) == pytest.approx(1000, rel=1e-3)


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


def test_power_of_two_pitch_crowds_its_own_operand_only():
    """8 weight rows of one line, 8 lines apart, fill one set in eight; pixels are spread evenly."""
    streams = [Stream(8, 64, 512, 64, 8), Stream(10, 64, 64, 64, 1), Stream(10, 64, 64, 64, 1)]
    use = cache_use(streams, [Loop(2, ("stay", "rows", "rows"), False)], max)
    assert use.weights.touched == [(8 * 8 + 10 + 10) * 64]
    assert use.inputs.touched == [(8 + 10 + 10) * 64]
