"""The trainable form of a schedule: tile extents, loop orders and fusion strengths as tensors.

Every discrete choice is a Gumbel-softmax with straight-through; tile extents are `choices.Choices`.

Two levels of tiles along P and Q: every layer has a group tile, which counts if it is the last of its
group, and a scratchpad tile.  Fused layers walk one grid: where sigma is one, what a group tile makes the
producer compute *is* the input box of what it makes the consumer compute (Eq. 26 by construction
rather than by penalty), so gradients of every member's cost reach the one group tile; a member's
scratchpad tile is at most that.  A residual add passes its readers' box on to both operands.

Shapes: B restarts, L nodes, V variables per node, J candidates, E fusable edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS
from fadiff.costmodel.group.nodes import Node
from fadiff.costmodel.relaxed.model import ORDERS, RelaxedPoint
from fadiff.optimizer.cut.decode import VARIABLES, extents_of
from fadiff.optimizer.cut.settings import RelaxationForm
from fadiff.optimizer.gradient.choices import Choices, gumbel_softmax
from fadiff.optimizer.layer.legalise import fills_array
from fadiff.optimizer.layer.space import LayerSpace

MOST_CANDIDATES = 48
ORDER_START = 2.0
"""Logit of the order that a known mapping has."""
KNOWN_AGAIN = 8
"""Every so many restarts one starts from random mappings."""
CHAIN = 5
"""Fused edges over which a group tile is handed back within one step."""


class Sample(NamedTuple):
    """One batch of samples: extents [B, L, V] and of group tiles [B, L, 2], order weights [B, L, 3],
    sigma [B, E]."""

    extents: Tensor
    tiles: Tensor
    order: Tensor
    sigma: Tensor


class Known(NamedTuple):
    """One integer point: extents [L, V] with those of the group tile along P and Q behind, order [L],
    fused edges [E]."""

    extents: Tensor
    order: Tensor
    fused: Tensor


@dataclass
class Variables:
    """Free parameters of all restarts: log extents of VARIABLES and of the group tile, order, sigma."""

    x: Tensor
    order: Tensor
    sigma: Tensor


class Relaxation:
    """Candidates of every variable of every node, and how a sample becomes a point of the cost model."""

    def __init__(
        self,
        nodes: Sequence[Node],
        spaces: Sequence[LayerSpace],
        edges: Sequence[tuple[int, int]],
        form: RelaxationForm = "log",
        *,
        one_grid: bool = True,
    ) -> None:
        self.one_grid = one_grid
        self.spaces, self.edges, self.form = spaces, tuple(edges), form
        self.source = torch.tensor([e[0] for e in edges], dtype=torch.long)
        self.sink = torch.tensor([e[1] for e in edges], dtype=torch.long)
        self.windows = {"P": [s.shape.height for s in spaces], "Q": [s.shape.width for s in spaces]}
        self.steps = {d: _column(w.stride for w in ws)[self.sink] for d, ws in self.windows.items()}
        self.reach = {
            d: _column((w.kernel - 1) * w.dilation + 1 for w in ws)[self.sink]
            for d, ws in self.windows.items()
        }
        self.size = {d: _column(s.shape.dims[d] for s in spaces)[self.source] for d in ("N", "P", "Q")}
        self.lists = [
            [
                *map(_thinned, _worthwhile(node, space)),
                *map(_thinned, (space.tiles("P"), space.tiles("Q"))),
            ]
            for node, space in zip(nodes, spaces, strict=True)
        ]
        lists = [extents for row in self.lists for extents in row]
        self.shape = len(spaces), len(self.lists[0])
        self.choices = Choices(lists, form)
        self.side = torch.tensor([[float(spaces[0].side)]])
        self.depthwise = torch.tensor([s.shape.is_depthwise for s in spaces])
        self.groups = torch.tensor([float(s.groups_at_once) for s in spaces])
        self.channels = torch.tensor([float(s.shape.dims.C) for s in spaces])
        self.packs = torch.tensor([s.packs for s in spaces])

    def start(self, restarts: int, generator: torch.Generator, known: Known | None = None) -> Variables:
        """Random extents (uniform in the log), unbiased orders, fusion half open.

        All restarts but every eighth one have the mappings of `known`; group tiles are random in all.
        """
        x = torch.rand((restarts, *self.shape), generator=generator) * self.choices.top.view(self.shape)
        order = 0.5 * torch.randn((restarts, len(self.spaces), len(ORDERS)), generator=generator)
        sigma = 2.0 * torch.randn((restarts, len(self.edges)), generator=generator)
        if known is not None:
            warm = torch.arange(restarts) % KNOWN_AGAIN > 0
            own = known.extents[:, : len(VARIABLES)].log()
            x[:, :, : len(VARIABLES)] = torch.where(warm[:, None, None], own, x[:, :, : len(VARIABLES)])
            order = torch.where(warm[:, None, None], self.order_of(known), order)
        return Variables(*(t.requires_grad_() for t in (x, order, sigma)))

    def order_of(self, known: Known) -> Tensor:
        """Logits [L, 3] of the orders of a point."""
        return ORDER_START * torch.nn.functional.one_hot(known.order, len(ORDERS)).float()

    def sample(self, v: Variables, tau: float, generator: torch.Generator | None) -> Sample:
        """One straight-through sample; without a generator the arg-max."""
        extents = self.choices.draw(v.x.flatten(1), tau, generator).view_as(v.x)
        soft, hard = _straight_through(v.order, tau, generator)
        order = hard + (soft - soft.detach())
        pair = torch.stack([v.sigma, torch.zeros_like(v.sigma)], dim=-1)
        soft, hard = _straight_through(pair, tau, generator)
        sigma = (hard + (soft - soft.detach()))[..., 0]
        own, tiles = extents[..., : len(VARIABLES)], extents[..., len(VARIABLES) :]
        return Sample(own, tiles, order, sigma)

    def point(self, sample: Sample) -> RelaxedPoint:
        """Tiles of all levels; spatial factors use as many lanes as the tile fills."""
        side = self.side
        e = dict(zip(VARIABLES, sample.extents.unbind(-1), strict=True))
        group = None
        if self.edges and self.one_grid:
            tiles = dict(zip("PQ", sample.tiles.unbind(-1), strict=True))
            member, tied = self._on_one_grid({"N": e["N"], **tiles}, sample.sigma)
            e["N"] = tied["N"]
            for d in "PQ":
                own = e[d].log()
                e[d] = torch.exp(own + member * (torch.minimum(own, tied[d].log()) - own))
            group = torch.stack([tied["P"], tied["Q"]], dim=-1)
        g = torch.where(self.depthwise, torch.minimum(self.groups, side), self.groups).expand_as(e["K"])
        one = torch.ones_like(e["K"])
        inner = {d: torch.minimum(e[d.lower()], e[d]) for d in ("N", "K", "P", "Q")}
        l2 = {"G": g, **{d: e[d] for d in ("N", "K", "C", "P", "Q", "R", "S")}}
        l1 = {**l2, **inner}
        row_c = torch.where(self.depthwise, one, _at_most(l2["C"], side))
        col_k = torch.where(self.depthwise, one, _at_most(inner["K"], side))
        whole = self.packs & (side >= self.channels) & (l2["C"].detach() >= self.channels)
        room = torch.floor(side.detach() / self.channels).clamp(min=1)
        row_s = torch.where(whole, torch.minimum(l2["S"], room), one)
        rows = _stack({"C": row_c, "S": row_s}, one)
        cols = _stack({"K": col_k, "G": torch.where(self.depthwise, g, one)}, one)
        return RelaxedPoint(
            _stack(l2, one), _stack(l1, one), rows * cols, rows, cols, sample.order, sample.sigma, group
        )

    def _on_one_grid(self, tiles: dict[str, Tensor], sigma: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """How much every node is in a group, and what group tiles `tiles` make it compute along N, P, Q."""
        zero = torch.zeros_like(tiles["N"])
        strength = zero.scatter_reduce(1, self.source.expand_as(sigma), sigma, "amax")
        member = strength.scatter_reduce(1, self.sink.expand_as(sigma), sigma, "amax")
        tied = {}
        for d in ("N", "P", "Q"):
            own = tiles[d].log()
            tile = own
            for _ in range(CHAIN):
                need = tile[:, self.sink]
                if d != "N":
                    need = torch.log((need.exp() - 1) * self.steps[d] + self.reach[d])
                need = torch.minimum(need, self.size[d].log())
                # Several fused consumers: the largest need decides.
                pulled = torch.full_like(own, -1.0).scatter_reduce(
                    1, self.source.expand_as(need), torch.where(sigma > 0.5, need, -1.0), "amax"
                )
                tile = torch.where(pulled >= 0, own + strength * (pulled - own), own)
            tied[d] = tile.exp()
        return member, tied


def _straight_through(logits: Tensor, tau: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(softmax, one-hot of the arg-max) of logits / tau plus Gumbel noise."""
    soft = gumbel_softmax(logits, tau, generator)
    hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(dim=-1, keepdim=True), 1.0)
    return soft, hard


def _at_most(extent: Tensor, side: Tensor) -> Tensor:
    """The smaller one; of equal ones the extent has the gradient."""
    return torch.where(extent <= side, extent, side)


def _stack(extents: dict[str, Tensor], one: Tensor) -> Tensor:
    return torch.stack([extents.get(d, one) for d in DIMS], dim=-1)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(v) for v in values])


def _worthwhile(node: Node, space: LayerSpace) -> list[tuple[int, ...]]:
    """Candidates of every variable.  K and C extents fill the array: the gradient sees no further than the
    next whole block, and between two of them lie local minima."""
    found = list(extents_of(node, space))
    for at, name in enumerate(VARIABLES):
        if name in ("K", "C", "k") and not node.is_add:
            extents = np.array(found[at], dtype=np.int64)
            found[at] = tuple(extents[fills_array(space, name.upper(), extents)].tolist())
    return found


def _thinned(extents: tuple[int, ...]) -> tuple[int, ...]:
    """At most MOST_CANDIDATES extents, evenly spread in rank: neighbours differ by little there."""
    if len(extents) <= MOST_CANDIDATES:
        return extents
    step = (len(extents) - 1) / (MOST_CANDIDATES - 1)
    return tuple(extents[round(i * step)] for i in range(MOST_CANDIDATES))
