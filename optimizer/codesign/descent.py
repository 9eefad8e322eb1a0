"""Descent over hardware and mappings of several networks at once: the loop that Gemminis and other machines
share.  What is relaxed stands in gemmini_descent.py and machine_descent.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fadiff.optimizer.codesign.designs import Designs, Sizes
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.descent import HELD, RATE, schedule_at

MOST_STEPS = 400
PROPOSING = 0.6
"""Progress from which on every tenth step proposes the designs that restarts are at."""
Variables = TypeVar("Variables")


class Relaxed(Protocol[Variables]):
    """Networks on hardware of trainable sizes."""

    @property
    def space(self) -> Designs[Any]:
        """Among which designs."""

    def start(self, designs: Sequence[Sizes], generator: torch.Generator) -> tuple[Variables, Tensor]:
        """Variables of mappings, and logs of sizes [B, sizes], of a restart at each of the designs."""

    def moved(self, variables: Variables) -> Sequence[Tensor]:
        """What descends from the first step on."""

    def late(self, variables: Variables) -> Sequence[Tensor]:
        """What descends from halfway on."""

    def __call__(
        self,
        variables: Variables,
        sizes: Tensor,
        progress: tuple[float, float, float],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Loss [B] at (tau, beta, lambda); without a generator nothing is drawn."""


@one_thread()
def descend(
    relaxed: Relaxed[Variables], starts: Sequence[Sizes], seed: int, share: Callable[[], float]
) -> tuple[list[Sizes], int]:
    """Designs that restarts come to, best first, and the steps taken; `share` of the time is used so far."""
    generator = torch.Generator().manual_seed(seed)
    variables, sizes = relaxed.start(starts, generator)
    early, late = (*relaxed.moved(variables), sizes), relaxed.late(variables)
    optimizer = Adam((*early, *late), RATE)
    lowest: dict[Sizes, float] = {}
    step = 0
    for step in range(MOST_STEPS):
        f = max(step / MOST_STEPS, share())
        if f >= 1:
            break
        optimizer.rates[len(early) :] = [0.0 if f < HELD else RATE / 2] * len(late)
        optimizer.step(relaxed(variables, sizes, schedule_at(f), generator).sum())
        if f >= PROPOSING and step % 10 == 0:
            _propose(relaxed, variables, sizes, lowest)
    _propose(relaxed, variables, sizes, lowest)
    return sorted(lowest, key=lowest.__getitem__), step


def _propose(
    relaxed: Relaxed[Variables], variables: Variables, sizes: Tensor, lowest: dict[Sizes, float]
) -> None:
    """Note the designs of all restarts with the lowest loss that was seen there."""
    with torch.no_grad():
        tau, _, weight = schedule_at(1.0)
        losses = relaxed(variables, sizes, (tau, 50.0, weight), None).tolist()
    for values, loss in zip(sizes.detach().exp().tolist(), losses, strict=True):
        design = relaxed.space.nearest_to(values)
        if design is not None:
            lowest[design] = min(loss, lowest.get(design, loss))
