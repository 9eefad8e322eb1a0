"""Random layers and legal-to-count mappings for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window


@st.composite
def layer_shapes(draw, depthwise=None, groups=True, channels=20, pixels=9, taps=4):
    is_depthwise = draw(st.booleans()) if depthwise is None else depthwise
    small = st.integers(1, pixels)
    R, S = draw(st.integers(1, taps)), draw(st.integers(1, taps))
    dims = Dims(
        G=draw(st.integers(2, channels)) if is_depthwise else (draw(st.integers(1, 3)) if groups else 1),
        N=draw(st.integers(1, 3)),
        K=1 if is_depthwise else draw(st.integers(1, channels)),
        C=1 if is_depthwise else draw(st.integers(1, channels)),
        P=draw(small),
        Q=draw(small),
        R=R,
        S=S,
    )
    windows = []
    for outputs, kernel in ((dims.P, R), (dims.Q, S)):
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        span = (outputs - 1) * stride + (kernel - 1) * dilation + 1
        pad = draw(st.integers(0, min(2, (kernel - 1) * dilation)))
        after = draw(st.integers(0, min(2, (kernel - 1) * dilation)))
        windows.append(Window(kernel, stride, dilation, pad, max(1, span - pad - after)))
    transposed = not is_depthwise and dims.K > 1 and draw(st.booleans())
    return LayerShape(dims, *windows, is_depthwise, draw(st.booleans()), transposed)


@st.composite
def mappings(draw, shape: LayerShape, side=4, orders=None, divisor=False):
    """A mapping that nests; capacities are not considered."""

    def below(extent, limit=None):
        choices = [t for t in range(1, min(extent, limit or extent) + 1) if not divisor or extent % t == 0]
        return draw(st.sampled_from(choices))

    bounds = shape.dims
    column_dim = "G" if shape.is_depthwise else "K"
    rows, cols, l2, l1, l0 = {}, {}, {}, {}, {}
    for d in DIMS:
        l2[d] = below(bounds[d])
        l1[d] = below(l2[d])
        if d in "NPQ":
            l0[d] = below(l1[d])
        else:
            l0[d] = 1
        if d == column_dim or (d == "C" and not shape.is_depthwise):
            spatial = below(l1[d], side)
            (cols if d == column_dim else rows)[d] = spatial
            l0[d] = spatial
    chosen = {}
    if orders is not None:
        chosen = draw(st.sampled_from(orders))._asdict()
        chosen = {f"order_{level}": order for level, order in chosen.items()}
    else:
        for level in ("l3", "l2", "l1"):
            chosen[f"order_{level}"] = tuple(draw(st.permutations(DIMS)))
    return Mapping(Dims(**l2), Dims(**l1), Dims(**l0), Dims(**rows), Dims(**cols), **chosen)
