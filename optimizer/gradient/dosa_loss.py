"""DOSA's differentiable model: energy and latency of real-valued tile factors, and its penalties.

`accesses_from_mapping` and `min_hw` of the artefact in tensors: trip counts are plain quotients (no
ceiling), a loop refetches an operand if it or a loop inside it is relevant and longer than one.  At
integer factors without remainder it equals the exact model in profile `dosa`.

Shapes: B starts, L layers, F factors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fadiff.converter.ir.loops import RELEVANT, Dim
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.relaxed.model import ORDERS
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.gradient.cosa import TILED

FACTORS = ("rows", "columns", "p0", "q0", *(d.lower() for d in TILED))
"""Free factors of a layer: both spatial ones, streamed pixels, then the accumulator's loops."""
_AT = {name: i for i, name in enumerate(FACTORS)}
LOOPS = tuple(
    tuple(_AT[name] for name in names)
    for names in (("r",), ("s",), ("p0", "p"), ("q0", "q"), ("rows", "c"), ("columns", "k"), ("n",))
)
"""For each of TILED the factors whose product is the tile's extent."""
_RELOADS = [_AT[d] for d in "rsck"]
"""Loops at the accumulator that change the weights in the array."""
EXCESS = 10.0
_LEAST = 1e-2


class DosaLoss:
    """The constants of a network on a target."""

    def __init__(
        self, shapes: Sequence[LayerShape], repeats: Sequence[int], lanes: Sequence[int], target: Target
    ) -> None:
        """`lanes`: channels of a depthwise layer that run at once, 1 for others."""
        self.target = target
        self.bounds = torch.tensor([[float(s.dims[d]) for d in TILED] for s in shapes])
        self.repeats = torch.tensor([float(r) for r in repeats])
        self.groups = torch.tensor([float(s.dims.G) for s in shapes])
        self.lanes = torch.tensor([float(g) for g in lanes])
        self.macs = torch.tensor([float(s.dims.product) for s in shapes])
        self.windows = [
            tuple(torch.tensor([float(getattr(w, name)) for w in axis]) for name in ("stride", "dilation"))
            for axis in ([s.height for s in shapes], [s.width for s in shapes])
        ]
        self.walks = [[d for d in reversed(order.l3) if d != "G"] for order in ORDERS]

    def __call__(self, factors: Tensor, order: Tensor) -> Tensor:
        """log EDP + penalties [B] at `factors` [B, L, F] and DRAM orders [B, L].

        The artefact's loss is EDP (1 + penalties), that EDP not differentiated: the same gradient up to
        a scale, which Adam ignores.
        """
        energy, latency = self.cost(factors, order)
        edp = (energy @ self.repeats).log() + (latency @ self.repeats).log()
        return edp + self.penalties(factors)

    def cost(self, factors: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Picojoules and cycles [B, L]; factors below one count as one (`if factor > 1`)."""
        target, f = self.target, factors.clamp(min=1)
        t = self._tile(factors.clamp(min=_LEAST))
        outer = dict(
            zip(
                TILED,
                (self.bounds / torch.stack(list(t.values()), dim=-1)).clamp(min=1).unbind(-1),
                strict=True,
            )
        )
        inside = f[..., _RELOADS].amax(dim=-1) > 1
        weight, image, output, loads = (
            torch.stack([_refetch(outer, walk, operand, met) for walk in self.walks]).gather(0, order[None])[
                0
            ]
            for operand, met in (("W", False), ("I", False), ("O", False), ("W", inside))
        )
        rows, columns, g = f[..., 0], f[..., 1], self.groups
        w_tile, i_tile, o_tile = self._sizes(t)
        outputs = g * o_tile * outer["N"] * outer["K"] * outer["P"] * outer["Q"]
        w_fills, i_fills, o_fills = g * w_tile * weight, g * i_tile * image, g * o_tile * output
        w_loads = g * w_tile * loads
        updates = self.macs / rows
        register = self.macs + w_loads
        accumulator = 2 * updates - 2 * outputs + o_fills
        scratchpad = w_loads + w_fills + self.macs / columns + i_fills
        dram = w_fills + i_fills + 2 * o_fills - outputs
        e, per_cycle = target.energy, target.bandwidth
        energy = self.macs * e.mac + register * e.register_byte + accumulator * target.accumulator_word_pj
        energy = energy + scratchpad * target.scratchpad_byte_pj + dram * e.dram_byte
        across = columns * self.lanes
        cycles = [
            self.macs / (rows * across),
            accumulator / (per_cycle.accumulator_words_per_column * across),
            scratchpad / target.scratchpad_bytes_per_cycle,
            dram / per_cycle.dram_bytes,
        ]
        return energy, torch.stack(cycles).amax(dim=0)

    def penalties(self, factors: Tensor) -> Tensor:
        """Squares of what factors lack to one, and EXCESS times those of needs beyond the target."""
        target = self.target
        t = self._tile(factors)
        outer = self.bounds / torch.stack(list(t.values()), dim=-1).clamp(min=_LEAST)
        invalid = torch.relu(1 - torch.cat([factors, outer], dim=-1)).square().sum(dim=(-1, -2))
        rows, columns = factors[..., 0], factors[..., 1].clamp(min=_LEAST)
        w_tile, i_tile, o_tile = self._sizes(t)
        # Every column has its accumulator bank, used or not.
        banks = o_tile / columns * target.side
        spad = self.lanes * (w_tile + i_tile) * target.element_bytes - target.scratchpad_bytes
        acc = banks * target.accumulator_bytes_per_word - target.accumulator_bytes
        over = [torch.maximum(rows, columns) - target.side, spad / 1024, acc / 1024]
        return invalid + EXCESS * torch.relu(torch.stack(over)).square().sum(dim=(0, -1))

    def _tile(self, factors: Tensor) -> dict[Dim, Tensor]:
        products = (factors[..., list(loop)].prod(dim=-1) for loop in LOOPS)
        return dict(zip(TILED, products, strict=True))

    def _sizes(self, t: dict[Dim, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Elements of the W, I and O tile of one group."""
        (stride, dilation), (stride_w, dilation_w) = self.windows
        height = (t["P"] - 1) * stride + (t["R"] - 1) * dilation + 1
        width = (t["Q"] - 1) * stride_w + (t["S"] - 1) * dilation_w + 1
        weights = t["R"] * t["S"] * t["C"] * t["K"]
        return weights, t["N"] * t["C"] * height * width, t["N"] * t["P"] * t["Q"] * t["K"]


def _refetch(outer: dict[Dim, Tensor], walk: Sequence[Dim], operand: str, met: Tensor | bool) -> Tensor:
    """How many tiles of an operand the DRAM loops `walk` (inner first) fetch.

    `met`: whether a relevant loop further inside is longer than one.
    """
    seen = torch.zeros_like(outer["N"], dtype=torch.bool) | met
    times = torch.ones_like(outer["N"])
    for d in walk:
        if d in RELEVANT[operand]:
            seen = seen | (outer[d] > 1)
            times = times * outer[d]
        else:
            times = times * torch.where(seen, outer[d], 1)
    return times
