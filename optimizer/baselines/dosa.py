"""DOSA (Hong et al., MICRO 2023) on fixed hardware: gradient descent over real-valued tile factors.

Its map-space: no scratchpad loops (the accumulator tile is the scratchpad tile), three DRAM orders,
divisors, no fusion, no row packing.  Tile extents move freely in the log; every `ROUND_EVERY` steps
each is rounded to the nearest divisor that fits, the best of the three orders is chosen per layer by
exact cost, and descent continues from there.  DOSA derives the hardware from the mapping; with the
hardware given, capacity is a penalty instead.  Seven starts, best kept, as published.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from converter.dims import DIMS
from converter.graph import TensorCoreLayer
from costmodel.relaxed import ORDERS, Node, RelaxedModel, RelaxedPoint
from costmodel.schedule import FusionGroup
from optimizer.decode import VARIABLES, legalise
from optimizer.enumerate import Points
from optimizer.fronts import Front
from optimizer.network import relaxed_network
from optimizer.options import Choice
from optimizer.partition import Partition
from optimizer.pricing import price
from optimizer.problem import Problem, value
from optimizer.space import LayerSpace

STARTS = 7
STEPS = 900
ROUND_EVERY = 150
RATE = 0.03
PENALTY = 10.0
FREE = ("N", "K", "C", "P", "Q", "R", "S")


def dosa(problem: Problem) -> Partition:
    """The best rounded schedule of all starts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _Dosa(problem).run()
    finally:
        torch.set_num_threads(threads)


class _Dosa:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.network = relaxed_network(problem.graph, fusion=False)
        rules = replace(problem.rules, tiling="divisor", row_packing=False)
        self.spaces = [LayerSpace.alone(shape, rules) for shape in self.network.shapes]
        nodes = [Node(s, r) for s, r in zip(self.network.shapes, self.network.repeats, strict=True)]
        self.model = RelaxedModel(nodes, [], rules.target, rules.profile)
        self.bounds = torch.tensor([[float(s.bounds[d]) for d in FREE] for s in self.spaces])  # type: ignore[index]
        self.depthwise = torch.tensor([s.shape.is_depthwise for s in self.spaces])
        self.groups = torch.tensor([float(s.groups_at_once) for s in self.spaces])
        self.repeats = np.array(self.network.repeats, dtype=np.float64)
        size = len(self.spaces)
        self.best = np.full(size, np.inf)
        self.points: list[Points | None] = [None] * size
        self.costs = np.full((size, 2), np.inf)

    def run(self) -> Partition:
        generator = torch.Generator().manual_seed(self.problem.seed)
        top = self.bounds.log()
        x = (torch.rand((STARTS, *top.shape), generator=generator) * top).requires_grad_()
        order = torch.randint(0, 3, (STARTS, len(self.spaces)), generator=generator)
        order = self._round(x, order)
        optimizer = torch.optim.Adam([x], lr=RATE)
        step = 0
        while not self.problem.out_of_time() and (self.problem.time_budget is not None or step < STEPS):
            cost = self.model(self._point(x, order))
            names = ("mapping", "array", "memory")
            penalty = sum((cost.penalties[name] for name in names), torch.zeros(()))
            loss = cost.total_energy_pj.log() + cost.total_latency_cycles.log() + PENALTY * penalty
            optimizer.zero_grad()
            loss.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                x.copy_(torch.minimum(x.clamp(min=0), top))
            step += 1
            self.problem.steps += 1
            if step % ROUND_EVERY == 0:
                order = self._round(x, order)
        self._round(x, order)
        return self._partition()

    def _point(self, x: torch.Tensor, order: torch.Tensor) -> RelaxedPoint:
        tile = dict(zip(FREE, x.exp().unbind(-1), strict=True))
        one = torch.ones_like(tile["K"])
        g = self.groups.expand_as(one)
        side = float(self.spaces[0].side)
        l2 = torch.stack([{**tile, "G": g}.get(d, one) for d in DIMS], dim=-1)
        row = torch.where(self.depthwise, one, tile["C"].clamp(max=side))
        col = torch.where(self.depthwise, one, tile["K"].clamp(max=side))
        wide = torch.where(self.depthwise, g, one)
        rows = torch.stack([row if d == "C" else one for d in DIMS], dim=-1)
        cols = torch.stack([{"K": col, "G": wide}.get(d, one) for d in DIMS], dim=-1)
        weights = torch.nn.functional.one_hot(order, len(ORDERS)).to(x.dtype)
        return RelaxedPoint(l2, l2, rows * cols, rows, cols, weights)

    def _round(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Round every start in place; returns its best orders and remembers the best start."""
        extents = x.detach().exp().numpy()
        energy = np.zeros((STARTS, len(self.spaces)))
        latency = np.zeros_like(energy)
        orders = np.zeros((STARTS, len(self.spaces)), dtype=np.int64)
        legal: list[Points] = []
        for i, space in enumerate(self.spaces):
            tile = {}
            for j, d in enumerate(FREE):
                options = np.asarray(space.tiles(d), dtype=np.int64)  # type: ignore[arg-type]
                distance = np.abs(np.log(options)[None, :] - np.log(extents[:, i, j])[:, None])
                tile[d] = options[distance.argmin(axis=1)]
            tile.update({v: tile[v.upper()] for v in VARIABLES if v.islower()})
            points = _covering(space, tile, len(ORDERS))
            costs = price(points)
            edp = (costs.energy * costs.latency).reshape(len(ORDERS), STARTS)
            best = edp.argmin(axis=0)
            pick = best * STARTS + np.arange(STARTS)
            orders[:, i] = best
            energy[:, i], latency[:, i] = costs.energy[pick], costs.latency[pick]
            legal.append(points.select(pick))
            with torch.no_grad():
                for j, d in enumerate(FREE):
                    x[:, i, j] = torch.from_numpy(np.log(legal[i].tile[d])).to(x.dtype)
        total = (energy @ self.repeats) * (latency @ self.repeats)
        start = int(total.argmin())
        if total[start] < float(self.costs[:, 0] @ self.repeats) * float(self.costs[:, 1] @ self.repeats):
            self.costs = np.stack([energy[start], latency[start]], axis=1)
            self.points = [p.select(np.array([start])) for p in legal]
        best_energy, best_latency = (self.costs * self.repeats[:, None]).sum(axis=0)
        self.problem.record(value("edp", float(best_energy), float(best_latency)))
        return torch.from_numpy(orders)

    def _partition(self) -> Partition:
        parts = []
        for layer in self.problem.graph.layers:
            if not isinstance(layer, TensorCoreLayer):
                parts.append(self.problem.groups.alone(layer.name).choices[0])
                continue
            i = self.network.node_of[layer.name]
            points = self.points[i]
            assert points is not None
            front = Front(self.costs[i, :1], self.costs[i, 1:], (points.mapping(0),))
            parts.append(Choice(FusionGroup((layer.name,)), ((layer.name, front),), (0,)))
        return tuple(parts)


def _covering(space: LayerSpace, tile: dict[str, np.ndarray], orders: int) -> Points:
    """Legal points without scratchpad loops, once per order: shrink the scratchpad tile with its O tile."""
    count = len(tile["K"])
    current = tile
    while True:
        points, _ = legalise(space, current, np.zeros(count, dtype=np.int64))
        t = points.tile
        covering = {d: np.minimum(t[d], t[d.lower()]) if d in "NPQK" else t[d] for d in FREE}
        covering.update({v: covering[v.upper()] for v in VARIABLES if v.islower()})
        if all((covering[d] == t[d]).all() for d in FREE):
            break
        current = covering
    columns = {name: np.tile(column, orders) for name, column in points.tile.items()}
    return Points(space, columns, np.repeat(np.arange(orders), count))
