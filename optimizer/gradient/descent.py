"""The paper's method: gradient descent over tiles, orders and fusion strengths of all layers at once.

All restarts and all distinct layers are one tensor program per step.  Loss per restart:
log(sum E) + log(sum L) + lambda * penalties, so one scalar couples the layers of a network.

Schedules over the run (f goes from 0 to 1):
    tau     1 -> 0.1        geometric: Gumbel-softmax temperature
    beta    5 -> 50         geometric: sharpness of the maximum in the latency
    lambda  1 -> 10         geometric: weight of the penalties
    rate    0.1 (Adam), extents in the log; sigma starts at a random pattern per restart (restart r
            fuses a share r/B of the edges), is held for the first half so that tiles and orders
            settle on a grid that serves the pattern, and moves with them from then on.

Most restarts begin at the layers' own best mappings.  At RECOMBINED shares of the run all restarts are
decoded, and go on from the best schedule that their parts make together, each with other edges flipped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS
from fadiff.costmodel.mapping.mapping import Order
from fadiff.costmodel.relaxed.model import RelaxedModel
from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.optimizer.cut.decode import VARIABLES, Batch, Decoder, Encoding, joined_groups
from fadiff.optimizer.cut.partition import Partition, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.relaxation import Known, Relaxation, Sample, Variables
from fadiff.optimizer.group.network import RelaxedNetwork
from fadiff.optimizer.group.residency import Layers
from fadiff.optimizer.layer.canonical import L3_ORDERS, STATIONARY, Stationary
from fadiff.optimizer.layer.hull import Solution
from fadiff.optimizer.layer.space import LayerSpace

RATE = 0.1
SIGMA_START = 2.0
HELD = 0.5
RECOMBINED = (0.4, 0.6, 0.8)
"""Progress at which all restarts go on from the best schedule of their parts."""
MUTATED = 0.4
"""Share of the edges that the last restart then flips; the first flips none."""
PATIENCE = 60
FEWEST_STEPS, FEWEST_RESTARTS = 100, 4
"""Below so many steps a time budget takes restarts away instead, down to so many."""
NODES_AT_ONCE, ENOUGH_RESTARTS = 480, 8
"""Nodes of all restarts together: more of them make steps slower.  Large networks have fewer restarts, down
to so many, and lose nothing: recombination takes the best of every group."""
PENALTIES = ("mapping", "array", "memory", "buffer", "grid", "shape")


@dataclass(frozen=True)
class Effort:
    """How much to search: at most so many restarts, and steps of each."""

    restarts: int = 32
    steps: int = 120


@dataclass
class Descent:
    """Where descent ended: integer extents [B, L, V], group tiles along P and Q [B, L, 2], orders [B, L],
    fused edges [B, E]."""

    network: RelaxedNetwork
    extents: Tensor
    tiles: Tensor
    order: Tensor
    fused: Tensor
    loss: Tensor
    feasible: Tensor
    known: Known
    best: Solution[Partition] | None = None
    """The best schedule that parts of the restarts make (fusion model `sound`)."""

    def batch(self) -> Batch:
        """Where all restarts ended, and the mappings that some started from."""
        start = self.known.extents.long()[None]
        own, tiles = start[..., : len(VARIABLES)], start[..., len(VARIABLES) :]
        return Batch(
            torch.cat([self.extents, own]).numpy(),
            torch.cat([self.order, self.known.order[None]]).numpy(),
            torch.cat([self.fused, self.known.fused[None]]).numpy(),
            torch.cat([self.tiles, tiles]).numpy(),
        )


def schedule_at(f: float) -> tuple[float, float, float]:
    """(tau, beta, lambda) at progress f."""
    return float(0.1**f), float(5 * 10**f), float(10**f)


class Loss:
    """log EDP (or what is minimised) of every restart plus weighted penalties."""

    def __init__(self, problem: Problem) -> None:
        rules, sound = problem.rules, problem.fusion_model == "sound"
        self.problem = problem
        self.network = problem.network
        spaces = [LayerSpace.alone(shape, rules) for shape in self.network.shapes]
        nodes, edges = self.network.nodes, self.network.edges
        self.model = RelaxedModel(
            nodes,
            edges,
            rules.target,
            rules.profile,
            fusion_model=problem.fusion_model,
            network_weights=rules.network_weights,
        )
        self.relaxation = Relaxation(nodes, spaces, edges, problem.relaxation, one_grid=sound)
        self.rules = PENALTIES + (("final",) if sound and not rules.counting.has_tile_buffer else ())
        self.known = point_of(self.network, problem.layerwise[0].argmin)

    def start(self, restarts: int, generator: torch.Generator) -> Variables:
        """Random tiles and orders in every eighth restart, the layers' own best mappings in the rest;
        restart r fuses a share r/B of the edges, chosen at random."""
        variables = self.relaxation.start(restarts, generator, self.known)
        share = torch.linspace(0, 1, restarts).unsqueeze(1)
        fused = torch.rand(variables.sigma.shape, generator=generator) < share
        with torch.no_grad():
            variables.sigma.copy_(torch.where(fused, SIGMA_START, -SIGMA_START))
        return variables

    def restart(self, variables: Variables, point: Known, generator: torch.Generator) -> None:
        """All restarts at one point; restart r has up to a share MUTATED of its edges the other way."""
        self.known = point
        batch = len(variables.sigma)
        share = torch.linspace(0, MUTATED, batch).unsqueeze(1)
        other = torch.rand(variables.sigma.shape, generator=generator) < share
        with torch.no_grad():
            variables.x.copy_(point.extents.log())
            variables.order.copy_(self.relaxation.order_of(point))
            variables.sigma.copy_(torch.where(point.fused ^ other, SIGMA_START, -SIGMA_START))

    def end(self, variables: Variables) -> Descent:
        """What the variables stand for now."""
        with torch.no_grad():
            sample = self.relaxation.sample(variables, 0.1, None)
            point = self.relaxation.point(sample)
            loss, _, feasible = self(sample, 10.0)
        return Descent(
            self.network,
            _integers(point.l2, point.l1),
            sample.tiles.round().long(),
            sample.order.argmax(dim=-1),
            sample.sigma > 0.5,
            loss,
            feasible,
            self.known,
        )

    def __call__(
        self, sample: Sample, weight: float, beta: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, EDP in uJ x cycles, whether no penalty is left), each [B]."""
        cost = self.model(self.relaxation.point(sample), beta)
        penalty = sum((cost.penalties[name] for name in self.rules), torch.zeros(()))
        energy, latency = cost.total_energy_pj, cost.total_latency_cycles
        edp = (energy * 1e-6 * latency).detach()
        return self._objective(energy, latency) + weight * penalty, edp, penalty.detach() < 1e-6

    def _objective(self, energy: Tensor, latency: Tensor) -> Tensor:
        if self.problem.objective == "energy":
            return energy.log()
        if self.problem.objective == "latency":
            return latency.log()
        return energy.log() + latency.log()


def point_of(network: RelaxedNetwork, partition: Partition) -> Known:
    """Where a schedule is in the space of descent; of identical layers the last one decides."""
    extents = [[1] * (len(VARIABLES) + 2) for _ in network.nodes]
    order = [0] * len(network.nodes)
    fused = [False] * len(network.edges)
    group_of = {name: way.group for way in partition for name in way.group.layers}
    for way in partition:
        for name, mapping in way.mappings().items():
            node = network.node_of.get(name)
            if node is None:
                continue
            levels = ((mapping.tile_l1 if v.islower() else mapping.tile_l2, v.upper()) for v in VARIABLES)
            extents[node][: len(VARIABLES)] = [level[d] for level, d in levels]  # type: ignore[index]
            extents[node][-2:] = mapping.tile_l2.P, mapping.tile_l2.Q
            order[node] = STATIONARY.index(_stationary(mapping.order_l3))
        last = way.group.layers[-1]
        if way.group.tile is not None and last in network.node_of:
            extents[network.node_of[last]][-2:] = way.group.tile.P, way.group.tile.Q
    for (producer, consumer), edge in network.edge_of.items():
        fused[edge] = group_of[producer] == group_of[consumer]
    return Known(
        torch.tensor(extents, dtype=torch.float32), torch.tensor(order), torch.tensor(fused, dtype=torch.bool)
    )


def _stationary(order: Order) -> Stationary:
    """What stays under DRAM loops; those of loop units reduce innermost and walk pixels or channels first."""
    for name, known in L3_ORDERS.items():
        if known == order:
            return name
    return "WS" if order.index("K") < order.index("P") else "OS"


@one_thread()
def descend(problem: Problem, effort: Effort, again: int = 0) -> Descent:
    """Run the descent; deterministic for a seed unless a time budget cuts it short.

    `again` counts earlier descents of the search: each starts elsewhere.
    """
    generator = torch.Generator().manual_seed(problem.seed + (again << 32))
    loss_of = Loss(problem)
    sample = loss_of.relaxation.sample
    began = problem.seconds
    restarts = _affordable(problem, effort, loss_of)
    variables = loss_of.start(restarts, generator)
    decoder = Decoder(problem, Encoding.of(problem)) if problem.fusion_model == "sound" else None
    waiting = list(RECOMBINED)
    optimizer = _adam(variables)
    best = float("inf")
    stale = 0
    for step in range(effort.steps):
        # A budget shortens the schedules as a whole: temperature always ends cold.
        f = max(step / effort.steps, _time_share(problem, began))
        if f >= 1:
            break
        if waiting and f >= waiting[0]:
            waiting = [share for share in waiting if share > f]
            if decoder is not None:
                found = decoder.best(loss_of.end(variables).batch())
                problem.record(value("edp", found.energy, found.latency))
                loss_of.restart(variables, point_of(loss_of.network, found.argmin), generator)
                optimizer = _adam(variables)
        tau, beta, weight = schedule_at(f)
        optimizer.rates[-1] = 0.0 if f < HELD else RATE / 2
        loss, edp, feasible = loss_of(sample(variables, tau, generator), weight, beta)
        optimizer.step(loss.sum())
        problem.steps += 1
        if step % 10 == 9:
            share = float(feasible.float().mean())
            reached = f"best EDP {float(edp[feasible].min()):.4g} uJ x cycles, " if share else ""
            problem.say(f"gradient step {step + 1} of {effort.steps}: {reached}{share:.0%} feasible")
            lowest = float(loss.detach().min())
            stale = 0 if lowest < best - 1e-3 else stale + 10
            best = min(best, lowest)
            if stale >= PATIENCE and f > HELD + 0.25:
                break
    descent = loss_of.end(variables)
    if decoder is not None:
        descent.best = decoder.best(descent.batch())
    return descent


def _adam(variables: Variables) -> Adam:
    return Adam((variables.x, variables.order, variables.sigma), RATE)


def _time_share(problem: Problem, began: float) -> float:
    """Half of what was left of a time budget is for descent, the rest for decoding and the certificate."""
    if problem.time_budget is None:
        return 0.0
    return (problem.seconds - began) / max(0.5 * (problem.time_budget - began), 1e-9)


def _affordable(problem: Problem, effort: Effort, loss_of: Loss) -> int:
    """Restarts for a network of this size, or those of which a time budget pays FEWEST_STEPS steps, judged by
    one step."""
    nodes = len(loss_of.network.nodes)
    restarts = min(effort.restarts, max(NODES_AT_ONCE // nodes, ENOUGH_RESTARTS))
    if problem.time_budget is None:
        return restarts
    generator = torch.Generator().manual_seed(0)
    variables = loss_of.start(restarts, generator)
    before = problem.seconds
    loss_of(loss_of.relaxation.sample(variables, 1.0, generator), 1.0, 5.0)[0].sum().backward()  # type: ignore[no-untyped-call]
    step = max(problem.seconds - before, 1e-9)
    steps = 0.5 * (problem.time_budget - problem.seconds) / step
    return min(restarts, max(FEWEST_RESTARTS, int(restarts * steps / FEWEST_STEPS)))


def _integers(l2: Tensor, l1: Tensor) -> Tensor:
    """Extents in the order of VARIABLES."""
    position = {d: i for i, d in enumerate(DIMS)}
    columns = [(l1 if v.islower() else l2)[..., position[v.upper()]] for v in VARIABLES]  # type: ignore[index]
    return torch.stack(columns, dim=-1).round().long().clamp(min=1)


def groups_found(problem: Problem, descent: Descent) -> list[tuple[Layers, GroupTile]]:
    """Groups of the best schedule, then those that restarts agreed on, most frequent (then best restart)
    first."""
    network = descent.network
    count: Counter[tuple[Layers, GroupTile]] = Counter()
    for way in descent.best.argmin if descent.best is not None else ():
        if way.group.tile is not None:
            count[way.group.layers, way.group.tile] += len(descent.loss)
    for r in torch.argsort(descent.loss).tolist():
        for layers in joined_groups(problem, network, descent.fused[r].tolist()):
            last = network.node_of[layers[-1]]
            images = int(descent.extents[r, last, VARIABLES.index("N")])
            count[layers, GroupTile(images, *descent.tiles[r, last].tolist())] += 1
    return [group for group, _ in count.most_common()]
