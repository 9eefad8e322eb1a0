"""The paper's method for a layer on any machine: Adam over the logs of all factors and which operand every
memory's innermost loops leave in place; both are Gumbel-softmax choices with straight-through gradients.

Loss per restart: log energy + log cycles (or one of them) + lambda * what does not fit; temperature and
lambda go as in `descent.py`.  The outermost level that is free takes what other factors leave of a bound.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fadiff.costmodel.nests.machine import OPERANDS
from fadiff.costmodel.nests.mapping import Ints, Mappings
from fadiff.costmodel.relaxed.nests import RelaxedNests
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.choices import Choices, gumbel_softmax
from fadiff.optimizer.layer.candidates import divisors
from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.space import Space

RESTARTS, STEPS, ROUND_EVERY = 32, 120, 10
RATE = 0.1
ROUNDS = 3
"""Descents without a time budget, one for each choice of what memories keep at most."""


@one_thread()
def gradient(search: LayerSearch) -> None:
    """Descents from random mappings, over what memories keep in turn."""
    done = 0
    while not search.is_over() and (search.seconds is not None or done < ROUNDS):
        _descend(search, search.spaces[done % len(search.spaces)], search.seed + 1000 * done)
        done += 1


class NestVariables:
    """What descents of one layer move, a row for each restart: logs of the factors that are free, and logits
    of the operand that each memory's innermost loops leave in place."""

    def __init__(self, space: Space, start: Mappings, generator: torch.Generator) -> None:
        """Factors begin at those of `start`."""
        self.space = space
        self.bounds = torch.from_numpy(space.workload.bounds).float()
        levels, dims = np.nonzero((space.fixed == 0) & (space.most > 1))
        free = [(a, d) for a, d in zip(levels.tolist(), dims.tolist(), strict=True) if a != space.home[d]]
        self.at = np.array(free, dtype=np.int64).reshape(len(free), 2)
        self._choices = Choices([self._candidates(level, dim) for level, dim in free]) if free else None
        logs = torch.from_numpy(start.factors[:, self.at[:, 0], self.at[:, 1]]).float().log()
        self.free = logs.requires_grad_()
        shape = (len(start), len(space.machine.memories), len(OPERANDS))
        self.logits = torch.randn(shape, generator=generator).requires_grad_()

    def _candidates(self, level: int, dim: int) -> tuple[int, ...]:
        bound = int(self.space.workload.bounds[dim])
        return tuple(n for n in divisors(bound) if n <= self.space.most[level, dim])

    def sample(self, tau: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Factors [B, L, D] and what stays [B, M, 3], drawn, with the gradients of the softmax."""
        soft = gumbel_softmax(self.logits, tau, generator)
        hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), len(OPERANDS)).float()
        return self._factors(self._sizes(tau, generator)), hard + soft - soft.detach()

    def _sizes(self, tau: float, generator: torch.Generator | None) -> Tensor:
        return self.free if self._choices is None else self._choices.draw(self.free, tau, generator)

    def _factors(self, sizes: Tensor) -> Tensor:
        """[B, L, D] from the free ones."""
        fixed = torch.from_numpy(np.maximum(self.space.fixed, 1)).float()
        levels, dims = torch.from_numpy(self.at).unbind(1)
        rows = torch.arange(len(sizes))[:, None]
        factors = fixed.repeat(len(sizes), 1, 1).index_put((rows, levels, dims), sizes)
        rest = (self.bounds / factors.prod(dim=1)).clamp(min=1)
        home = torch.tensor(self.space.home)
        return factors.index_put((rows, home, torch.arange(len(home))), rest)

    def nearest(self, tau: float) -> Mappings:
        """Mappings where the variables are: nearest divisors of what is left, level by level from the
        innermost; loops of one memory in the order that leaves its operand in place."""
        space, bounds = self.space, self.space.workload.bounds
        with torch.no_grad():
            wanted = self._factors(self._sizes(tau, None)).double().numpy()
            stays = self.logits.argmax(dim=-1)
        factors: Ints = np.repeat(np.maximum(space.fixed, 1)[None], len(wanted), axis=0)
        for level, dim in sorted(self.at.tolist(), reverse=True):
            left = bounds[dim] // factors[:, :, dim].prod(axis=1)
            for row, rest in enumerate(left):
                options = [n for n in divisors(int(rest)) if n <= space.most[level, dim]]
                factors[row, level, dim] = min(options, key=lambda n: abs(n - wanted[row, level, dim]))
        for dim, level in enumerate(space.home):
            factors[:, level, dim] *= bounds[dim] // factors[:, :, dim].prod(axis=1)
        orders = np.repeat(space.outermost.orders, len(wanted), axis=0)
        for row, memory in np.ndindex(*stays.shape):
            moves = np.flatnonzero(np.any(space.workload.steps[OPERANDS[int(stays[row, memory])]], axis=0))
            order = orders[row, memory].tolist()
            free = sorted((at for at in order if space.is_free(memory, at)), key=lambda at: at in moves)
            orders[row, memory] = [at for at in order if at not in free] + free
        return space.mended(Mappings(factors, orders, space.keeps))


def _descend(search: LayerSearch, space: Space, seed: int) -> None:
    """Descend; now and then price the mappings that are nearest."""
    start = space.random(RESTARTS, search.generator)
    search.values(start)
    generator = torch.Generator().manual_seed(seed)
    variables = NestVariables(space, start, generator)
    if not len(variables.at):
        return
    model = RelaxedNests(search.machine, search.workload, space.keeps)
    adam = Adam([variables.free, variables.logits], RATE)
    for step in range(STEPS):
        if search.is_over():
            return
        f = step / STEPS
        tau, weight = 0.1**f, 10**f
        factors, stays = variables.sample(tau, generator)
        energy, cycles = model(factors, stays)
        logs = {"edp": energy.log() + cycles.log(), "energy": energy.log(), "latency": cycles.log()}
        loss = logs[search.objective] + weight * model.excess(factors)
        adam.step(loss.sum())
        if step % ROUND_EVERY == ROUND_EVERY - 1:
            search.values(variables.nearest(tau))
