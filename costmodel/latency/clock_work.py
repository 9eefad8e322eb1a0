"""What the clock counts of a layer's loads: DMA requests by alignment, and copies of pixels."""

from __future__ import annotations

import math

from converter.ir.dims import DIMS, G, S
from costmodel.count.nest import LoopNest
from costmodel.count.traffic import Placement
from costmodel.latency.rtl_work import request_bytes, segments
from costmodel.mapping.mapping import ceil_div
from costmodel.mapping.numbers import Number
from costmodel.target.target import Target


def aligned_requests(nbytes: Number, pitch: int, longest: int) -> Number:
    """Requests for one row segment, on average over rows that lie `pitch` bytes apart.

    The DMA requests at most `longest` bytes, aligned to their size, so a segment that starts elsewhere
    takes one more.
    """
    step = math.gcd(pitch, longest)
    offsets = range(0, longest, step)
    return sum(ceil_div(offset + nbytes, longest) for offset in offsets) / len(offsets)


def load_work(nest: LoopNest, target: Target, placement: Placement) -> tuple[Number, Number]:
    """Requests of all loads, and further copies of pixels that are written more than once.

    Where kernel columns are packed into rows of the array, every pixel is written once per column.
    """
    shape, element = nest.shape, target.element_bytes
    longest = request_bytes(target)
    along, in_channel, _ = segments(shape)
    total = [count.total for count in nest.counts]
    q = nest.quantities(target, "hw", resident=placement.weights_are_resident)

    def requests(d: int) -> Number:
        """Of one pass along a contiguous dimension."""
        pitch = shape.dims[DIMS[d]] * element
        found: Number = 0.0
        for extent, times in nest.pieces(d, 1):
            full, rest = divmod(extent * element, longest)
            found = found + times * full * aligned_requests(longest, pitch, longest)
            found = found + times * aligned_requests(rest, pitch, longest) * (rest > 0)
        return found

    weights = q.weight_fills / (nest.l0[G] if along < 0 else total[along] / requests(along))
    inputs = q.input_fills / total[in_channel] * requests(in_channel)
    spilled = q.spills * target.accumulator_bytes_per_word / longest
    return weights + inputs + spilled, 0.0 if shape.is_depthwise else inputs * (nest.l0[S] - 1)
