"""Weights of the next group load under compute: schedule.group_overlap.prefetch_weights on tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from costmodel.relaxed.groups import REACH, Companions


class Prefetch:
    """Which node runs after which.  Nodes that stand for several layers may follow several others."""

    def __init__(self, sequence: Sequence[int], companions: Companions, repeats: Sequence[float]) -> None:
        """`sequence`: nodes in the order in which they run, -1 for what is no node."""
        steps = Counter((a, b) for a, b in pairwise(sequence) if a >= 0 and b >= 0)
        columns = torch.tensor(list(steps), dtype=torch.long).reshape(-1, 2)
        self.before, self.after = columns.unbind(-1)
        self.count = torch.tensor(list(steps.values()), dtype=torch.float64)
        self.share = self.count / torch.tensor(list(repeats), dtype=torch.float64)[self.after]
        self.companions = companions
        none = len(companions.index)
        self.pair = torch.tensor([companions.index.get(step, none) for step in steps], dtype=torch.long)

    def saved(
        self,
        greatest: Callable[[Sequence[Tensor]], Tensor],
        others: Tensor,
        dram: Tensor,
        weights: Tensor,
        free: Tensor,
        strength: Tensor | None,
        bytes_per_cycle: float,
    ) -> Tensor:
        """Cycles saved over the network, [B].

        Of every node, [B, L]: `others`, cycles of everything but DRAM; `dram`, bytes it moves; `weights`,
        bytes it needs before its first computation; `free`, bytes its group leaves of the scratchpad.
        `greatest` is the (soft) maximum that makes a latency of cycles; `strength` [B, pairs] says how
        much two nodes are in one group.
        """
        if not len(self.before):
            return dram.new_zeros(len(dram))
        starts = dram.new_ones(len(dram), len(self.before))
        if strength is not None:
            starts = 1 - torch.cat([strength, torch.zeros_like(strength[:, :1])], dim=1)[:, self.pair]

        def of_group(values: Tensor) -> Tensor:
            return values if strength is None else values + self.companions.sum(strength, values)

        room = torch.minimum(weights[:, self.after], free[:, self.before].clamp(min=0)) * starts
        early = torch.zeros_like(room)
        # What a group gains may leave it slack for the next one, and so on.
        for _ in range(REACH):
            left = dram.index_add(1, self.after, -early * self.share.to(dram))
            latency = greatest([others, left / bytes_per_cycle])
            slack = torch.relu(of_group(latency) * bytes_per_cycle - of_group(left))
            early = torch.minimum(room, slack[:, self.before])
        own, moved = others[:, self.after], dram[:, self.after]
        before = greatest([own, moved / bytes_per_cycle])
        gained = before - greatest([own, (moved - early) / bytes_per_cycle])
        return (gained * self.count.to(dram)).sum(dim=-1)
