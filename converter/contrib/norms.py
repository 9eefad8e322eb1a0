"""Layer and RMS normalisation with the residual add before them, and the embedding of BERT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fadiff.converter.contrib.call import Call, Function
from fadiff.converter.decompose.integers import summed
from fadiff.converter.decompose.nodes import Nodes

_EPSILON = 1e-12


def skip_layer_norm(nodes: Nodes, call: Call) -> None:
    """LayerNormalization(input + skip + bias); the sum is the fourth output."""
    total = _skipped(nodes, call, bias=4)
    nodes.give(_layer_norm(nodes, call, total, call.input(2), call.input(3)), call.output(0))
    nodes.give(total, call.output(3))


def skip_simplified_layer_norm(nodes: Nodes, call: Call) -> None:
    """The same without mean and beta."""
    total = _skipped(nodes, call, bias=3)
    nodes.give(rms_norm(nodes, total, call.input(2), call.attribute("epsilon", _EPSILON)), call.output(0))
    nodes.give(total, call.output(3))


def simplified_layer_norm(nodes: Nodes, call: Call) -> None:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis."""
    epsilon = call.attribute("epsilon", 1e-5)
    nodes.give(rms_norm(nodes, call.input(0), call.input(1), epsilon), call.output(0))


def rms_norm(nodes: Nodes, x: str, scale: str, epsilon: float) -> str:
    """Spelled out: planning makes one layer of it, in any opset."""
    mean = nodes.reduce("ReduceMean", nodes.op("Mul", x, x), [-1])
    root = nodes.op("Sqrt", nodes.op("Add", mean, nodes.number(epsilon)))
    return nodes.op("Mul", nodes.op("Div", x, root), scale)


def over_the_last_axis(call: Call) -> str | None:
    """axis is the last one."""
    axis, shape = int(call.attribute("axis", -1)), call.shape(0)
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    return None if last else f"axis {axis} is not the last one"


def embed_layer_norm(nodes: Nodes, call: Call) -> None:
    """Sum of word, position and segment embeddings, normalised; the mask's ones are counted."""
    embed(nodes, call, [call.input(i) for i in range(2, 7)], call.input(8))


def known_words(call: Call) -> str | None:
    """The shape of the words is static."""
    return call.unshaped(0)


def embed(nodes: Nodes, call: Call, tables: Sequence[str], places: str) -> None:
    """EmbedLayerNormalization of tables of words, positions and segments, gamma and beta."""
    words, positions, segments, gamma, beta = tables
    batch, length = call.sizes(0)
    total = nodes.op("Gather", words, call.input(0))
    places = places or nodes.constant(np.arange(length, dtype=np.int64)[None])
    total = nodes.op("Add", total, nodes.op("Gather", positions, places))
    if call.input(1) and segments:
        total = nodes.op("Add", total, nodes.op("Gather", segments, call.input(1)))
    nodes.give(_layer_norm(nodes, call, total, gamma, beta), call.output(0))
    nodes.give(total, call.output(2))
    if call.output(1) and call.input(7):
        nodes.give(nodes.reshape(summed(nodes, call.input(7), 1, length), (batch,)), call.output(1))
    else:
        nodes.give(nodes.constant(np.zeros(batch, np.int32)), call.output(1))


def _skipped(nodes: Nodes, call: Call, bias: int) -> str:
    first = call.input(0)
    if call.input(bias):
        first = nodes.op("Add", first, call.input(bias))
    return nodes.op("Add", first, call.input(1))


def _layer_norm(nodes: Nodes, call: Call, x: str, gamma: str, beta: str) -> str:
    epsilon = call.attribute("epsilon", _EPSILON)
    affine = [gamma, beta] if beta else [gamma]
    return nodes.op("LayerNormalization", x, *affine, axis=-1, epsilon=epsilon)


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
