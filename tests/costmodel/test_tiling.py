"""Rows fetched by a tiled convolution against counting them one by one."""

from hypothesis import given
from hypothesis import strategies as st

from fadiff.costmodel.mapping.tiling import Window, fetched_rows

WINDOWS = st.builds(
    Window,
    kernel=st.integers(2, 9),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad=st.integers(0, 12),
    size=st.integers(1, 30),
)


@given(WINDOWS, st.integers(0, 6), st.integers(1, 25), st.integers(1, 30), st.integers(1, 9))
def test_fetched_rows_are_the_bounding_boxes_clipped_to_the_image(
    window: Window, start: int, length: int, tile: int, taps: int
) -> None:
    stop = start + length
    count = 0
    for p in range(start, stop, tile):
        for r in range(0, window.kernel, taps):
            first = p * window.stride + r * window.dilation
            last = (min(p + tile, stop) - 1) * window.stride
            last += (min(r + taps, window.kernel) - 1) * window.dilation
            count += sum(0 <= row - window.pad < window.size for row in range(first, last + 1))
    assert fetched_rows(window, ((start, stop),), tile, taps) == count


def test_a_long_signal_is_counted_without_walking_it() -> None:
    """3 * 10^12 samples, tiles of 3, 5 taps: a loop over the tiles would not end.

    Every tile adds 4 rows of halo, except the 2 that padding provides at either end.
    """
    length = 3 * 10**12
    window = Window(kernel=5, stride=1, dilation=1, pad=2, size=length)
    tiles = length // 3
    assert fetched_rows(window, ((0, length),), 3, 5) == length + 4 * (tiles - 1)
