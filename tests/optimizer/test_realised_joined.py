"""Two convolutions of 1 x 1 and their sum as one: nearer to the float sum, bit-exact in C."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rtl import converted
from fadiff.converter.ir.graph import Graph
from fadiff.optimizer.realise.choice import realised_graph
from fadiff.optimizer.realise.joined_convolutions import joined_convolutions
from fadiff.optimizer.search import optimize
from tests.converter.oracle import compare
from tests.emitters.gemmini.executed import Case, check
from tests.optimizer.test_realised_rows import target_of

BLOCKS = {
    "8x10x10 c12k3 r c40k1 <0 c40k1 +3 r": ["conv", "conv", "copy"],  # x is read twice
    "8x10x10 c12k3s2 r c40k1 <0 c40k1s2 +3": ["conv", "conv", "copy"],  # every second pixel of x
    "8x10x10 mp2 c12k3 r c24k1 <1 c7k3 c24k1 +4": ["conv", "conv", "conv", "max_pool"],
}


def joined(text: str, side: int, folder: Path) -> tuple[Graph, Graph]:
    """Before and after."""
    graph = converted(text, target_of(side), folder)[0].graph
    return graph, realised_graph(graph, target_of(side), (joined_convolutions,), lambda *_: True)


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("text", BLOCKS)
def test_a_block_in_c(text: str, side: int, tmp_path: Path) -> None:
    graph, after = joined(text, side, tmp_path)
    assert "add" in {layer.op for layer in graph.layers}
    assert sorted(layer.op for layer in after.layers) == BLOCKS[text]
    check(Case(optimize(after, target_of(side), method="exact").schedule))


@pytest.mark.parametrize("text", BLOCKS)
def test_one_rounding_is_nearer_to_the_float_model_than_three(text: str, tmp_path: Path) -> None:
    """Which ONNX Runtime computes; 1.0 to 1.9 dB."""
    conversion = converted(text, target_of(16), tmp_path)[0]
    after = realised_graph(conversion.graph, target_of(16), (joined_convolutions,), lambda *_: True)
    one, three = (
        compare(replace(conversion, graph=graph), np.random.default_rng(0)).sqnr_db
        for graph in (after, conversion.graph)
    )
    assert one > three
