"""Sliding windows: kernel, stride, dilation and pads of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from converter.ir.program import Node


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
    pads = list(node.attributes.get("pads", (0,) * (2 * rank)))
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    sizes = input_size[2 - rank :]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    output = []
    for i, size in enumerate(sizes):
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // stride[i])
            total = max(0, (out - 1) * stride[i] + reach[i] - size)
            small, large = total // 2, total - total // 2
            pads[i], pads[i + rank] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        elif auto_pad == "VALID":
            pads[i] = pads[i + rank] = 0
            out = (size - reach[i]) // stride[i] + 1
        else:
            room = size + pads[i] + pads[i + rank] - reach[i]
            ceil_mode = bool(node.attributes.get("ceil_mode", 0))
            out = (-(-room // stride[i]) if ceil_mode else room // stride[i]) + 1
            if ceil_mode and (out - 1) * stride[i] >= size + pads[i]:
                out -= 1  # a window must start inside the image or its left padding
        output.append(out)
    one: tuple[int, ...] = (1,) if rank == 1 else ()
    zero: tuple[int, ...] = (0,) if rank == 1 else ()
    begin, end = tuple(pads[:rank]), tuple(pads[rank:])
    top, left = _pair(zero, begin)
    bottom, right = _pair(zero, end)
    return Window(
        _pair(one, kernel),
        _pair(one, stride),
        _pair(one, dilation),
        (top, left, bottom, right),
        _pair(one, output),
    )


def _pair(prefix: Sequence[int], values: Sequence[int]) -> tuple[int, int]:
    first, second = (*prefix, *values)
    return int(first), int(second)
