"""Good input that the hostile suite starts from: small models, a header, a target, a design space."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

_NETWORKS: Mapping[str, tuple[str, Mapping[str, Sequence[int]]]] = {
    "residual": (
        """(float[1,4,8,8] image) => (float[1,5] scores) {
            a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, w1, b1)
            r = Relu (a)
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, w2)
            s = Add (c, r)
            m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
            p = GlobalAveragePool (m)
            f = Flatten (p)
            scores = Gemm <transB = 1> (f, w3)
        }""",
        {"w1": (8, 4, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (5, 8)},
    ),
    "attention": (
        """(float[1,6,8] x) => (float[1,6,8] y) {
            n = LayerNormalization <axis = -1> (x, gamma, beta)
            q = MatMul (n, wq)
            k = MatMul (n, wk)
            t = Transpose <perm = [0, 2, 1]> (k)
            l = MatMul (q, t)
            p = Softmax <axis = -1> (l)
            o = MatMul (p, n)
            g = Gelu (o)
            y = Add (g, x)
        }""",
        {"gamma": (8,), "beta": (8,), "wq": (8, 8), "wk": (8, 8)},
    ),
    "upsampled": (
        """(float[1,3,6,6] x) => (float[1,6,12,12] y) {
            d = Conv <group = 3, kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (x, w1)
            u = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (d, w2)
            a = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (u)
            h = HardSwish (a)
            y = Concat <axis = 1> (h, u)
        }""",
        {"w1": (3, 1, 3, 3), "w2": (3, 3, 2, 2)},
    ),
    "recurrent": (
        """(float[4,1,5] x) => (float y) {
            h, last = GRU <hidden_size = 3> (x, w, r)
            s = Squeeze (last)
            y = ReduceMean <keepdims = 0> (s)
        }""",
        {"w": (1, 9, 5), "r": (1, 9, 3)},
    ),
    "quantised": (
        """(float[1,4] x) => (float[1,3] y) {
            step = Constant <value = float {0.05}> ()
            zero = Constant <value = int8 {0}> ()
            q = QuantizeLinear (x, step, zero)
            d = DequantizeLinear (q, step, zero)
            z = MatMul (d, w)
            o = QuantizeLinear (z, step, zero)
            y = DequantizeLinear (o, step, zero)
        }""",
        {"w": (4, 3)},
    ),
    "controlled": (
        """(float[2,4] x) => (float[2,4] y) {
            go = Constant <value = bool {1}> ()
            three = Constant <value = int64 {3}> ()
            a = If (go) <
                then_branch = yes () => (float[2,4] t) { t = Relu (x) },
                else_branch = no () => (float[2,4] e) { e = Neg (x) }>
            y = Loop (three, go, a) <body = step (int64 i, bool c, float[2,4] v) => (bool k, float[2,4] w)
                { k = Identity (c) w = Add (v, x) }>
        }""",
        {},
    ),
}

HEADER = """#ifndef GEMMINI_PARAMS_H
#define GEMMINI_PARAMS_H
#include <stdint.h>
#define XCUSTOM_ACC 3
#define DIM 16
#define ADDR_LEN 32
#define BANK_NUM 4
#define BANK_ROWS 4096
#define ACC_ROWS 1024
#define MAX_BYTES 64
#define MAX_BLOCK_LEN (MAX_BYTES/(DIM*1))
typedef int8_t elem_t;
typedef int32_t acc_t;
#define HAS_MVIN_SCALE
typedef float scale_t;
#define ACC_SCALE_T_IS_FLOAT
typedef float acc_scale_t;
#define ACC_READ_FULL_WIDTH
#define HAS_FIRST_LAYER_OPTIMIZATIONS
#endif
"""

TARGET = {
    "name": "mine",
    "side": 8,
    "scratchpad_bytes": 65536,
    "accumulator_bytes": 16384,
    "energy": {"mac": 0.5, "dram_byte": 100.0},
    "bandwidth": {"dram_bytes": 8},
}

SPACE = {"base": "gemmini-small", "vary": {"side": [8, 16]}, "search": {"method": "layerwise"}}


def models() -> dict[str, onnx.ModelProto]:
    """The networks by name, with random but seeded weights."""
    return {name: _model(name, text, shapes) for name, (text, shapes) in _NETWORKS.items()}


def _model(name: str, text: str, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    opset = 20 if name in ("attention", "upsampled") else 17
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {name} {text}')
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    for weight, shape in shapes.items():
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, weight))
    for node in model.graph.node:
        node.name = f"{node.output[0]}.{node.op_type}"
    return model


def with_external_data(path: Path) -> None:
    """The first network with its weights in a file beside it."""
    onnx.save(
        models()["residual"],
        path,
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=0,
    )
