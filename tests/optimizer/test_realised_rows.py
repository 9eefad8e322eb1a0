"""Norms and softmax without the core: as close to the float function as the core's form, bit-exact in C."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.builder import GraphBuilder, dense_strides
from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer, View
from fadiff.converter.ir.host import Add, Binary, Copy, LayerNorm, Lookup, Rows, Softmax
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.group.candidates import signature
from fadiff.optimizer.realise.choice import realised_graph
from fadiff.optimizer.realise.linear_maps import realised_linear_map
from fadiff.optimizer.realise.norms import realised_norm
from fadiff.optimizer.realise.realised import with_realised
from fadiff.optimizer.realise.softmax import realised_softmax
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check

SCALE, OUT = 0.05, 0.04


def target_of(side: int) -> Target:
    """A small Gemmini."""
    return load_target("gemmini-small").model_copy(update={"side": side})


def norm(rows: int, width: int, center: bool) -> tuple[Graph, np.ndarray, np.ndarray]:
    """A layer norm, or RMS norm without beta, alone; gamma and beta."""
    numbers = np.random.default_rng(width)
    gamma = numbers.normal(1, 0.3, width)
    beta = numbers.normal(0, 0.5, width) * center
    builder = GraphBuilder("norm")
    x = builder.input("x", (rows, width), scale=SCALE)
    y = builder.tensor("y", (rows, width), scale=OUT)
    steps = [(v / OUT).astype(np.float32) for v in (gamma, beta)]
    read = [builder.tensor(n, (width,), "float32", None, v) for n, v in zip("gb", steps, strict=True)]
    scale = float(np.float32(SCALE))
    variance = scale * scale / (width * width)
    operator = LayerNorm(Rows(rows, width, 1), center, False, 1e-5, variance, scale / width)
    builder.host("norm", operator, (x, *read), (y,))
    return builder.build((y,)), gamma, beta


def on_array(graph: Graph, side: int) -> Graph:
    """The graph with its host operators realised."""
    for layer in graph.layers:
        if isinstance(layer, HostLayer):
            realise = realised_norm if layer.op == "layer_norm" else realised_softmax
            realised = realise(graph, layer, target_of(side))
            assert realised is not None
            graph = with_realised(graph, realised)
    return graph


def noise_db(expected: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2)))


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("center", [False, True])
def test_norm_is_nearly_as_close_to_float_as_on_the_core(side: int, center: bool) -> None:
    """gamma in int8 takes a decibel of 39, which networks have not."""
    graph, gamma, beta = norm(37, 96, center)
    numbers = np.random.default_rng(1)
    x = numbers.normal(4 * center, 30, (37, 96)) * numbers.uniform(0.2, 1.5, (37, 1))
    q = np.clip(np.rint(x), -128, 127).astype(np.int8)
    rows = q * float(np.float32(SCALE))
    if center:
        rows = rows - rows.mean(1, keepdims=True)
    expected = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * gamma + beta
    core = run_reference(graph, {"x": q})["y"] * OUT
    array = run_reference(on_array(graph, side), {"x": q})["y"] * OUT
    assert noise_db(expected, array) > noise_db(expected, core) - 1


@pytest.mark.parametrize(
    ("side", "rows", "width"), [(8, 19, 24), (16, 16, 40), (16, 37, 64), (32, 45, 96), (32, 9, 64)]
)
@pytest.mark.parametrize("center", [False, True])
def test_norm_in_c(side: int, rows: int, width: int, center: bool) -> None:
    """Blocks of rows that fill the array, ragged ones, fewer rows than it has."""
    graph = on_array(norm(rows, width, center)[0], side)
    check(Case(optimize(graph, target_of(side), method="layerwise").schedule))


def attention(heads: int, tokens: int, width: int) -> Graph:
    """softmax(s) v for scores that are given, heads side by side in v."""
    builder = GraphBuilder("attention")
    scores = builder.input("s", (heads, tokens, tokens), scale=0.08)
    v = builder.input("v", (tokens, heads * width), scale=SCALE)
    table = np.rint(2**24 * np.exp(np.arange(-255, 1) * 0.08)).astype(np.int32)
    exp = builder.tensor("exp", (256,), "int32", None, table)
    p = builder.tensor("p", (heads, tokens, tokens), scale=1 / 127)
    builder.host("softmax", Softmax(Rows(heads * tokens, tokens, 1), 127.0), (scores, exp), (p,))
    head, row, _ = dense_strides((heads, tokens, tokens))
    y = builder.tensor("y", (tokens, heads * width), scale=0.03)
    of_head = View(y, 0, (width, 0, heads * width, 0, 1))
    builder.tensor_core(
        TensorCoreLayer(
            "context",
            "bmm",
            Dims(G=heads, K=width, C=tokens, P=tokens),
            View(p, 0, (head, 0, row, 0, 1)),
            View(v, 0, (width, 0, 0, heads * width, 1)),
            of_head,
            (tokens, 1),
        )
    )
    return builder.build((y,))


def test_softmax_is_closer_to_float_than_on_the_core() -> None:
    """Shares of 150 tokens are a step of 1/127 or two; exponentials are not."""
    graph = attention(2, 150, 16)
    numbers = np.random.default_rng(2)
    s, v = numbers.normal(0, 12, (2, 150, 150)), numbers.normal(0, 40, (150, 32))
    stored = {n: np.clip(np.rint(a), -128, 127).astype(np.int8) for n, a in (("s", s), ("v", v))}
    e = np.exp(stored["s"] * 0.08)
    shares = e / e.sum(2, keepdims=True)
    values = (stored["v"] * SCALE).reshape(150, 2, 16)
    expected = np.einsum("hij,jhd->ihd", shares, values).reshape(150, 32)
    core = run_reference(graph, stored)["y"] * 0.03
    array = run_reference(on_array(graph, 16), stored)["y"] * 0.03
    assert noise_db(expected, array) > noise_db(expected, core) + 3


@pytest.mark.parametrize("side", [8, 16, 32])
def test_softmax_in_c(side: int) -> None:
    plain = attention(3, 37, 18)
    graph = on_array(plain, side)
    assert signature(graph, ("context",)) != signature(plain, ("context",))  # no group stands for both
    check(Case(optimize(graph, target_of(side), method="layerwise").schedule))


def rotary(positions: int, heads: int, width: int) -> Graph:
    """x cos + (-x2, x1) sin, angles by position and lane."""
    half, size = width // 2, heads * width
    builder = GraphBuilder("rotary")
    x = builder.input("x", (positions, size), scale=SCALE)
    angles = np.arange(positions)[:, None] * 10000.0 ** (-(np.arange(width) % half) / half)
    cos, sin = (
        builder.tensor(
            name, (positions, width), scale=1 / 127, data=np.rint(127 * wave(angles)).astype(np.int8)
        )
        for name, wave in (("cos", np.cos), ("sin", np.sin))
    )
    negative = builder.tensor(
        "neg", (256,), scale=SCALE, data=np.clip(-np.arange(-128, 128), -128, 127).astype(np.int8)
    )
    rows = (positions * heads, half)

    def halves(source: int, target: int) -> Loops:
        return Loops(rows, (Access(source, (width, 1)),), Access(target, (width, 1)))

    turned = builder.tensor("turned", (positions, size), scale=SCALE)
    builder.host("negated", Lookup(halves(half, 0)), (x, negative), (turned,))
    builder.host("moved", Copy(halves(0, half)), (x,), (turned,))
    image, factors = Access(0, (size, width, 1)), Access(0, (width, 0, 1))
    loops = Loops((positions, heads, width), (image, factors), image)
    y = builder.tensor("y", (positions, size), scale=SCALE)
    parts = []
    for name, source, factor in (("a", x, cos), ("b", turned, sin)):
        part = builder.tensor(name, (positions, size), scale=SCALE)
        builder.host(
            name, Binary(loops, "mul", 1.0, 1.0, float(np.float32(1 / 127))), (source, factor), (part,)
        )
        parts.append(part)
    builder.host("y", Add(), (parts[0], parts[1]), (y,))
    return builder.build((y,))


@pytest.mark.parametrize("side", [8, 16, 32])
def test_rotary_embedding_is_one_rounding_instead_of_three(side: int) -> None:
    graph, target = rotary(9, 3, 32), target_of(side)
    realised = realised_graph(graph, target, (realised_linear_map,), lambda *_: True)
    assert {layer.op for layer in realised.layers} == {"conv"}
    q = np.random.default_rng(1).integers(-90, 91, (9, 96)).astype(np.int8)
    rows = q.reshape(9, 3, 2, 16) * SCALE
    angles = (np.arange(9)[:, None] * 10000.0 ** (-np.arange(16) / 16))[:, None]
    first, second = rows[:, :, 0], rows[:, :, 1]
    wanted = np.stack(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        2,
    ).reshape(9, 96)
    core, array = (run_reference(one, {"x": q})["y"] * SCALE for one in (graph, realised))
    assert noise_db(wanted, array) > noise_db(wanted, core) + 1
    check(Case(optimize(realised, target, method="exact").schedule))


def test_what_stays_on_the_core() -> None:
    """Norms that have no such form, and softmaxes whose numerators others would read."""
    target = target_of(16)

    def norm_of(graph: Graph, **changes: object) -> object:
        [layer] = graph.layers
        assert isinstance(layer, HostLayer)
        return realised_norm(graph, replace(layer, operator=replace(layer.operator, **changes)), target)

    assert norm_of(norm(20, 32, True)[0]) is not None
    assert norm_of(norm(20, 67, True)[0]) is None  # blocks of channels of one size
    assert norm_of(norm(20, 32, True)[0], center=False) is None  # beta without a mean
    assert norm_of(norm(20, 32, True)[0], epsilon=0.0) is None
    assert norm_of(norm(20, 32, True)[0], per_inner=True) is None
    graph = attention(2, 20, 16)
    softmax, product = graph.layers
    assert isinstance(softmax, HostLayer) and isinstance(product, TensorCoreLayer)
    assert realised_softmax(graph, softmax, target) is not None
    shares = replace(graph, outputs=(*graph.outputs, "p"))
    assert realised_softmax(shares, softmax, target) is None
    again = replace(graph, layers=(*graph.layers, replace(product, name="again")))
    assert realised_softmax(again, softmax, target) is None
