"""Small graphs for the optimiser's tests."""

from hypothesis import strategies as st

from benchmarks.adversary.graphs import Net, dense, exchange, skips

__all__ = ["Net", "bottleneck", "dense", "exchange", "random_dags", "residual", "separable", "skips"]


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
