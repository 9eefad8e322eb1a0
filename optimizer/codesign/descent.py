"""Descent over machines and mappings of several networks at once; machine_descent.py is the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fadiff.optimizer.codesign.designs import Sizes
from fadiff.optimizer.codesign.machine_descent import MachineCodesign
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.descent import RATE, schedule_at
from fadiff.optimizer.gradient.nests import NestVariables

MOST_STEPS = 400
PROPOSING = 0.6
"""Progress from which on every tenth step proposes the designs that restarts are at."""


@one_thread()
def descend(
    relaxed: MachineCodesign, starts: Sequence[Sizes], seed: int, share: Callable[[], float]
) -> tuple[list[Sizes], int]:
    """Designs that restarts come to, best first, and the steps taken; `share` of the time is used so far."""
    generator = torch.Generator().manual_seed(seed)
    variables, sizes = relaxed.start(starts, generator)
    optimizer = Adam((variables.logs, variables.logits, sizes), RATE)
    lowest: dict[Sizes, float] = {}
    step = 0
    for step in range(MOST_STEPS):
        f = max(step / MOST_STEPS, share())
        if f >= 1:
            break
        optimizer.step(relaxed(variables, sizes, schedule_at(f), generator).sum())
        if f >= PROPOSING and step % 10 == 0:
            _propose(relaxed, variables, sizes, lowest)
    _propose(relaxed, variables, sizes, lowest)
    return sorted(lowest, key=lowest.__getitem__), step


def _propose(
    relaxed: MachineCodesign, variables: NestVariables, sizes: Tensor, lowest: dict[Sizes, float]
) -> None:
    """Note the designs of all restarts with the lowest loss that was seen there."""
    with torch.no_grad():
        tau, _, weight = schedule_at(1.0)
        losses = relaxed(variables, sizes, (tau, 50.0, weight), None).tolist()
    for values, loss in zip(sizes.detach().exp().tolist(), losses, strict=True):
        design = relaxed.space.nearest_to(values)
        if design is not None:
            lowest[design] = min(loss, lowest.get(design, loss))
