"""Host operators on the array: the bits of ONNX Runtime's run of the integers before, bytes as predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rtl import converted
from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer, View
from fadiff.converter.ir.host import (
    Activation,
    AveragePool,
    Binary,
    GlobalAveragePool,
    Lookup,
    MaxPool,
    PoolWindow,
    Reduce,
    Rows,
)
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.group.fusion import FusionGroup, ScheduleError, plan_group
from fadiff.costmodel.group.host import host_moves
from fadiff.costmodel.latency.clock_work import NestWork
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping
from fadiff.costmodel.mapping.shape import shape_of, whole
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.realise.choice import EXACT, Cheaper, realised_graph
from fadiff.optimizer.realise.merged_columns import with_merged_columns
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check, random_inputs

SIDES = [8, 16, 32]


def target_of(side: int) -> Target:
    """A small Gemmini."""
    return load_target("gemmini-small").model_copy(update={"side": side})


def global_mean(images: int, pixels: int, channels: int) -> Graph:
    builder = GraphBuilder("mean")
    x = builder.input("x", (images, pixels, pixels, channels), scale=0.1)
    y = builder.tensor("y", (images, 1, 1, channels), scale=0.1)
    builder.host("mean", GlobalAveragePool(float(np.float32(3.7 / pixels**2))), (x,), (y,))
    return builder.build((y,))


def row_sums(outer: int, length: int, inner: int) -> Graph:
    builder = GraphBuilder("sums")
    x = builder.input("x", (outer, length, inner), scale=0.1)
    y = builder.tensor("y", (outer, inner), scale=0.1)
    builder.host(
        "sum", Reduce(Rows(outer, length, inner), "sum", float(np.float32(2.9 / length))), (x,), (y,)
    )
    return builder.build((y,))


def gate(
    images: int,
    pixels: int,
    channels: int,
    activation: Activation = "none",
    *,
    first: bool = False,
    constant: bool = False,
) -> Graph:
    """x[n, p, c] * factor[n, c], or the factor first."""
    builder = GraphBuilder("gate")
    x = builder.input("x", (images, pixels, channels), scale=0.1)
    if constant:
        data = np.random.default_rng(4).integers(-128, 128, (images, channels)).astype(np.int8)
        factors = builder.tensor("f", data.shape, scale=0.1, data=data)
    else:
        factors = builder.input("f", (images, channels), scale=0.1)
    y = builder.tensor("y", (images, pixels, channels), scale=0.1)
    image = Access(0, (pixels * channels, channels, 1))
    accesses = (image, Access(0, (channels, 0, 1)))
    loops = Loops((images, pixels, channels), accesses[::-1] if first else accesses, image)
    operator = Binary(loops, "mul", 1.0, 1.0, float(np.float32(0.0123)), activation)
    builder.host("gate", operator, (factors, x) if first else (x, factors), (y,))
    return builder.build((y,))


def pool(
    image: tuple[int, int, int, int], window: PoolWindow, out: tuple[int, int], dtype: str = "int8"
) -> Graph:
    """Of an input."""
    builder = GraphBuilder("pool")
    scale = 0.1 if dtype == "int8" else None
    x = builder.input("x", image, dtype, scale=scale)  # type: ignore[arg-type]
    y = builder.tensor("y", (image[0], *out, image[3]), dtype, scale)  # type: ignore[arg-type]
    builder.host("pool", MaxPool(window), (x,), (y,))
    return builder.build((y,))


def average(
    image: tuple[int, int, int, int], window: PoolWindow, out: tuple[int, int], *, all_taps: bool
) -> Graph:
    builder = GraphBuilder("average")
    x = builder.input("x", image, scale=0.1)
    y = builder.tensor("y", (image[0], *out, image[3]), scale=0.1)
    builder.host("y", AveragePool(window, all_taps, 1.37), (x,), (y,))
    return builder.build((y,))


def square(kernel: int, stride: int, pad: int = 0) -> PoolWindow:
    return PoolWindow((kernel, kernel), (stride, stride), (1, 1), (pad, pad, pad, pad))


def two_readers() -> Graph:
    """A convolution with a ReLU whose output a pool with padding reads, and the network's user."""
    builder = GraphBuilder("skip")
    x = builder.input("x", (1, 9, 9, 5), scale=0.1)
    weights = np.random.default_rng(3).integers(-50, 50, (1, 1, 1, 5, 12)).astype(np.int8)
    weight = builder.tensor("w", weights.shape, scale=0.01, data=weights)
    y = builder.tensor("y", (1, 9, 9, 12), scale=0.1)
    z = builder.tensor("z", (1, 5, 5, 12), scale=0.1)
    builder.tensor_core(
        TensorCoreLayer(
            "conv",
            "conv",
            Dims(K=12, C=5, P=9, Q=9),
            View(x, 0, (0, 405, 45, 5, 1)),
            View(weight, 0, (60, 60, 60, 12, 1)),
            View(y, 0, (0, 972, 108, 12, 1)),
            (9, 9),
            activation="relu",
        )
    )
    builder.host("pool", MaxPool(square(3, 2, 1)), (y,), (z,))
    return builder.build((y, z))


def convolution(
    image: tuple[int, int, int], filters: int, kernel: int, stride: int, pad: int, *, depthwise: bool = False
) -> Graph:
    """Of an input [height, width, channels], with a bias."""
    builder, numbers = GraphBuilder("convolution"), np.random.default_rng(5)
    height, width, channels = image
    p, q = ((n + 2 * pad - kernel) // stride + 1 for n in (height, width))
    dims = (
        Dims(G=channels, P=p, Q=q, R=kernel, S=kernel)
        if depthwise
        else Dims(K=filters, C=channels, P=p, Q=q, R=kernel, S=kernel)
    )
    shape = (dims.G, kernel, kernel, dims.C, dims.K)
    x = builder.input("x", (1, *image), scale=0.1)
    w = builder.tensor("w", shape, scale=0.01, data=numbers.integers(-50, 50, shape).astype(np.int8))
    bias = numbers.integers(-900, 900, (dims.G, dims.K)).astype(np.int32)
    b = builder.tensor("b", bias.shape, "int32", 0.001, bias)
    y = builder.tensor("y", (1, p, q, filters), scale=0.4)
    layer = TensorCoreLayer(
        "conv",
        "depthwise" if depthwise else "conv",
        dims,
        image_view(x, (1, *image), dims.G),
        weight_view(w, dims),
        image_view(y, (1, p, q, filters), dims.G),
        (height, width),
        b,
        (stride, stride),
        pads=(pad, pad, pad, pad),
        activation="relu",
    )
    builder.tensor_core(layer)
    return builder.build((y,))


def swish_gate(rows: int, width: int) -> Graph:
    """u * table[x], with a ReLU."""
    builder, numbers = GraphBuilder("swish"), np.random.default_rng(6)
    x, u = (builder.input(name, (rows, width), scale=0.1) for name in "xu")
    table = builder.tensor("table", (256,), scale=0.1, data=numbers.integers(-128, 128, 256).astype(np.int8))
    dense = Access(0, (1,))
    s, y = (builder.tensor(name, (rows, width), scale=0.1) for name in "sy")
    builder.host("swish", Lookup(Loops((rows * width,), (dense,), dense)), (x, table), (s,))
    loops = Loops((rows * width,), (dense, dense), dense)
    builder.host("gate", Binary(loops, "mul", 1.0, 1.0, float(np.float32(0.013)), "relu"), (u, s), (y,))
    return builder.build((y,))


GRAPHS = {
    "product of a table's values": (swish_gate(7, 45), {"table_product"}),
    "patches": (convolution((32, 32, 3), 20, 8, 8, 0), {"conv"}),
    "4x4 with a stride and padding": (convolution((22, 20, 3), 21, 4, 2, 1), {"conv"}),
    "7x7 with a stride and padding": (convolution((22, 20, 2), 21, 7, 2, 3), {"conv", "copy"}),
    "7x7 without padding": (convolution((18, 16, 2), 9, 7, 2, 0), {"conv", "copy"}),
    "8x8 with more padding than a stride": (convolution((12, 16, 1), 9, 8, 2, 4), {"conv", "copy"}),
    "3x3 with a stride and padding": (convolution((11, 12, 3), 12, 3, 2, 1), {"conv"}),
    "constant factors of many images": (gate(24, 3, 40, constant=True), {"bmm"}),
    "global mean": (global_mean(2, 5, 35), {"bmm"}),
    "sums of rows": (row_sums(21, 40, 1), {"gemm"}),
    "sums of columns": (row_sums(3, 29, 37), {"bmm"}),
    "gate of whole blocks": (gate(1, 19, 64), {"bmm", "fill", "copy"}),
    "ragged gates of two images": (gate(2, 19, 37, "relu"), {"bmm", "fill", "copy"}),
    "factors first, fewer channels than rows": (gate(1, 21, 5, first=True), {"bmm", "fill", "copy"}),
    "average pool": (average((2, 9, 9, 21), square(3, 2), (4, 4), all_taps=False), {"depthwise"}),
    "average pool with padding that counts": (
        average((1, 9, 9, 21), square(3, 1, 1), (9, 9), all_taps=True),
        {"depthwise"},
    ),
    "pool": (pool((2, 10, 10, 21), square(2, 2), (5, 5)), {"depthwise", "max_pool"}),
    "pool of overlapping windows": (pool((1, 9, 9, 37), square(3, 2), (4, 4)), {"depthwise", "max_pool"}),
    "pool with padding of values of either sign": (
        pool((1, 9, 9, 19), square(3, 2, 1), (5, 5)),
        {"fill", "copy", "depthwise", "max_pool"},
    ),
    "pool past the edge": (
        pool((1, 12, 12, 24), square(3, 2), (6, 6)),
        {"fill", "copy", "depthwise", "max_pool"},
    ),
    "pool behind a convolution with another reader": (two_readers(), {"conv", "depthwise", "max_pool"}),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", GRAPHS)
def test_same_bits_and_predicted_bytes(name: str, side: int) -> None:
    """In C, with the fusion that the search finds, against the graph before."""
    graph, ops = GRAPHS[name]
    target = target_of(side)
    realised = realised_graph(graph, target, EXACT, lambda *_: True)
    assert realised is not graph and {layer.op for layer in realised.layers} == ops
    inputs = random_inputs(graph)
    before, after = run_reference(graph, inputs), run_reference(realised, inputs)
    for tensor in after.keys() & before.keys():
        values = before[tensor]
        np.testing.assert_array_equal(after[tensor], values, err_msg=tensor)
    schedule = optimize(realised, target, method="exact").schedule
    check(Case(schedule))
    for layer in realised.layers:  # (a pool left to the core would take longer than before)
        assert layer.op != "max_pool" or len(schedule.group_of[layer.name].layers) > 1


def test_lines_of_windows_are_images_of_convolutions_without_a_stride() -> None:
    """What the loop unit of convolutions, which has one stride for both axes, can run; lines that reach into
    padding are apart."""
    target = target_of(16)
    for graph, expected in (
        (convolution((32, 32, 3), 20, 8, 8, 0), [("conv", Dims(N=4, K=20, C=24, P=1, Q=4, R=8, S=1))]),
        (
            convolution((24, 24, 3), 20, 3, 2, 1),
            [
                ("conv", Dims(K=20, C=6, P=1, Q=12, R=3, S=2)),
                ("conv.1", Dims(N=11, K=20, C=6, P=1, Q=12, R=3, S=2)),
            ],
        ),
    ):
        realised = realised_graph(graph, target, EXACT, Cheaper(graph, target))
        assert [(layer.name, layer.dims) for layer in realised.tensor_core_layers] == expected
        assert {layer.stride for layer in realised.tensor_core_layers} == {(1, 1)}
        mappings = optimize(realised, target, method="exact").schedule.mappings
        assert {mapping.issue for mapping in mappings.values()} == {"loop_conv_ws"}
        # Of overlapping or oblong images one at a time, as units of before July 2023 need.
        assert {mapping.tile_l2.N for mapping in mappings.values()} == {1}


@pytest.mark.parametrize(
    ("name", "tensor", "times"),
    [
        ("7x7 with a stride and padding", "conv.squares", 1.0),  # lines of an image, the zeros around them
        ("gate of whole blocks", "gate.diagonal", 1 + 1 / 16),  # zeros, then one in each line
    ],
)
def test_what_is_copied_part_by_part_moves_once(name: str, tensor: str, times: float) -> None:
    """Through the core as through Gemmini's DMA."""
    target = target_of(16)
    realised = realised_graph(GRAPHS[name][0], target, EXACT, lambda *_: True)
    written = 0.0
    for layer in realised.layers:
        if isinstance(layer, HostLayer):
            alone = plan_group(realised, FusionGroup((layer.name,), None))[layer.name]
            moves = host_moves(realised, layer, alone, target)
            written += sum(move.bytes for moved, move in moves if moved == tensor)
    assert written == times * realised.tensors[tensor].nbytes


def test_a_column_of_ones_is_loaded_as_a_row() -> None:
    """A request for every 16 bytes or more instead of one for each byte."""
    target = target_of(16)
    realised = realised_graph(row_sums(21, 96, 1), target, EXACT, lambda *_: True)
    [total] = realised.tensor_core_layers
    assert total.has_transposed_weights and total.dims.K == 1
    column = replace(total, weight=replace(total.weight, strides=(0, 0, 0, 1, 1)))
    assert not column.has_transposed_weights

    def requests(layer: TensorCoreLayer) -> float:
        mapping = Mapping(layer.dims, layer.dims, Dims(K=1, C=16), Dims(C=16), Dims(K=1), STREAM_ORDER)
        nest = LoopNest(shape_of(layer), mapping, whole(layer.dims))
        return float(NestWork(nest, target, 0).counts(ALONE, "core_ws").requests)

    assert requests(column) - requests(total) == 96 - 2.5, "of a byte each; of 96 bytes, wherever 64 begin"


def test_nothing_is_wanted_where_memories_are_too_small(tmp_path: Path) -> None:
    """The search says which layer does not fit, of the graph as it is."""
    graph = converted("3x32x32 c16k3s2 r", target_of(16), tmp_path)[0].graph
    tiny = load_target("gemmini-small").model_copy(update={"scratchpad_bytes": 16, "scratchpad_banks": 1})
    assert realised_graph(graph, tiny, EXACT, lambda *_: True) is not graph
    assert realised_graph(graph, tiny, EXACT, Cheaper(graph, tiny)) is graph
    with pytest.raises(ScheduleError, match="no mapping fits"):
        optimize(graph, tiny)


def test_what_has_no_other_form_stays() -> None:
    """Windows that the store path cannot pool, sums of floats, products of whole tensors, factors of rows."""
    wide = pool((1, 9, 9, 8), square(5, 2), (3, 3))
    floats = global_mean(1, 4, 8)
    floats = Graph(
        "floats",
        {name: type(t)(t.name, t.shape, "float32") for name, t in floats.tensors.items()},
        floats.layers,
        floats.inputs,
        floats.outputs,
    )
    builder = GraphBuilder("rows")
    x, f = builder.input("x", (8, 8), scale=0.1), builder.input("f", (8,), scale=0.1)
    y = builder.tensor("y", (8, 8), scale=0.1)
    loops = Loops((8, 8), (Access(0, (8, 1)), Access(0, (1, 0))), Access(0, (8, 1)))
    builder.host("rows", Binary(loops, "mul", 1.0, 1.0, 0.01), (x, f), (y,))
    fewer_taps = average((1, 9, 9, 21), square(3, 1, 1), (9, 9), all_taps=False)
    for graph in (wide, floats, builder.build((y,)), fewer_taps):
        target = load_target("gemmini-fp32") if graph is floats else target_of(16)
        assert realised_graph(graph, target, EXACT, lambda *_: True) is graph


def test_pools_stay_where_nothing_is_fused() -> None:
    graph = GRAPHS["pool"][0]
    assert (
        realised_graph(graph, target_of(16), EXACT, Cheaper(graph, target_of(16), Settings(fusion=False)))
        is graph
    )


def test_a_stem_is_compared_together_with_the_pool_that_its_stores_do(tmp_path: Path) -> None:
    """By itself the stem with merged columns is quicker, pooled it is not."""
    target, stem = load_target("gemmini-large"), "3x112x112 c64k7s2 r"
    pooled = converted(f"{stem} mp3s2p1", target, tmp_path)[0].graph
    assert realised_graph(pooled, target, (with_merged_columns,), Cheaper(pooled, target)) is pooled
    alone = converted(stem, target, tmp_path)[0].graph
    assert realised_graph(alone, target, (with_merged_columns,), Cheaper(alone, target)) is not alone
