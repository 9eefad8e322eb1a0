"""Sliding windows: kernel, stride, dilation and pads of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fadiff.converter.ir.program import Node


@dataclass(frozen=True)
class Window:
    """A 2-D window; one-dimensional ones have height 1.  pads: top, left, bottom, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]
    output: tuple[int, int]


def window_of(node: Node, input_size: tuple[int, int], kernel: Sequence[int]) -> Window:
    """Resolve auto_pad and ceil_mode; `kernel` is its spatial shape."""
    rank = len(kernel)
    stride = tuple(node.attributes.get("strides", (1,) * rank))
    dilation = tuple(node.attributes.get("dilations", (1,) * rank))
    sizes = input_size[2 - rank :]
    pads = pads_of(node, sizes, kernel)
    begin, end = pads[:rank], pads[rank:]
    output = []
    for size, k, s, d, before, after in zip(sizes, kernel, stride, dilation, begin, end, strict=True):
        room = size + before + after - (k - 1) * d - 1
        ceil_mode = bool(node.attributes.get("ceil_mode", 0))
        out = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (out - 1) * s >= size + before:
            out -= 1  # a window must start inside the image or its left padding
        output.append(out)
    one: tuple[int, ...] = (1,) if rank == 1 else ()
    zero: tuple[int, ...] = (0,) if rank == 1 else ()
    top, left = _pair(zero, begin)
    bottom, right = _pair(zero, end)
    return Window(
        _pair(one, kernel),
        _pair(one, stride),
        _pair(one, dilation),
        (top, left, bottom, right),
        _pair(one, output),
    )


def pads_of(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Padding before every spatial axis, then that behind, also where `auto_pad` says it."""
    rank = len(kernel)
    ones, none = (1,) * rank, (0,) * (2 * rank)
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return none if auto_pad == "VALID" else tuple(node.attributes.get("pads", none))
    strides, dilations = (node.attributes.get(name, ones) for name in ("strides", "dilations"))
    totals = [
        max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    halves = [(total // 2, total - total // 2) for total in totals]
    begin, end = zip(*halves, strict=True)
    return (*begin, *end) if auto_pad == "SAME_UPPER" else (*end, *begin)


def _pair(prefix: Sequence[int], values: Sequence[int]) -> tuple[int, int]:
    first, second = (*prefix, *values)
    return int(first), int(second)
