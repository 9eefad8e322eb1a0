"""Grows small random graphs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.schedule.host_records import operator_of

Shape = tuple[int, int, int, int]


class Net:
    """Grows a graph of convolutions and adds with random int8 constants."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = np.random.default_rng(rng.randint(0, 1 << 30))
        self.builder = GraphBuilder("net")
        self.names: list[str] = []

    def input(self, shape: Shape) -> str:
        return self.builder.input("x", shape, scale=0.1)

    def conv(
        self,
        x: str,
        shape: Shape,
        *,
        outputs: int,
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        groups: int = 1,
        bias: bool | None = None,
    ) -> tuple[str, Shape] | None:
        """Add a convolution; None when its output would be empty."""
        n, h, w, c = shape
        p = (h + pads[0] + pads[2] - (kernel[0] - 1) * dilation[0] - 1) // stride[0] + 1
        q = (w + pads[1] + pads[3] - (kernel[1] - 1) * dilation[1] - 1) // stride[1] + 1
        if p < 1 or q < 1:
            return None
        depthwise = groups == c and outputs == c and groups > 1
        dims = Dims(G=groups, N=n, K=outputs // groups, C=c // groups, P=p, Q=q, R=kernel[0], S=kernel[1])
        b, i = self.builder, len(self.names)
        constants = (dims.G, dims.R, dims.S, dims.C, dims.K)
        weights = b.tensor(f"w{i}", constants, scale=0.05, data=self._integers(-127, 128, constants, np.int8))
        bias_name = None
        if self.rng.random() < 0.6 if bias is None else bias:
            shape_b = (dims.G, dims.K)
            bias_name = b.tensor(
                f"b{i}", shape_b, "int32", 0.005, self._integers(-5000, 5000, shape_b, np.int32)
            )
        out_shape = (n, p, q, outputs)
        y = b.tensor(f"y{i}", out_shape, scale=0.1)
        b.tensor_core(
            TensorCoreLayer(
                f"l{i}",
                "depthwise" if depthwise else "conv",
                dims,
                image_view(x, shape, groups),
                weight_view(weights, dims),
                image_view(y, out_shape, groups),
                (h, w),
                bias=bias_name,
                stride=stride,
                dilation=dilation,
                pads=pads,
                activation=self.rng.choice(["relu", "none"]),
            )
        )
        layer = b.layers[-1]
        assert isinstance(layer, TensorCoreLayer)
        # Spread the results over the int8 range whatever the depth of the sum.
        spread = 1 / (60 * np.sqrt(dims.C * dims.R * dims.S))
        b.layers[-1] = replace(layer, scale=float(np.float32(spread)))
        self.names.append(f"l{i}")
        return y, out_shape

    def add(self, a: str, b: str, shape: Shape) -> str:
        i = len(self.names)
        y = self.builder.tensor(f"y{i}", shape, scale=0.1)
        attributes = {
            "a_scale": float(np.float32(self.rng.uniform(0.3, 1))),
            "b_scale": 1.0,
            "scale": float(np.float32(self.rng.uniform(0.4, 1.2))),
            "activation": self.rng.choice(["relu", "none"]),
        }
        self.builder.host(f"l{i}", operator_of("add", attributes), (a, b), (y,))
        self.names.append(f"l{i}")
        return y

    def max_pool(
        self, x: str, shape: Shape, kernel: int, stride: int, pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    ) -> tuple[str, Shape]:
        """Add a pool that rounds down."""
        n, h, w, c = shape
        p = (h + pads[0] + pads[2] - kernel) // stride + 1
        q = (w + pads[1] + pads[3] - kernel) // stride + 1
        i = len(self.names)
        y = self.builder.tensor(f"y{i}", (n, p, q, c), scale=0.1)
        window = {"kernel": (kernel, kernel), "stride": (stride, stride), "dilation": (1, 1), "pads": pads}
        self.builder.host(f"l{i}", operator_of("max_pool", window), (x,), (y,))
        self.names.append(f"l{i}")
        return y, (n, p, q, c)

    def lookup(self, x: str, shape: Shape) -> str:
        i, size = len(self.names), int(np.prod(shape))
        y = self.builder.tensor(f"y{i}", shape, scale=0.1)
        table = self.builder.tensor(f"t{i}", (256,), data=self._integers(-128, 128, (256,), np.int8))
        attributes = {"shape": (size,), "offset": 0, "strides": (1,), "out_strides": (1,)}
        self.builder.host(f"l{i}", operator_of("lookup", attributes), (x, table), (y,))
        self.names.append(f"l{i}")
        return y

    def layer_norm(self, x: str, shape: Shape) -> str:
        i, length = len(self.names), shape[3]
        y = self.builder.tensor(f"y{i}", shape, scale=0.02)
        affine = [
            self.builder.tensor(
                f"{name}{i}",
                (length,),
                "float32",
                data=50 * self.numbers.normal(size=length).astype(np.float32),
            )
            for name in ("gamma", "beta")
        ]
        attributes = {
            "outer": int(np.prod(shape[:3])), "length": length, "inner": 1, "center": 1, "per_inner": 0,
            "epsilon": 1e-5, "variance_scale": 0.01 / length**2, "unit": 0.1 / length,
        }  # fmt: skip
        self.builder.host(f"l{i}", operator_of("layer_norm", attributes), (x, *affine), (y,))
        self.names.append(f"l{i}")
        return y

    def _integers(self, low: int, high: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return self.numbers.integers(low, high, shape).astype(dtype)
