"""Layer graphs without weights: published layer counts and MACs, no memory."""

from __future__ import annotations

import pytest

from fadiff.samples.graphs import NETWORKS, graph_of

PUBLISHED = {
    "resnet18": (21, 1_814_073_344),
    "resnet152": (156, 11_513_626_624),
    "vgg16": (16, 15_470_264_320),
    "vgg19": (19, 19_632_062_464),
    "mobilenetv1": (28, 568_740_352),
    "gpt3-block": (8, 4 * 2048 * 4096**2 + 2 * 2048 * 2048 * 4096 + 2 * 2048 * 4096 * 16384),
}
"""tensor-core layers and MACs of the papers (224 x 224, batch 1; GPT-3 6.7B block at 2048)"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_and_macs(name: str) -> None:
    graph = graph_of(name)
    layers, macs = PUBLISHED[name]
    assert len(graph.tensor_core_layers) == layers
    assert sum(layer.macs for layer in graph.tensor_core_layers) == macs


def test_weights_take_no_memory() -> None:
    graph = graph_of("gpt3-block", layers=4)
    constants = [t for t in graph.tensors.values() if t.data is not None]
    assert sum(t.nbytes for t in constants) > 8e8
    assert sum(t.data.base.nbytes if t.data.base is not None else t.data.nbytes for t in constants) < 1e4


def test_options_and_names_are_checked() -> None:
    with pytest.raises(ValueError, match="choose one of"):
        graph_of("alexnet")
    with pytest.raises(ValueError, match="no option 'seq'"):
        graph_of("vgg16", seq=3)
    assert set(PUBLISHED) == set(NETWORKS)


def test_batch_and_sequence_scale_the_work() -> None:
    one, four = (graph_of("resnet18", batch=b) for b in (1, 4))
    assert 4 * sum(x.macs for x in one.tensor_core_layers) == sum(x.macs for x in four.tensor_core_layers)
    scores = graph_of("gpt3-block", seq=256).by_name["h0.scores"]
    assert str(scores.dims) == "G32 K256 C128 P256"  # type: ignore[union-attr]
