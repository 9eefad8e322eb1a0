"""Normalisations and pools made of simpler ones: exact sums inside, few roundings.

ONNX Runtime's have the residual add before them in one, or the embeddings of BERT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fadiff.converter.decompose.integers import summed
from fadiff.converter.decompose.nodes import Decomposition, Function, Nodes, unshaped
from fadiff.converter.ir.operators import reduction_axes
from fadiff.converter.ir.program import Node, Program

_TINY = 1e-24  # keeps a zero vector zero
_EPSILON = 1e-12


def first_or_second_norm(program: Program, node: Node) -> str | None:
    """p is 1 or 2."""
    p = node.attributes.get("p", 2)
    return None if p in (1, 2) else f"p={p}"


def lp_normalization(nodes: Nodes, program: Program, node: Node) -> None:
    """x / ||x||: for p = 2 an RMS normalisation (sums are exact there) times 1 / sqrt(n)."""
    x, shape = node.inputs[0], program.shapes[node.inputs[0]]
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    if node.attributes.get("p", 2) == 1:
        total = nodes.reduce("ReduceSum", nodes.op("Abs", x), [axis])
        nodes.give(nodes.op("Div", x, total), node.outputs[0])
        return
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    x = nodes.transpose(x, order)
    mean = nodes.reduce("ReduceMean", nodes.op("Mul", x, x), [len(shape) - 1])
    root = nodes.op("Sqrt", nodes.op("Add", mean, nodes.number(_TINY)))
    unit = nodes.op("Div", x, root)
    gamma = np.full(shape[axis], 1 / math.sqrt(shape[axis]), np.float32)
    y = nodes.op("Mul", unit, nodes.constant(gamma))
    nodes.give(nodes.transpose(y, [order.index(i) for i in range(len(shape))]), node.outputs[0])


def floats_over_known_axes(program: Program, node: Node) -> str | None:
    """Inputs are floating point, the reduced axes constant."""
    if not program.is_float(node.inputs[0]):
        return f"{node.inputs[0]} is not floating point"
    return "axes are computed at run time" if reduction_axes(program, node) is None else None


def reduction(nodes: Nodes, program: Program, node: Node) -> None:
    """ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp: functions around a sum.

    (Before opset 18 ONNX has no definition of them.)
    """
    x, op = node.inputs[0], node.op
    axes = reduction_axes(program, node) or ()
    if op == "ReduceL1":
        x = nodes.op("Abs", x)
    elif op in ("ReduceL2", "ReduceSumSquare"):
        x = nodes.op("Mul", x, x)
    elif op == "ReduceLogSumExp":
        largest = nodes.reduce("ReduceMax", x, axes) if axes else x
        x = nodes.op("Exp", nodes.op("Sub", x, largest))
    y = nodes.reduce("ReduceSum", x, axes) if axes else x
    if op == "ReduceL2":
        y = nodes.op("Sqrt", y)
    elif op == "ReduceLogSum":
        y = nodes.op("Log", y)
    elif op == "ReduceLogSumExp":
        y = nodes.op("Add", nodes.op("Log", y), largest)
    nodes.give(nodes.reshape(y, program.shapes[node.outputs[0]]), node.outputs[0])


def constant_affine(program: Program, node: Node) -> str | None:
    """Scale and bias are constant."""
    bad = [v for v in node.inputs[1:] if v and v not in program.constants]
    return f"{bad[0]} is computed at run time" if bad else None


def group_normalization(nodes: Nodes, program: Program, node: Node) -> None:
    """Instance normalisation of the groups, then scale and bias per channel."""
    shape = program.shapes[node.inputs[0]]
    groups = int(node.attributes["num_groups"])
    ones, zeros = (nodes.constant(np.full(groups, v, np.float32)) for v in (1, 0))
    grouped = nodes.reshape(node.inputs[0], (shape[0], groups, -1))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    y = nodes.reshape(nodes.op("InstanceNormalization", grouped, ones, zeros, epsilon=epsilon), shape)
    for op, name in (("Mul", node.inputs[1]), ("Add", node.inputs[2])):
        vector = program.constants[name].reshape(-1)
        vector = np.repeat(vector, shape[1] // vector.size)  # before opset 21: one number per group
        if not np.all(vector == (1 if op == "Mul" else 0)):
            constant = nodes.constant(vector.reshape(1, -1, *(1,) * (len(shape) - 2)))
            y = nodes.op(op, y, constant)
    nodes.give(y, node.outputs[0])


def mean_variance(nodes: Nodes, program: Program, node: Node) -> None:
    """MeanVarianceNormalization: every channel is an instance of its own, with the axes in its row."""
    shape = program.shapes[node.inputs[0]]
    axes = sorted(axis % len(shape) for axis in node.attributes.get("axes", (0, 2, 3)))
    order = [i for i in range(len(shape)) if i not in axes] + axes
    moved = nodes.transpose(node.inputs[0], order)
    rows = math.prod(shape[i] for i in order[: -len(axes)])
    ones, zeros = (nodes.constant(np.full(rows, v, np.float32)) for v in (1, 0))
    row = nodes.reshape(moved, (1, rows, -1))
    y = nodes.op("InstanceNormalization", row, ones, zeros, epsilon=_TINY)
    y = nodes.reshape(y, [shape[i] for i in order])
    nodes.give(nodes.transpose(y, [order.index(i) for i in range(len(shape))]), node.outputs[0])


def two_axes(program: Program, node: Node) -> str | None:
    """The input is N C H W."""
    shape = program.shapes[node.inputs[0]]
    return None if len(shape) == 4 else f"input {node.inputs[0]} has shape {list(shape)}"


def local_response(nodes: Nodes, program: Program, node: Node) -> None:
    """LRN: squares averaged over neighbouring channels, a power of that, a product."""
    x, (n, c, h, w) = node.inputs[0], program.shapes[node.inputs[0]]
    size = int(node.attributes["size"])
    before = (size - 1) // 2
    squares = nodes.reshape(nodes.op("Mul", x, x), (n, 1, c, h * w))
    mean = nodes.op(
        "AveragePool",
        squares,
        kernel_shape=[size, 1],
        pads=[before, 0, size - 1 - before, 0],
        count_include_pad=1,
    )
    alpha, beta = (float(node.attributes.get(k, v)) for k, v in (("alpha", 1e-4), ("beta", 0.75)))
    base = nodes.op("Mul", nodes.reshape(mean, (n, c, h, w)), nodes.number(alpha))
    base = nodes.op("Add", base, nodes.number(float(node.attributes.get("bias", 1.0))))
    nodes.give(nodes.op("Mul", x, nodes.op("Pow", base, nodes.number(-beta))), node.outputs[0])


def undilated(program: Program, node: Node) -> str | None:
    """dilations are 1 and ceil_mode is 0."""
    dilated = any(d != 1 for d in node.attributes.get("dilations", ()))
    return "dilations or ceil_mode" if dilated or node.attributes.get("ceil_mode", 0) else None


def lp_pool(nodes: Nodes, program: Program, node: Node) -> None:
    """LpPool, GlobalLpPool: average of |x|^p, times the size of the window, to the power 1 / p."""
    shape = program.shapes[node.inputs[0]]
    p = int(node.attributes.get("p", 2))
    x = node.inputs[0]
    powers = nodes.op("Mul", x, x) if p == 2 else nodes.op("Pow", nodes.op("Abs", x), nodes.number(p))
    if node.op == "GlobalLpPool":
        mean, count = nodes.op("GlobalAveragePool", powers), math.prod(shape[2:])
    else:
        kept = node.some("kernel_shape", "strides", "pads", "auto_pad")
        mean = nodes.op("AveragePool", powers, count_include_pad=1, **kept)
        count = math.prod(node.attributes["kernel_shape"])
    total = nodes.op("Mul", mean, nodes.number(count))
    nodes.give(nodes.op("Pow", total, nodes.number(1 / p)), node.outputs[0])


def several_inputs(program: Program, node: Node) -> bool:
    """There are several operands."""
    return len(node.inputs) > 1


def more_than_two_inputs(program: Program, node: Node) -> bool:
    """There are more than two operands."""
    return len(node.inputs) > 2


def total(nodes: Nodes, program: Program, node: Node) -> None:
    """Sum of several values: one after the other, so that every partial sum has its own range."""
    nodes.give(_sum(nodes, node), node.outputs[0])


def mean(nodes: Nodes, program: Program, node: Node) -> None:
    """Mean of several values: their sum over their number."""
    share = nodes.number(1 / len(node.inputs))
    nodes.give(nodes.op("Mul", _sum(nodes, node), share), node.outputs[0])


def _sum(nodes: Nodes, node: Node) -> str:
    partial, *others = node.inputs
    for other in others:
        partial = nodes.op("Add", partial, other)
    return partial


def skip_layer_norm(nodes: Nodes, program: Program, node: Node) -> None:
    """LayerNormalization(input + skip + bias); the sum is the fourth output."""
    total = _skipped(nodes, node, bias=4)
    nodes.give(_layer_norm(nodes, node, total, node.input(2), node.input(3)), node.output(0))
    nodes.give(total, node.output(3))


def skip_simplified_layer_norm(nodes: Nodes, program: Program, node: Node) -> None:
    """The same without mean and beta."""
    total = _skipped(nodes, node, bias=3)
    nodes.give(
        rms_norm(nodes, total, node.input(2), node.attributes.get("epsilon", _EPSILON)), node.output(0)
    )
    nodes.give(total, node.output(3))


def simplified_layer_norm(nodes: Nodes, program: Program, node: Node) -> None:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis."""
    epsilon = node.attributes.get("epsilon", 1e-5)
    nodes.give(rms_norm(nodes, node.input(0), node.input(1), epsilon), node.output(0))


def rms_norm(nodes: Nodes, x: str, scale: str, epsilon: float) -> str:
    """Spelled out: planning makes one layer of it, in any opset."""
    mean = nodes.reduce("ReduceMean", nodes.op("Mul", x, x), [-1])
    root = nodes.op("Sqrt", nodes.op("Add", mean, nodes.number(epsilon)))
    return nodes.op("Mul", nodes.op("Div", x, root), scale)


def over_the_last_axis(program: Program, node: Node) -> str | None:
    """axis is the last one."""
    axis, shape = int(node.attributes.get("axis", -1)), program.shapes.get(node.input(0))
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    return None if last else f"axis {axis} is not the last one"


def embed_layer_norm(nodes: Nodes, program: Program, node: Node) -> None:
    """Sum of word, position and segment embeddings, normalised; the mask's ones are counted."""
    embed(nodes, program, node, [node.input(i) for i in range(2, 7)], node.input(8))


def known_words(program: Program, node: Node) -> str | None:
    """The shape of the words is static."""
    return unshaped(program, node, 0)


def embed(nodes: Nodes, program: Program, node: Node, tables: Sequence[str], places: str) -> None:
    """EmbedLayerNormalization of tables of words, positions and segments, gamma and beta."""
    words, positions, segments, gamma, beta = tables
    batch, length = program.shapes[node.input(0)]
    total = nodes.op("Gather", words, node.input(0))
    places = places or nodes.constant(np.arange(length, dtype=np.int64)[None])
    total = nodes.op("Add", total, nodes.op("Gather", positions, places))
    if node.input(1) and segments:
        total = nodes.op("Add", total, nodes.op("Gather", segments, node.input(1)))
    nodes.give(_layer_norm(nodes, node, total, gamma, beta), node.output(0))
    nodes.give(total, node.output(2))
    if node.output(1) and node.input(7):
        nodes.give(nodes.reshape(summed(nodes, node.input(7), 1, length), (batch,)), node.output(1))
    else:
        nodes.give(nodes.constant(np.zeros(batch, np.int32)), node.output(1))


def _skipped(nodes: Nodes, node: Node, bias: int) -> str:
    first = node.input(0)
    if node.input(bias):
        first = nodes.op("Add", first, node.input(bias))
    return nodes.op("Add", first, node.input(1))


def _layer_norm(nodes: Nodes, node: Node, x: str, gamma: str, beta: str) -> str:
    epsilon = node.attributes.get("epsilon", _EPSILON)
    affine = [gamma, beta] if beta else [gamma]
    return nodes.op("LayerNormalization", x, *affine, axis=-1, epsilon=epsilon)


DECOMPOSITIONS = (
    Decomposition("GlobalLpPool", lp_pool, (two_axes,)),
    Decomposition("GroupNormalization", group_normalization, (constant_affine,)),
    Decomposition("LRN", local_response, (two_axes,)),
    Decomposition("LpNormalization", lp_normalization, (first_or_second_norm,)),
    Decomposition("LpPool", lp_pool, (undilated,)),
    Decomposition("Mean", mean, applies=several_inputs),
    Decomposition("MeanVarianceNormalization", mean_variance),
    *(
        Decomposition(f"Reduce{name}", reduction, (floats_over_known_axes,))
        for name in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    Decomposition("Sum", total, applies=more_than_two_inputs),
)
FUNCTIONS = (
    Function(
        "EmbedLayerNormalization",
        embed_layer_norm,
        9,
        ("epsilon",),
        (known_words,),
        {"mask_index_type": (0, 1)},
        outputs=(0, 1, 2),
    ),
    Function(
        "SimplifiedLayerNormalization",
        simplified_layer_norm,
        2,
        ("axis", "epsilon"),
        (over_the_last_axis,),
        {"stash_type": (1,)},
        domain="",
    ),
    Function("SkipLayerNormalization", skip_layer_norm, 5, ("epsilon",), outputs=(0, 3)),
    Function(
        "SkipSimplifiedLayerNormalization",
        skip_simplified_layer_norm,
        4,
        ("epsilon",),
        outputs=(0, 3),
    ),
)
