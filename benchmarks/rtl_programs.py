"""Small programs to time on RTL, each named by the text that describes it.

    64x14x14 c64k3 r          an image of 64 channels, a 3 x 3 convolution to 64 channels, a ReLU
    8x12x12 c16k1 r dw3 +1    ... a depthwise 3 x 3 convolution, and the first step's output added
    32x128 fc256 gelu fc128   a matrix of 32 rows, and matrix products with bias

Steps: `cK` convolution to K channels (`k` kernel, `s` stride, `d` dilation, `g` groups; padded to keep the
size), `dw3` depthwise 3 x 3 (`s` stride), `fcK` matrix product, `+I` and `*I` add the output of step I (0:
the input) or multiply with it, `@I` product with the transposed output of step I, `mp2`/`ap2` max and average
pool (kernel = stride), `gap` global mean, and `r`, `sig`, `gelu`, `softmax`, `ln`: element-wise, or over the
last axis.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONVOLUTIONS = (
    "64x14x14 c64k3",
    "64x14x14 c64k3 r",
    "32x28x28 c32k3 r",
    "16x32x32 c16k3",
    "3x32x32 c16k3 r",
    "3x33x33 c32k7s2 r",
    "64x14x14 c128k3s2",
    "32x15x15 c48k3s2 r",
    "128x7x7 c128k3 r",
    "256x4x4 c256k3",
    "64x14x14 c128k1",
    "96x14x14 c24k1 r",
    "24x28x28 c96k1 r",
    "20x13x13 c20k3",
    "17x11x19 c33k3 r",
    "32x14x14 c32k5 r",
    "32x16x16 c32k3d2",
    "64x10x10 c64k3g2",
    "64x8x8 c64k1s2",
    "1x28x28 c8k5 r",
)
DEPTHWISE = ("32x14x14 dw3", "64x10x10 dw3s2 r", "16x28x28 dw3 r", "40x9x9 dw5")
PRODUCTS = (
    "128x256 fc256",
    "64x64 fc64",
    "16x512 fc512",
    "1x512 fc1000",
    "1x64 fc10",
    "33x100 fc70 r",
    "128x128 fc128 r",
    "64x256 fc64",
    "64x64 fc256 r",
    "200x48 fc48",
    "8x1024 fc64",
    "32x64 @0",
)
GROUPS = (
    "32x12x12 c64k3 r c64k3",
    "32x12x12 c32k3 r c32k3 +0 r",
    "16x16x16 c16k3 r c16k3 +0 r c32k3s2 r",
    "24x14x14 c96k1 r dw3 r c24k1",
    "24x14x14 c96k1 r dw3 r c24k1 +0",
    "16x14x14 c64k1 r dw3s2 r c32k1",
    "16x24x24 c16k3 r mp2",
    "3x32x32 c16k3 r mp2 c32k3 r mp2",
    "32x14x14 dw3 r c64k1 r",
    "32x10x10 c32k1 r c32k3 r c128k1",
    "64x128 fc256 r fc128",
    "32x64 fc256 gelu fc64 +0",
    "16x20x20 c16k3 r c16k3 r c16k3 r c16k3 r",
)
HOST = (
    "32x64 softmax",
    "32x64 ln",
    "64x96 ln fc96",
    "32x64 gelu",
    "32x64 fc64 softmax",
    "16x16x16 ap2",
    "64x7x7 gap fc10",
    "32x14x14 mp3",
    "32x14x14 c32k3 sig",
    "24x10x10 c24k1 r gap fc24 sig",
    "32x32 fc32 @0 softmax",
    "16x16x16 +0",
    "64x14x14 c64k1 +0",
)
PROGRAMS = (*CONVOLUTIONS, *DEPTHWISE, *PRODUCTS, *GROUPS, *HOST)

# What the clock was far off for when only the programs above had been timed.
FITTED = {
    "ragged channels": (
        "20x14x14 c40k3",
        "24x12x12 c72k3 r",
        "12x20x20 c20k3 r",
        "40x10x10 c24k1 r",
        "50x100 fc50",
        "33x65 fc40 r",
    ),
    "product of tensors": ("32x64 fc64 *0", "16x12x12 c16k1 *0", "48x32 sig *0"),
    "tiny product": ("1x16 fc16", "4x32 fc16", "2x64 fc24 r", "8x8 fc8"),
    "1x1 on few pixels": ("128x4x4 c64k1", "256x2x2 c64k1", "64x7x7 c96k1 r", "160x3x3 c160k1"),
    "max pool alone": ("32x14x14 mp2", "16x20x20 mp2", "48x8x8 mp2"),
    "addition": ("32x8x8 c32k1 +0", "49x64 fc64 +0", "16x20x20 c16k1 +0"),
    "weights from DRAM": ("16x1024 fc1024", "1x512 fc2048"),
}
HELD_OUT = {
    "ragged channels": ("28x13x13 c36k3 r", "10x18x18 c26k3", "44x11x11 c20k1", "25x70 fc90"),
    "product of tensors": ("24x96 fc96 sig *0", "20x10x10 c20k1 *0"),
    "tiny product": ("1x48 fc20", "3x20 fc40", "16x16 fc16"),
    "1x1 on few pixels": ("192x4x4 c32k1 r", "96x5x5 c128k1", "320x1x1 c64k1"),
    "max pool alone": ("24x20x20 mp2", "64x6x6 mp2"),
    "addition": ("24x10x10 c24k1 +0", "100x48 fc48 +0", "96x7x7 c96k1 +0"),
    "weights from DRAM": ("8x768 fc1536", "4x1024 fc1024 r fc512"),
}
"""Chosen before any of them was timed, and never fitted to."""
MORE = tuple(text for kinds in (FITTED, HELD_OUT) for texts in kinds.values() for text in texts)

_STEP = re.compile(r"(c|dw|fc|mp|ap|\+|\*|@)(\d+)((?:[ksdg]\d+)*)")
_ELEMENTWISE = {"r": "Relu", "sig": "Sigmoid", "gelu": "Gelu"}


class _Model:
    """Grows an ONNX model step by step; weights follow from the program's text."""

    def __init__(self, text: str) -> None:
        self.numbers = np.random.default_rng(zlib.crc32(text.encode()))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[tuple[str, tuple[int, ...]]] = []

    def constant(self, *shape: int, spread: float = 1.0) -> str:
        name = f"w{len(self.constants)}"
        values = (spread * self.numbers.standard_normal(shape)).astype(np.float32)
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"y{len(self.outputs)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"step{len(self.outputs)}", **attributes))
        self.outputs.append((name, shape))

    def convolution(self, channels: int, kernel: int, stride: int, dilation: int, groups: int) -> None:
        x, (n, c, h, w) = self.outputs[-1]
        pad = dilation * (kernel // 2)
        reach = dilation * (kernel - 1) + 1
        size = [(extent + 2 * pad - reach) // stride + 1 for extent in (h, w)]
        depth = c // groups * kernel**2
        weights = self.constant(channels, c // groups, kernel, kernel, spread=depth**-0.5)
        self.node(
            "Conv",
            [x, weights, self.constant(channels)],
            (n, channels, *size),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            dilations=[dilation] * 2,
            pads=[pad] * 4,
            group=groups,
        )

    def step(self, word: str) -> None:
        """Append what one word says.

        Raises:
            ValueError: an unknown word.
        """
        x, shape = self.outputs[-1]
        if word in _ELEMENTWISE:
            self.node(_ELEMENTWISE[word], [x], shape)
        elif word == "softmax":
            self.node("Softmax", [x], shape, axis=-1)
        elif word == "ln":
            self.node("LayerNormalization", [x, self.constant(shape[-1]), self.constant(shape[-1])], shape)
        elif word == "gap":
            self.node("GlobalAveragePool", [x], (*shape[:2], 1, 1))
            self.node("Flatten", [self.outputs[-1][0]], shape[:2])
        else:
            self._numbered(word)

    def _numbered(self, word: str) -> None:
        match = _STEP.fullmatch(word)
        if match is None:
            raise ValueError(f"unknown step {word!r}")
        kind, number = match[1], int(match[2])
        more = {letter: int(value) for letter, value in re.findall(r"([ksdg])(\d+)", match[3])}
        (x, shape), stride = self.outputs[-1], more.get("s", 1)
        if kind == "c":
            self.convolution(number, more.get("k", 1), stride, more.get("d", 1), more.get("g", 1))
        elif kind == "dw":
            self.convolution(shape[1], number, stride, 1, shape[1])
        elif kind == "fc":
            weights = self.constant(shape[-1], number, spread=shape[-1] ** -0.5)
            self.node("Gemm", [x, weights, self.constant(number)], (*shape[:-1], number))
        elif kind in "+*":
            self.node("Add" if kind == "+" else "Mul", [x, self.outputs[number][0]], shape)
        elif kind == "@":
            other, (columns, depth) = self.outputs[number]
            self.node("Transpose", [other], (depth, columns), perm=[1, 0])
            self.node("MatMul", [x, self.outputs[-1][0]], (shape[0], columns))
        else:
            size = tuple(extent // number for extent in shape[2:])
            pool = "MaxPool" if kind == "mp" else "AveragePool"
            self.node(pool, [x], (*shape[:2], *size), kernel_shape=[number] * 2, strides=[number] * 2)


def model(text: str) -> onnx.ModelProto:
    """The ONNX model of a program, opset 20; equal texts give equal models.

    Raises:
        ValueError: a word that is no step.
    """
    size, *words = text.split()
    shape = tuple(map(int, size.split("x")))
    shape = (1, *shape) if len(shape) == 3 else shape
    grown = _Model(text)
    grown.outputs.append(("x", shape))
    for word in words:
        grown.step(word)
    name, result = grown.outputs[-1]
    graph = helper.make_graph(
        grown.nodes,
        "program",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, result)],
        grown.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def kind_of(text: str) -> str:
    """The family a program is listed in."""
    families = {
        "convolution": CONVOLUTIONS,
        "depthwise": DEPTHWISE,
        "product": PRODUCTS,
        "group": GROUPS,
        "host": HOST,
        **{kind: (*FITTED[kind], *HELD_OUT[kind]) for kind in FITTED},
    }
    return next((name for name, texts in families.items() if text in texts), "network")


def is_held_out(text: str) -> bool:
    """Whether no coefficient may ever be fitted to a program."""
    return any(text in texts for texts in HELD_OUT.values())
