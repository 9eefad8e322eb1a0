"""GELU in its spellings, and the activations that fused operators carry as attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fadiff.converter.contrib.call import Call, Function
from fadiff.converter.decompose.nodes import Nodes

_CUBE = 0.044715  # of the approximation by tanh


def fast_gelu(nodes: Nodes, call: Call) -> None:
    """GELU by tanh, of the value plus a bias."""
    x = nodes.op("Add", call.input(0), call.input(1)) if call.input(1) else call.input(0)
    nodes.give(gelu_by_tanh(nodes, x), call.output(0))


def gemm_fast_gelu(nodes: Nodes, call: Call) -> None:
    """GELU by tanh of a product plus a bias."""
    x = nodes.op("MatMul", call.input(0), call.input(1))
    x = nodes.op("Add", x, call.input(2)) if call.input(2) else x
    nodes.give(gelu_by_tanh(nodes, x), call.output(0))


def bias_gelu(nodes: Nodes, call: Call) -> None:
    """GELU by erf, of the value plus a bias."""
    nodes.give(gelu(nodes, nodes.op("Add", call.input(0), call.input(1))), call.output(0))


def plain_gelu(nodes: Nodes, call: Call) -> None:
    """GELU by erf."""
    nodes.give(gelu(nodes, call.input(0)), call.output(0))


def quick_gelu(nodes: Nodes, call: Call) -> None:
    """x sigmoid(alpha x)."""
    alpha = nodes.number(call.attribute("alpha", 1.702))
    gate = nodes.op("Sigmoid", nodes.op("Mul", call.input(0), alpha))
    nodes.give(nodes.op("Mul", call.input(0), gate), call.output(0))


def gelu(nodes: Nodes, x: str) -> str:
    """x / 2 (1 + erf(x / sqrt 2))."""
    erf = nodes.op("Erf", nodes.op("Mul", x, nodes.number(math.sqrt(0.5))))
    half = nodes.op("Mul", x, nodes.number(0.5))
    return nodes.op("Mul", half, nodes.op("Add", erf, nodes.number(1)))


def gelu_by_tanh(nodes: Nodes, x: str) -> str:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = nodes.op("Mul", nodes.op("Mul", x, x), x)
    inner = nodes.op("Add", x, nodes.op("Mul", cube, nodes.number(_CUBE)))
    tanh = nodes.op("Tanh", nodes.op("Mul", inner, nodes.number(math.sqrt(2 / math.pi))))
    half = nodes.op("Mul", x, nodes.number(0.5))
    return nodes.op("Mul", half, nodes.op("Add", tanh, nodes.number(1)))


def known_activation(call: Call) -> str | None:
    """activation is Relu, Tanh, Sigmoid, LeakyRelu, Clip, HardSigmoid or HardSwish."""
    activation = call.attribute("activation", "")
    return None if activation in ("", "Clip", *_PARAMETERS) else f"activation {activation}"


def activate(nodes: Nodes, x: str, activation: str, parameters: Sequence[float]) -> str:
    """A known activation; `parameters` in the order of its attributes, those left out are its defaults."""
    if not activation:
        return x
    if activation == "Clip":
        low, high = parameters
        return nodes.op("Min", nodes.op("Max", x, nodes.number(low)), nodes.number(high))
    if activation == "HardSwish":  # (an operator of its own from opset 14)
        gate = nodes.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
        return nodes.op("Mul", x, gate)
    attributes: dict[str, Any] = dict(zip(_PARAMETERS[activation], parameters, strict=False))
    return nodes.op(activation, x, **attributes)


_PARAMETERS = {
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
"""Attributes of the activations."""


FUNCTIONS = (
    Function("BiasGelu", bias_gelu, 2),
    Function("FastGelu", fast_gelu, 2),
    Function("Gelu", plain_gelu, 1),
    Function("GemmFastGelu", gemm_fast_gelu, 3),
    Function("QuickGelu", quick_gelu, 1, ("alpha",)),
)
