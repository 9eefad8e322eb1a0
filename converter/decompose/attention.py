"""Attention and MultiHeadAttention of ONNX Runtime (grouped.py has its GroupQueryAttention)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fadiff.converter.decompose.nodes import Function, Nodes, unshaped
from fadiff.converter.ir.program import Node, Program

LOWEST = float(np.finfo(np.float32).min)
"""The number added to scores that must not count."""
_PADDING = -10000.0
"""The number added to scores of padding, by default."""

SETTINGS = ("mask_filter_value", "num_heads", "scale", "unidirectional")
"""Attributes of all attentions."""
ALONE: Mapping[str, tuple[object, ...]] = {"do_rotary": (0,), "past_present_share_buffer": (0,)}
"""Those that say nothing where they are 0."""


def attention(nodes: Nodes, program: Program, node: Node) -> None:
    """Attention: projections of the input to queries, keys and values, then attention of each head."""
    batch, length, _ = program.shapes[node.input(0)]
    heads = int(node.attributes["num_heads"])
    parts = _parts(program, node)
    ends = np.cumsum([0, *parts]).tolist()
    queries, keys, values = (
        split_heads(nodes, _projected(nodes, program, node, a, b), (batch, length, heads, (b - a) // heads))
        for a, b in pairwise(ends)
    )
    attend_with_past(nodes, program, node, queries, keys, values, parts, length, mask=3, past=4, bias=5)


def attend_with_past(
    nodes: Nodes,
    program: Program,
    node: Node,
    queries: str,
    keys: str,
    values: str,
    parts: Sequence[int],
    length: int,
    *,
    mask: int,
    past: int,
    bias: int,
) -> None:
    """The rest of Attention and QAttention, whose inputs stand at other places (none: a negative one).

    Queries, keys and values are [batch, heads, length, width]; past and present hold keys and values
    behind each other, [2, batch, heads, length, width].
    """
    batch, heads = program.shapes[node.input(0)][0], int(node.attributes["num_heads"])
    before = program.shapes[node.input(past)][3] if node.input(past) else 0
    if node.input(past):
        keys = nodes.op("Concat", nodes.pick(node.input(past), 0, 0), keys, axis=2)
        values = nodes.op("Concat", nodes.pick(node.input(past), 0, 1), values, axis=2)
    if node.output(1):
        shape = (1, batch, heads, before + length, parts[1] // heads)
        both = [nodes.reshape(value, shape) for value in (keys, values)]
        nodes.give(nodes.op("Concat", *both, axis=0), node.output(1))
    added = _added(nodes, program, node, mask, bias, length, before + length)
    scale = node.attributes.get("scale", 0.0) or 1 / math.sqrt(parts[0] // heads)
    y = attend(nodes, queries, keys, values, scale, added)
    nodes.give(join_heads(nodes, y, (batch, length, parts[2])), node.output(0))


def known_attention(program: Program, node: Node) -> str | None:
    """Shapes of input, weights, mask and past are static; the mask has two axes or three, or is the lengths
    (and beginnings) of the sequences."""
    return unshaped(program, node, 0, 1, 3, 4) or mask_shape(program, node, 3)


def mask_shape(program: Program, node: Node, mask: int) -> str | None:
    """Why a mask is not understood."""
    if not node.input(mask):
        return None
    shape, batch = program.shapes[node.input(mask)], program.shapes[node.input(0)][0]
    fits = len(shape) in (2, 3) or shape in ((batch,), (2 * batch,))
    return None if fits else f"a mask of shape {list(shape)}"


def multi_head_attention(nodes: Nodes, program: Program, node: Node) -> None:
    """MultiHeadAttention: of queries, keys and values that are there, packed together or apart."""
    heads = int(node.attributes["num_heads"])
    batch, length = program.shapes[node.input(0)][:2]
    queries, keys, values = _given(nodes, program, node, heads)
    before = program.shapes[node.input(6)][2] if node.input(6) else 0
    if node.input(6):
        keys = nodes.op("Concat", node.input(6), keys, axis=2)
        values = nodes.op("Concat", node.input(7), values, axis=2)
    nodes.give(keys, node.output(1))
    nodes.give(values, node.output(2))
    total, width, value_width = before + _key_length(program, node), *_widths(program, node, heads)
    added = _added(nodes, program, node, 4, 5, length, total)
    scale = node.attributes.get("scale", 0.0) or 1 / math.sqrt(width)
    y = attend(nodes, queries, keys, values, scale, added)
    nodes.give(join_heads(nodes, y, (batch, length, heads * value_width)), node.output(0))


def known_heads(program: Program, node: Node) -> str | None:
    """Shapes of queries, keys, values, mask and past are static."""
    return unshaped(program, node, 0, 1, 2, 4, 6) or mask_shape(program, node, 4)


def attend(nodes: Nodes, queries: str, keys: str, values: str, scale: float, added: Sequence[str]) -> str:
    """softmax(queries keys^T * scale + added) values, for [batch, heads, length, width]."""
    scores = nodes.op("MatMul", queries, nodes.transpose(keys, (0, 1, 3, 2)))
    scores = nodes.op("Mul", scores, nodes.number(scale))
    for term in added:
        scores = nodes.op("Add", scores, term)
    return nodes.op("MatMul", nodes.op("Softmax", scores, axis=-1), values)


def split_heads(nodes: Nodes, x: str, shape: Sequence[int]) -> str:
    """[batch, length, heads * width] as [batch, heads, length, width], by the sizes in `shape`."""
    return nodes.transpose(nodes.reshape(x, shape), (0, 2, 1, 3))


def join_heads(nodes: Nodes, x: str, shape: Sequence[int]) -> str:
    """[batch, heads, length, width] as [batch, length, heads * width], which is `shape`."""
    return nodes.reshape(nodes.transpose(x, (0, 2, 1, 3)), shape)


def _added(
    nodes: Nodes, program: Program, node: Node, mask: int, bias: int, length: int, total: int
) -> list[str]:
    """The terms added to scores of `length` queries and `total` keys: the bias (none: a negative place), and
    one value that blanks padding and later positions."""
    added = [node.input(bias)] if bias >= 0 and node.input(bias) else []
    padding = padding_mask(
        nodes, program, node, mask, total, float(node.attributes.get("mask_filter_value", _PADDING))
    )
    if not node.attributes.get("unidirectional", 0) or length == 1:
        return [*added, padding] if padding else added
    later = np.triu(np.full((length, total), LOWEST, np.float32), total - length + 1)
    future = nodes.constant(later[None, None], "causal")
    return [*added, nodes.op("Add", future, padding) if padding else future]


def padding_mask(nodes: Nodes, program: Program, node: Node, mask: int, total: int, fill: float) -> str:
    """0 and `fill` [batch, 1, 1 or length, total], of a mask of 1 and 0 or of lengths; empty without one."""
    if not node.input(mask):
        return ""
    shape = program.shapes[node.input(mask)]
    batch = program.shapes[node.input(0)][0]
    if len(shape) == 1:
        seen = _before_end(nodes, node.input(mask), batch, shape[0], total)
    else:
        ones = nodes.op("Greater", node.input(mask), nodes.constant(np.int32(0)))
        seen = nodes.reshape(ones, (shape[0], 1, *((1,) if len(shape) == 2 else ()), *shape[1:]))
    return nodes.op("Where", seen, nodes.number(0), nodes.number(fill))


def _before_end(nodes: Nodes, ends: str, batch: int, size: int, total: int) -> str:
    """Whether positions are before the end of their sequence, and not before a given beginning."""
    places = nodes.constant(np.arange(total, dtype=np.int32)[None])
    last = nodes.reshape(ends if size == batch else nodes.slice(ends, 0, 0, batch), (batch, 1))
    seen = nodes.op("Less", places, last)
    if size != batch:
        first = nodes.reshape(nodes.slice(ends, 0, batch, size), (batch, 1))
        seen = nodes.op("And", seen, nodes.op("Not", nodes.op("Less", places, first)))
    return nodes.reshape(seen, (batch, 1, 1, total))


def _parts(program: Program, node: Node) -> tuple[int, ...]:
    """Columns of the weights that are of queries, keys and values."""
    sizes = node.attributes.get("qkv_hidden_sizes")
    return tuple(sizes) if sizes else (program.shapes[node.input(1)][1] // 3,) * 3


def _projected(nodes: Nodes, program: Program, node: Node, start: int, end: int) -> str:
    """A product of its own for some columns, so that it has a scale of its own."""
    y = nodes.op("MatMul", node.input(0), nodes.slice(node.input(1), 1, start, end))
    return nodes.op("Add", y, nodes.slice(node.input(2), 0, start, end)) if node.input(2) else y


def _given(nodes: Nodes, program: Program, node: Node, heads: int) -> list[str]:
    """Queries, keys and values [batch, heads, length, width] of MultiHeadAttention, with their biases."""
    width, value_width = _widths(program, node, heads)
    widths = (width, width, value_width)
    packed = program.shapes[node.input(1 if node.input(1) else 0)]
    ends = np.cumsum([0, *(heads * w for w in widths)]).tolist()
    found = []
    for i, columns in enumerate(widths):
        source = i if node.input(i) else (1 if node.input(1) else 0)
        x, shape = node.input(source), program.shapes[node.input(source)]
        if len(shape) == 5:  # batch, length, heads, parts, width
            x = nodes.pick(x, 3, i - source if source else i)
            x = nodes.reshape(x, (packed[0], packed[1], heads * columns))
        elif len(shape) == 4:
            found.append(x)
            continue
        if node.input(3):
            x = nodes.op("Add", x, nodes.slice(node.input(3), 0, ends[i], ends[i + 1]))
        found.append(split_heads(nodes, x, (shape[0], shape[1], heads, columns)))
    return found


def _widths(program: Program, node: Node, heads: int) -> tuple[int, int]:
    """Numbers of a head of queries and keys, and of values."""
    shape = program.shapes[node.input(0)]
    width = shape[4] if len(shape) == 5 else shape[2] // heads
    if not node.input(2):
        return width, width
    values = program.shapes[node.input(2)]
    return width, values[3] if len(values) == 4 else values[2] // heads


def _key_length(program: Program, node: Node) -> int:
    shape = program.shapes[node.input(1 if node.input(1) else 0)]
    return shape[2] if len(shape) == 4 else shape[1]


FUNCTIONS = (
    Function(
        "Attention",
        attention,
        6,
        (*SETTINGS, "qkv_hidden_sizes"),
        (known_attention,),
        {**ALONE, "rotary_embedding_dim": (0,)},
        outputs=(0, 1),
    ),
    Function(
        "MultiHeadAttention",
        multi_head_attention,
        8,
        SETTINGS,
        (known_heads,),
        outputs=(0, 1, 2),
    ),
)
