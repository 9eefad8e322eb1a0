"""Silicon area of a Gemmini, or of another machine, linear in its sizes.

Constants are a least-squares fit (of relative errors) to the areas of 95 Gemminis, arrays of 2 x 2 to 128 x
128, 1 KB to 2 MB per memory, that were published with DOSA (MICRO 2023; `target.area` of its Timeloop
points: Accelergy and CACTI at 40 nm).  The fit is off by 5 % on average and 18 % at most.  A tile buffer
counts as a scratchpad of its size, and so does every memory on chip of another machine.  DRAM interfaces are
in no such table: `dram_byte` is 0 unless a design space says otherwise.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from fadiff.costmodel.nests.machine import FanOut, Machine, Memory
from fadiff.costmodel.nests.sizes import Sized
from fadiff.costmodel.target.record import Record
from fadiff.costmodel.target.target import Target


class Area(Record):
    """Square millimetres at 40 nm."""

    fixed: float = Field(0.01384, ge=0)
    edge: float = Field(0.001088, description="per row of the array", ge=0)
    element: float = Field(0.0004045, description="per processing element", ge=0)
    scratchpad_kb: float = Field(0.002604, ge=0)
    accumulator_kb: float = Field(0.005550, ge=0)
    tile_buffer_kb: float = Field(0.002604, ge=0)
    dram_byte: float = Field(0.0, description="per byte that DRAM moves per cycle", ge=0)

    def __call__(self, target: Target) -> float:
        """Of a Gemmini."""
        memories = (
            self.scratchpad_kb * target.scratchpad_bytes
            + self.accumulator_kb * target.accumulator_bytes
            + self.tile_buffer_kb * target.tile_buffer_bytes
        ) / 1024
        array = self.edge * target.side + self.element * target.side**2
        return self.fixed + array + memories + self.dram_byte * target.bandwidth.dram_bytes

    def of(self, hardware: Target | Machine) -> float:
        """Of a Gemmini, or of another machine."""
        return float(
            self.of_machine(Sized(hardware, {})) if isinstance(hardware, Machine) else self(hardware)
        )

    def of_machine(self, sized: Sized) -> Any:
        """Of a machine that need not be a Gemmini, or of many: every memory on chip is a scratchpad."""
        dram, *inner = sized.machine.levels
        assert isinstance(dram, Memory)
        moved, kilobytes, instances = 0.0, 0.0, 1
        if dram.shared_bandwidth < math.inf:
            moved = sized.bandwidth(dram, "shared_bandwidth") * dram.word_bits / 8
        for level in inner:
            if isinstance(level, FanOut):
                instances = instances * sized.parts(level)
            else:
                kilobytes = kilobytes + instances * sized.entries(level) * level.word_bits / 8 / 1024
        memories = self.scratchpad_kb * kilobytes + self.dram_byte * moved
        return self.fixed + self.element * instances + memories
