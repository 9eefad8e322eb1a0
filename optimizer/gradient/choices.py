"""Straight-through choices among ascending sizes, one variable x = log T each.

The forward pass sees one candidate, the gradient flows through a Gumbel-softmax over all of them, with logits
-alpha (x - log d_j)^2 (Eq. 1-3 in log space: linear distance spans seven orders of magnitude and saturates
the softmax; form `paper` keeps it for comparison).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fadiff.optimizer.cut.settings import RelaxationForm

ALPHA = 4.0


class Choices:
    """Candidates of V variables."""

    def __init__(self, lists: Sequence[tuple[int, ...]], form: RelaxationForm = "log") -> None:
        """`lists`: candidates of every variable, ascending."""
        self.form = form
        self.top = torch.tensor([float(extents[-1]) for extents in lists]).log()
        """Log of the largest candidate, [V]."""
        self._buckets = _buckets(lists)

    def draw(self, free: Tensor, tau: float, generator: torch.Generator | None) -> Tensor:
        """Candidates drawn for log sizes `free` [B, V] (without a generator the nearest), with the gradient
        of the softmax over them.

        That gradient, of the expected log candidate, is its covariance with the gradients of the logits.
        """
        logs, slopes = self.top.expand_as(free).clone(), torch.zeros_like(free)
        with torch.no_grad():
            for at, candidates, absent in self._buckets:
                near = free[:, at].unsqueeze(-1)
                if self.form == "paper":
                    away = near.exp() - candidates.exp()
                    logits, rise = -away.square(), -2 * away * near.exp()
                else:
                    away = near - candidates
                    logits, rise = -ALPHA * away.square(), -2 * ALPHA * away
                soft = gumbel_softmax(logits + absent, tau, generator)
                drawn = soft.argmax(dim=-1, keepdim=True)
                logs[:, at] = candidates.expand_as(soft).gather(-1, drawn).squeeze(-1)
                mean = (soft * candidates).sum(-1, keepdim=True)
                slopes[:, at] = (soft * (candidates - mean) * rise).sum(-1) / tau
        return torch.exp(logs + slopes * (free - free.detach()))


def gumbel_softmax(logits: Tensor, tau: float, generator: torch.Generator | None) -> Tensor:
    """Softmax of logits / tau plus Gumbel noise; without a generator there is no noise.

    Samples cool down with the gradient: noise of one size would leave tiles a factor of two below limits.
    """
    logits = logits / tau
    if generator is not None:
        uniform = torch.rand(logits.shape, generator=generator).clamp(1e-9, 1 - 1e-7)
        logits = logits - torch.log(-torch.log(uniform))
    return torch.softmax(logits, dim=-1)


class _Bucket(NamedTuple):
    """Variables with about equally many candidates: places among all variables [n], log candidates [n, w],
    and what hides columns without a candidate [n, w]."""

    at: Tensor
    candidates: Tensor
    absent: Tensor


def _buckets(lists: Sequence[tuple[int, ...]]) -> list[_Bucket]:
    """By powers of two; variables with a single candidate have nothing to choose."""
    members: dict[int, list[int]] = {}
    for at, extents in enumerate(lists):
        if len(extents) > 1:
            members.setdefault((len(extents) - 1).bit_length(), []).append(at)
    found = []
    for _, places in sorted(members.items()):
        width = max(len(lists[at]) for at in places)
        candidates = torch.ones(len(places), width)
        absent = torch.full_like(candidates, -torch.inf)
        for row, at in enumerate(places):
            candidates[row, : len(lists[at])] = torch.tensor(lists[at], dtype=torch.float32)
            absent[row, : len(lists[at])] = 0
        found.append(_Bucket(torch.tensor(places), candidates.log(), absent))
    return found
