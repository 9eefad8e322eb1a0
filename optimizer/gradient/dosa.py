"""DOSA (Hong et al., MICRO 2023) with the hardware given: descent over real-valued tile factors.

After `MappingDrivenNetworkSearcher.search_gd` of the published artefact (ucb-bar/dosa), with its settings:
factors scaled by the largest of its data set, Adam at 7.5e-5 (networks of matrix products only: 1e-5),
seven starts of 1490 steps, rounding every 500 (`round_mapping`: spatial factors first, then the nearest
divisor of what is left, level by level), every layer's DRAM order chosen among three after each rounding
for the EDP of the whole network, Adam's state kept.  What counts is the best whole network at a start or
a rounding, never the best of each layer.  Starts ten times worse than the best are drawn again.  The
map-space: K on columns and C on rows, no scratchpad loops, perfect factors, no fusion, no row packing.

What differs, because the artefact derives the hardware from the mapping and here it is given: rounded
tiles shrink until they fit, and needs beyond the target are penalised in the form that the artefact has
for a given array (ten times the square of the excess, array side and KB).  Costs are this project's.
Starts: see `cosa`; the first one is for the target itself, and orders are chosen at a start, too.  With a
time budget, further rounds of seven starts follow at the artefact's other rates.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import DIMS
from fadiff.costmodel.group.legality import legal
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.relaxed.model import ORDERS
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.optimizer.cut.partition import Partition, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.cosa import TILED, Start, cosa_start, hardware_of, random_hardware
from fadiff.optimizer.gradient.dosa_loss import FACTORS, LOOPS, DosaLoss
from fadiff.optimizer.group.hull import Way
from fadiff.optimizer.group.network import relaxed_network
from fadiff.optimizer.layer.candidates import divisors
from fadiff.optimizer.layer.fronts import Front

STARTS = 7
STEPS = 1490
ROUND_EVERY = 500
RATES = (7.5e-5, 1e-5, 5e-5)
"""Adam's step in scaled factors: ResNet-50 and RetinaNet, BERT, U-Net."""
REJECT = 10.0
"""A start is drawn again if its EDP is so many times the best start's."""
MOST_DRAWS = 30

SCALE = (128.0, 64.0, 1024.0, 112.0, 11.0, 11.0, 1024.0, 112.0, 25088.0, 4096.0, 1.0)
"""The largest value of each factor in the points published with DOSA (its `mapfeat_norm: max`)."""
_DIM_OF = {i: d for d, loop in enumerate(LOOPS) for i in loop}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Rounded(NamedTuple):
    """Legal mappings of all starts: factors [B, L, F], orders [B, L] and cost [B, L] of each layer."""

    factors: Ints
    order: Ints
    energy: Floats
    latency: Floats

    def of(self, starts: NDArray[np.intp]) -> _Rounded:
        """Some of the starts."""
        return _Rounded(self.factors[starts], self.order[starts], self.energy[starts], self.latency[starts])


@one_thread()
def dosa(problem: Problem) -> Partition:
    """The best rounded network of all starts."""
    if not problem.graph.tensor_core_layers:
        return tuple(problem.groups.alone(layer.name).ways[0] for layer in problem.graph.layers)
    return _Dosa(problem).run()


def _chosen(costs: NDArray[Any], order: Ints) -> Floats:
    """[B, L] out of [O, B, L]."""
    return np.asarray(np.take_along_axis(costs, order[None], axis=0)[0])


class _Dosa:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.network = relaxed_network(problem.graph)
        self.shapes = self.network.shapes
        target = problem.rules.target
        self.limits = [[s.dims[d] for d in TILED] for s in self.shapes]
        self.groups = [
            max(x for x in divisors(s.dims.G) if x <= target.side) if s.is_depthwise else 1
            for s in self.shapes
        ]
        self.loss = DosaLoss(self.shapes, self.network.repeats, self.groups, target)
        self.scale = torch.tensor(SCALE)
        self.repeats = np.array(self.network.repeats, dtype=np.float64)
        self.host = problem.beside(self.network)
        self.hardware = random_hardware(target, np.random.default_rng(problem.seed))
        self.is_first = True
        is_image = any(s.dims.R * s.dims.S > 1 for s in self.shapes)
        self.rates = cycle(RATES if is_image else (*RATES[1:], RATES[0]))
        self.best_edp = np.inf
        self.best: _Rounded | None = None

    def run(self) -> Partition:
        """Rounds of starts: one, or as many as the time budget allows."""
        while self.best is None or (self.problem.time_budget is not None and not self.problem.out_of_time()):
            self._descend(self._starts(), next(self.rates))
        return self._partition(self.best)

    def _starts(self) -> _Rounded:
        """Start points for STARTS drawn machines, none much worse than the best."""
        target = self.problem.rules.target
        drawn: list[Ints] = []
        for _ in range(MOST_DRAWS):
            hardware = hardware_of(target) if self.is_first else next(self.hardware)
            self.is_first = False
            drawn.append(np.array([_factors(cosa_start(shape, hardware, target)) for shape in self.shapes]))
            starts = self._legal(np.stack(drawn))
            edp = self._edp(starts)
            good = np.flatnonzero(edp <= REJECT * edp.min())[:STARTS]
            if len(good) == STARTS or self.problem.out_of_time():
                break
        return starts.of(good)

    def _descend(self, point: _Rounded, rate: float) -> None:
        self._keep(point)
        x = self._scaled(point.factors).requires_grad_()
        optimizer = Adam([x], rate)
        order = torch.from_numpy(point.order)
        for step in range(1, STEPS + 1):
            loss = self.loss(x * self.scale, order)
            optimizer.step(loss.sum())
            self.problem.steps += 1
            stop = step == STEPS or self.problem.out_of_time()
            if stop or step % ROUND_EVERY == 0:
                rounded = self._round((x.detach() * self.scale).numpy().astype(np.float64))
                point = self._legal(rounded)
                self._keep(point)
                if stop:
                    return
                with torch.no_grad():
                    x.copy_(self._scaled(point.factors))
                order = torch.from_numpy(point.order)

    def _scaled(self, factors: Ints) -> Tensor:
        """Factors as the variables to move."""
        return torch.from_numpy(factors).to(torch.float32) / self.scale

    def _round(self, factors: Floats) -> Ints:
        """`round_mapping` of every start and layer: spatial factors, then the array's stream, then loops."""
        found = np.empty(factors.shape, dtype=np.int64)
        for b, layer in np.ndindex(factors.shape[:2]):
            left = list(self.limits[layer])
            for i in range(len(FACTORS)):
                found[b, layer, i] = nearest = _nearest(float(factors[b, layer, i]), left[_DIM_OF[i]])
                left[_DIM_OF[i]] //= nearest
        return found

    def _legal(self, factors: Ints) -> _Rounded:
        """Shrink what does not fit; then, layer by layer, the order that is best for the whole network."""
        factors = factors.copy()
        rules, costs = self.problem.rules, []
        for i, shape in enumerate(self.shapes):
            while True:
                columns = self._mappings(i, factors[:, i])
                fits = legal(shape, columns, rules.target, rules.profile)
                bad = np.flatnonzero(~fits[0])
                if not len(bad) or not _shrink(factors[:, i], bad):
                    break
            never = np.where(fits, 0, np.inf)
            cost = evaluate_columns(shape, columns, rules.target, rules.profile)
            costs.append((cost.energy + never, cost.latency + never))
        # [O, B, L]
        energy, latency = (np.stack(columns, axis=-1) for columns in zip(*costs, strict=True))
        order = (energy * latency).argmin(axis=0)
        for i, repeat in enumerate(self.repeats):
            e, t = _chosen(energy, order), _chosen(latency, order)
            network_e = (e @ self.repeats)[None] + (energy[..., i] - e[:, i]) * repeat
            network_t = (t @ self.repeats)[None] + (latency[..., i] - t[:, i]) * repeat
            order[:, i] = (network_e * network_t).argmin(axis=0)
        return _Rounded(factors, order, _chosen(energy, order), _chosen(latency, order))

    def _mappings(self, layer: int, factors: Ints) -> MappingColumns:
        """All starts of one layer under every order, [O, B]."""
        tile = dict(zip(TILED, (factors[:, list(loop)].prod(axis=1) for loop in LOOPS), strict=True))
        tile["G"] = self.groups[layer]
        rows, cols = {"C": factors[:, 0]}, {"K": factors[:, 1]}
        if self.shapes[layer].is_depthwise:
            rows, cols = {}, {"G": tile["G"]}
        l2, l0, row, col = (tuple(known.get(d, 1) for d in DIMS) for known in (tile, rows | cols, rows, cols))
        order = np.arange(len(ORDERS))[:, None]
        return MappingColumns(l2, l2, l0, row, col, [(o.l3, o.l2, o.l1) for o in ORDERS], order)

    def _edp(self, point: _Rounded) -> Floats:
        energy, latency = self.host
        return np.asarray((point.energy @ self.repeats + energy) * (point.latency @ self.repeats + latency))

    def _keep(self, point: _Rounded) -> None:
        """Remember the best whole network."""
        edp = self._edp(point)
        at = int(edp.argmin())
        if edp[at] < self.best_edp or self.best is None:
            self.best_edp = float(edp[at])
            self.best = point.of(np.array([at]))
        self.problem.record(value("edp", self.best_edp, 1.0))

    def _partition(self, best: _Rounded) -> Partition:
        parts = []
        for layer in self.problem.graph.layers:
            if not isinstance(layer, TensorCoreLayer):
                parts.append(self.problem.groups.alone(layer.name).ways[0])
                continue
            i = self.network.node_of[layer.name]
            mapping = self._mappings(i, best.factors[:, i]).mapping(int(best.order[0, i]))
            front = Front(best.energy[:, i], best.latency[:, i], (mapping,))
            parts.append(Way(FusionGroup((layer.name,)), ((layer.name, front),), (0,)))
        return tuple(parts)


def _factors(start: Start) -> list[int]:
    """FACTORS of a start point; its pixels all loop at the accumulator."""
    tile = dict(zip(TILED, start.tile, strict=True))
    tile["C"] //= start.rows
    tile["K"] //= start.columns
    return [start.rows, start.columns, 1, 1, *(tile[d] for d in TILED)]


def _nearest(factor: float, left: int) -> int:
    """The divisor of `left` nearest to a factor."""
    rounded = max(1, round(factor))
    return rounded if left % rounded == 0 else min(divisors(left), key=lambda d: abs(d - factor))


def _shrink(factors: Ints, bad: NDArray[np.intp]) -> bool:
    """Reduce the largest loop of every bad row [B, F] to its next divisor, spatial factors last."""
    moved = False
    for b in bad:
        row = factors[b]
        at = int(row[2:].argmax()) + 2
        at = at if row[at] > 1 else int(row[:2].argmax())
        if row[at] > 1:
            row[at] = divisors(int(row[at]))[-2]
            moved = True
    return moved
