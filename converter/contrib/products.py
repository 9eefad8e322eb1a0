"""Convolutions and matrix products with something fused into them, or with weights in blocks of few bits."""

from __future__ import annotations

import numpy as np

from fadiff.converter.contrib.activations import activate, known_activation
from fadiff.converter.contrib.call import Call, Function
from fadiff.converter.decompose.nodes import Nodes

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_GEMM = ("alpha", "beta", "transA", "transB")


def fused_conv(nodes: Nodes, call: Call) -> None:
    """Conv, plus the fourth input, then the activation."""
    inputs = [call.input(i) for i in range(3 if call.input(2) else 2)]
    y = nodes.op("Conv", *inputs, label="Conv", **call.attributes(*_CONV))
    if call.input(3):
        y = nodes.op("Add", y, call.input(3))
    parameters = call.attribute("activation_params", ())
    nodes.give(activate(nodes, y, call.attribute("activation", ""), parameters), call.output(0))


def fused_gemm(nodes: Nodes, call: Call) -> None:
    """Gemm, then the activation."""
    inputs = [call.input(i) for i in range(3 if call.input(2) else 2)]
    y = nodes.op("Gemm", *inputs, **call.attributes(*_GEMM))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = list(call.attributes(*names).values())
    nodes.give(activate(nodes, y, call.attribute("activation", ""), parameters), call.output(0))


def fused_matmul(nodes: Nodes, call: Call) -> None:
    """MatMul of transposed operands, times alpha."""
    a, b = (_operand(nodes, call, i, side) for i, side in enumerate("AB"))
    y = nodes.op("MatMul", a, b)
    alpha = float(call.attribute("alpha", 1.0))
    nodes.give(y if alpha == 1 else nodes.op("Mul", y, nodes.number(alpha)), call.output(0))


def _operand(nodes: Nodes, call: Call, index: int, side: str) -> str:
    """The operand for MatMul: transBatch puts the first axis behind the batch, trans swaps the last two."""
    rank = len(call.sizes(index))
    order = list(range(rank))
    if rank > 2 and call.attribute(f"transBatch{side}", 0):
        order = [*order[1:-1], 0, order[-1]]
    if rank > 1 and call.attribute(f"trans{side}", 0):
        order = [*order[:-2], order[-1], order[-2]]
    return nodes.transpose(call.input(index), order)


def known_operands(call: Call) -> str | None:
    """Shapes of the operands are static."""
    return call.unshaped(0, 1)


def matmul_n_bits(nodes: Nodes, call: Call) -> None:
    """MatMul by the dequantised weights: (integer - zero point) * scale, for every block of a column."""
    product = nodes.op("MatMul", call.input(0), nodes.constant(_dequantised(call).T, "weight"))
    nodes.give(nodes.op("Add", product, call.input(5)) if call.input(5) else product, call.output(0))


def constant_blocks(call: Call) -> str | None:
    """Weights, scales, zero points and group indices are constant."""
    bad = next((call.input(i) for i in range(1, 5) if call.input(i) and call.constant(i) is None), None)
    return None if bad is None else f"{bad} is computed at run time"


def plain_bits(call: Call) -> str | None:
    """bits is 2, 4 or 8."""
    bits = call.attribute("bits", 4)
    return None if bits in (2, 4, 8) else f"bits={bits}"


def _dequantised(call: Call) -> np.ndarray:
    """Weights [N, K] of MatMulNBits."""
    columns, rows = int(call.attribute("N")), int(call.attribute("K"))
    block, bits = int(call.attribute("block_size")), int(call.attribute("bits", 4))
    blocks = -(-rows // block)
    packed, scales, zeros, groups = (call.constant(i) for i in range(1, 5))
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


_ACTIVATED = ("activation", "activation_params")
_FUSED_GEMM = ("activation", "activation_alpha", "activation_beta", "activation_gamma", *_GEMM)
_MATMUL = ("alpha", "transA", "transB", "transBatchA", "transBatchB")
FUNCTIONS = (
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
)
