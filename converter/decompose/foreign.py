"""Operators of other domains, from around and within networks.

ONNX Runtime fuses GELU in its spellings, products with an activation, weights of few bits; pipelines of
scikit-learn (ai.onnx.ml), Core ML and Windows ML have theirs before and behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from fadiff.converter.decompose.nodes import LEARNING, Function, Nodes, unshaped
from fadiff.converter.ir.program import Node, Program

_CUBE = 0.044715  # of the approximation by tanh


def fast_gelu(nodes: Nodes, program: Program, node: Node) -> None:
    """GELU by tanh, of the value plus a bias."""
    x = nodes.op("Add", node.input(0), node.input(1)) if node.input(1) else node.input(0)
    nodes.give(gelu_by_tanh(nodes, x), node.output(0))


def gemm_fast_gelu(nodes: Nodes, program: Program, node: Node) -> None:
    """GELU by tanh of a product plus a bias."""
    x = nodes.op("MatMul", node.input(0), node.input(1))
    x = nodes.op("Add", x, node.input(2)) if node.input(2) else x
    nodes.give(gelu_by_tanh(nodes, x), node.output(0))


def bias_gelu(nodes: Nodes, program: Program, node: Node) -> None:
    """GELU by erf, of the value plus a bias."""
    nodes.give(gelu(nodes, nodes.op("Add", node.input(0), node.input(1))), node.output(0))


def plain_gelu(nodes: Nodes, program: Program, node: Node) -> None:
    """GELU by erf."""
    nodes.give(gelu(nodes, node.input(0)), node.output(0))


def quick_gelu(nodes: Nodes, program: Program, node: Node) -> None:
    """x sigmoid(alpha x)."""
    alpha = nodes.number(node.attributes.get("alpha", 1.702))
    gate = nodes.op("Sigmoid", nodes.op("Mul", node.input(0), alpha))
    nodes.give(nodes.op("Mul", node.input(0), gate), node.output(0))


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


def known_activation(program: Program, node: Node) -> str | None:
    """activation is Relu, Tanh, Sigmoid, LeakyRelu, Clip, HardSigmoid or HardSwish."""
    activation = node.attributes.get("activation", "")
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


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_GEMM = ("alpha", "beta", "transA", "transB")


def fused_conv(nodes: Nodes, program: Program, node: Node) -> None:
    """Conv, plus the fourth input, then the activation."""
    inputs = [node.input(i) for i in range(3 if node.input(2) else 2)]
    y = nodes.op("Conv", *inputs, label="Conv", **node.some(*_CONV))
    if node.input(3):
        y = nodes.op("Add", y, node.input(3))
    parameters = node.attributes.get("activation_params", ())
    nodes.give(activate(nodes, y, node.attributes.get("activation", ""), parameters), node.output(0))


def fused_gemm(nodes: Nodes, program: Program, node: Node) -> None:
    """Gemm, then the activation."""
    inputs = [node.input(i) for i in range(3 if node.input(2) else 2)]
    y = nodes.op("Gemm", *inputs, **node.some(*_GEMM))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = list(node.some(*names).values())
    nodes.give(activate(nodes, y, node.attributes.get("activation", ""), parameters), node.output(0))


def fused_matmul(nodes: Nodes, program: Program, node: Node) -> None:
    """MatMul of transposed operands, times alpha."""
    a, b = (_operand(nodes, program, node, i, side) for i, side in enumerate("AB"))
    y = nodes.op("MatMul", a, b)
    alpha = float(node.attributes.get("alpha", 1.0))
    nodes.give(y if alpha == 1 else nodes.op("Mul", y, nodes.number(alpha)), node.output(0))


def _operand(nodes: Nodes, program: Program, node: Node, index: int, side: str) -> str:
    """The operand for MatMul: transBatch puts the first axis behind the batch, trans swaps the last two."""
    rank = len(program.shapes[node.input(index)])
    order = list(range(rank))
    if rank > 2 and node.attributes.get(f"transBatch{side}", 0):
        order = [*order[1:-1], 0, order[-1]]
    if rank > 1 and node.attributes.get(f"trans{side}", 0):
        order = [*order[:-2], order[-1], order[-2]]
    return nodes.transpose(node.input(index), order)


def known_operands(program: Program, node: Node) -> str | None:
    """Shapes of the operands are static."""
    return unshaped(program, node, 0, 1)


def matmul_n_bits(nodes: Nodes, program: Program, node: Node) -> None:
    """MatMul by the dequantised weights: (integer - zero point) * scale, for every block of a column."""
    product = nodes.op("MatMul", node.input(0), nodes.constant(_dequantised(program, node).T, "weight"))
    nodes.give(nodes.op("Add", product, node.input(5)) if node.input(5) else product, node.output(0))


def constant_blocks(program: Program, node: Node) -> str | None:
    """Weights, scales, zero points and group indices are constant."""
    bad = next((v for i in range(1, 5) if (v := node.input(i)) and v not in program.constants), None)
    return None if bad is None else f"{bad} is computed at run time"


def plain_bits(program: Program, node: Node) -> str | None:
    """bits is 2, 4 or 8."""
    bits = node.attributes.get("bits", 4)
    return None if bits in (2, 4, 8) else f"bits={bits}"


def _dequantised(program: Program, node: Node) -> np.ndarray:
    """Weights [N, K] of MatMulNBits."""
    columns, rows = int(node.attributes["N"]), int(node.attributes["K"])
    block, bits = int(node.attributes["block_size"]), int(node.attributes.get("bits", 4))
    blocks = -(-rows // block)
    packed, scales, zeros, groups = (program.constant(node.input(i)) for i in range(1, 5))
    assert packed is not None and scales is not None
    integers = _unpacked(packed.reshape(columns, -1), bits)[:, :rows].astype(np.float32)
    if zeros is None:
        centre = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    elif zeros.dtype == np.uint8:
        centre = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].astype(np.float32)
    else:
        centre = zeros.reshape(columns, blocks).astype(np.float32)
    of_row = np.arange(rows) // block if groups is None else groups[:rows]
    steps = scales.reshape(columns, blocks).astype(np.float32)
    return np.asarray((integers - centre[:, of_row]) * steps[:, of_row], np.float32)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Integers of some bits, the lowest ones of a byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(len(packed), -1))


def scaler(nodes: Nodes, program: Program, node: Node) -> None:
    """(x - offset) * scale, with numbers for each column or one for all."""
    x = nodes.op("Cast", node.input(0), to=TensorProto.FLOAT)
    offset, scale = (
        np.asarray(node.attributes.get(n, (d,)), np.float32) for n, d in (("offset", 0), ("scale", 1))
    )
    centred = nodes.op("Sub", x, nodes.constant(offset[None]))
    nodes.give(nodes.op("Mul", centred, nodes.constant(scale[None])), node.output(0))


def normalizer(nodes: Nodes, program: Program, node: Node) -> None:
    """Every row over its largest number, the sum of its magnitudes, or its length."""
    x = nodes.op("Cast", node.input(0), to=TensorProto.FLOAT)
    norm = node.attributes.get("norm", "MAX")
    if norm == "MAX":
        size = nodes.reduce("ReduceMax", x, [-1])
    elif norm == "L1":
        size = nodes.reduce("ReduceSum", nodes.op("Abs", x), [-1])
    else:
        size = nodes.op("Sqrt", nodes.reduce("ReduceSum", nodes.op("Mul", x, x), [-1]))
    nodes.give(nodes.op("Div", x, size), node.output(0))


def array_feature_extractor(nodes: Nodes, program: Program, node: Node) -> None:
    """Columns by their numbers, which may be computed: the label of the best class."""
    flat = nodes.reshape(node.input(1), [-1])
    axis = len(program.shapes[node.input(0)]) - 1
    picked = nodes.op("Gather", node.input(0), flat, axis=axis)
    nodes.give(nodes.reshape(picked, [1, -1]) if axis == 0 else picked, node.output(0))


def known_array(program: Program, node: Node) -> str | None:
    """The shape of the array is static."""
    return unshaped(program, node, 0)


_END = int(np.iinfo(np.int32).max)


def image_scaler(nodes: Nodes, program: Program, node: Node) -> None:
    """x * scale + bias, with a bias for each channel."""
    bias = np.asarray(node.attributes.get("bias", (0.0,)), np.float32)[None, :, None, None]
    scaled = nodes.op("Mul", node.input(0), nodes.number(node.attributes.get("scale", 1.0)))
    nodes.give(nodes.op("Add", scaled, nodes.constant(bias)), node.output(0))


def affine(nodes: Nodes, program: Program, node: Node) -> None:
    """alpha * x + beta."""
    product = nodes.op("Mul", node.input(0), nodes.number(node.attributes.get("alpha", 1.0)))
    nodes.give(nodes.op("Add", product, nodes.number(node.attributes.get("beta", 0.0))), node.output(0))


def crop(nodes: Nodes, program: Program, node: Node) -> None:
    """An image without its border (left, top, right, bottom), or `scale` pixels from there."""
    left, top, right, bottom = node.attributes["border"]
    height, width = node.attributes.get("scale") or (None, None)
    rows = nodes.slice(node.input(0), 2, top, top + height if height else -bottom or _END)
    nodes.give(nodes.slice(rows, 3, left, left + width if width else -right or _END), node.output(0))


_ACTIVATED = ("activation", "activation_params")
_FUSED_GEMM = ("activation", "activation_alpha", "activation_beta", "activation_gamma", *_GEMM)
_MATMUL = ("alpha", "transA", "transB", "transBatchA", "transBatchB")
FUNCTIONS = (
    Function("BiasGelu", bias_gelu, 2),
    Function("FastGelu", fast_gelu, 2),
    Function("Gelu", plain_gelu, 1),
    Function("GemmFastGelu", gemm_fast_gelu, 3),
    Function("QuickGelu", quick_gelu, 1, ("alpha",)),
    Function("FusedConv", fused_conv, 4, (*_ACTIVATED, *_CONV), (known_activation,)),
    Function("FusedGemm", fused_gemm, 3, _FUSED_GEMM, (known_activation,)),
    Function("FusedMatMul", fused_matmul, 2, _MATMUL, (known_operands,)),
    Function(
        "MatMulNBits",
        matmul_n_bits,
        6,
        ("K", "N", "bits", "block_size"),
        (constant_blocks, plain_bits),
        {"accuracy_level": (0, 1, 2, 3, 4), "weight_prepacked": (0,)},
    ),
    Function("TransposeMatMul", fused_matmul, 2, _MATMUL, (known_operands,)),
    Function(
        "ArrayFeatureExtractor",
        array_feature_extractor,
        2,
        constraints=(known_array,),
        domain=LEARNING,
    ),
    Function("Normalizer", normalizer, 1, ("norm",), domain=LEARNING),
    Function("Scaler", scaler, 1, ("offset", "scale"), domain=LEARNING),
    Function("Affine", affine, 1, ("alpha", "beta"), domain=""),
    Function("Crop", crop, 1, ("border", "scale"), domain=""),
    Function("ImageScaler", image_scaler, 1, ("bias", "scale"), domain=""),
)
