"""ONNX models of small programs, each made from the text that describes it.

    64x14x14 c64k3 r          an image of 64 channels, a 3 x 3 convolution to 64 channels, a ReLU
    8x12x12 c16k1 r dw3 +1    ... a depthwise 3 x 3 convolution, and the first step's output added
    32x128 fc256 gelu fc128   a matrix of 32 rows, and matrix products with bias

Steps: `cK` convolution to K channels (`k` kernel, `s` stride, `d` dilation, `g` groups; padded to keep the
size), `dw3` depthwise 3 x 3 (`s` stride), `fcK` matrix product, `+I` and `*I` add the output of step I (0:
the input) or multiply with it, `&I` its channels behind the others, `<I` goes on from step I, `@I` product
with the transposed output of step I, `mp3`/`ap3` max and average pool (`s` stride, else the kernel's; `p`
padding, which averages count; `e1` windows past the edge), `gap` global mean, `mean` and `sum` of a matrix's
rows, `seK` squeeze-excite with K channels inside, `attK` attention of K heads with itself, `gnK` group norm,
`upK` every pixel K times each way, `shK` channels shuffled, `rotK` rotary embedding of K heads, and `r`,
`sig`, `gelu`, `softmax`, `ln`, `rms`: element-wise, or over the last axis.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_STEP = re.compile(r"(c|dw|fc|mp|ap|se|att|gn|up|sh|rot|\+|\*|@|&|<)(\d+)((?:[ksdgpe]\d+)*)")
_ELEMENTWISE = {"r": "Relu", "sig": "Sigmoid", "gelu": "Gelu"}


class _Model:
    """Grows an ONNX model step by step; weights follow from the program's text."""

    def __init__(self, text: str) -> None:
        self.numbers = np.random.default_rng(zlib.crc32(text.encode()))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[tuple[str, tuple[int, ...]]] = []

    def constant(self, *shape: int, spread: float = 1.0) -> str:
        return self._named((spread * self.numbers.standard_normal(shape)).astype(np.float32))

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
        elif word == "rms":
            self.root_mean_square()
        elif word in ("mean", "sum"):
            self.node(
                "ReduceMean" if word == "mean" else "ReduceSum",
                [x, self.whole(-1)],
                (*shape[:-1], 1),
                keepdims=1,
            )
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
        more = {letter: int(value) for letter, value in re.findall(r"([ksdgpe])(\d+)", match[3])}
        (x, shape), stride = self.outputs[-1], more.get("s", 1)
        match kind:
            case "c":
                self.convolution(number, more.get("k", 1), stride, more.get("d", 1), more.get("g", 1))
            case "dw":
                self.convolution(shape[1], number, stride, 1, shape[1])
            case "fc":
                self.product(number)
            case "+" | "*":
                self.node("Add" if kind == "+" else "Mul", [x, self.outputs[number][0]], shape)
            case "<":
                self.outputs.append(self.outputs[number])
            case "&":
                other, (n, channels, *size) = self.outputs[number]
                self.node("Concat", [x, other], (n, shape[1] + channels, *size), axis=1)
            case "@":
                other, (columns, depth) = self.outputs[number]
                self.node("Transpose", [other], (depth, columns), perm=[1, 0])
                self.node("MatMul", [x, self.outputs[-1][0]], (shape[0], columns))
            case "mp" | "ap":
                self.pool(kind, number, more.get("s", number), more.get("p", 0), more.get("e", 0))
            case "se":
                self.squeeze_excite(number)
            case "att":
                self.attention(number)
            case "gn":
                parameters = [self.constant(number), self.constant(number)]
                self.node("GroupNormalization", [x, *parameters], shape, num_groups=number)
            case "up":
                scales = self.floats(1, 1, number, number)
                larger = (*shape[:2], *(number * extent for extent in shape[2:]))
                self.node("Resize", [x, "", scales], larger, mode="nearest")
            case "sh":
                self.shuffle(number)
            case "rot":
                self.rotary(number)

    def whole(self, *values: int) -> str:
        """A constant of integers."""
        return self._named(np.array(values, np.int64))

    def floats(self, *values: float) -> str:
        """A constant that the text gives."""
        return self._named(np.array(values, np.float32))

    def _named(self, values: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def product(self, columns: int) -> None:
        x, shape = self.outputs[-1]
        weights = self.constant(shape[-1], columns, spread=shape[-1] ** -0.5)
        self.node("Gemm", [x, weights, self.constant(columns)], (*shape[:-1], columns))

    def pool(self, kind: str, kernel: int, stride: int, pad: int, ceil: int) -> None:
        x, shape = self.outputs[-1]
        size = tuple((n + 2 * pad - kernel + ceil * (stride - 1)) // stride + 1 for n in shape[2:])
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": ceil}
        if kind == "ap":
            window["count_include_pad"] = 1
        pool = "MaxPool" if kind == "mp" else "AveragePool"
        self.node(pool, [x], (*shape[:2], *size), **window)

    def squeeze_excite(self, channels: int) -> None:
        x, shape = self.outputs[-1]
        self.node("GlobalAveragePool", [x], (*shape[:2], 1, 1))
        self.convolution(channels, 1, 1, 1, 1)
        self.node("Relu", [self.outputs[-1][0]], self.outputs[-1][1])
        self.convolution(shape[1], 1, 1, 1, 1)
        self.node("Sigmoid", [self.outputs[-1][0]], self.outputs[-1][1])
        self.node("Mul", [x, self.outputs[-1][0]], shape)

    def attention(self, heads: int) -> None:
        start = self.outputs[-1]
        _, (tokens, width) = start
        split, projected = (heads, tokens, width // heads), list[str]()
        for _ in range(3):
            self.outputs.append(start)
            self.product(width)
            self.node("Reshape", [self.outputs[-1][0], self.whole(tokens, heads, width // heads)], split)
            turned = len(projected) == 1  # keys
            self.node("Transpose", [self.outputs[-1][0]], split, perm=[1, 2, 0] if turned else [1, 0, 2])
            projected.append(self.outputs[-1][0])
        scale = self.floats((width // heads) ** -0.5)
        self.node("MatMul", projected[:2], (heads, tokens, tokens))
        self.node("Mul", [self.outputs[-1][0], scale], self.outputs[-1][1])
        self.node("Softmax", [self.outputs[-1][0]], self.outputs[-1][1], axis=-1)
        self.node("MatMul", [self.outputs[-1][0], projected[2]], split)
        self.node("Transpose", [self.outputs[-1][0]], split, perm=[1, 0, 2])
        self.node("Reshape", [self.outputs[-1][0], self.whole(tokens, width)], (tokens, width))

    def root_mean_square(self) -> None:
        x, shape = self.outputs[-1]
        row = (*shape[:-1], 1)
        self.node("Pow", [x, self.floats(2.0)], shape)
        self.node("ReduceMean", [self.outputs[-1][0], self.whole(-1)], row, keepdims=1)
        self.node("Add", [self.outputs[-1][0], self.floats(1e-5)], row)
        self.node("Sqrt", [self.outputs[-1][0]], row)
        self.node("Div", [x, self.outputs[-1][0]], shape)
        self.node("Mul", [self.outputs[-1][0], self.constant(shape[-1])], shape)

    def rotary(self, heads: int) -> None:
        x, (tokens, channels) = self.outputs[-1]
        width = channels // heads
        whole, half = (tokens, heads, width), (tokens, heads, width // 2)
        angles = np.outer(np.arange(tokens), 100.0 ** (-np.arange(width // 2) / (width // 2)))[:, None]
        angles = np.concatenate([angles, angles], axis=-1)
        cosines, sines = (self._named(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
        self.node("Reshape", [x, self.whole(*whole)], whole)
        x = self.outputs[-1][0]
        for first in (0, width // 2):
            ends = self.whole(first), self.whole(first + width // 2), self.whole(2)
            self.node("Slice", [x, *ends], half)
        lower, upper = (name for name, _ in self.outputs[-2:])
        self.node("Neg", [upper], half)
        self.node("Concat", [self.outputs[-1][0], lower], whole, axis=2)
        self.node("Mul", [self.outputs[-1][0], sines], whole)
        self.node("Mul", [x, cosines], whole)
        self.node("Add", [name for name, _ in self.outputs[-2:]], whole)
        self.node("Reshape", [self.outputs[-1][0], self.whole(tokens, channels)], (tokens, channels))

    def shuffle(self, groups: int) -> None:
        x, (n, channels, *size) = self.outputs[-1]
        apart, shape = self.whole(n, groups, channels // groups, *size), (n, channels, *size)
        self.node("Reshape", [x, apart], shape)
        self.node("Transpose", [self.outputs[-1][0]], shape, perm=[0, 2, 1, 3, 4])
        self.node("Reshape", [self.outputs[-1][0], self.whole(*shape)], shape)


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
