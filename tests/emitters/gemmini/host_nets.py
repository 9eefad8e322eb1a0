"""Graphs of many independent host layers: every operator of the firmware's host library."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.host_records import operator_of

N, H, W, C = 2, 5, 6, 7
SHAPE = (N, H, W, C)
SIZE = N * H * W * C
UNITS = (SIZE,)
ROW = {"outer": N * H * W, "length": C, "inner": 1}
COLUMN = {"outer": N, "length": H, "inner": W * C}


class HostNet:
    """One graph with many independent host layers over two inputs."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng(7)
        self.builder = GraphBuilder("host")
        self.x = self.builder.input("x", SHAPE, scale=0.1)
        self.z = self.builder.input("z", SHAPE, scale=0.07)
        self.outputs: list[str] = []

    def constant(self, values: np.ndarray) -> str:
        dtype = {"int8": "int8", "int32": "int32", "float32": "float32"}[values.dtype.name]
        return self.builder.tensor("constant", values.shape, dtype, None, values)  # type: ignore[arg-type]

    def layer(
        self, op: str, inputs: tuple[str, ...], size: tuple[int, ...], dtype: str = "int8", **more: object
    ) -> None:
        out = self.builder.tensor(op, size, dtype, 0.1)  # type: ignore[arg-type]
        self.builder.host(op, operator_of(op, more), inputs, (out,))
        self.outputs.append(out)

    def build(self) -> Graph:
        return self.builder.build(tuple(self.outputs))


def elementwise() -> Graph:
    net = HostNet()
    flat = {"shape": UNITS, "strides": (1,), "b_strides": (1,), "out_strides": (1,)}
    for function in (
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "prelu",
        "equal",
        "greater",
        "greater_or_equal",
        "less",
        "less_or_equal",
        "and",
        "or",
        "xor",
    ):
        for activation in ("none", "relu") if function in ("add", "sub", "mul", "div") else ("none",):
            scales = {"a_scale": 0.75, "b_scale": 0.3, "scale": 0.9, "activation": activation}
            net.layer("binary", (net.x, net.z), SHAPE, function=function, **scales, **flat)
    pixel = {"shape": (N * H * W, C), "strides": (C, 1), "out_strides": (C, 1)}
    per_channel = {"b_strides": (0, 1), "c_strides": (0, 1)}
    multiplier = net.constant(net.numbers.normal(size=C).astype(np.float32))
    addend = net.constant(net.numbers.normal(size=C).astype(np.float32) * 20)
    for activation in ("none", "relu"):
        inputs = (net.x, multiplier, addend)
        net.layer("scale_shift", inputs, SHAPE, activation=activation, **pixel, **per_channel)
    condition = net.constant((net.numbers.random(C) < 0.5).astype(np.int8))
    net.layer(
        "where",
        (condition, net.x, net.z),
        SHAPE,
        a_scale=0.5,
        b_scale=1.5,
        shape=(N * H * W, C),
        strides=(0, 1),
        b_strides=(C, 1),
        c_strides=(C, 1),
        out_strides=(C, 1),
    )
    table = net.constant(net.numbers.integers(-128, 128, 256).astype(np.int8))
    net.layer("lookup", (net.x, table), SHAPE, shape=UNITS, strides=(1,), out_strides=(1,))
    transposed = (N, C, H, W)
    net.layer(
        "copy",
        (net.x,),
        transposed,
        shape=(N, C, H * W),
        strides=(H * W * C, 1, C),
        out_strides=(H * W * C, H * W, 1),
    )
    net.layer(
        "copy",
        (net.x,),
        (N, H, 3),
        shape=(N, H, 3),
        offset=9,
        strides=(H * W * C, W * C, 2),
        out_strides=(H * 3, 3, 1),
    )
    return net.build()


def windows() -> Graph:
    net = HostNet()
    for kernel, stride, dilation, pads, out in (
        ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0), (2, 3)),
        ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), (3, 3)),
        ((2, 3), (1, 2), (2, 1), (1, 0, 0, 2), (4, 3)),
    ):
        window = {"kernel": kernel, "stride": stride, "dilation": dilation, "pads": pads}
        net.layer("max_pool", (net.x,), (N, *out, C), **window)
        for include in (0, 1):
            net.layer("average_pool", (net.x,), (N, *out, C), count_include_pad=include, ratio=1.3, **window)
    net.layer("global_average_pool", (net.x,), (N, 1, 1, C), scale=0.037)
    rows = net.constant(np.array([[0, 1], [1, 2], [4, 4]], np.int32))
    columns = net.constant(np.array([[0, 0], [2, 3], [4, 5], [5, 5]], np.int32))
    weights = net.constant(net.numbers.random((3, 2)).astype(np.float32))
    column_weights = net.constant(net.numbers.random((4, 2)).astype(np.float32))
    inputs = (net.x, rows, weights, columns, column_weights)
    net.layer("resize_linear", inputs, (N, 3, 4, C), scale=1.1)
    return net.build()


def rows() -> Graph:
    net = HostNet()
    exponentials = net.constant(np.rint(32767 * np.exp(np.arange(-255, 1) * 0.05)).astype(np.int32))
    mask = net.constant((net.numbers.random((W, C)) < 0.4).astype(np.int8))
    net.layer("softmax", (net.x, exponentials), SHAPE, scale=127.0, **ROW)
    net.layer("softmax", (net.x, exponentials), SHAPE, scale=127.0, **COLUMN)
    net.layer("softmax", (net.x, exponentials, mask), SHAPE, scale=127.0, mask_rows=W, **ROW)
    written = (net.builder.tensor("e", SHAPE, "int8", 1.0), net.builder.tensor("f", (N, H, W), "float32"))
    net.builder.host("exponentials", operator_of("exponentials", ROW), (net.x, exponentials), written)
    net.outputs.extend(written)
    long = net.constant(np.full(256, 2**30, np.int32))  # sums as of rows of 100,000
    net.layer("softmax", (net.x, long), SHAPE, scale=127.0, **ROW)
    thresholds = net.constant(np.ceil(32767 * np.exp((np.arange(60) + 0.5) / 30)).astype(np.float32))
    for view in (ROW, COLUMN):
        inputs = (net.x, exponentials, thresholds)
        net.layer("log_softmax", inputs, SHAPE, ratio=0.7, unit=0.0625, **view)
    for view, length in ((ROW, C), (COLUMN, H)):
        gamma = net.constant(20 * net.numbers.normal(size=length).astype(np.float32))
        beta = net.constant(20 * net.numbers.normal(size=length).astype(np.float32))
        for center in (0, 1):
            parameters = {
                "epsilon": 1e-5,
                "variance_scale": 0.01 / length**2,
                "unit": 0.1 / length,
            }
            inputs = (net.x, gamma, beta)
            net.layer("layer_norm", inputs, SHAPE, center=center, per_inner=0, **parameters, **view)
        out = (view["outer"], view["inner"])
        for function in ("sum", "max", "min"):
            net.layer("reduce", (net.x,), out, function=function, scale=0.21, **view)
        for function in ("max", "min"):
            for last in (0, 1):
                net.layer("arg_max", (net.x,), out, "int32", function=function, select_last=last, **view)
    indices = net.constant(np.array([3, 0, 4, 4], np.int32))
    net.layer("gather", (net.x, indices), (N, 4, W, C), **COLUMN)
    places = net.constant(np.array([2, -1], np.int32))
    updates = net.constant(net.numbers.integers(-128, 128, (N, 2, W, C)).astype(np.int8))
    net.layer("scatter", (net.x, places, updates), (N, H, W, C), **COLUMN)
    return net.build()


def integers() -> Graph:
    """Every function of two integers, with results that wrap around; choices; integers from and to int8."""
    net = HostNet()
    flat = {"shape": UNITS, "strides": (1,), "b_strides": (1,), "out_strides": (1,)}
    wild, small = (
        net.constant(net.numbers.integers(-limit, limit, SHAPE).astype(np.int32)) for limit in (2**31 - 1, 9)
    )
    divisor = net.constant(
        (net.numbers.integers(1, 9, SHAPE) * net.numbers.choice([-1, 1], SHAPE)).astype(np.int32)
    )
    shift = net.constant(net.numbers.integers(0, 31, SHAPE).astype(np.int32))
    for function in ("add", "sub", "mul", "max", "min", "and", "or", "xor"):
        net.layer("integer", (wild, small), SHAPE, "int32", function=function, **flat)
    for function in ("div", "modulo", "remainder"):
        net.layer("integer", (wild, divisor), SHAPE, "int32", function=function, **flat)
    for function in ("shift_left", "shift_right"):
        net.layer("integer", (wild, shift), SHAPE, "int32", function=function, **flat)
    for function in ("equal", "not_equal", "greater", "greater_or_equal", "less", "less_or_equal"):
        net.layer("integer", (small, divisor), SHAPE, function=function, **flat)
    condition = net.constant((net.numbers.random(C) < 0.5).astype(np.int8))
    box = {"shape": (N * H * W, C), "strides": (0, 1), "b_strides": (C, 1), "c_strides": (C, 1)}
    net.layer("select", (condition, wild, small), SHAPE, "int32", out_strides=(C, 1), **box)
    net.layer("quantise", (small,), SHAPE, shape=UNITS, strides=(1,), out_strides=(1,), scale=5.5)
    table = net.constant(net.numbers.integers(-(2**31), 2**31 - 1, 256).astype(np.int32))
    net.layer("lookup", (net.x, table), SHAPE, "int32", shape=UNITS, strides=(1,), out_strides=(1,))
    return net.build()
