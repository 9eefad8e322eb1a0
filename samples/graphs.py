"""Layer graphs of well-known networks without weights: shapes only, made in milliseconds.

`graph_of(name)` gives the `Graph` that search and cost model need; constants are broadcast zeros
(`Tensor.data` takes one byte however large the shape), so that GPT-3 costs no memory.  Use
`python -m samples` for a model with numbers in it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import (
    Activation,
    Graph,
    HostLayer,
    Layer,
    Tensor,
    TensorCoreLayer,
    View,
)
from fadiff.converter.ir.host import (
    Add,
    Copy,
    GlobalAveragePool,
    HostOperator,
    LayerNorm,
    MaxPool,
    PoolWindow,
    Rows,
    Softmax,
)
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.converter.ir.recurrence import State

ACTIVATION_SCALE = 2.0**-4
WEIGHT_SCALE = 2.0**-7


@dataclass(frozen=True)
class _Image:
    """An activation [N, H, W, C]."""

    name: str
    shape: tuple[int, int, int, int]


class _Network:
    """GraphBuilder with the layers that the networks below are made of."""

    def __init__(self, name: str) -> None:
        self.graph = GraphBuilder(name)

    def _zeros(self, name: str, shape: tuple[int, ...], bias: bool = False) -> str:
        if bias:
            data = np.broadcast_to(np.int32(0), shape)
            return self.graph.tensor(name, shape, "int32", ACTIVATION_SCALE * WEIGHT_SCALE, data)
        return self.graph.tensor(name, shape, "int8", WEIGHT_SCALE, np.broadcast_to(np.int8(0), shape))

    def image(self, batch: int, size: int, channels: int = 3) -> _Image:
        shape = (batch, size, size, channels)
        return _Image(self.graph.input("input", shape, scale=ACTIVATION_SCALE), shape)

    def _output(self, layer: str, shape: tuple[int, int, int, int]) -> _Image:
        return _Image(self.graph.tensor(f"{layer}.out", shape, scale=ACTIVATION_SCALE), shape)

    def conv(
        self,
        name: str,
        x: _Image,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        activation: Activation = "relu",
        groups: int = 1,
    ) -> _Image:
        """Convolution padded by kernel // 2."""
        n, height, width, c = x.shape
        pad = kernel // 2
        p = (height + 2 * pad - kernel) // stride + 1
        q = (width + 2 * pad - kernel) // stride + 1
        dims = Dims(groups, n, channels // groups, c // groups, p, q, kernel, kernel)
        out = self._output(name, (n, p, q, channels))
        weight = self._zeros(f"{name}.weight", (dims.G, dims.R, dims.S, dims.C, dims.K))
        self.graph.tensor_core(
            TensorCoreLayer(
                name,
                "depthwise" if groups == c == channels and groups > 1 else "conv",
                dims,
                image_view(x.name, x.shape, groups),
                weight_view(weight, dims),
                image_view(out.name, out.shape, groups),
                (height, width),
                bias=self._zeros(f"{name}.bias", (dims.G, dims.K), bias=True),
                stride=(stride, stride),
                pads=(pad, pad, pad, pad),
                activation=activation,
            )
        )
        return out

    def add(self, name: str, a: _Image, b: _Image, activation: Activation = "relu") -> _Image:
        out = self._output(name, a.shape)
        self.graph.host(name, Add(activation=activation), (a.name, b.name), (out.name,))
        return out

    def max_pool(self, name: str, x: _Image, kernel: int, stride: int, pad: int = 0) -> _Image:
        n, height, width, c = x.shape
        p, q = ((size + 2 * pad - kernel) // stride + 1 for size in (height, width))
        out = self._output(name, (n, p, q, c))
        window = PoolWindow((kernel, kernel), (stride, stride), (1, 1), (pad, pad, pad, pad))
        self.graph.host(name, MaxPool(window), (x.name,), (out.name,))
        return out

    def global_average_pool(self, name: str, x: _Image) -> _Image:
        n, height, width, c = x.shape
        out = self._output(name, (n, 1, 1, c))
        scale = float(np.float32(1.0) / np.float32(height * width))
        self.graph.host(name, GlobalAveragePool(scale), (x.name,), (out.name,))
        return out

    def gemm(self, name: str, x: str, rows: int, c: int, k: int, activation: Activation = "none") -> str:
        """[rows, c] by constant [c, k]."""
        dims = Dims(K=k, C=c, P=rows)
        out = self.graph.tensor(f"{name}.out", (rows, k), scale=ACTIVATION_SCALE)
        weight = self._zeros(f"{name}.weight", (1, 1, 1, c, k))
        self.graph.tensor_core(
            TensorCoreLayer(
                name,
                "gemm",
                dims,
                View(x, 0, (rows * c, rows * c, c, c, 1)),
                weight_view(weight, dims),
                View(out, 0, (rows * k, rows * k, k, k, 1)),
                (rows, 1),
                bias=self._zeros(f"{name}.bias", (1, k), bias=True),
                activation=activation,
            )
        )
        return out

    def flattened(self, x: _Image) -> tuple[str, int, int]:
        """Rows and columns of an image as a matrix [N, H W C]."""
        n, height, width, c = x.shape
        return x.name, n, height * width * c

    def bmm(self, name: str, heads: int, p: int, c: int, k: int, x: View, weight: View, out: View) -> None:
        dims = Dims(G=heads, K=k, C=c, P=p)
        self.graph.tensor_core(TensorCoreLayer(name, "bmm", dims, x, weight, out, (p, 1)))

    # Nothing is said of how these are stored, so that no fusion group takes them: rows are those along the
    # axis before the last, and a table is a copy, which moves as much.

    def softmax(self, name: str, x: str) -> str:
        return self._like(name, x, Softmax(self._rows(x), 1.0))

    def layer_norm(self, name: str, x: str) -> str:
        norm = LayerNorm(self._rows(x), True, False, epsilon=1e-5, variance_scale=1.0, unit=1.0)
        return self._like(name, x, norm)

    def gelu(self, name: str, x: str) -> str:
        dense = Access(0, (1,))
        return self._like(name, x, Copy(Loops((self.graph.tensors[x].size,), (dense,), dense)))

    def _rows(self, x: str) -> Rows:
        *outer, length = self.graph.tensors[x].shape
        return Rows(math.prod(outer), length, 1)

    def _like(self, name: str, x: str, operator: HostOperator) -> str:
        """A host layer whose output looks like its input."""
        out = self.graph.tensor(f"{name}.out", self.graph.tensors[x].shape, scale=ACTIVATION_SCALE)
        self.graph.host(name, operator, (x,), (out,))
        return out


def resnet18(batch: int = 1, image_size: int = 224, classes: int = 1000) -> Graph:
    """ResNet-18 (He et al. 2016): 20 convolutions, 8 residual adds, one fully connected layer."""
    net = _Network("resnet18")
    x = net.conv("conv1", net.image(batch, image_size), 64, 7, 2)
    x = net.max_pool("maxpool", x, 3, 2, 1)
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}.{block}"
            y = net.conv(f"{name}.conv1", x, channels, 3, stride)
            y = net.conv(f"{name}.conv2", y, channels, 3, activation="none")
            if stride > 1:
                x = net.conv(f"{name}.downsample", x, channels, 1, stride, activation="none")
            x = net.add(f"{name}.add", y, x)
    x = net.global_average_pool("avgpool", x)
    name, rows, columns = net.flattened(x)
    return net.graph.build((net.gemm("fc", name, rows, columns, classes),))


def resnet152(batch: int = 1, image_size: int = 224, classes: int = 1000) -> Graph:
    """ResNet-152 with the stride in the 3x3 convolutions (torchvision's): 50 bottleneck blocks."""
    net = _Network("resnet152")
    x = net.conv("conv1", net.image(batch, image_size), 64, 7, 2)
    x = net.max_pool("maxpool", x, 3, 2, 1)
    for stage, (channels, blocks) in enumerate(((64, 3), (128, 8), (256, 36), (512, 3)), start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}.{block}"
            y = net.conv(f"{name}.conv1", x, channels, 1)
            y = net.conv(f"{name}.conv2", y, channels, 3, stride)
            y = net.conv(f"{name}.conv3", y, 4 * channels, 1, activation="none")
            if block == 0:
                x = net.conv(f"{name}.downsample", x, 4 * channels, 1, stride, activation="none")
            x = net.add(f"{name}.add", y, x)
    x = net.global_average_pool("avgpool", x)
    name, rows, columns = net.flattened(x)
    return net.graph.build((net.gemm("fc", name, rows, columns, classes),))


def _vgg(name: str, convs: tuple[int, ...], batch: int, image_size: int, classes: int) -> Graph:
    net = _Network(name)
    x = net.image(batch, image_size)
    for stage, (channels, count) in enumerate(zip((64, 128, 256, 512, 512), convs, strict=True), start=1):
        for i in range(1, count + 1):
            x = net.conv(f"conv{stage}_{i}", x, channels, 3)
        x = net.max_pool(f"pool{stage}", x, 2, 2)
    y, rows, columns = net.flattened(x)
    y = net.gemm("fc6", y, rows, columns, 4096, "relu")
    y = net.gemm("fc7", y, rows, 4096, 4096, "relu")
    return net.graph.build((net.gemm("fc8", y, rows, 4096, classes),))


def vgg16(batch: int = 1, image_size: int = 224, classes: int = 1000) -> Graph:
    """VGG-16, configuration D of Simonyan and Zisserman 2015."""
    return _vgg("vgg16", (2, 2, 3, 3, 3), batch, image_size, classes)


def vgg19(batch: int = 1, image_size: int = 224, classes: int = 1000) -> Graph:
    """VGG-19, configuration E."""
    return _vgg("vgg19", (2, 2, 4, 4, 4), batch, image_size, classes)


def mobilenetv1(batch: int = 1, image_size: int = 224, classes: int = 1000) -> Graph:
    """MobileNet v1, width 1.0 (Howard et al. 2017): 13 depthwise-separable blocks."""
    net = _Network("mobilenetv1")
    x = net.conv("conv1", net.image(batch, image_size), 32, 3, 2)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for i, (channels, stride) in enumerate(plan, start=1):
        x = net.conv(f"dw{i}", x, x.shape[3], 3, stride, groups=x.shape[3])
        x = net.conv(f"pw{i}", x, channels, 1)
    x = net.global_average_pool("avgpool", x)
    name, rows, columns = net.flattened(x)
    return net.graph.build((net.gemm("fc", name, rows, columns, classes),))


def _decoder_block(net: _Network, name: str, x: str, seq: int, width: int, heads: int, ffn: int) -> str:
    """Pre-norm transformer decoder block; heads are strided views of [seq, width] matrices."""
    head = width // heads
    normed = net.layer_norm(f"{name}.ln1", x)
    q, k, v = (net.gemm(f"{name}.{p}_proj", normed, seq, width, width) for p in "qkv")
    scores = net.graph.tensor(f"{name}.scores.out", (heads, seq, seq), scale=ACTIVATION_SCALE)
    rows = (head, seq * width, width, width, 1)
    # W is indexed (G, R, S, C, K): the reduction over `head` runs along a row of k.
    keys = View(k, 0, (head, seq * width, seq * width, 1, width))
    square = (seq * seq, heads * seq * seq, seq, seq, 1)
    net.bmm(f"{name}.scores", heads, seq, head, seq, View(q, 0, rows), keys, View(scores, 0, square))
    probabilities = net.softmax(f"{name}.softmax", scores)
    context = net.graph.tensor(f"{name}.context.out", (seq, width), scale=ACTIVATION_SCALE)
    values = View(v, 0, (head, seq * width, seq * width, width, 1))
    probs = View(probabilities, 0, square)
    net.bmm(f"{name}.context", heads, seq, seq, head, probs, values, View(context, 0, rows))
    projected = net.gemm(f"{name}.out_proj", context, seq, width, width)
    x = _residual(net, f"{name}.add1", projected, x)
    y = net.layer_norm(f"{name}.ln2", x)
    y = net.gemm(f"{name}.ffn1", y, seq, width, ffn)
    y = net.gelu(f"{name}.gelu", y)
    y = net.gemm(f"{name}.ffn2", y, seq, ffn, width)
    return _residual(net, f"{name}.add2", y, x)


def _residual(net: _Network, name: str, a: str, b: str) -> str:
    out = net.graph.tensor(f"{name}.out", net.graph.tensors[a].shape, scale=ACTIVATION_SCALE)
    net.graph.host(name, Add(), (a, b), (out,))
    return out


def gpt3_block(
    seq: int = 2048, layers: int = 1, width: int = 4096, heads: int = 32, ffn: int = 16384
) -> Graph:
    """GPT-3 6.7B decoder blocks (Brown et al. 2020, table 2.1): d=4096, 32 heads of 128, FFN 16384."""
    net = _Network("gpt3-block")
    x = net.graph.input("input", (seq, width), scale=ACTIVATION_SCALE)
    for i in range(layers):
        x = _decoder_block(net, f"h{i}", x, seq, width, heads, ffn)
    return net.graph.build((x,))


def scores(width: int, vocabulary: int) -> Graph:
    """What ends a language model: the product that gives one token's scores."""
    net = _Network("scores")
    x = net.graph.input("input", (1, width), scale=ACTIVATION_SCALE)
    return net.graph.build((net.gemm("scores", x, 1, width, vocabulary),))


def chained(block: Graph, times: int, source: str, result: str) -> Graph:
    """`times` blocks one behind the other: what `result` is of one, `source` is of the next.

    States are each block's own, other inputs common; large constants are broadcast zeros.
    """
    kept = {end for state in block.states for end in (state.input, state.output)}
    common = [name for name in block.inputs if name not in kept and name != source]
    tensors: dict[str, Tensor] = {}
    layers: list[Layer] = []
    states: list[State] = []
    for at in range(times):
        names = {name: name if name in common else f"block{at}.{name}" for name in block.tensors}
        if at:
            names[source] = f"block{at - 1}.{result}"
        for name, tensor in block.tensors.items():
            tensors.setdefault(names[name], replace(tensor, name=names[name], data=_light(tensor.data)))
        layers += [_renamed(layer, f"block{at}.{layer.name}", names) for layer in block.layers]
        states += [State(names[state.output], names[state.input]) for state in block.states]
    first, last = f"block0.{source}", f"block{times - 1}.{result}"
    return replace(
        block,
        tensors=tensors,
        layers=tuple(layers),
        inputs=(first, *common, *(state.input for state in states)),
        outputs=(last, *(state.output for state in states)),
        states=tuple(states),
    )


_LIGHT = 2**16
"""Bytes of a constant that is kept."""


def _light(data: np.ndarray | None) -> np.ndarray | None:
    if data is None or data.nbytes < _LIGHT:
        return data
    return np.broadcast_to(data.dtype.type(0), data.shape)


def _renamed(layer: Layer, name: str, names: Mapping[str, str]) -> Layer:
    """The layer on other tensors."""
    if isinstance(layer, HostLayer):
        inputs, outputs = (tuple(names[n] for n in ends) for ends in (layer.inputs, layer.outputs))
        return replace(layer, name=name, inputs=inputs, outputs=outputs)
    scale = layer.row_scale
    return replace(
        layer,
        name=name,
        input=replace(layer.input, tensor=names[layer.input.tensor]),
        weight=replace(layer.weight, tensor=names[layer.weight.tensor]),
        output=replace(layer.output, tensor=names[layer.output.tensor]),
        bias=None if layer.bias is None else names[layer.bias],
        channel_scale=None if layer.channel_scale is None else names[layer.channel_scale],
        row_scale=None if scale is None else replace(scale, tensor=names[scale.tensor]),
    )


NETWORKS: dict[str, Callable[..., Graph]] = {
    "resnet18": resnet18,
    "resnet152": resnet152,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "mobilenetv1": mobilenetv1,
    "gpt3-block": gpt3_block,
}


def graph_of(name: str, **options: int) -> Graph:
    """Layer graph of a network of `NETWORKS`, shapes only.

    Raises:
        ValueError: unknown network or option; the message lists the choices.
    """
    if name not in NETWORKS:
        raise ValueError(f"no layer graph called {name!r}: choose one of {', '.join(sorted(NETWORKS))}")
    known = inspect.signature(NETWORKS[name]).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: choose from {', '.join(known)}")
    return NETWORKS[name](**options)
