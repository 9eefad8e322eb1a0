"""The paper's method for a layer on any machine: Adam over the logs of all factors and which operand every
memory's innermost loops leave in place; both are Gumbel-softmax choices with straight-through gradients.

Loss per restart: log energy + log cycles (or one of them) + lambda * what does not fit; temperature and
lambda go as in `descent.py`.  The outermost level that is free takes what other factors leave of a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS
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
    """What descents of layers move, a row for each restart: logs of the factors that are free [B, V], and
    logits [B, N, M, 3] of the operand that each memory's innermost loops leave in place."""

    def __init__(
        self, spaces: Sequence[Space], starts: Sequence[Mappings], generator: torch.Generator
    ) -> None:
        """A space for each of N layers of one machine; its factors begin at those of its start."""
        self.spaces = spaces
        levels, memories = len(spaces[0].machine.levels), len(spaces[0].machine.memories)
        self._fixed = torch.ones(len(spaces), levels, len(DIMS))
        self._home = torch.zeros(len(spaces), len(DIMS), dtype=torch.long)
        self._bounds = torch.tensor([list(space.workload.dims) for space in spaces], dtype=torch.float32)
        self.free: list[tuple[int, int, int]] = []
        """Layer, level and place in its active dimensions of every variable."""
        places, candidates, logs = [], [], []
        for layer, (space, start) in enumerate(zip(spaces, starts, strict=True)):
            dims = [DIMS.index(dim) for dim in space.workload.active]
            self._fixed[layer][:, dims] = torch.from_numpy(np.maximum(space.fixed, 1)).float()
            self._home[layer, dims] = torch.tensor(space.home)
            for level, at in np.argwhere((space.fixed == 0) & (space.most > 1)).tolist():
                if level == space.home[at]:
                    continue
                self.free.append((layer, level, at))
                places.append((layer, level, dims[at]))
                bound = int(space.workload.bounds[at])
                candidates.append(tuple(n for n in divisors(bound) if n <= space.most[level, at]))
                logs.append(start.factors[:, level, at])
        self._places = torch.tensor(places, dtype=torch.long).reshape(len(places), 3).unbind(1)
        self._choices = Choices(candidates) if candidates else None
        rows = len(starts[0])
        begun = np.array(logs, dtype=np.float32).reshape(len(logs), rows).T
        self.logs = torch.from_numpy(begun.copy()).log().requires_grad_()
        shape = (rows, len(spaces), memories, len(OPERANDS))
        self.logits = torch.randn(shape, generator=generator).requires_grad_()

    def sample(self, tau: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Factors [B, N, L, D] and what stays [B, N, M, 3], drawn, with the gradients of the softmax."""
        soft = gumbel_softmax(self.logits, tau, generator)
        hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), len(OPERANDS)).float()
        return self._factors(tau, generator), hard + soft - soft.detach()

    def _factors(self, tau: float, generator: torch.Generator | None) -> Tensor:
        """The free ones, those that are fixed, and what they leave to the outermost free level."""
        rows = torch.arange(len(self.logits))[:, None]
        factors = self._fixed.repeat(len(rows), 1, 1, 1)
        if self._choices is not None:
            drawn = self._choices.draw(self.logs, tau, generator)
            factors = factors.index_put((rows, *self._places), drawn)
        rest = (self._bounds / factors.prod(dim=2)).clamp(min=1)
        layers, dims = torch.arange(len(self.spaces))[:, None], torch.arange(len(DIMS))
        return factors.index_put((rows[..., None], layers, self._home, dims), rest)

    def nearest(self, tau: float, layer: int = 0) -> Mappings:
        """Mappings of a layer where the variables are: nearest divisors of what is left, level by level from
        the innermost; loops of one memory in the order that leaves its operand in place."""
        space = self.spaces[layer]
        bounds, dims = space.workload.bounds, [DIMS.index(dim) for dim in space.workload.active]
        with torch.no_grad():
            wanted = self._factors(tau, None)[:, layer][..., dims].double().numpy()
            stays = self.logits[:, layer].argmax(dim=-1)
        factors: Ints = np.repeat(np.maximum(space.fixed, 1)[None], len(wanted), axis=0)
        for _, level, dim in sorted((f for f in self.free if f[0] == layer), reverse=True):
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
    variables = NestVariables([space], [start], generator)
    if not variables.free:
        return
    model = RelaxedNests(search.machine, [search.workload], space.keeps)
    adam = Adam([variables.logs, variables.logits], RATE)
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
