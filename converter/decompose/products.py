"""Operators as products that the array takes: Einsum, running sums, most of Resize; computed biases apart,
weights on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.runtime import run_operator


def has_no_plain_operands(program: Program, node: Node) -> bool:
    """With computed weights, a computed bias, a bias that is no vector, or alpha that is not positive."""
    bias = program.constant(node.input(2))
    rows = program.shapes[node.outputs[0]][0]
    matrix = bias is not None and bias.ndim == 2 and bias.shape[0] == rows > 1
    column = bias is not None and bias.ndim == 2 and bias.shape[1] == 1 < program.shapes[node.outputs[0]][1]
    computed_bias = bool(node.input(2)) and bias is None
    turned = float(node.attributes.get("alpha", 1.0)) <= 0
    return node.inputs[1] not in program.constants or computed_bias or matrix or column or turned


def gemm(nodes: Nodes, program: Program, node: Node) -> None:
    """alpha A B + beta C, one operator after the other; alpha becomes part of constant weights."""
    a, b, c = node.inputs[0], node.inputs[1], node.input(2)
    alpha = float(node.attributes.get("alpha", 1.0))
    a = nodes.transpose(a, (1, 0)) if node.attributes.get("transA", 0) else a
    weight = program.constant(b)
    if weight is not None:
        b, alpha = nodes.constant(weight * weight.dtype.type(alpha)), 1.0
    b = nodes.transpose(b, (1, 0)) if node.attributes.get("transB", 0) else b
    y = _times(nodes, nodes.op("MatMul", a, b), alpha)
    if c:
        y = nodes.op("Add", y, _times(nodes, c, float(node.attributes.get("beta", 1.0))))
    nodes.give(y, node.outputs[0])


def _times(nodes: Nodes, value: str, factor: float) -> str:
    return value if factor == 1.0 else nodes.op("Mul", value, nodes.number(factor))


def is_matrix_times_vector(program: Program, node: Node) -> bool:
    """A constant matrix times a computed vector of one axis."""
    matrix, shape = program.constant(node.inputs[0]), program.shapes[node.inputs[1]]
    return (
        matrix is not None
        and matrix.ndim == 2
        and len(shape) == 1
        and node.inputs[1] not in program.constants
    )


def vector_times_matrix(nodes: Nodes, program: Program, node: Node) -> None:
    """The vector times the transposed matrix: weights stand on the right, where bias and ReLU join them."""
    matrix = nodes.constant(program.constants[node.inputs[0]].T.copy(), "weight")
    nodes.give(nodes.op("MatMul", node.inputs[1], matrix), node.outputs[0])


def has_computed_bias(program: Program, node: Node) -> bool:
    """With a computed bias."""
    return bool(node.input(2)) and node.input(2) not in program.constants


def convolution(nodes: Nodes, program: Program, node: Node) -> None:
    """The convolution without its bias, and an Add."""
    y = nodes.op(node.op, *node.inputs[:2], **node.attributes)
    rank = len(program.shapes[node.outputs[0]])
    bias = nodes.reshape(node.inputs[2], (1, -1, *(1,) * (rank - 2)))
    nodes.give(nodes.op("Add", y, bias), node.outputs[0])


def constant_axis(program: Program, node: Node) -> str | None:
    """The axis is constant, the values are floating point."""
    if not program.is_float(node.inputs[0]):
        return f"{node.inputs[0]} is not floating point"
    return None if node.input(1) in program.constants else "the axis is computed at run time"


def running_sum(nodes: Nodes, program: Program, node: Node) -> None:
    """CumSum: a product with a triangle of ones."""
    shape = program.shapes[node.inputs[0]]
    axis = int(program.constants[node.inputs[1]].reshape(-1)[0]) % len(shape)
    size = shape[axis]
    diagonal = 1 if node.attributes.get("exclusive", 0) else 0
    triangle = np.triu(np.ones((size, size), np.float32), diagonal)
    if node.attributes.get("reverse", 0):
        triangle = triangle.T.copy()
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    moved = nodes.transpose(node.inputs[0], order)
    if len(shape) == 1:
        moved = nodes.reshape(moved, (1, size))
    product = nodes.op("MatMul", moved, nodes.constant(triangle))
    if len(shape) == 1:
        product = nodes.reshape(product, (size,))
    nodes.give(nodes.transpose(product, [order.index(i) for i in range(len(shape))]), node.outputs[0])


# Einsum ----------------------------------------------------------------------------------------


def _terms(program: Program, node: Node) -> tuple[list[str], str]:
    """Subscripts of the operands and the result; an ellipsis becomes capital letters."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    ranks = [len(program.shapes[v]) for v in node.inputs]
    spare = [chr(c) for c in range(ord("A"), ord("Z") + 1) if chr(c) not in equation]
    longest = max((rank - len(t) + 3 for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0)
    rest = spare[:longest]
    terms = [
        t.replace("...", "".join(rest[longest - (rank - len(t) + 3) :]) if "..." in t else "")
        for t, rank in zip(terms, ranks, strict=True)
    ]
    if not arrow:
        letters = "".join(terms).translate({ord(c): None for c in rest})
        right = "..." * bool(rest) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return terms, right.replace("...", "".join(rest))


def one_or_two_operands(program: Program, node: Node) -> str | None:
    """One or two operands of floating point; no subscript twice in one of them, none broadcast."""
    if len(node.inputs) > 2:
        return f"{len(node.inputs)} operands"
    equation = str(node.attributes["equation"])
    if len(equation.partition("->")[0].split(",")) != len(node.inputs):
        return f"equation {equation!r} has not {len(node.inputs)} operands"
    terms, _ = _terms(program, node)
    if any(len(set(term)) < len(term) for term in terms):
        return f"equation {node.attributes['equation']} takes a diagonal"
    sizes: dict[str, int] = {}
    for value, term in zip(node.inputs, terms, strict=True):
        for letter, size in zip(term, program.shapes[value], strict=True):
            if sizes.setdefault(letter, size) != size:
                return f"equation {node.attributes['equation']} broadcasts {letter}"
    return None


def einsum(nodes: Nodes, program: Program, node: Node) -> None:
    """Einsum of one or two operands: transposes, sums and one batched matrix product."""
    terms, result = _terms(program, node)
    sizes = {
        letter: size
        for value, term in zip(node.inputs, terms, strict=True)
        for letter, size in zip(term, program.shapes[value], strict=True)
    }
    values = list(node.inputs)
    for i, term in enumerate(terms):
        others = "".join(terms[:i] + terms[i + 1 :]) + result
        alone = [axis for axis, letter in enumerate(term) if letter not in others]
        if alone:
            terms[i] = "".join(letter for letter in term if letter in others)
            summed = nodes.reduce("ReduceSum", values[i], alone)
            values[i] = nodes.reshape(summed, [sizes[letter] for letter in terms[i]])
    if len(values) == 1:
        order = [terms[0].index(letter) for letter in result]
        nodes.give(nodes.transpose(values[0], order), node.outputs[0])
        return
    a, b = terms
    batch = [c for c in a if c in b and c in result]
    summed_over = [c for c in a if c in b and c not in result]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    left = _matrix(nodes, values[0], a, (batch, rows, summed_over), sizes)
    right = _matrix(nodes, values[1], b, (batch, summed_over, columns), sizes)
    product = nodes.op("MatMul", left, right)
    letters = [*batch, *rows, *columns]
    product = nodes.reshape(product, [sizes[c] for c in letters])
    nodes.give(nodes.transpose(product, [letters.index(c) for c in result]), node.outputs[0])


def _matrix(
    nodes: Nodes, value: str, term: str, groups: Sequence[Sequence[str]], sizes: dict[str, int]
) -> str:
    """A value as [batch axes..., first group, second group]."""
    moved = nodes.transpose(value, [term.index(c) for group in groups for c in group])
    batch, first, second = groups
    shape = [*(sizes[c] for c in batch), *(math.prod(sizes[c] for c in g) for g in (first, second))]
    return nodes.reshape(moved, shape)


# spectra ---------------------------------------------------------------------------------------


def real_frames(program: Program, node: Node) -> str | None:
    """The signal is real and floating point; step, window and length of frames are constant."""
    bad = [v for v in node.inputs[1:] if v and v not in program.constants]
    if bad:
        return f"{bad[0]} is computed at run time"
    shape = program.shapes[node.inputs[0]]
    if not program.is_float(node.inputs[0]) or len(shape) not in (2, 3) or shape[2:] not in ((), (1,)):
        return f"{node.inputs[0]} is not real: shape {list(shape)}"
    return None


def short_time_fourier(nodes: Nodes, program: Program, node: Node) -> None:
    """STFT: a convolution of the signal with cosines and sines under the window, frame by frame."""
    (batch, samples), window = program.shapes[node.inputs[0]][:2], program.constant(node.input(2))
    step = int(program.constants[node.inputs[1]].reshape(-1)[0])
    length = program.constant(node.input(3))
    size = window.size if window is not None else samples if length is None else int(length.reshape(-1)[0])
    bins = size // 2 + 1 if node.attributes.get("onesided", 1) else size
    angles = 2 * np.pi * np.outer(np.arange(bins), np.arange(size)) / size
    waves = np.stack([np.cos(angles), -np.sin(angles)], axis=1) * (1.0 if window is None else window)
    taps = nodes.constant(waves.reshape(2 * bins, 1, size).astype(np.float32), "waves")
    signal = nodes.reshape(node.inputs[0], (batch, 1, samples))
    found = nodes.op("Conv", signal, taps, strides=[step])
    frames = (samples - size) // step + 1
    parts = nodes.reshape(found, (batch, bins, 2, frames))
    nodes.give(nodes.transpose(parts, (0, 3, 1, 2)), node.outputs[0])


# Resize ----------------------------------------------------------------------------------------


def written_otherwise(program: Program, node: Node) -> bool:
    """With axes; or cubic, with antialias, or linear over other axes than the two last of four: products."""
    return "axes" in node.attributes or _by_matrices(program, node)


def constant_size(program: Program, node: Node) -> str | None:
    """Sizes or scales are constant, the values floating point; keep_aspect_ratio_policy is stretch, there
    is no cropping."""
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return f"keep_aspect_ratio_policy {policy}"
    if node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return "coordinate_transformation_mode tf_crop_and_resize"
    computed = [v for v in node.inputs[1:] if v and v not in program.constants]
    if computed:
        return f"{computed[0]} is computed at run time"
    return None if program.is_float(node.inputs[0]) else f"{node.inputs[0]} is not floating point"


def resize(nodes: Nodes, program: Program, node: Node) -> None:
    """Resize over all axes, or one matrix product per axis whose size changes."""
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    scales = scales_of(program, node)
    if not _by_matrices(program, node):
        rest = {k: v for k, v in node.attributes.items() if k != "axes"}
        size = ("", nodes.ints(out)) if scales is None else (nodes.constant(scales),)
        nodes.give(nodes.op("Resize", node.inputs[0], "", *size, **rest), node.outputs[0])
        return
    y = node.inputs[0]
    for axis, (before, after) in enumerate(zip(shape, out, strict=True)):
        scale = None if scales is None else float(scales[axis])
        if before == after and scale in (None, 1.0):
            continue
        order = [i for i in range(len(shape)) if i != axis] + [axis]
        back = [order.index(i) for i in range(len(shape))]
        matrix = nodes.constant(resized(node, np.eye(before), after, scale), "taps")
        y = nodes.transpose(nodes.op("MatMul", nodes.transpose(y, order), matrix), back)
    nodes.give(y, node.outputs[0])


def _by_matrices(program: Program, node: Node) -> bool:
    """Whether neither an index nor two taps per axis of an image compute it."""
    mode = node.attributes.get("mode", "nearest")
    if mode == "nearest" or node.outputs[0] not in program.shapes:
        return False
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    special = any(node.attributes.get(name, 0) for name in ("antialias", "exclude_outside"))
    return mode == "cubic" or special or len(shape) != 4 or shape[:2] != out[:2]


def scales_of(program: Program, node: Node) -> np.ndarray | None:
    """Scales of all axes of a Resize or Upsample; None where sizes are given."""
    given = program.constant(node.input(1 if node.op == "Upsample" or node.version < 11 else 2))
    if given is None or not given.size:
        return None
    rank = len(program.shapes[node.inputs[0]])
    scales = np.ones(rank, np.float32)
    scales[[axis % rank for axis in node.attributes.get("axes", range(rank))]] = given
    return scales


def resized(node: Node, rows: np.ndarray, size: int, scale: float | None) -> np.ndarray:
    """What ONNX Runtime makes of rows [n, size before] along one axis of a Resize or Upsample: [n, size]."""
    attributes = {k: v for k, v in node.attributes.items() if k not in ("axes", "scales")}
    if node.op == "Upsample" or node.version < 11:
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if scale is None:
        size_or_scale = [None, np.array([1, 1, len(rows), size], np.int64)]
    else:
        size_or_scale = [np.array([1, 1, 1, scale], np.float32)]
    operands = [rows.astype(np.float32)[None, None], None, *size_or_scale]
    return np.asarray(run_operator("Resize", max(node.version, 13), operands, attributes)[0, 0])


DECOMPOSITIONS = (
    Decomposition("Conv", convolution, applies=has_computed_bias),
    Decomposition("ConvTranspose", convolution, applies=has_computed_bias),
    Decomposition("CumSum", running_sum, (constant_axis,)),
    Decomposition("Einsum", einsum, (one_or_two_operands,)),
    Decomposition("Gemm", gemm, applies=has_no_plain_operands),
    Decomposition("MatMul", vector_times_matrix, applies=is_matrix_times_vector),
    Decomposition("Resize", resize, (constant_size,), applies=written_otherwise),
    Decomposition("STFT", short_time_fourier, (real_frames,)),
)
