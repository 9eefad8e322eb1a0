"""Small graphs for the optimiser's tests."""

import numpy as np

from converter.builder import GraphBuilder, image_view, weight_view
from converter.dims import Dims


class Net:
    """Convolutions and adds on [N, H, W, C] images."""

    def __init__(self, size=8, channels=4, batch=1):
        self.builder = GraphBuilder("net")
        self.shape = {}
        self.x = self.builder.input("x", (batch, size, size, channels), scale=0.5)
        self.shape[self.x] = (batch, size, size, channels)

    def conv(self, name, source, k, kernel=1, stride=1, depthwise=False):
        n, h, w, c = self.shape[source]
        pad = kernel // 2
        p = (h + 2 * pad - kernel) // stride + 1
        groups = c if depthwise else 1
        dims = Dims(groups, n, k // groups, c // groups, p, p, kernel, kernel)
        out = self.builder.tensor(f"{name}.out", (n, p, p, k), scale=0.5)
        zeros = np.broadcast_to(np.int8(0), (dims.G, dims.R, dims.S, dims.C, dims.K))
        weight = self.builder.tensor(f"{name}.weight", zeros.shape, "int8", 0.5, zeros)
        self.builder.tensor_core(
            name,
            "depthwise" if depthwise else "conv",
            dims,
            image_view(source, self.shape[source], groups),
            weight_view(weight, dims),
            image_view(out, (n, p, p, k), groups),
            (h, w),
            stride=(stride, stride),
            pads=(pad, pad, pad, pad),
        )
        self.shape[out] = (n, p, p, k)
        return out

    def add(self, name, a, b):
        out = self.builder.tensor(f"{name}.out", self.shape[a], scale=0.5)
        attributes = {"a_scale": 1.0, "b_scale": 1.0, "scale": 1.0, "activation": "none"}
        self.builder.host(name, "add", (a, b), (out,), attributes)
        self.shape[out] = self.shape[a]
        return out

    def build(self, *outputs):
        return self.builder.build(outputs)


def separable(size=16, channels=8, blocks=2):
    """Depthwise and pointwise convolutions in turn: fusion pays."""
    net = Net(size, channels)
    x = net.x
    for i in range(blocks):
        x = net.conv(f"dw{i}", x, channels, 3, depthwise=True)
        x = net.conv(f"pw{i}", x, channels)
    return net.build(x)


def residual(size=8, channels=8):
    """Two residual blocks: the second has a downsampling branch."""
    net = Net(size, channels)
    x = net.x
    y = net.conv("a1", x, channels, 3)
    y = net.conv("a2", y, channels, 3)
    x = net.add("a_add", y, x)
    y = net.conv("b1", x, 2 * channels, 3, 2)
    y = net.conv("b2", y, 2 * channels, 3)
    z = net.conv("b_down", x, 2 * channels, 1, 2)
    x = net.add("b_add", y, z)
    return net.build(x)
