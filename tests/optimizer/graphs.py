"""Small graphs for the optimiser's tests."""

import numpy as np
from hypothesis import strategies as st

from converter.ir.builder import GraphBuilder, image_view, weight_view
from converter.ir.dims import Dims


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

    def lookup(self, name, source):
        """A table applied by the core: a host operator on rows."""
        shape = self.shape[source]
        out = self.builder.tensor(f"{name}.out", shape, scale=0.5)
        table = self.builder.tensor(f"{name}.table", (256,), "int8", 1.0, np.zeros(256, dtype=np.int8))
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(4))
        attributes = {
            "shape": shape,
            "strides": strides,
            "out_strides": strides,
            "offset": 0,
            "out_offset": 0,
        }
        self.builder.host(name, "lookup", (source, table), (out,), attributes)
        self.shape[out] = shape
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


def bottleneck(size=16, channels=16, expansion=4, kernel=1):
    """y = a(x); c(b(y) + y) with many channels inside: much to gain by fusing across the add."""
    net = Net(size, channels)
    y = net.conv("a", net.x, channels * expansion)
    z = net.conv("b", y, channels * expansion, kernel)
    return net.build(net.conv("c", net.add("sum", z, y), channels))


@st.composite
def random_dags(draw):
    """Strided, depthwise and plain convolutions, adds and lookups: up to nine layers, open branches."""
    net = Net(draw(st.sampled_from([5, 8, 12])), draw(st.sampled_from([4, 8])))
    tensors = [net.x]
    for i in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(tensors[-3:]))
        alike = [t for t in tensors if t != source and net.shape[t] == net.shape[source]]
        if alike and draw(st.booleans()):
            tensors.append(net.add(f"add{i}", source, draw(st.sampled_from(alike))))
            continue
        if draw(st.integers(0, 4)) == 0:
            tensors.append(net.lookup(f"lookup{i}", source))
            continue
        kernel, stride = draw(st.sampled_from([(1, 1), (3, 1), (3, 1), (3, 2), (1, 2)]))
        channels = net.shape[source][3]
        depthwise = draw(st.booleans())
        k = channels if depthwise else draw(st.sampled_from([4, channels, 2 * channels]))
        tensors.append(net.conv(f"conv{i}", source, k, kernel, stride, depthwise))
    read = {name for layer in net.builder.layers for name in layer.inputs}
    return net.build(*[t for t in tensors[1:] if t not in read])
