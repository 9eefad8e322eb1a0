"""Two convolutions of 1 x 1 and their sum as one: no further from the exact sum, bit-exact in C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.rtl import converted
from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.converter.ir.host import Add
from fadiff.optimizer.realise.choice import realised_graph
from fadiff.optimizer.realise.joined_convolutions import joined_convolutions
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check, random_inputs
from tests.optimizer.test_realised_rows import noise_db, target_of

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
def test_one_rounding_is_no_further_off_than_three(text: str, tmp_path: Path) -> None:
    """Of what the integers before say without rounding or cutting off between."""
    before, after = joined(text, 16, tmp_path)
    inputs = random_inputs(before)
    tensors, found = run_reference(before, inputs), run_reference(after, inputs)
    [addition] = [layer for layer in before.layers if isinstance(layer, HostLayer) and layer.op == "add"]
    add = addition.operator
    assert isinstance(add, Add)
    exact = 0.0
    for name, factor in zip(addition.inputs, (add.a_scale, add.b_scale), strict=True):
        [layer] = before.producers(name)
        assert isinstance(layer, TensorCoreLayer) and layer.bias is not None
        image = {**inputs, **tensors}[layer.input.tensor][:, :: layer.stride[0], :: layer.stride[1]]
        weights, bias = (before.tensors[one].data for one in (layer.weight.tensor, layer.bias))
        sums = image.astype(float) @ np.reshape(weights, (layer.dims.C, layer.dims.K)) + np.ravel(bias)
        exact = exact + sums * layer.scale * factor * add.scale
    expected = np.clip(exact, 0 if add.activation == "relu" else -128, 127)
    [out] = addition.outputs
    assert noise_db(expected, found[out]) > noise_db(expected, tensors[out])
