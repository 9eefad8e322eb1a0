"""Layer norm and RMS norm on the array: only what there is one of in a row stays on the core.

Sums of squares are products of rows with their transposes, sums products with ones.  The core makes of them
the reciprocal of each row's deviation, by which the last product's rows are scaled as they are stored.  That
product multiplies by gamma, in blocks of channels; with a mean and beta each block has a few channels more,
whose weights take the mean away and add beta, in units of deviation.
"""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Copy, InverseRoot, LayerNorm, Moments, Rows
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised

_FORM = "product with a scale per row"
_MOMENTS = 4
"""Channels that hold mean and deviation, each in two parts."""


def realised_norm(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The layers; None of rows that are not next to each other, of a float array, RMS norms with beta, and
    a width without a divisor that fits the array."""
    if not isinstance(layer, HostLayer):
        return None
    operator = layer.operator
    if not isinstance(operator, LayerNorm) or operator.rows.inner != 1 or operator.per_inner:
        return None
    x, *parameters = layer.inputs
    source, out = graph.tensors[x], graph.tensors[layer.outputs[0]]
    gamma, beta = (np.asarray(graph.tensors[name].data).astype(np.float64) for name in parameters)
    if source.dtype != "int8" or source.zero or out.zero or not gamma.any() or not _float32(operator.epsilon):
        return None  # (without epsilon a row of zeros would have an infinite factor)
    width = operator.rows.length
    blocks = [n for n in range(_MOMENTS, target.max_block_len * target.side + 1) if width % n == 0]
    if not blocks or (beta.any() and not operator.center):
        return None
    if not operator.center:
        return _root_mean_square(layer, operator, source, out, gamma, blocks[-1], target)
    return _layer_norm(layer, operator, source, out, (gamma, beta), blocks[-1], target)


def _root_mean_square(
    layer: HostLayer,
    operator: LayerNorm,
    x: Tensor,
    out: Tensor,
    gamma: np.ndarray,
    block: int,
    target: Target,
) -> Realised:
    rows, width, scale = operator.rows.outer, operator.rows.length, x.scale or 1.0
    squares, products = _squares(layer.name, x.name, operator.rows, target)
    factors = Tensor(f"{layer.name}.factors", (rows,), "float32")
    mean = float(np.float32(scale * scale / width))
    root = InverseRoot(Rows(rows, products.shape[1], 1), mean, float(np.float32(operator.epsilon)))
    step = float(np.abs(gamma).max()) / 127
    product, weight = _of_factors(layer, x, out, factors, _diagonal(gamma / step, block), step)
    core = HostLayer(f"{layer.name}.root", root, (products.name,), (factors.name,))
    return Realised(_FORM, (layer.name,), (*squares, core, product), (products, factors, weight), exact=False)


def _layer_norm(
    layer: HostLayer,
    operator: LayerNorm,
    x: Tensor,
    out: Tensor,
    affine: tuple[np.ndarray, np.ndarray],
    block: int,
    target: Target,
) -> Realised:
    rows, width, scale = operator.rows.outer, operator.rows.length, x.scale or 1.0
    squares, products = _squares(layer.name, x.name, operator.rows, target)
    ones = Tensor(
        f"{layer.name}.ones", (1, 1, 1, width, 1), "int8", 1.0, np.ones((1, 1, 1, width, 1), np.int8)
    )
    sums = Tensor(f"{layer.name}.sums", (rows, 1), "int32")
    total = TensorCoreLayer(
        sums.name,
        "gemm",
        Dims(C=width, P=rows),
        View(x.name, 0, (0, 0, width, 0, 1)),
        View(ones.name, 0, (width, width, width, 1, width)),
        View(sums.name, 0, (0, 0, 1, 0, 1)),
        (rows, 1),
    )
    factors = Tensor(f"{layer.name}.factors", (rows,), "float32")
    groups, room = width // block, max(_MOMENTS, target.side)
    pitch = block + room
    beside = Tensor(f"{layer.name}.moments", (rows, groups, pitch), "int8", x.scale)
    constants = (1 / width, operator.variance_scale, operator.epsilon, 1 / scale)
    moments = Moments(Rows(rows, products.shape[1], 1), width, block, room, *map(_float32, constants))
    core = HostLayer(beside.name, moments, (products.name, sums.name), (beside.name, factors.name))
    blocks = Loops((rows * groups, block), (Access(0, (block, 1)),), Access(0, (pitch, 1)))
    copy = HostLayer(f"{layer.name}.rows", Copy(blocks), (x.name,), (beside.name,))
    step = max(float(np.abs(values).max()) for values in affine) / 127
    weights = _weights(affine[0] / step, affine[1] / step, block, room)
    product, weight = _of_factors(layer, beside, out, factors, weights, step)
    tensors = (products, ones, sums, factors, beside, weight)
    return Realised(_FORM, (layer.name,), (*squares, total, copy, core, product), tensors, exact=False)


def _weights(gamma: np.ndarray, beta: np.ndarray, block: int, room: int) -> np.ndarray:
    """[groups, block + room, block]: gamma on the diagonal, then what mean and deviation add."""
    weights = _diagonal(gamma, block, room)
    of_block = np.rint(gamma).reshape(-1, block)
    parts = (-of_block, -of_block / 16, beta.reshape(-1, block), beta.reshape(-1, block) / 16)
    weights[:, block : block + _MOMENTS] = np.rint(np.stack(parts, 1))
    return weights


def _diagonal(gamma: np.ndarray, block: int, room: int = 0) -> np.ndarray:
    """[groups, block + room, block]: gamma on the diagonal of each block, zeros behind it."""
    weights = np.zeros((len(gamma) // block, block + room, block), np.int8)
    every = np.arange(block)
    weights[:, every, every] = np.rint(gamma).reshape(-1, block)
    return weights


def _of_factors(
    layer: HostLayer, x: Tensor, out: Tensor, factors: Tensor, weights: np.ndarray, step: float
) -> tuple[TensorCoreLayer, Tensor]:
    """Blocks of channels of x times weights [groups, channels of x, block] in steps of `step`, rows times
    their factors; and the weights' tensor."""
    groups, pitch, block = weights.shape
    rows, of_group = factors.size, pitch * block
    weight = Tensor(
        f"{layer.name}.weight", weights.shape, "int8", _float32(step * (out.scale or 1.0)), weights
    )
    product = TensorCoreLayer(
        layer.name,
        "bmm",
        Dims(G=groups, K=block, C=pitch, P=rows),
        View(x.name, 0, (pitch, 0, groups * pitch, 0, 1)),
        View(weight.name, 0, (of_group, of_group, of_group, block, 1)),
        View(out.name, 0, (block, 0, groups * block, 0, 1)),
        (rows, 1),
        scale=_float32((x.scale or 1.0) * step),
        onnx_nodes=layer.onnx_nodes,
        row_scale=View(factors.name, 0, (0, 0, 1, 0, 0)),
    )
    return product, weight


def _squares(name: str, x: str, rows: Rows, target: Target) -> tuple[list[Layer], Tensor]:
    """Products of each row with those of its block, as Moments and InverseRoot want them: the last, where
    they fill no block, with the last block of all rows."""
    width, length = rows.length, min(rows.outer, target.side)
    blocks, rest = divmod(rows.outer, length)
    products = Tensor(f"{name}.squares", (rows.outer, length), "int32")

    def product(suffix: str, groups: int, count: int, first: int, others: int) -> Layer:
        of_group = length * width
        return TensorCoreLayer(
            f"{products.name}{suffix}",
            "bmm",
            Dims(G=groups, K=length, C=width, P=count),
            View(x, first * width, (of_group, 0, width, 0, 1)),
            View(x, others * width, (of_group, 0, 0, 1, width)),
            View(products.name, first * length, (length * length, 0, length, 0, 1)),
            (count, 1),
        )

    layers = [product("", blocks, length, 0, 0)]
    if rest:
        layers.append(product(".rest", 1, rest, rows.outer - rest, rows.outer - length))
    return layers, products


def _float32(value: float) -> float:
    return float(np.float32(value))
