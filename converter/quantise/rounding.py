"""round-weights: which way each weight is rounded, so that the errors of one sum cancel.

Rounded to the nearest integer every weight is as close as it can be, but a sum of many is not: what one
weight loses, the others of its output channel can take back as far as their inputs go together.  One input
at a time is rounded and its error spread over those still to come, by least squares on the inputs that
calibration saw (Hassibi and Stork, "Second order derivatives for network pruning: Optimal Brain Surgeon",
1993; Frantar et al., "GPTQ", 2023, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from converter.ir.program import Node
from converter.ir.window import window_of
from converter.quantise.scales import INT8_MAX
from converter.quantise.weights import to_int8

_MOST_ROWS = 2**13
"""Input vectors that are looked at, of all samples."""
_MOST_INPUTS = 2**10
"""Weights of one output channel that share their errors; longer sums are cut."""
_DAMPING = 0.01
_BLOCK = 128


def can_round(node: Node, weight: np.ndarray) -> bool:
    """Whether a product is one of those whose inputs `rounded` can line up with their weights."""
    if node.op == "Conv":
        return weight.ndim in (3, 4)
    return node.op in ("Gemm", "MatMul") and weight.ndim == 2 and not node.attributes.get("transA", 0)


def rounded(
    node: Node, weight: np.ndarray, scale: float, inputs: Sequence[np.ndarray], *, centred: bool
) -> np.ndarray:
    """The weights of a product as int8 of one scale.

    Args:
        node: the product, one that `can_round`.
        weight: in float, as the node reads it.
        scale: what one step stands for.
        inputs: what the product multiplies, sample by sample, as the array has it.
        centred: leave errors of the mean to the bias.
    """
    matrix, restore = _by_output(node, weight)
    out = np.empty(matrix.shape, np.int8)
    for group, vectors in enumerate(_vectors(node, weight, inputs)):
        rows = vectors - vectors.mean(0) if centred else vectors
        for start in range(0, matrix.shape[2], _MOST_INPUTS):
            some = slice(start, start + _MOST_INPUTS)
            gram = rows[:, some].T @ rows[:, some]
            out[group][:, some] = with_feedback(matrix[group][:, some] / scale, gram.astype(np.float64))
    return restore(out)


def with_feedback(weights: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Integers [outputs, inputs] near `weights` with small (integers - weights) gram (integers - weights)^T.

    Args:
        weights: [outputs, inputs], in steps.
        gram: [inputs, inputs], sums over input vectors of their products.
    """
    order = np.argsort(-np.diag(gram), kind="stable")
    gram = gram[np.ix_(order, order)]
    mean = float(np.mean(np.diag(gram)))
    if mean <= 0:
        return to_int8(weights, 1.0)
    gram[np.diag_indices_from(gram)] += _DAMPING * mean
    spread = np.linalg.cholesky(np.linalg.inv(gram)).T
    left = weights[:, order].astype(np.float64)
    out = np.empty_like(left)
    for start in range(0, len(order), _BLOCK):
        end = min(start + _BLOCK, len(order))
        errors = np.empty((len(left), end - start))
        for i in range(start, end):
            out[:, i] = np.clip(np.rint(left[:, i]), -INT8_MAX, INT8_MAX)
            errors[:, i - start] = (left[:, i] - out[:, i]) / spread[i, i]
            left[:, i + 1 : end] -= errors[:, i - start, None] * spread[i, i + 1 : end]
        left[:, end:] -= errors @ spread[start:end, end:]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return out[:, back].astype(np.int8)


def _by_output(node: Node, weight: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Weights [groups, outputs, inputs], and the way back."""
    if node.op == "Conv":
        groups = int(node.attributes.get("group", 1))
        shape = weight.shape
        return weight.reshape(groups, shape[0] // groups, -1), lambda found: np.reshape(found, shape)
    if node.attributes.get("transB", 0):
        return weight[None], lambda found: np.asarray(found[0])
    return weight.T[None], lambda found: np.asarray(found[0].T, order="C")


def _vectors(node: Node, weight: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """What weights of one output are multiplied with: [groups, vectors, inputs], some of all."""
    generator = np.random.default_rng(0)
    most = max(1, max(_MOST_ROWS, 2 * weight[0].size) // len(inputs))
    found = []
    for array in inputs:
        if node.op != "Conv":
            rows = array.reshape(-1, array.shape[-1])
            found.append(rows[generator.permutation(len(rows))[:most]][None])
            continue
        found.append(_patches(node, weight.shape[2:], array, most, generator))
    return np.concatenate(found, axis=1)


def _patches(
    node: Node, kernel: tuple[int, ...], array: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Some of the windows of a convolution: [groups, windows, inputs]."""
    image = array if array.ndim == 4 else array[:, :, None, :]
    n, channels, height, width = image.shape
    window = window_of(node, (height, width), kernel)
    top, left, bottom, right = window.pads
    image = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (p, q), (r, s) = window.output, window.kernel
    places = generator.permutation(n * p * q)[:most]
    sample, y, x = places // (p * q), places // q % p, places % q
    ys = (y * window.stride[0])[:, None] + np.arange(r) * window.dilation[0]
    xs = (x * window.stride[1])[:, None] + np.arange(s) * window.dilation[1]
    found = image[sample[:, None, None], :, ys[:, :, None], xs[:, None, :]]  # [places, r, s, channels]
    groups = int(node.attributes.get("group", 1))
    found = found.reshape(len(places), r * s, groups, channels // groups)
    return found.transpose(2, 0, 3, 1).reshape(groups, len(places), -1)
