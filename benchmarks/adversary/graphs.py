"""Small graphs of convolutions, products, adds and tables, drawn or in the manner of known networks."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import Graph, TensorCoreLayer, View
from fadiff.converter.ir.host import Add, Lookup
from fadiff.converter.ir.loops import Access, Dims, Loops


class Net:
    """Convolutions and adds on [N, H, W, C] images."""

    def __init__(self, size: int = 8, channels: int = 4, batch: int = 1, width: int | None = None) -> None:
        """Images of `size` rows, and as many columns or `width`."""
        self.builder = GraphBuilder("net")
        self.shape: dict[str, tuple[int, int, int, int]] = {}
        shape = batch, size, width or size, channels
        self.x = self.builder.input("x", shape, scale=0.5)
        self.shape[self.x] = shape

    def conv(
        self, name: str, source: str, k: int, kernel: int = 1, stride: int = 1, depthwise: bool = False
    ) -> str:
        """Square kernels, padded to keep the size; the name of the output."""
        n, h, w, c = self.shape[source]
        pad = kernel // 2
        p, q = ((size + 2 * pad - kernel) // stride + 1 for size in (h, w))
        groups = c if depthwise else 1
        dims = Dims(groups, n, k // groups, c // groups, p, q, kernel, kernel)
        out = self.builder.tensor(f"{name}.out", (n, p, q, k), scale=0.5)
        zeros = np.broadcast_to(np.int8(0), (dims.G, dims.R, dims.S, dims.C, dims.K))
        weight = self.builder.tensor(f"{name}.weight", zeros.shape, "int8", 0.5, zeros)
        self.builder.tensor_core(
            TensorCoreLayer(
                name,
                "depthwise" if depthwise else "conv",
                dims,
                image_view(source, self.shape[source], groups),
                weight_view(weight, dims),
                image_view(out, (n, p, q, k), groups),
                (h, w),
                stride=(stride, stride),
                pads=(pad, pad, pad, pad),
            )
        )
        self.shape[out] = (n, p, q, k)
        return out

    def add(self, name: str, a: str, b: str) -> str:
        """A residual add."""
        out = self.builder.tensor(f"{name}.out", self.shape[a], scale=0.5)
        self.builder.host(name, Add(), (a, b), (out,))
        self.shape[out] = self.shape[a]
        return out

    def lookup(self, name: str, source: str) -> str:
        """A table applied by the core: a host operator on rows."""
        shape = self.shape[source]
        out = self.builder.tensor(f"{name}.out", shape, scale=0.5)
        table = self.builder.tensor(f"{name}.table", (256,), "int8", 1.0, np.zeros(256, dtype=np.int8))
        dense = Access(0, tuple(int(np.prod(shape[i + 1 :])) for i in range(4)))
        self.builder.host(name, Lookup(Loops(shape, (dense,), dense)), (source, table), (out,))
        self.shape[out] = shape
        return out

    def build(self, *outputs: str) -> Graph:
        """The graph with these outputs (none: every tensor that nobody reads)."""
        read = {name for layer in self.builder.layers for name in layer.inputs}
        return self.builder.build(outputs or tuple(t for t in self.shape if t != self.x and t not in read))


def exchange(size: int = 8, channels: int = 4, rounds: int = 1) -> Graph:
    """Two branches that add each other's results, as in HRNet: groups across them can wait for each other."""
    net = Net(size, channels)
    a, b = net.conv("a", net.x, channels), net.conv("b", net.x, channels)
    for i in range(rounds):
        c, d = net.conv(f"c{i}", a, channels), net.conv(f"d{i}", b, channels)
        to_a, to_b = net.conv(f"to_a{i}", d, channels), net.conv(f"to_b{i}", c, channels)
        a, b = net.add(f"add_a{i}", c, to_a), net.add(f"add_b{i}", d, to_b)
    return net.build(a, b)


def dense(size: int = 8, channels: int = 4, layers: int = 4) -> Graph:
    """Every convolution reads the sum of all before it, as in DenseNet."""
    net = Net(size, channels)
    total = net.x
    for i in range(layers):
        y = net.conv(f"c{i}", total, channels)
        total = net.add(f"add{i}", y, total) if i else y
    return net.build(total)


def skips(size: int = 8, channels: int = 4, depth: int = 3) -> Graph:
    """What comes down is added to what goes up again, as in U-Net."""
    net = Net(size, channels)
    x, down = net.x, []
    for i in range(depth):
        x = net.conv(f"down{i}", x, channels)
        down.append(x)
    for i in reversed(range(depth - 1)):
        x = net.add(f"add{i}", net.conv(f"up{i}", x, channels), down[i])
    return net.build(x)


def crossing(rng: np.random.Generator, layers: int) -> Graph:
    """1 x 1 convolutions and adds, wired at random among the last few tensors."""
    net = Net(4, 4)
    tensors = [net.x]
    for i in range(layers):
        recent = tensors[-5:]
        a, b = (recent[int(at)] for at in rng.integers(len(recent), size=2))
        is_add = len(tensors) > 2 and a != b and rng.random() < 0.45
        tensors.append(net.add(f"add{i}", a, b) if is_add else net.conv(f"c{i}", a, 4))
    return net.build()


def attention(heads: int, rows: int, keys: int, depth: int, *, table: bool = True) -> Graph:
    """Scores of queries and keys, a table for softmax, sums of values: heads side by side in rows of each."""
    builder, width = GraphBuilder("attention"), heads * depth
    q, k, v = (
        builder.input(name, (size, width), scale=0.5)
        for name, size in (("q", rows), ("k", keys), ("v", keys))
    )
    scores = builder.tensor("scores.out", (heads, rows, keys), scale=0.5)
    out = builder.tensor("context.out", (rows, width), scale=0.5)
    across, square = (depth, 0, width, 0, 1), (rows * keys, 0, keys, 0, 1)
    dims = Dims(G=heads, P=rows, C=depth, K=keys)
    by_key = View(k, 0, (depth, 0, 0, 1, width))
    builder.tensor_core(
        TensorCoreLayer("scores", "bmm", dims, View(q, 0, across), by_key, View(scores, 0, square), (rows, 1))
    )
    shares = scores
    if table:
        shares = builder.tensor("shares.out", (heads, rows, keys), scale=0.5)
        values = builder.tensor("table", (256,), "int8", 1.0, np.zeros(256, dtype=np.int8))
        dense = Access(0, (1,))
        lookup = Lookup(Loops((heads * rows * keys,), (dense,), dense))
        builder.host("shares", lookup, (scores, values), (shares,))
    dims = Dims(G=heads, P=rows, C=keys, K=depth)
    by_value = View(v, 0, (depth, 0, 0, width, 1))
    builder.tensor_core(
        TensorCoreLayer(
            "context", "bmm", dims, View(shares, 0, square), by_value, View(out, 0, across), (rows, 1)
        )
    )
    return builder.build((out,))


def some_heads(rng: np.random.Generator) -> Graph:
    """Attention of a few heads, rows and keys."""
    heads, rows, keys, depth = (int(rng.integers(low, 13)) for low in (2, 1, 2, 1))
    return attention(1 + heads % 4, rows, keys, depth, table=bool(rng.random() < 0.6))


def some_channels(rng: np.random.Generator) -> Graph:
    """A product or two, then tables, adds and depthwise convolutions: nothing mixes channels any more."""
    net, k = Net(int(rng.integers(2, 9)), int(rng.choice([1, 4, 16]))), int(rng.choice([4, 8, 12, 16, 32]))
    tensors = [net.conv(f"c{i}", net.x, k) for i in range(int(rng.integers(1, 3)))]
    x = tensors[0] if len(tensors) == 1 else net.add("sum", *tensors)
    for i in range(int(rng.integers(1, 3))):
        kind = str(rng.choice(["table", "add", "depthwise"]))
        if kind == "add" and tensors[-1] != x:
            x = net.add(f"add{i}", x, tensors[-1])
        elif kind == "depthwise":
            x = net.conv(f"d{i}", x, k, 3, depthwise=True)
        else:
            x = net.lookup(f"t{i}", x)
        tensors.append(x)
    return net.build(net.conv("out", x, int(rng.choice([4, 16]))) if rng.random() < 0.4 else x)


def network(rng: np.random.Generator, layers: int) -> Graph:
    """Strided, depthwise and plain convolutions of few channels, adds and tables."""
    net = Net(int(rng.choice([5, 8, 12])), int(rng.choice([1, 3, 4, 8])))
    tensors = [net.x]
    for i in range(layers):
        source = tensors[-1 - int(rng.integers(min(3, len(tensors))))]
        alike = [t for t in tensors if t != source and net.shape[t] == net.shape[source]]
        if alike and rng.random() < 0.3:
            tensors.append(net.add(f"add{i}", source, str(rng.choice(alike))))
        elif rng.random() < 0.1:
            tensors.append(net.lookup(f"lookup{i}", source))
        else:
            tensors.append(_convolution(net, rng, i, source, 2))
    return net.build()


def chain(rng: np.random.Generator, layers: int) -> Graph:
    """Convolutions of at most four channels in a row."""
    net = Net(int(rng.choice([5, 8, 12])), int(rng.choice([1, 2, 4])))
    x = net.x
    for i in range(layers):
        x = _convolution(net, rng, i, x, 1)
    return net.build()


def _convolution(net: Net, rng: np.random.Generator, i: int, source: str, growth: int) -> str:
    kernel, stride = ((1, 1), (3, 1), (3, 2), (5, 1))[int(rng.integers(4))]
    channels = net.shape[source][3]
    depthwise = channels > 1 and rng.random() < 0.3
    k = channels if depthwise else int(rng.choice([4, channels, growth * channels]))
    return net.conv(f"c{i}", source, k, kernel, stride, depthwise)
