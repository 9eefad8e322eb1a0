"""Attention and MultiHeadAttention of ONNX Runtime (grouped.py has its GroupQueryAttention)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fadiff.converter.contrib.call import Call, Function
from fadiff.converter.decompose.nodes import Nodes

LOWEST = float(np.finfo(np.float32).min)
"""The number added to scores that must not count."""
_PADDING = -10000.0
"""The number added to scores of padding, by default."""

SETTINGS = ("mask_filter_value", "num_heads", "scale", "unidirectional")
"""Attributes of all attentions."""
ALONE: Mapping[str, tuple[object, ...]] = {"do_rotary": (0,), "past_present_share_buffer": (0,)}
"""Those that say nothing where they are 0."""


def attention(nodes: Nodes, call: Call) -> None:
    """Attention: projections of the input to queries, keys and values, then attention of each head."""
    batch, length, _ = call.sizes(0)
    heads = int(call.attribute("num_heads"))
    parts = _parts(call)
    ends = np.cumsum([0, *parts]).tolist()
    queries, keys, values = (
        split_heads(nodes, _projected(nodes, call, a, b), (batch, length, heads, (b - a) // heads))
        for a, b in pairwise(ends)
    )
    attend_with_past(nodes, call, queries, keys, values, parts, length, mask=3, past=4, bias=5)


def attend_with_past(
    nodes: Nodes,
    call: Call,
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
    batch, heads = call.sizes(0)[0], int(call.attribute("num_heads"))
    before = call.sizes(past)[3] if call.input(past) else 0
    if call.input(past):
        keys = nodes.op("Concat", nodes.pick(call.input(past), 0, 0), keys, axis=2)
        values = nodes.op("Concat", nodes.pick(call.input(past), 0, 1), values, axis=2)
    if call.output(1):
        shape = (1, batch, heads, before + length, parts[1] // heads)
        both = [nodes.reshape(value, shape) for value in (keys, values)]
        nodes.give(nodes.op("Concat", *both, axis=0), call.output(1))
    added = _added(nodes, call, mask, bias, length, before + length)
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(parts[0] // heads)
    y = attend(nodes, queries, keys, values, scale, added)
    nodes.give(join_heads(nodes, y, (batch, length, parts[2])), call.output(0))


def known_attention(call: Call) -> str | None:
    """Shapes of input, weights, mask and past are static; the mask has two axes or three, or is the lengths
    (and beginnings) of the sequences."""
    return call.unshaped(0, 1, 3, 4) or mask_shape(call, 3)


def mask_shape(call: Call, mask: int) -> str | None:
    """Why a mask is not understood."""
    if not call.input(mask):
        return None
    shape, batch = call.sizes(mask), call.sizes(0)[0]
    fits = len(shape) in (2, 3) or shape in ((batch,), (2 * batch,))
    return None if fits else f"a mask of shape {list(shape)}"


def multi_head_attention(nodes: Nodes, call: Call) -> None:
    """MultiHeadAttention: of queries, keys and values that are there, packed together or apart."""
    heads = int(call.attribute("num_heads"))
    batch, length = call.sizes(0)[:2]
    queries, keys, values = _given(nodes, call, heads)
    before = call.sizes(6)[2] if call.input(6) else 0
    if call.input(6):
        keys = nodes.op("Concat", call.input(6), keys, axis=2)
        values = nodes.op("Concat", call.input(7), values, axis=2)
    nodes.give(keys, call.output(1))
    nodes.give(values, call.output(2))
    total, width, value_width = before + _key_length(call), *_widths(call, heads)
    added = _added(nodes, call, 4, 5, length, total)
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(width)
    y = attend(nodes, queries, keys, values, scale, added)
    nodes.give(join_heads(nodes, y, (batch, length, heads * value_width)), call.output(0))


def known_heads(call: Call) -> str | None:
    """Shapes of queries, keys, values, mask and past are static."""
    return call.unshaped(0, 1, 2, 4, 6) or mask_shape(call, 4)


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


def _added(nodes: Nodes, call: Call, mask: int, bias: int, length: int, total: int) -> list[str]:
    """The terms added to scores of `length` queries and `total` keys: the bias (none: a negative place), and
    one value that blanks padding and later positions."""
    added = [call.input(bias)] if bias >= 0 and call.input(bias) else []
    padding = padding_mask(nodes, call, mask, total, float(call.attribute("mask_filter_value", _PADDING)))
    if not call.attribute("unidirectional", 0) or length == 1:
        return [*added, padding] if padding else added
    later = np.triu(np.full((length, total), LOWEST, np.float32), total - length + 1)
    future = nodes.constant(later[None, None], "causal")
    return [*added, nodes.op("Add", future, padding) if padding else future]


def padding_mask(nodes: Nodes, call: Call, mask: int, total: int, fill: float) -> str:
    """0 and `fill` [batch, 1, 1 or length, total], of a mask of 1 and 0 or of lengths; empty without one."""
    if not call.input(mask):
        return ""
    shape = call.sizes(mask)
    batch = call.sizes(0)[0]
    if len(shape) == 1:
        seen = _before_end(nodes, call.input(mask), batch, shape[0], total)
    else:
        ones = nodes.op("Greater", call.input(mask), nodes.constant(np.int32(0)))
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


def _parts(call: Call) -> tuple[int, ...]:
    """Columns of the weights that are of queries, keys and values."""
    sizes = call.attribute("qkv_hidden_sizes")
    return tuple(sizes) if sizes else (call.sizes(1)[1] // 3,) * 3


def _projected(nodes: Nodes, call: Call, start: int, end: int) -> str:
    """A product of its own for some columns, so that it has a scale of its own."""
    y = nodes.op("MatMul", call.input(0), nodes.slice(call.input(1), 1, start, end))
    return nodes.op("Add", y, nodes.slice(call.input(2), 0, start, end)) if call.input(2) else y


def _given(nodes: Nodes, call: Call, heads: int) -> list[str]:
    """Queries, keys and values [batch, heads, length, width] of MultiHeadAttention, with their biases."""
    width, value_width = _widths(call, heads)
    widths = (width, width, value_width)
    packed = call.sizes(1 if call.input(1) else 0)
    ends = np.cumsum([0, *(heads * w for w in widths)]).tolist()
    found = []
    for i, columns in enumerate(widths):
        source = i if call.input(i) else (1 if call.input(1) else 0)
        x, shape = call.input(source), call.sizes(source)
        if len(shape) == 5:  # batch, length, heads, parts, width
            x = nodes.pick(x, 3, i - source if source else i)
            x = nodes.reshape(x, (packed[0], packed[1], heads * columns))
        elif len(shape) == 4:
            found.append(x)
            continue
        if call.input(3):
            x = nodes.op("Add", x, nodes.slice(call.input(3), 0, ends[i], ends[i + 1]))
        found.append(split_heads(nodes, x, (shape[0], shape[1], heads, columns)))
    return found


def _widths(call: Call, heads: int) -> tuple[int, int]:
    """Numbers of a head of queries and keys, and of values."""
    shape = call.sizes(0)
    width = shape[4] if len(shape) == 5 else shape[2] // heads
    if not call.input(2):
        return width, width
    values = call.sizes(2)
    return width, values[3] if len(values) == 4 else values[2] // heads


def _key_length(call: Call) -> int:
    shape = call.sizes(1 if call.input(1) else 0)
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
