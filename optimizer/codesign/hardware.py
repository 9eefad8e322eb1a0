"""Many Gemminis at once: a `Target` whose sizes are tensors [B, 1], for gradients of the relaxed model."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fadiff.costmodel.target.target import Prices, Target


class Hardware(Prices):
    """What fadiff.costmodel.relaxed and fadiff.optimizer.codesign.area read of a target."""

    def __init__(self, base: Target, sizes: Mapping[str, Tensor]) -> None:
        """`sizes` by the names in designs.NAMES; what is missing is the base's."""

        def size(name: str, of_base: float) -> Any:
            return sizes.get(name, of_base)

        self.side = size("side", base.side)
        self.scratchpad_bytes = size("scratchpad_bytes", base.scratchpad_bytes)
        self.accumulator_bytes = size("accumulator_bytes", base.accumulator_bytes)
        self.tile_buffer_bytes = size("tile_buffer_bytes", base.tile_buffer_bytes)
        self.element_bytes = base.element_bytes
        self.accumulator_bytes_per_word = base.accumulator_bytes_per_word
        self.epa, self.energy = base.epa, base.energy
        shared: Any = SimpleNamespace(**dict(base.bandwidth))
        shared.dram_bytes = size("bandwidth.dram_bytes", base.bandwidth.dram_bytes)
        self.bandwidth = shared

    @property
    def scratchpad_rows(self) -> Any:
        """As Target.scratchpad_rows; not rounded, for gradients."""
        return self.scratchpad_bytes / (self.side * self.element_bytes)

    @property
    def accumulator_rows(self) -> Any:
        """As Target.accumulator_rows; not rounded."""
        return self.accumulator_bytes / (self.side * self.accumulator_bytes_per_word)
