"""Products stored with a scale per row, and as sums: C against ONNX Runtime, bytes as predicted."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.ir.builder import GraphBuilder, dense_strides
from fadiff.converter.ir.graph import Graph, TensorCoreLayer, View
from fadiff.converter.ir.host import Exponentials, InverseRoot, Rows
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check


def target_of(side: int) -> Target:
    """A small Gemmini."""
    return load_target("gemmini-small").model_copy(update={"side": side})


def normalised(blocks: int, side: int, width: int) -> Graph:
    """RMS norm of blocks * side rows: squares by products of rows, 1 / root scales the rows of x gamma."""
    builder, rows = GraphBuilder("norm"), blocks * side
    x = builder.input("x", (rows, width), scale=0.05)
    squares = builder.tensor("squares", (rows, side), "int32")
    block = View(x, 0, (side * width, 0, width, 0, 1))
    across = View(x, 0, (side * width, 0, 0, 1, width))
    products = View(squares, 0, (side * side, 0, side, 0, 1))
    dims = Dims(G=blocks, K=side, C=width, P=side)
    builder.tensor_core(TensorCoreLayer("squares", "bmm", dims, block, across, products, (side, 1)))
    factors = builder.tensor("factors", (rows,), "float32")
    root = InverseRoot(Rows(rows, side, 1), float(np.float32(0.05**2 / width)), float(np.float32(1e-5)))
    builder.host("root", root, (squares,), (factors,))
    gamma = np.random.default_rng(0).integers(-127, 128, (width, 1, 1, 1, 1)).astype(np.int8)
    weight = builder.tensor("gamma", gamma.shape, "int8", 1 / 127, gamma)
    y = builder.tensor("y", (rows, width), scale=0.04)
    image = (1, 0, width, 0, 0)
    builder.tensor_core(
        TensorCoreLayer(
            "scaled",
            "depthwise",
            Dims(G=width, P=rows),
            View(x, 0, image),
            View(weight, 0, (1, 1, 1, 1, 1)),
            View(y, 0, image),
            (rows, 1),
            row_scale=View(factors, 0, (0, 0, 1, 0, 0)),
        )
    )
    return builder.build((y,))


def attended(heads: int, tokens: int, width: int, masked: bool) -> Graph:
    """softmax(q k^T) v: the sums of exponentials divide as the rows of the second product are stored."""
    builder = GraphBuilder("attention")
    shape = (tokens, heads * width)
    q, k, v = (builder.input(name, shape, scale=0.05) for name in "qkv")
    pixel, (head, row, _) = heads * width, dense_strides((heads, tokens, tokens))
    scores = builder.tensor("scores", (heads, tokens, tokens), scale=0.1)
    query, by_key = View(q, 0, (width, 0, pixel, 0, 1)), View(k, 0, (width, 0, 0, 1, pixel))
    square = View(scores, 0, (head, 0, row, 0, 1))
    dims = Dims(G=heads, K=tokens, C=width, P=tokens)
    builder.tensor_core(TensorCoreLayer("scores", "bmm", dims, query, by_key, square, (tokens, 1)))
    powers = np.exp(np.arange(-255, 1) * 0.1)
    table = (np.rint(2**22 * powers) * 256 + np.rint(127 * powers)).astype(np.int32)
    inputs = [scores, builder.tensor("table", (256,), "int32", None, table)]
    if masked:
        mask = np.triu(np.ones((tokens, tokens), np.int8), 1)
        mask[1] = 1  # nothing is left of this row
        inputs.append(builder.tensor("mask", mask.shape, "int8", None, mask))
    e = builder.tensor("e", (heads, tokens, tokens), scale=1.0)
    factors = builder.tensor("factors", (heads, tokens), "float32")
    rows = Rows(heads * tokens, tokens, 1)
    builder.host("exponentials", Exponentials(rows, tokens if masked else 0), tuple(inputs), (e, factors))
    context = builder.tensor("context", shape, scale=0.03)
    builder.tensor_core(
        TensorCoreLayer(
            "context",
            "bmm",
            Dims(G=heads, K=width, C=tokens, P=tokens),
            View(e, 0, (head, 0, row, 0, 1)),
            View(v, 0, (width, 0, 0, pixel, 1)),
            View(context, 0, (width, 0, pixel, 0, 1)),
            (tokens, 1),
            row_scale=View(factors, 0, (tokens, 0, 1, 0, 0)),
        )
    )
    return builder.build((context,))


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize(("blocks", "rows", "width"), [(3, 7, 40), (1, 8, 64), (1, 16, 128), (2, 32, 50)])
def test_norm(side: int, blocks: int, rows: int, width: int) -> None:
    """Also in tiles of as many pixels as the array has rows, several blocks of which one mvout stores."""
    graph = normalised(blocks, min(rows, side), width)
    check(Case(optimize(graph, target_of(side), method="layerwise").schedule))


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(side: int, masked: bool) -> None:
    graph = attended(2, 21, 18, masked)
    check(Case(optimize(graph, target_of(side), method="layerwise").schedule))
