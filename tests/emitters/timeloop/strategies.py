"""Random layers and mappings of every kind, by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping, MappingError
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.timeloop.read.problem import one_layer_graph

SMALL = load_target("gemmini-small")
KINDS = ("conv", "gemm", "bmm", "depthwise", "grouped")


def divisors(n: int, multiple_of: int = 1) -> list[int]:
    return [i for i in range(multiple_of, n + 1, multiple_of) if n % i == 0]


@st.composite
def layers(draw: st.DrawFn) -> Graph:
    """One layer: convolution, matrix product, batched product, depthwise or grouped convolution."""
    kind = draw(st.sampled_from(KINDS))
    size = st.sampled_from((1, 4, 6, 7, 12, 14))
    channels = st.sampled_from((1, 3, 8, 12, 16, 20, 32))
    kernel = st.sampled_from((1, 2, 3, 5))
    groups = {
        "bmm": st.integers(2, 4),
        "grouped": st.integers(2, 4),
        "depthwise": st.sampled_from((8, 16, 24)),
    }
    bounds: dict[Dim, int] = {"G": draw(groups[kind])} if kind in groups else {}
    if kind != "depthwise":
        bounds |= {"K": draw(channels), "C": draw(channels)}
    bounds["P"] = draw(size)
    stride = dilation = (1, 1)
    if kind not in ("gemm", "bmm"):
        bounds |= {"Q": draw(size), "R": draw(kernel), "S": draw(kernel), "N": draw(st.integers(1, 2))}
        stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
        dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    return one_layer_graph("layer", Dims(**bounds), stride, dilation)


@st.composite
def mappings(draw: st.DrawFn, bounds: Dims, *, depthwise: bool, ragged: bool, side: int = 16) -> Mapping:
    """A mapping whose tiles nest by multiples (ragged: up to the bound, which need not be one)."""

    def tile(inside: int, d: Dim) -> int:
        bound = bounds[d]
        if ragged:
            return min(bound, inside * draw(st.integers(1, 1 + bound // inside)))
        return draw(st.sampled_from(divisors(bound, inside)))

    def spatial(d: Dim, limit: int = side) -> int:
        if ragged:
            return draw(st.integers(1, min(bounds[d], limit)))
        return draw(st.sampled_from([x for x in divisors(bounds[d]) if x <= limit]))

    rows = cols = Dims()
    if depthwise:
        cols = Dims(G=spatial("G"))
    else:
        cols, rows = Dims(K=spatial("K")), Dims(C=spatial("C"))
        if rows.C == bounds.C and draw(st.booleans()):
            rows = rows.replace({"S": spatial("S", side // bounds.C)})
    block = {d: rows[d] * cols[d] for d in DIMS}
    for d in ("N", "P", "Q"):
        block[d] = draw(st.sampled_from(divisors(bounds[d])))
    l1 = {d: tile(block[d], d) for d in DIMS}
    l2 = {d: tile(l1[d], d) for d in DIMS}
    inner = draw(st.permutations(DIMS[1:])), draw(st.permutations(DIMS[1:]))
    outer = draw(st.permutations(DIMS[1:])), draw(st.permutations(DIMS[1:]))
    at = draw(st.integers(0, 7)) if bounds.G > 1 else 0
    l3, l2_order, l1_order, l0 = ((*o[:at], "G", *o[at:]) for o in (*outer, *inner))
    return Mapping(Dims(**l2), Dims(**l1), Dims(**block), rows, cols, l3, l2_order, l1_order, l0)


@st.composite
def schedules(draw: st.DrawFn, *, ragged: bool = False, target: Target = SMALL) -> Schedule:
    """One layer with a mapping that the target can hold, profile dosa."""
    graph = draw(layers())
    layer = graph.tensor_core_layers[0]
    depthwise = layer.op == "depthwise"
    mapping = draw(mappings(layer.dims, depthwise=depthwise, ragged=ragged, side=target.side))
    try:
        return Schedule(graph, target, {layer.name: mapping}, singleton_groups(graph), profile="dosa")
    except (MappingError, ScheduleError):
        smallest = Dims(**{d: mapping.rows[d] * mapping.cols[d] for d in DIMS})
        mapping = Mapping(smallest, smallest, smallest, mapping.rows, mapping.cols, order_l3=mapping.order_l3)
        return Schedule(graph, target, {layer.name: mapping}, singleton_groups(graph), profile="dosa")
