"""GroupQueryAttention: query heads that share keys, a cache of keys and values; rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from fadiff.converter.decompose.attention import LOWEST, join_heads, split_heads
from fadiff.converter.decompose.nodes import Function, Nodes, unshaped
from fadiff.converter.ir.program import Node, Program


def rotary_embedding(nodes: Nodes, program: Program, node: Node) -> None:
    """Pairs of every head's first numbers, turned by the angles of their position."""
    shape, half = program.shapes[node.input(0)], program.shapes[node.input(2)][1]
    x = node.input(0)
    if len(shape) == 3:
        heads = int(node.attributes.get("num_heads", 0))
        width = shape[2] // heads if node.attributes.get("rotary_embedding_dim", 0) else 2 * half
        x = nodes.transpose(nodes.reshape(x, (*shape[:2], shape[2] // width, width)), (0, 2, 1, 3))
    else:
        width = shape[3]
    batch, length = shape[0], shape[-2]
    places = node.input(1)
    if len(program.shapes[node.input(1)]) < 2 and length > 1:  # where the sequences begin
        first = nodes.reshape(places, (1, 1))
        places = nodes.op("Add", first, nodes.constant(np.arange(length, dtype=np.int64)[None]))
    elif len(program.shapes[node.input(1)]) < 2:
        places = nodes.reshape(places, (1, 1))
    cos, sin = angles(nodes, node.input(2), node.input(3), places)
    turned = rotate(nodes, x, cos, sin, half, width, bool(node.attributes.get("interleaved", 0)))
    if len(shape) == 3:
        turned = nodes.reshape(nodes.transpose(turned, (0, 2, 1, 3)), (batch, length, shape[2]))
    nodes.give(turned, node.output(0))


def known_angles(program: Program, node: Node) -> str | None:
    """Shapes are static; with rotary_embedding_dim, num_heads is given."""
    if unknown := unshaped(program, node, 0, 1, 2):
        return unknown
    needs_heads = node.attributes.get("rotary_embedding_dim", 0) and len(program.shapes[node.input(0)]) == 3
    headless = needs_heads and not node.attributes.get("num_heads", 0)
    return "rotary_embedding_dim without num_heads" if headless else None


def angles(nodes: Nodes, cos_cache: str, sin_cache: str, places: str) -> tuple[str, str]:
    """Cosines and sines [batch, 1, length, half] of positions [batch, length] (`places`)."""
    rows = (nodes.op("Gather", cache, places) for cache in (cos_cache, sin_cache))
    cos, sin = (_over_heads(nodes, row) for row in rows)
    return cos, sin


def _over_heads(nodes: Nodes, row: str) -> str:
    """[batch, length, half] as [batch, 1, length, half]."""
    if nodes.opset >= 13:
        return nodes.op("Unsqueeze", row, nodes.ints([1]))
    return nodes.op("Unsqueeze", row, axes=[1])


def rotate(nodes: Nodes, x: str, cos: str, sin: str, half: int, width: int, interleaved: bool) -> str:
    """x [batch, heads, length, width]: its first 2 * half numbers turned, the rest as it is.

    Pairs are neighbours (`interleaved`), or a number and the one `half` behind it.
    """
    turning = x if 2 * half == width else nodes.slice(x, 3, 0, 2 * half)
    if interleaved:
        turning = _swapped(nodes, turning, (half, 2))
    first, second = (nodes.slice(turning, 3, i * half, (i + 1) * half) for i in (0, 1))
    real = nodes.op("Sub", nodes.op("Mul", first, cos), nodes.op("Mul", second, sin))
    other = nodes.op("Add", nodes.op("Mul", second, cos), nodes.op("Mul", first, sin))
    turned = nodes.op("Concat", real, other, axis=3)
    if interleaved:
        turned = _swapped(nodes, turned, (2, half))
    if 2 * half == width:
        return turned
    return nodes.op("Concat", turned, nodes.slice(x, 3, 2 * half, width), axis=3)


def _swapped(nodes: Nodes, x: str, matrix: tuple[int, int]) -> str:
    """The last axis read as a matrix of this shape, transposed."""
    matrices = nodes.op("Reshape", x, nodes.ints([0, 0, -1, *matrix]))
    swapped = nodes.transpose(matrices, (0, 1, 2, 4, 3))
    return nodes.op("Reshape", swapped, nodes.ints([0, 0, -1, math.prod(matrix)]))


@dataclass(frozen=True)
class _Sizes:
    """Sizes that the shapes of a GroupQueryAttention give."""

    batch: int
    length: int
    heads: int
    groups: int
    """Heads of keys and values."""
    width: int
    past: int
    total: int
    """Positions in the cache afterwards."""
    begin: int | None
    """Where the new positions stand, None where it is computed at run time."""


def group_query_attention(nodes: Nodes, program: Program, node: Node) -> None:
    """GroupQueryAttention."""
    sizes = _sizes(program, node)
    begin = "" if sizes.begin is not None else _begin(nodes, program, node, sizes)
    queries, keys, values = _given(nodes, program, node, sizes)
    if node.attributes.get("do_rotary", 0):
        queries, keys = _turned(nodes, program, node, sizes, begin, queries, keys)
    keys, values = (
        _cached(nodes, node.input(3 + i), new, sizes, begin) for i, new in enumerate((keys, values))
    )
    nodes.give(keys, node.output(1))
    nodes.give(values, node.output(2))
    scale = node.attributes.get("scale", 0.0) or 1 / math.sqrt(sizes.width)
    y = _attended(nodes, program, node, sizes, begin, queries, keys, values, scale)
    nodes.give(join_heads(nodes, y, (sizes.batch, sizes.length, sizes.heads * sizes.width)), node.output(0))


def known_groups(program: Program, node: Node) -> str | None:
    """Shapes of queries and past are static, total_sequence_length is constant."""
    if unknown := unshaped(program, node, 0, 3, 10, 7):
        return unknown
    if node.input(3) and program.shapes[node.input(3)][2] and program.constant(node.input(6)) is None:
        return f"{node.input(6)} (total_sequence_length) is computed at run time"
    return None


def _sizes(program: Program, node: Node) -> _Sizes:
    heads, groups = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    batch, length, hidden = program.shapes[node.input(0)]
    width = hidden // heads if node.input(1) else hidden // (heads + 2 * groups)
    past = program.shapes[node.input(3)][2] if node.input(3) else 0
    said = program.constant(node.input(6))
    total = length if said is None or not past else max(int(said.reshape(-1)[0]), past)
    begin: int | None = 0
    if past and (said is None or int(said.reshape(-1)[0]) != length):
        lasts = program.constant(node.input(5))
        begins = set() if lasts is None else {int(last) + 1 - length for last in lasts.reshape(-1)}
        begin = begins.pop() if len(begins) == 1 else None
    return _Sizes(batch, length, heads, groups, width, past, total, begin)


def _begin(nodes: Nodes, program: Program, node: Node, sizes: _Sizes) -> str:
    """Where the new positions stand, [batch, 1] int32: the last position is in seqlens_k."""
    lasts = nodes.reshape(node.input(5), (sizes.batch, 1))
    return nodes.op("Add", lasts, nodes.constant(np.int32(1 - sizes.length)))


def _given(nodes: Nodes, program: Program, node: Node, sizes: _Sizes) -> tuple[str, str, str]:
    """Queries, keys and values [batch, heads, length, width], packed in the first input or apart."""
    found = []
    start = 0
    for i, heads in enumerate((sizes.heads, sizes.groups, sizes.groups)):
        columns = heads * sizes.width
        x = node.input(i)
        if not node.input(1):
            x = nodes.slice(node.input(0), 2, start, start + columns)
            start += columns
        found.append(split_heads(nodes, x, (sizes.batch, sizes.length, heads, sizes.width)))
    queries, keys, values = found
    return queries, keys, values


def _turned(
    nodes: Nodes, program: Program, node: Node, sizes: _Sizes, begin: str, queries: str, keys: str
) -> tuple[str, str]:
    half = program.shapes[node.input(7)][1]
    steps = np.arange(sizes.length, dtype=np.int64)
    if node.input(9):
        places = node.input(9)
    elif sizes.begin is not None:
        places = nodes.constant((sizes.begin + steps)[None])
    else:
        places = nodes.op("Add", begin, nodes.constant(steps.astype(np.int32)[None]))
    rows = [nodes.op("Gather", node.input(i), places) for i in (7, 8)]
    batch = sizes.batch if node.input(9) or sizes.begin is None else 1
    cos, sin = (nodes.reshape(row, (batch, 1, sizes.length, half)) for row in rows)
    paired = bool(node.attributes.get("rotary_interleaved", 0))
    first, second = (rotate(nodes, x, cos, sin, half, sizes.width, paired) for x in (queries, keys))
    return first, second


def _cached(nodes: Nodes, past: str, new: str, sizes: _Sizes, begin: str) -> str:
    """Keys or values [batch, groups, total, width]: the cache with the new ones in their places."""
    if not past or not sizes.past:
        return new
    shape = (sizes.batch, sizes.groups, sizes.total - sizes.past, sizes.width)
    if sizes.begin is not None:
        end = sizes.begin + sizes.length
        parts = [nodes.slice(past, 2, 0, sizes.begin)] if sizes.begin else []
        parts.append(new)
        if end < sizes.past:
            parts.append(nodes.slice(past, 2, end, sizes.past))
        return nodes.op("Concat", *parts, axis=2) if len(parts) > 1 else new
    if sizes.total > sizes.past:
        past = nodes.op("Concat", past, nodes.constant(np.zeros(shape, np.float32)), axis=2)
    if sizes.batch == 1:  # written in place, whatever the cache's size
        steps = nodes.constant(np.arange(sizes.length, dtype=np.int32)[None])
        which = nodes.op("Cast", nodes.op("Add", begin, steps), to=TensorProto.INT64)
        data, updates = (nodes.transpose(value, (2, 0, 1, 3)) for value in (past, new))
        written = nodes.op("ScatterND", data, nodes.reshape(which, (-1, 1)), updates)
        return nodes.transpose(written, (1, 2, 0, 3))
    places = nodes.constant(np.arange(sizes.total, dtype=np.int32)[None, :, None])
    steps = nodes.constant(np.arange(sizes.length, dtype=np.int32)[None, None])
    which = nodes.op("Add", nodes.reshape(begin, (sizes.batch, 1, 1)), steps)
    fits = nodes.op("Equal", places, which)  # [batch, total, length]: the new position that stands there
    if sizes.length == 1:
        return nodes.op("Where", nodes.reshape(fits, (sizes.batch, 1, sizes.total, 1)), new, past)
    chosen = nodes.op("Cast", fits, to=TensorProto.FLOAT)
    chosen = nodes.reshape(chosen, (sizes.batch, 1, sizes.total, sizes.length))
    put = nodes.op("MatMul", chosen, new)
    taken = nodes.op("Greater", nodes.reduce("ReduceMax", chosen, [-1]), nodes.number(0.5))
    return nodes.op("Where", taken, put, past)


def _attended(
    nodes: Nodes,
    program: Program,
    node: Node,
    sizes: _Sizes,
    begin: str,
    queries: str,
    keys: str,
    values: str,
    scale: float,
) -> str:
    """Attention [batch, heads, length, width]; keys of a group are read by all its query heads."""
    each = sizes.heads // sizes.groups
    scores_shape = (sizes.batch, sizes.heads, sizes.length, sizes.total)
    if each > 1:  # query heads of a group below each other: one product for all of them
        queries = nodes.reshape(queries, (sizes.batch, sizes.groups, each * sizes.length, sizes.width))
    scores = nodes.op("MatMul", queries, nodes.transpose(keys, (0, 1, 3, 2)))
    scores = nodes.op("Mul", nodes.reshape(scores, scores_shape) if each > 1 else scores, nodes.number(scale))
    softcap = float(node.attributes.get("softcap", 0.0))
    if softcap:
        capped = nodes.op("Tanh", nodes.op("Mul", scores, nodes.number(1 / softcap)))
        scores = nodes.op("Mul", capped, nodes.number(softcap))
    if node.input(10):
        scores = nodes.op("Add", scores, node.input(10))
    scores = nodes.op("Add", scores, _blanks(nodes, program, node, sizes, begin))
    shares = _softmax(nodes, program, node, sizes, scores)
    if each > 1:
        shares = nodes.reshape(shares, (sizes.batch, sizes.groups, each * sizes.length, sizes.total))
    y = nodes.op("MatMul", shares, values)
    return nodes.reshape(y, (sizes.batch, sizes.heads, sizes.length, sizes.width)) if each > 1 else y


def _blanks(nodes: Nodes, program: Program, node: Node, sizes: _Sizes, begin: str) -> str:
    """0, and the lowest number for positions later than the query's or out of its window."""
    window = int(node.attributes.get("local_window_size", -1))
    places = np.arange(sizes.total, dtype=np.int32)
    steps = np.arange(sizes.length, dtype=np.int32)[:, None]
    if sizes.begin is not None:
        last = sizes.begin + steps
        seen = places <= last
        if window > 0:
            seen &= places > last - window
        return nodes.constant(np.where(seen, np.float32(0), np.float32(LOWEST))[None, None], "causal")
    last_of = nodes.op("Add", nodes.reshape(begin, (sizes.batch, 1, 1, 1)), nodes.constant(steps[None, None]))
    at = nodes.constant(places[None, None, None])
    allowed = nodes.op("Not", nodes.op("Greater", at, last_of))
    if window > 0:
        first = nodes.op("Sub", last_of, nodes.constant(np.int32(window)))
        allowed = nodes.op("And", allowed, nodes.op("Greater", at, first))
    return nodes.op("Where", allowed, nodes.number(0), nodes.number(LOWEST))


def _softmax(nodes: Nodes, program: Program, node: Node, sizes: _Sizes, scores: str) -> str:
    """Softmax over the positions, beside which a sink may take a share."""
    if not node.input(11) and node.attributes.get("smooth_softmax", 0) != 1:
        return nodes.op("Softmax", scores, axis=-1)
    shape = (sizes.batch, sizes.heads, sizes.length, 1)
    if node.input(11):
        sink = nodes.reshape(node.input(11), (1, sizes.heads, 1, 1))
        sink = nodes.op("Add", sink, nodes.constant(np.zeros(shape, np.float32)))
    else:
        sink = nodes.constant(np.zeros(shape, np.float32))
    shares = nodes.op("Softmax", nodes.op("Concat", scores, sink, axis=3), axis=-1)
    return nodes.slice(shares, 3, 0, sizes.total)


FUNCTIONS = (
    Function(
        "GroupQueryAttention",
        group_query_attention,
        12,
        (
            "do_rotary",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "rotary_interleaved",
            "scale",
            "smooth_softmax",
            "softcap",
        ),
        (known_groups,),
        {
            "causal": (1,),
            "k_quant_type": ("NONE",),
            "kv_cache_bit_width": (0,),
            "qk_output": (0,),
            "v_quant_type": ("NONE",),
        },
        outputs=(0, 1, 2),
    ),
    Function(
        "RotaryEmbedding",
        rotary_embedding,
        4,
        ("interleaved", "num_heads", "rotary_embedding_dim"),
        (known_angles,),
        {"is_packed_batching": (0,), "scale": (1.0,)},
    ),
)
