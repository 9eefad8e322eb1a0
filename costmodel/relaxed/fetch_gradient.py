"""How often tiles are fetched, differentiable: the fetch rule over candidate loop orders, with its gradient.

Loops are numbered from the innermost out.  With gate g (has this loop several trips?) and r (is it
relevant to the operand?), h_k = 1 - prod_{i <= k} (1 - r_i g_i) says whether a relevant loop was met
on the way out to loop k, and the operand is fetched prod_k (1 + (1 - r_k) h_k (trips_k - 1)) times
per element.  The gradient is written out because automatic differentiation of cumulative products
with zeros costs most of a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class LoopOrders(NamedTuple):
    """Candidate orders of the loops above a tile: O orders of n loops, innermost first.

    `loops` [n * O] picks each order's loops from the last axis of trips and gates; `relevant` and
    `grouped` are [n, O, 1, 1]: relevant to the operand, and walked by the group's tiles.
    """

    loops: Tensor
    relevant: Tensor
    grouped: Tensor


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, trips: Tensor, gates: Tensor, member: Tensor, orders: LoopOrders) -> Tensor:
        """`trips` (minus one) and `gates` [D, B, L], `member` [B, L]; returns [O, B, L]."""
        index, relevant, grouped = orders
        n, count = relevant.shape[:2]
        shape = (n, count, *trips.shape[1:])
        t = trips.index_select(0, index).view(shape)
        closed = 1 - relevant * gates.index_select(0, index).view(shape)
        free = torch.cumprod(closed, dim=0)
        open_ = 1 - grouped * member
        met = 1 - free * open_
        irrelevant = 1 - relevant
        factors = 1 + irrelevant * met * t
        result = torch.prod(factors, dim=0)
        ctx.save_for_backward(t, closed, free, open_, met, factors, result, *orders)
        ctx.size = trips.shape[0]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The inner sums over outer loops are one recurrence from the outermost loop in."""
        t, closed, free, open_, met, factors, result, index, relevant, grouped = ctx.saved_tensors
        outer = (gradients[0] * result) / factors * (1 - relevant)
        to_trips = outer * met
        to_met = outer * t
        to_member = (to_met * free * grouped).sum(dim=(0, 1))
        sums = to_met * open_
        for k in range(len(sums) - 2, -1, -1):
            sums[k].addcmul_(closed[k + 1], sums[k + 1])
        sums[1:] *= free[:-1]
        to_gates = sums * relevant
        flat = (-1, *t.shape[2:])
        empty = t.new_zeros(ctx.size, *t.shape[2:])
        return (
            empty.index_add(0, index, to_trips.reshape(flat)),
            empty.index_add(0, index, to_gates.reshape(flat)),
            to_member,
            None,
        )


def fetches(trips: Tensor, gates: Tensor, member: Tensor, orders: LoopOrders) -> Tensor:
    """Fetches per element under every order, [O, B, L].

    `trips` (minus one) and `gates` are [D, B, L] over all loops of the nest; `member` [B, L] is how
    much of the layer runs inside a fusion group, whose tiles restart the nest.
    """
    # (torch has typed this since 2.14.)
    result: Tensor = _Fetch.apply(trips, gates, member, orders)  # type: ignore[no-untyped-call, unused-ignore]
    return result
