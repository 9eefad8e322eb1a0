"""Convolutions and pools over three spatial axes (video) as ones over two.

The frames that an output frame reads lie side by side as channels: [N, C, D, H, W] becomes
[N D', C kd, H, W], and one convolution of images sums over all of them.  A kernel of one pixel (the second
factor of (2+1)d convolutions) reaches over frames only: frames and pixels are its two axes then, and nothing
is copied.  Windows of pools are boxes: pixels first, then frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.window import pads_of

_PADS_BY_INPUT = 11


def is_volume(program: Program, node: Node) -> bool:
    """The input is a volume (N C D H W)."""
    return len(program.shapes[node.inputs[0]]) == 5


def constant_kernel(program: Program, node: Node) -> str | None:
    """The weights are constant."""
    return None if node.input(1) in program.constants else f"weights {node.input(1)} are computed at run time"


def no_indices(program: Program, node: Node) -> str | None:
    """Only the first output is used."""
    return None if len([v for v in node.outputs if v]) == 1 else "its indices are used"


def convolution(nodes: Nodes, program: Program, node: Node) -> None:
    """A convolution of images, the frames of a window as channels."""
    n, c, d, h, w = program.shapes[node.inputs[0]]
    result = program.shapes[node.outputs[0]]
    weight = program.constants[node.inputs[1]]
    k, _, frames, *kernel = weight.shape
    strides, dilations = (tuple(node.attributes.get(name, (1,) * 3)) for name in ("strides", "dilations"))
    pads = pads_of(node, (d, h, w), weight.shape[2:])
    options = {"group": node.attributes.get("group", 1)}
    plane = (pads[1], pads[2], pads[4], pads[5])
    if kernel == [1, 1] and strides[1:] == (1, 1) and not any(plane):
        image = nodes.reshape(node.inputs[0], (n, c, d, h * w))
        options |= {"kernel_shape": [frames, 1], "strides": [strides[0], 1], "dilations": [dilations[0], 1]}
        options |= {"pads": [pads[0], 0, pads[3], 0]}
        taps = nodes.constant(weight.reshape(k, -1, frames, 1), "taps")
        found = nodes.op("Conv", image, taps, *node.inputs[2:], **options)
        nodes.give(nodes.reshape(found, result), node.outputs[0])
        return
    x = _padded(nodes, node.inputs[0], pads[0], pads[3])
    places = np.arange(result[2])[:, None] * strides[0] + np.arange(frames) * dilations[0]
    if places.size != d or np.any(places.reshape(-1) != np.arange(d)):
        x = nodes.op("Gather", x, nodes.constant(places.reshape(-1), "frames"), axis=2)
    x = nodes.transpose(nodes.reshape(x, (n, c, result[2], frames, h, w)), (0, 2, 1, 3, 4, 5))
    image = nodes.reshape(x, (n * result[2], c * frames, h, w))
    options |= {"kernel_shape": kernel, "strides": strides[1:], "dilations": dilations[1:], "pads": plane}
    flat = nodes.constant(weight.reshape(k, -1, *kernel), "weight")
    found = nodes.op("Conv", image, flat, *node.inputs[2:], **options)
    found = nodes.reshape(found, (n, result[2], k, *result[3:]))
    nodes.give(nodes.transpose(found, (0, 2, 1, 3, 4)), node.outputs[0])


def pool(nodes: Nodes, program: Program, node: Node) -> None:
    """Pools of pixels, then of frames."""
    n, c, d, h, w = program.shapes[node.inputs[0]]
    result = program.shapes[node.outputs[0]]
    kernel = tuple(node.attributes["kernel_shape"])
    pads = pads_of(node, (d, h, w), kernel)
    given = {"kernel_shape": kernel, "pads": pads}
    given |= {
        name: tuple(node.attributes[name]) for name in ("strides", "dilations") if name in node.attributes
    }
    rest = {
        name: node.attributes[name] for name in ("ceil_mode", "count_include_pad") if name in node.attributes
    }

    def over(value: str, shape: tuple[int, ...], axes: Sequence[int | None]) -> str:
        """A pool over two axes; None: one that is left alone."""
        options: dict[str, Any] = {
            name: [_of_axis(name, numbers, axis) for axis in _both(name, axes)]
            for name, numbers in given.items()
        }
        return nodes.op(node.op, nodes.reshape(value, shape), **options, **rest)

    x = over(node.inputs[0], (n, c * d, h, w), (1, 2))
    x = over(x, (n, c, d, result[3] * result[4]), (0, None))
    nodes.give(nodes.reshape(x, result), node.outputs[0])


def global_pool(nodes: Nodes, program: Program, node: Node) -> None:
    """A global pool as one of images with all frames side by side."""
    n, c, d, h, w = program.shapes[node.inputs[0]]
    found = nodes.op(node.op, nodes.reshape(node.inputs[0], (n, c, d, h * w)))
    nodes.give(nodes.reshape(found, (n, c, 1, 1, 1)), node.outputs[0])


def _both(name: str, axes: Sequence[int | None]) -> Sequence[int | None]:
    """Pads are told before all axes, then behind them."""
    return (*axes, *(None if axis is None else axis + 3 for axis in axes)) if name == "pads" else axes


def _of_axis(name: str, numbers: Sequence[int], axis: int | None) -> int:
    return (0 if name == "pads" else 1) if axis is None else int(numbers[axis])


def _padded(nodes: Nodes, value: str, before: int, behind: int) -> str:
    """Zeros before the first frame and behind the last."""
    if not before and not behind:
        return value
    pads = [0, 0, before, 0, 0, 0, 0, behind, 0, 0]
    if nodes.opset < _PADS_BY_INPUT:
        return nodes.op("Pad", value, pads=pads)
    return nodes.op("Pad", value, nodes.ints(pads))
