"""What the relaxed model knows of a network before it sees a point: constants as tensors.

L nodes, E fusion edges, O loop orders; see costmodel/relaxed/model.py for the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS, RELEVANT, Dim, P, Q, R, S
from fadiff.costmodel.group.nodes import Edge, Node
from fadiff.costmodel.latency.cache import pitch_lines
from fadiff.costmodel.latency.clock_work import request_bytes, segments, streams_height
from fadiff.costmodel.mapping.counting import COUNTING, Counting
from fadiff.costmodel.mapping.mapping import (
    INPUT_STATIONARY,
    OUTPUT_STATIONARY,
    STREAM_ORDER,
    WEIGHT_STATIONARY,
    Order,
)
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window, fetched_rows
from fadiff.costmodel.relaxed.fetch_gradient import LoopOrders
from fadiff.costmodel.relaxed.groups import Companions, GroupShape, LiveTensors
from fadiff.costmodel.relaxed.regions import GroupGrid
from fadiff.costmodel.schedule.schedule import FusionModel, Profile
from fadiff.costmodel.target.target import Target

GROUP_LOOPS: tuple[Dim, ...] = ("N", "P", "Q")
"""Loops over the tiles of a fusion group, outermost first; they enclose the members' own loops."""
_TABLE_LIMIT = 1 << 15


class NestOrder(NamedTuple):
    """Loop orders of the three levels, outermost first."""

    l3: Order
    l2: Order = OUTPUT_STATIONARY
    l1: Order = STREAM_ORDER


WS = NestOrder(WEIGHT_STATIONARY)
IS = NestOrder(INPUT_STATIONARY)
OS = NestOrder(OUTPUT_STATIONARY)
ORDERS: tuple[NestOrder, ...] = (WS, IS, OS)
"""Weight-, input- and output-stationary DRAM loops: enough for an optimum (one stationary operand)."""


class NetworkConstants:
    """The nodes, edges and loop orders of a network on a target."""

    def __init__(
        self,
        nodes: Sequence[Node],
        edges: Sequence[Edge],
        target: Target,
        profile: Profile = "hw",
        orders: Sequence[NestOrder] = ORDERS,
        *,
        fusion_model: FusionModel = "sound",
        network_weights: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.target, self.profile, self.paper = target, profile, fusion_model == "paper"
        self.counting = COUNTING[profile]
        self.dtype = dtype
        self.n_layers = len(nodes)
        shapes = [node.shape for node in nodes]

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(list(values), dtype=dtype)

        self.bounds = torch.tensor([list(shape.dims) for shape in shapes], dtype=dtype)
        self.columns = self.bounds.unbind(-1)
        self.repeat = column([node.repeat for node in nodes])
        self.needed = column([node.output_needed for node in nodes])
        self.depthwise = column([shape.is_depthwise for shape in shapes])
        self.bias = column([shape.has_bias for shape in shapes])
        self.transposed = column([shape.has_transposed_weights for shape in shapes])
        self.any_transposed = any(shape.has_transposed_weights for shape in shapes)
        self.any_depthwise = any(shape.is_depthwise for shape in shapes)
        self.any_batch = any(shape.dims.N > 1 for shape in shapes)
        self.any_bias = any(shape.has_bias for shape in shapes)
        self.adds = column([node.is_add for node in nodes])
        self.any_add = any(node.is_add for node in nodes)
        self.axes = [
            _Axis([s.height for s in shapes], [s.dims.P for s in shapes], P, R, self.counting, dtype),
            _Axis([s.width for s in shapes], [s.dims.Q for s in shapes], Q, S, self.counting, dtype),
        ]
        self._set_edges(edges, nodes)
        if edges and not self.paper:
            self.grid = GroupGrid(
                ([s.height for s in shapes], [s.width for s in shapes]),
                ([s.dims.P for s in shapes], [s.dims.Q for s in shapes]),
                self.read_by,
                dtype,
            )
        self._set_orders(orders)
        self.latency = self.counting.latency_model(paper=self.paper)
        self.network_weights = network_weights
        self.clock = ClockConstants(shapes, self.loops[:, 16:24] % 8, target, dtype)

    def _set_edges(self, edges: Sequence[Edge], nodes: Sequence[Node]) -> None:
        count = len(edges)
        inner: list[list[int]] = [[] for _ in nodes]
        outer: list[list[int]] = [[] for _ in nodes]
        for index, edge in enumerate(edges):
            inner[edge.consumer].append(index)
            if len(inner[edge.consumer]) > 1 + nodes[edge.consumer].is_add:
                raise ValueError(f"node {edge.consumer} has {len(inner[edge.consumer])} fusable inputs")
            outer[edge.producer].append(index)
        width = max((len(o) for o in outer), default=0) or 1
        self.read_by = [[edges[e].consumer for e in o] for o in outer]
        self.edges = tuple(edges)
        operands = 1 + self.any_add
        self.in_edges = torch.tensor([i + [count] * (operands - len(i)) for i in inner])
        self.companions = Companions(edges, len(nodes))
        self.live = LiveTensors(edges, self.companions)
        self.shape = GroupShape(edges, self.companions, [node.is_add for node in nodes])
        self.out_edges = torch.tensor([o + [count] * (width - len(o)) for o in outer])
        self.source = torch.tensor([edge.producer for edge in edges], dtype=torch.long)
        self.sink = torch.tensor([edge.consumer for edge in edges], dtype=torch.long)
        # Nobody at all reads the output inside: then it goes to DRAM whatever sigma is.
        self.unread = torch.tensor([not o for o in outer], dtype=self.dtype)

    def _set_orders(self, orders: Sequence[NestOrder]) -> None:
        """Loops of every order from the innermost out: three levels, then the group tiles."""
        # Index level * 8 + dim into the concatenated trips (L1, L2, L3, then those over group tiles).
        own = [
            [
                level * 8 + DIMS.index(d)
                for level, order in enumerate((o.l1, o.l2, o.l3))
                for d in reversed(order)
            ]
            for o in orders
        ]
        group = [24 + at for at in reversed(range(len(GROUP_LOOPS)))]
        self.loops = torch.tensor([order + group for order in own])
        dims = torch.tensor([*(3 * list(range(8))), *(DIMS.index(d) for d in GROUP_LOOPS)])[self.loops]
        relevant = {t: torch.tensor([d in RELEVANT[t] for d in DIMS], dtype=self.dtype) for t in RELEVANT}
        self.relevant = {t: mask[dims] for t, mask in relevant.items()}
        # Every group tile runs the nest again, so its loops reload the array whatever is inside them.
        group_loops = (self.loops >= 24).to(self.dtype)
        nothing = torch.zeros_like(group_loops)
        self.fetch_orders = {
            "weight_fills": self._loop_orders("W", 16, nothing),
            "input_fills": self._loop_orders("I", 16, nothing),
            "outputs": self._loop_orders("O", 8, nothing),
            "weight_loads": self._loop_orders("W", 0, group_loops),
        }

    def _loop_orders(self, operand: str, skip: int, grouped: Tensor) -> LoopOrders:
        """The loops above a tile: all but the `skip` innermost."""

        def columns(mask: Tensor) -> Tensor:
            return mask[:, skip:].T.contiguous()[..., None, None]

        index = self.loops[:, skip:].T.reshape(-1)
        return LoopOrders(index, columns(self.relevant[operand]), columns(grouped))


class _Axis:
    """Input rows fetched along one image axis, as a function of the scratchpad tile."""

    def __init__(
        self,
        windows: Sequence[Window],
        bounds: Sequence[int],
        outputs: int,
        taps: int,
        counting: Counting,
        dtype: torch.dtype,
    ) -> None:
        self.outputs, self.taps = outputs, taps
        self.kernel = torch.tensor([w.kernel for w in windows], dtype=dtype)
        self.stride = torch.tensor([w.stride for w in windows], dtype=dtype)
        self.dilation = torch.tensor([w.dilation for w in windows], dtype=dtype)
        self.size = torch.tensor([w.size for w in windows], dtype=dtype)
        # Kernel 1 in profile hw: only touched rows move, so boxes have no gaps.
        self.step = torch.where(
            (self.kernel == 1) & counting.clips_padding, torch.ones_like(self.stride), self.stride
        )
        self.bound = torch.tensor(list(bounds), dtype=dtype)
        if not counting.clips_padding:
            return
        flat: list[int] = []
        start, pitch = [], []
        for window, bound in zip(windows, bounds, strict=True):
            start.append(len(flat))
            region = ((0, bound),)
            tabulated = window.kernel > 1 and bound * window.kernel <= _TABLE_LIMIT
            pitch.append(window.kernel if tabulated else 0)
            if not tabulated:
                flat.append(fetched_rows(window, region, bound, window.kernel))
                continue
            flat += [
                fetched_rows(window, region, tile, tap)
                for tile in range(1, bound + 1)
                for tap in range(1, window.kernel + 1)
            ]
        self.table = torch.tensor(flat, dtype=dtype)
        self.start = torch.tensor(start)
        self.pitch = torch.tensor(pitch)

    def box(self, outputs: Tensor, taps: Tensor) -> Tensor:
        """Rows that one tile holds on chip, padding included."""
        return (outputs - 1) * self.step + (taps - 1) * self.dilation + 1

    def rows(self, total: Tensor, tiles: Tensor, tap_tiles: Tensor) -> Tensor:
        """Rows of all fetched boxes, not clipped to the image."""
        moved = tap_tiles * self.step * (total - tiles)
        return moved + tiles * self.dilation * (self.kernel - tap_tiles) + tiles * tap_tiles

    def clipping(self, tile: Tensor, taps: Tensor, rows: Tensor) -> Tensor:
        """Exact rows minus `rows` at the nearest integer tile of a layer that is not fused."""
        with torch.no_grad():
            tile = torch.minimum(tile.round(), self.bound).clamp(min=1).long()
            taps = torch.minimum(taps.round(), self.kernel).clamp(min=1).long()
            index = self.start + ((tile - 1) * self.pitch + (taps - 1)) * (self.pitch > 0)
            return self.table[index] - rows


class ClockConstants:
    """What the latency needs of the layers and the DRAM loop orders, once per network.

    `l3_loops` [O, 8] are the dimensions of every order, innermost first.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], l3_loops: Tensor, target: Target, dtype: torch.dtype
    ) -> None:
        element, longest = target.element_bytes, request_bytes(target)

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(list(values), dtype=dtype)

        self.streams_height = torch.tensor([streams_height(shape) for shape in shapes])
        # Loops that some layer has, per order.
        present = {d for d in range(8) if any(list(shape.dims)[d] > 1 for shape in shapes)}
        self.loops = [[d for d in order if d in present] for order in l3_loops.tolist()]
        contiguous = [segments(shape) for shape in shapes]
        # Layers whose loops move operands alike, by where these are contiguous.
        self.layers = {
            kind: torch.tensor([i for i, mine in enumerate(contiguous) if mine == kind])
            for kind in dict.fromkeys(contiguous)
        }
        self.place = torch.argsort(torch.cat(list(self.layers.values())))
        # A depthwise weight row is one array block, as wide as the mapping says: whole[0] is not used.
        widths = [
            [
                1 if kind[at] < 0 else list(shape.dims)[kind[at]]
                for shape, kind in zip(shapes, contiguous, strict=True)
            ]
            for at in range(3)
        ]
        # [operand][L]: bytes of all channels of a row, and its pitch in lines.
        self.whole = [column([width * element for width in row]) for row in widths]
        self.pitch = [column([pitch_lines(width * element) for width in row]) for row in widths]
        # [dimension][L]: what starts of rows that are contiguous along it are multiples of, in bytes.
        self.alignment = [
            column([math.gcd(extent * element, longest) for extent in extents])
            for extents in zip(*(shape.dims for shape in shapes), strict=True)
        ]
