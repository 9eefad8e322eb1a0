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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from converter.dims import DIMS
from costmodel.relaxed import RelaxedModel
from costmodel.schedule import GroupTile
from optimizer.decode import VARIABLES, joined_groups
from optimizer.network import RelaxedNetwork, relaxed_network
from optimizer.problem import Problem
from optimizer.relaxation import Relaxation, RelaxationForm, Variables
from optimizer.space import LayerSpace

RATE = 0.1
SIGMA_START = 2.0
HELD = 0.5
PATIENCE = 60


@dataclass(frozen=True)
class Effort:
    """How much to search."""

    restarts: int = 32
    steps: int = 200


@dataclass(frozen=True)
class Proposal:
    """A fusion group that descent arrived at, with its group tile."""

    layers: tuple[str, ...]
    tile: GroupTile


@dataclass
class Descent:
    """Where descent ended: integer extents [B, L, V], orders [B, L], fused edges [B, E]."""

    network: RelaxedNetwork
    extents: Tensor
    order: Tensor
    fused: Tensor
    loss: Tensor
    feasible: Tensor
    relaxation: Relaxation


class Adam:
    """Kingma and Ba's rule.  torch.optim has it, too, but loads a compiler for a second before it starts."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        self.variables = tuple(variables)
        self.mean = [torch.zeros_like(v) for v in self.variables]
        self.square = [torch.zeros_like(v) for v in self.variables]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Move every variable at its rate."""
        self.steps += 1
        for variable, gradient, mean, square, rate in zip(
            self.variables, gradients, self.mean, self.square, rates, strict=True
        ):
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            unbiased = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            variable.addcdiv_(mean, unbiased, value=-rate / (1 - 0.9**self.steps))


def schedule_at(f: float) -> tuple[float, float, float]:
    """(tau, beta, lambda) at progress f."""
    return float(0.1**f), float(5 * 10**f), float(10**f)


def descend(problem: Problem, effort: Effort, form: RelaxationForm = "log") -> Descent:
    """Run the descent; deterministic for a seed unless a time budget cuts it short."""
    threads = torch.get_num_threads()
    # The tensors of a step are small: a second thread costs more in synchronisation than it saves.
    torch.set_num_threads(1)
    try:
        return _descend(problem, effort, form)
    finally:
        torch.set_num_threads(threads)


def _descend(problem: Problem, effort: Effort, form: RelaxationForm) -> Descent:
    rules = problem.rules
    network = relaxed_network(problem.graph, problem.candidates)
    spaces = [LayerSpace.alone(shape, rules) for shape in network.shapes]
    model = RelaxedModel(
        network.nodes,
        network.edges,
        rules.target,
        rules.profile,
        fusion_model=problem.fusion_model,
        latency=rules.latency,
    )
    sound = problem.fusion_model == "sound"
    relaxation = Relaxation(network.nodes, spaces, network.edges, form, one_grid=sound)
    generator = torch.Generator().manual_seed(problem.seed)
    variables = relaxation.start(effort.restarts, generator)
    _open_fusion(variables, generator)
    optimizer = Adam(variables.parameters())
    rule_names = ["mapping", "array", "memory", "buffer", "grid"]
    if not rules.hw and sound:
        rule_names.append("final")

    best = float("inf")
    stale = 0
    for step in range(effort.steps):
        # A budget shortens the schedules as a whole: temperature always ends cold.
        f = max(step / effort.steps, _time_share(problem))
        if f >= 1:
            break
        tau, beta, weight = schedule_at(f)
        cost = model(relaxation.point(relaxation.sample(variables, tau, generator)), beta)
        penalty = sum((cost.penalties[name] for name in rule_names), torch.zeros(()))
        loss = _objective(problem, cost.total_energy_pj, cost.total_latency_cycles) + weight * penalty
        gradients = torch.autograd.grad(
            loss.sum(), optimizer.variables, allow_unused=True, materialize_grads=True
        )
        optimizer.step(gradients, (RATE, RATE, 0.0 if f < HELD else RATE / 2))
        problem.steps += 1
        if step % 10 == 9:
            feasible = float((penalty.detach() < 1e-6).float().mean())
            problem.say(f"gradient step {step + 1} of {effort.steps}: {feasible:.0%} of restarts feasible")
            lowest = float(loss.detach().min())
            stale = 0 if lowest < best - 1e-3 else stale + 10
            best = min(best, lowest)
            if stale >= PATIENCE and f > HELD + 0.25:
                break

    with torch.no_grad():
        choices = relaxation.sample(variables, 0.1, None)
        point = relaxation.point(choices)
        cost = model(point)
        penalty = sum((cost.penalties[name] for name in rule_names), torch.zeros(()))
        loss = _objective(problem, cost.total_energy_pj, cost.total_latency_cycles) + 10 * penalty
    return Descent(
        network,
        _integers(point.l2, point.l1),
        choices.order.argmax(dim=-1),
        choices.sigma > 0.5,
        loss,
        penalty < 1e-6,
        relaxation,
    )


def _time_share(problem: Problem) -> float:
    """Half of a time budget is for descent, the rest for decoding and polish."""
    if problem.time_budget is None:
        return 0.0
    return problem.seconds / (0.5 * problem.time_budget)


def _open_fusion(variables: Variables, generator: torch.Generator) -> None:
    restarts = variables.sigma.shape[0]
    share = torch.linspace(0, 1, restarts).unsqueeze(1)
    fused = torch.rand(variables.sigma.shape, generator=generator) < share
    with torch.no_grad():
        variables.sigma.copy_(torch.where(fused, SIGMA_START, -SIGMA_START))


def _objective(problem: Problem, energy: Tensor, latency: Tensor) -> Tensor:
    if problem.objective == "energy":
        return energy.log()
    if problem.objective == "latency":
        return latency.log()
    return energy.log() + latency.log()


def _integers(l2: Tensor, l1: Tensor) -> Tensor:
    """Extents in the order of VARIABLES, group tiles handed back."""
    position = {d: i for i, d in enumerate(DIMS)}
    columns = [(l1 if v.islower() else l2)[..., position[v.upper()]] for v in VARIABLES]  # type: ignore[index]
    return torch.stack(columns, dim=-1).round().long().clamp(min=1)


def proposals(problem: Problem, descent: Descent) -> list[Proposal]:
    """Groups that restarts agreed on, most frequent (then best restart) first."""
    network = descent.network
    tile_at = {d: VARIABLES.index(d) for d in ("N", "P", "Q")}
    count: Counter[Proposal] = Counter()
    for r in torch.argsort(descent.loss).tolist():
        for layers in joined_groups(problem, network, descent.fused[r].tolist()):
            extents = descent.extents[r, network.node_of[layers[-1]]].tolist()
            tile = GroupTile(*(extents[tile_at[d]] for d in ("N", "P", "Q")))
            count[Proposal(layers, tile)] += 1
    return [proposal for proposal, _ in count.most_common()]
