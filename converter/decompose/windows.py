"""Windows that the array and the core do not have: over three spatial axes, and max pools behind a Pad.

The frames that an output frame reads lie side by side as channels: [N, C, D, H, W] becomes
[N D', C kd, H, W], and one convolution of images sums over all of them.  A kernel of one pixel (the second
factor of (2+1)d convolutions) reaches over frames only: frames and pixels are its two axes then, and nothing
is copied.  Windows of pools are boxes: pixels first, then frames.  Padding with the lowest number before a
maximum is the pool's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.operators import padding, pads_of
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK


def behind_lowest(program: Program, node: Node) -> bool:
    """The image is padded with -1e4 or less: the pool pads."""
    return _joined_pads(program, node) is not None


def max_pool(nodes: Nodes, program: Program, node: Node) -> None:
    """The pool of what was padded, with the pads of both."""
    pads = _joined_pads(program, node)
    assert pads is not None
    pad = program.producer[node.inputs[0]]
    kept = {key: value for key, value in node.attributes.items() if key not in ("auto_pad", "pads")}
    pooled = nodes.ops("MaxPool", len(node.outputs), pad.inputs[0], pads=pads, **kept)
    for value, output in zip(pooled, node.outputs, strict=True):
        nodes.give(value, output)


def _joined_pads(program: Program, node: Node) -> list[int] | None:
    """Pads of a max pool that takes those of the Pad before it, too, where a pool can have them."""
    pad = program.producer.get(node.inputs[0])
    constant = pad is not None and pad.op == "Pad" and pad.attributes.get("mode", "constant") == "constant"
    found = padding(program, pad) if pad is not None and constant else None
    if found is None or found[2] > BLANK or len([v for v in node.outputs if v]) > 1:
        return None
    begin, end, _ = found
    kernel = node.attributes["kernel_shape"]
    spatial = len(kernel)
    own = node.attributes.get("pads", (0,) * (2 * spatial))
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.attributes.get(
        "ceil_mode"
    ):
        return None
    if any((*begin[:2], *end[:2])) or min(*begin, *end) < 0:
        return None
    pads = [a + b for a, b in zip((*begin[2:], *end[2:]), own, strict=True)]
    return pads if all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True)) else None


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
    given |= node.some("strides", "dilations")
    rest = node.some("ceil_mode", "count_include_pad")

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


DECOMPOSITIONS = (
    Decomposition("MaxPool", max_pool, applies=behind_lowest),
    Decomposition("AveragePool", pool, applies=is_volume),
    Decomposition("Conv", convolution, (constant_kernel,), applies=is_volume),
    Decomposition("GlobalAveragePool", global_pool, applies=is_volume),
    Decomposition("GlobalMaxPool", global_pool, applies=is_volume),
    Decomposition("MaxPool", pool, (no_indices,), applies=is_volume),
)
