"""The trainable form of a schedule: tile extents, loop orders and fusion strengths as tensors.

Every discrete choice is a Gumbel-softmax with straight-through: the forward pass sees one
candidate, the gradient flows through the softmax.  A tile extent T has one variable x = log T and
logits -alpha (x - log d_j)^2 over its candidates d_j (Eq. 1-3 in log space: linear distance spans
seven orders of magnitude and saturates the softmax; form `paper` keeps it for comparison).

A fused pair walks one grid: where sigma is one, the producer's tile along N, P and Q *is* the input
box of the consumer's tile (Eq. 25-26 by construction rather than by penalty), so gradients of every
member's cost reach the one tile of the group's last layer.  A residual add passes its readers' tile on
to both operands.

Shapes: B restarts, L nodes, V variables per node, J candidates, E fusable edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from converter.dims import DIMS
from costmodel.relaxed import ORDERS, Node, RelaxedPoint
from optimizer.decode import VARIABLES, extents_of
from optimizer.problem import RelaxationForm
from optimizer.space import LayerSpace

MOST_CANDIDATES = 48
ALPHA = 4.0
CHAIN = 5
"""Fused edges over which a group tile is handed back within one step."""


class Choices(NamedTuple):
    """One batch of samples: extents [B, L, V], order weights [B, L, 3], sigma [B, E]."""

    extents: Tensor
    order: Tensor
    sigma: Tensor


@dataclass
class Variables:
    """Free parameters of all restarts."""

    x: Tensor
    order: Tensor
    sigma: Tensor

    def parameters(self) -> list[Tensor]:
        """For the optimiser."""
        return [self.x, self.order, self.sigma]


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
            [_thinned(extents) for extents in extents_of(node, space)]
            for node, space in zip(nodes, spaces, strict=True)
        ]
        width = max(len(c) for row in self.lists for c in row)
        self.candidates = torch.ones(len(spaces), len(VARIABLES), width)
        self.absent = torch.zeros(len(spaces), len(VARIABLES), width)
        for i, row in enumerate(self.lists):
            for j, extents in enumerate(row):
                self.candidates[i, j, : len(extents)] = torch.tensor(extents, dtype=torch.float32)
                self.absent[i, j, len(extents) :] = -torch.inf
        self.log_candidates = self.candidates.log()
        side = spaces[0].side
        self.side = float(side)
        self.depthwise = torch.tensor([s.shape.is_depthwise for s in spaces])
        self.groups = torch.tensor([float(s.groups_at_once) for s in spaces])
        self.channels = torch.tensor([float(s.shape.dims.C) for s in spaces])
        self.packs = torch.tensor([s.packs and side >= s.shape.dims.C for s in spaces])
        self.divisor = spaces[0].rules.tiling == "divisor"

    def start(self, restarts: int, generator: torch.Generator) -> Variables:
        """Random extents (uniform in the log), unbiased orders, fusion half open."""
        top = torch.where(self.absent == 0, self.log_candidates, torch.zeros(())).amax(dim=-1)
        shape = (restarts, *top.shape)
        x = torch.rand(shape, generator=generator) * top
        order = 0.5 * torch.randn((restarts, len(self.spaces), len(ORDERS)), generator=generator)
        sigma = 2.0 * torch.randn((restarts, len(self.edges)), generator=generator)
        return Variables(*(t.requires_grad_() for t in (x, order, sigma)))

    def sample(self, v: Variables, tau: float, generator: torch.Generator | None) -> Choices:
        """One straight-through sample; without a generator the arg-max."""
        if self.form == "paper":
            distance = (v.x.exp().unsqueeze(-1) - self.candidates).square() * (1 / ALPHA)
        else:
            distance = (v.x.unsqueeze(-1) - self.log_candidates).square()
        soft, hard = _straight_through(-ALPHA * distance + self.absent, tau, generator)
        logs = (hard * self.log_candidates).sum(-1).detach()
        smooth = (soft * self.log_candidates).sum(-1)
        extents = torch.exp(smooth + (logs - smooth).detach())
        soft, hard = _straight_through(v.order, tau, generator)
        order = hard + (soft - soft.detach())
        pair = torch.stack([v.sigma, torch.zeros_like(v.sigma)], dim=-1)
        soft, hard = _straight_through(pair, tau, generator)
        sigma = (hard + (soft - soft.detach()))[..., 0]
        return Choices(extents, order, sigma)

    def point(self, choices: Choices) -> RelaxedPoint:
        """Tiles of all levels; spatial factors use as many lanes as the tile fills."""
        e = dict(zip(VARIABLES, choices.extents.unbind(-1), strict=True))
        if self.edges and self.one_grid:
            e.update(self._on_one_grid(e, choices.sigma))
        g = self.groups.expand_as(e["K"])
        one = torch.ones_like(e["K"])
        inner = {d: torch.minimum(e[d.lower()], e[d]) for d in ("N", "K", "P", "Q")}
        l2 = {"G": g, **{d: e[d] for d in ("N", "K", "C", "P", "Q", "R", "S")}}
        l1 = {**l2, **inner}
        row_c = torch.where(self.depthwise, one, self._block(l2["C"]))
        col_k = torch.where(self.depthwise, one, self._block(inner["K"]))
        whole = self.packs & (l2["C"].detach() >= self.channels)
        room = torch.floor(self.side / self.channels).clamp(min=1)
        row_s = torch.where(whole, torch.minimum(l2["S"], room), one)
        rows = _stack({"C": row_c, "S": row_s}, one)
        cols = _stack({"K": col_k, "G": torch.where(self.depthwise, g, one)}, one)
        return RelaxedPoint(
            _stack(l2, one), _stack(l1, one), rows * cols, rows, cols, choices.order, choices.sigma
        )

    def _on_one_grid(self, e: dict[str, Tensor], sigma: Tensor) -> dict[str, Tensor]:
        """Tiles along N, P, Q after handing group tiles back from consumers to producers."""
        tied = {}
        for d in ("N", "P", "Q"):
            own = e[d].log()
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
                strength = torch.zeros_like(own).scatter_reduce(
                    1, self.source.expand_as(sigma), sigma, "amax"
                )
                tile = torch.where(pulled >= 0, own + strength * (pulled - own), own)
            tied[d] = tile.exp()
        return tied

    def _block(self, extent: Tensor) -> Tensor:
        return extent.clamp(max=self.side)

    def indices(self, choices: Choices) -> Tensor:
        """Integer extents [B, L, V] of a sample."""
        return choices.extents.detach().round().long()


def _straight_through(logits: Tensor, tau: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(softmax, one-hot of the arg-max) of the perturbed logits."""
    if generator is not None:
        uniform = torch.rand(logits.shape, generator=generator).clamp(1e-9, 1 - 1e-7)
        logits = logits - torch.log(-torch.log(uniform))
    soft = torch.softmax(logits / tau, dim=-1)
    hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(dim=-1, keepdim=True), 1.0)
    return soft, hard


def _stack(extents: dict[str, Tensor], one: Tensor) -> Tensor:
    return torch.stack([extents.get(d, one) for d in DIMS], dim=-1)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(v) for v in values])


def _thinned(extents: tuple[int, ...]) -> tuple[int, ...]:
    """At most MOST_CANDIDATES extents, evenly spread in rank: neighbours differ by little there."""
    if len(extents) <= MOST_CANDIDATES:
        return extents
    step = (len(extents) - 1) / (MOST_CANDIDATES - 1)
    return tuple(extents[round(i * step)] for i in range(MOST_CANDIDATES))
