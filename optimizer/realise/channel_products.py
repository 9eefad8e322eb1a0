"""A factor for each channel (squeeze-excite) as a product with a diagonal.

The core writes the diagonal every time, unless the factors are constant.

Channels come in blocks as wide as the array; the blocks lie one after the other, zeros and all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Binary, Copy, Fill
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def realised_channel_product(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """A fill and a copy for the diagonal unless it is constant, and products.

    None: no product of a dense tensor [images, pixels, channels] and one [images, channels], in either order.
    """
    if not isinstance(layer, HostLayer):
        return None
    operator, out = layer.operator, graph.tensors[layer.outputs[0]]
    if not isinstance(operator, Binary) or operator.function != "mul" or out.dtype != target.element_type:
        return None
    found = _operands(operator.loops)
    if found is None or len(set(layer.inputs)) < 2 or graph.tensors[layer.inputs[0]].dtype != out.dtype:
        return None
    (images, pixels, channels), at = found
    x, factors = layer.inputs[at], layer.inputs[1 - at]
    places = (
        operator.loops.inputs[at].offset,
        operator.loops.inputs[1 - at].offset,
        operator.loops.output.offset,
    )
    side = target.side
    blocks, rest = divmod(channels, side)
    parts = [
        (count, block, first)
        for count, block, first in ((blocks, side, 0), (1, rest, blocks * side))
        if count * block
    ]
    given = graph.tensors[factors]
    diagonal = Tensor(f"{layer.name}.diagonal", (images, channels, side), out.dtype, given.scale)
    written: list[Layer] = []
    if given.data is not None:
        values = given.data.reshape(-1)[places[1] : places[1] + images * channels]
        diagonal = replace(diagonal, data=_diagonal(values.reshape(images, channels), side))
    else:
        written.append(HostLayer(f"{diagonal.name}.zeros", Fill(0), (), (diagonal.name,)))
    products: list[Layer] = []
    for count, block, first in parts:
        if given.data is None:
            vector, spread = (
                Access(places[1] + first, (channels, block, 1)),
                (channels * side, side * block, side + 1),
            )
            loops = Loops((images, count, block), (vector,), Access(first * side, spread))
            suffix = f".{first}" if first else ""
            written.append(HostLayer(f"{diagonal.name}{suffix}", Copy(loops), (factors,), (diagonal.name,)))
        # a product for every image, its blocks as groups, or for every block, the images as groups
        image, next_block = (pixels * channels, channels * side), (block, side * block)
        groups, others, of_group, of_other = (
            (count, images, next_block, image) if images <= count else (images, count, image, next_block)
        )
        for other in range(others):
            at_first = first + other * of_other[0]
            number = f".{len(products)}" if products else ""
            products.append(
                TensorCoreLayer(
                    f"{layer.name}{number}",
                    "bmm",
                    Dims(G=groups, P=pixels, K=block, C=block),
                    View(x, places[0] + at_first, (of_group[0], 0, channels, 0, 1)),
                    View(diagonal.name, first * side + other * of_other[1], (of_group[1], 0, 0, side, 1)),
                    View(out.name, places[2] + at_first, (of_group[0], 0, channels, 0, 1)),
                    (pixels, 1),
                    activation=operator.activation,
                    scale=operator.scale,
                    onnx_nodes=layer.onnx_nodes,
                )
            )
    return Realised("product with a diagonal", (layer.name,), (*written, *products), (diagonal,))


def _diagonal(factors: np.ndarray, side: int) -> np.ndarray:
    """Factors [images, channels] as blocks [images, channels, side]."""
    every = np.arange(factors.shape[1])
    data = np.zeros((*factors.shape, side), factors.dtype)
    data[:, every, every % side] = factors
    return data


def _operands(loops: Loops) -> tuple[tuple[int, int, int], int] | None:
    """Images, pixels and channels, and which input has them all; the other has a factor for each channel."""
    shape = (1,) * (3 - len(loops.shape)) + loops.shape
    if len(shape) != 3 or shape[1] == 1:
        return None  # (of one pixel it is a product of two tensors)
    images, pixels, channels = shape
    image, vector = (pixels * channels, channels, 1), (channels, 0, 1)

    def walks(access: Access, wanted: tuple[int, int, int]) -> bool:
        strides = (0,) * (3 - len(access.strides)) + access.strides
        return all(n == 1 or s == w for n, s, w in zip(shape, strides, wanted, strict=True))

    for at in (0, 1):
        if (
            walks(loops.inputs[at], image)
            and walks(loops.output, image)
            and walks(loops.inputs[1 - at], vector)
        ):
            return (images, pixels, channels), at
    return None
