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
        _Descent(search, search.spaces[done % len(search.spaces)], search.seed + 1000 * done).run()
        done += 1


class _Descent:
    def __init__(self, search: LayerSearch, space: Space, seed: int) -> None:
        self.search, self.space = search, space
        self.model = RelaxedNests(search.machine, search.workload, space.keeps)
        self.generator = torch.Generator().manual_seed(seed)
        levels, dims = np.nonzero((space.fixed == 0) & (space.most > 1))
        free = [(a, d) for a, d in zip(levels.tolist(), dims.tolist(), strict=True) if a != space.home[d]]
        self.at = np.array(free, dtype=np.int64).reshape(len(free), 2)
        self.choices = Choices([self._candidates(level, dim) for level, dim in free]) if free else None
        start = space.random(RESTARTS, search.generator)
        search.values(start)
        self.free = torch.from_numpy(start.factors[:, self.at[:, 0], self.at[:, 1]]).float().log()
        self.free = self.free.requires_grad_()
        shape = (RESTARTS, len(search.machine.memories), len(OPERANDS))
        self.logits = torch.randn(shape, generator=self.generator).requires_grad_()

    def _candidates(self, level: int, dim: int) -> tuple[int, ...]:
        bound = int(self.search.workload.bounds[dim])
        return tuple(n for n in divisors(bound) if n <= self.space.most[level, dim])

    def run(self) -> None:
        """Descend; now and then price the mapping that is nearest."""
        if self.choices is None:
            return
        adam = Adam([self.free, self.logits], RATE)
        for step in range(STEPS):
            if self.search.is_over():
                return
            f = step / STEPS
            tau, weight = 0.1**f, 10**f
            sizes = self.choices.draw(self.free, tau, self.generator)
            soft = gumbel_softmax(self.logits, tau, self.generator)
            hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), len(OPERANDS)).float()
            stays = hard + soft - soft.detach()
            factors = self._factors(sizes)
            energy, cycles = self.model(factors, stays)
            logs = {"edp": energy.log() + cycles.log(), "energy": energy.log(), "latency": cycles.log()}
            loss = logs[self.search.objective] + weight * self.model.excess(factors)
            adam.step(loss.sum())
            if step % ROUND_EVERY == ROUND_EVERY - 1:
                with torch.no_grad():
                    self._price(self.choices.draw(self.free, tau, None), self.logits.argmax(dim=-1))

    def _factors(self, sizes: Tensor) -> Tensor:
        """[B, L, D] from the free ones."""
        fixed = torch.from_numpy(np.maximum(self.space.fixed, 1)).float()
        levels, dims = torch.from_numpy(self.at).unbind(1)
        factors = fixed.repeat(len(sizes), 1, 1).index_put(
            (torch.arange(len(sizes))[:, None], levels, dims), sizes
        )
        rest = (self.model.bounds / factors.prod(dim=1)).clamp(min=1)
        home = torch.tensor(self.space.home)
        every = torch.arange(len(home))
        return factors.index_put((torch.arange(len(sizes))[:, None], home, every), rest)

    def _price(self, sizes: Tensor, stays: Tensor) -> None:
        """Nearest divisors of what is left, level by level from the innermost; loops of one memory in the
        order that leaves its operand in place."""
        wanted = self._factors(sizes).double().numpy()
        factors: Ints = np.repeat(np.maximum(self.space.fixed, 1)[None], len(wanted), axis=0)
        for level, dim in sorted(self.at.tolist(), reverse=True):
            left = self.search.workload.bounds[dim] // factors[:, :, dim].prod(axis=1)
            for row, rest in enumerate(left):
                options = [n for n in divisors(int(rest)) if n <= self.space.most[level, dim]]
                factors[row, level, dim] = min(options, key=lambda n: abs(n - wanted[row, level, dim]))
        for dim, level in enumerate(self.space.home):
            factors[:, level, dim] *= self.search.workload.bounds[dim] // factors[:, :, dim].prod(axis=1)
        orders = np.repeat(self.space.outermost.orders, len(wanted), axis=0)
        for row, memory in np.ndindex(*stays.shape):
            moves = self.model.relevant[OPERANDS[int(stays[row, memory])]].tolist()
            order = orders[row, memory].tolist()
            free = sorted((at for at in order if self.space.is_free(memory, at)), key=lambda at: moves[at])
            orders[row, memory] = [at for at in order if at not in free] + free
        self.search.values(self.space.mended(Mappings(factors, orders, self.space.keeps)))
