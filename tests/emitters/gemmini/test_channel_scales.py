"""Products stored channel by channel: C against ONNX Runtime, bytes as predicted."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import Activation, Graph, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.test_row_scales import target_of

SIZES = {
    "conv": Dims(K=21, C=5, P=6, Q=7, R=3, S=3),
    "groups": Dims(G=3, K=5, C=4, P=4, Q=4, R=3, S=3),
    "depthwise": Dims(G=19, P=6, Q=5, R=3, S=3),
    "rows": Dims(K=40, C=33, P=50),
}


def scaled(kind: str, activation: Activation, seed: int, block: int = 1) -> Graph:
    """One layer whose channels' scales differ 300-fold, `block` channels alike."""
    builder, d, numbers = GraphBuilder(kind), SIZES[kind], np.random.default_rng(seed)
    height, width = d.P + d.R - 3, d.Q + d.S - 3  # padded by one, but for rows
    if kind == "rows":
        height, width = d.P, d.Q
    image, out = (1, height, width, d.G * d.C), (1, d.P, d.Q, d.G * d.K)
    x, y = builder.input("x", image, scale=0.05), builder.tensor("y", out, scale=0.04)
    shape = (d.G, d.R, d.S, d.C, d.K)
    weight = builder.tensor("w", shape, "int8", 1.0, numbers.integers(-127, 128, shape).astype(np.int8))
    bias = builder.tensor(
        "b", (d.G, d.K), "int32", 1.0, numbers.integers(-9999, 9999, (d.G, d.K)).astype(np.int32)
    )
    factors = np.exp(numbers.uniform(-9, -3.3, (d.G, d.K))).astype(np.float32)
    factors = np.repeat(factors[:, ::block], block, 1)[:, : d.K]
    pads = (0, 0, 0, 0) if kind == "rows" else (1, 1, 1, 1)
    builder.tensor_core(
        TensorCoreLayer(
            "scaled",
            "depthwise" if kind == "depthwise" else "conv",
            d,
            image_view(x, image, d.G),
            weight_view(weight, d),
            image_view(y, out, d.G),
            (height, width),
            bias=bias,
            pads=pads,
            activation=activation,
            channel_scale=builder.tensor("factors", factors.shape, "float32", None, factors),
            channel_block=block,
        )
    )
    return builder.build((y,))


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("kind", SIZES)
def test_every_channel_has_its_scale(kind: str, side: int) -> None:
    """Tiles of one block of channels and of several, the last one narrower."""
    graph = scaled(kind, "relu" if side == 16 else "none", side)
    schedule = optimize(graph, target_of(side), method="layerwise").schedule
    check(Case(schedule))
    issues = [mapping.issue for mapping in schedule.mappings.values()]
    # One tile of the largest array is fewer instructions by the compiler than by the core's loops.
    assert issues == ["core_ws" if kind == "rows" and side < 32 else "instructions"]


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("kind", ["conv", "rows"])
def test_blocks_of_channels_share_a_scale(kind: str, side: int) -> None:
    """One store for each block that fits into a row of the array; what the core issues one by one is stored
    channel by channel."""
    graph = scaled(kind, "none", side, block=16)
    schedule = optimize(graph, target_of(side), method="layerwise").schedule
    check(Case(schedule))
    alone = optimize(scaled(kind, "none", side), target_of(side), method="layerwise").schedule
    cycles = [evaluate(found).latency_cycles for found in (schedule, alone)]
    assert cycles[0] < cycles[1] if kind == "rows" else cycles[0] == cycles[1]
