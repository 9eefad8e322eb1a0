"""What the cycles of a program are made of: array, DMA, core, host operators and waiting, per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fadiff.costmodel.latency.clock import (
    ClockCoefficients,
    EngineCycles,
    LayerCounts,
    clock_of,
    engine_cycles,
    first_and_last,
    issue_cycles,
)
from fadiff.costmodel.schedule.clock import HostCounts, program_counts
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.core import Core


class Parts(NamedTuple):
    """Cycles of each kind."""

    array: float
    dma: float
    core: float
    """Commands that the core issues, and what it computes around them."""
    host: float
    """Operators that the core computes."""
    waiting: float
    """Fences between layers and tiles."""


@dataclass(frozen=True)
class LayerClock:
    """One layer: `parts` add up to its cycles; `busy` is how long each engine works."""

    parts: Parts
    busy: Parts

    @property
    def cycles(self) -> float:
        """Of the clock model."""
        return sum(self.parts)


def program_parts(schedule: Schedule) -> dict[str, LayerClock]:
    """Every layer of a schedule of profile hw, in order of execution."""
    target = schedule.target
    c = clock_of(target)
    return {
        name: _host(work, c, target.core) if isinstance(work, HostCounts) else layer_parts(work, c)
        for name, work in program_counts(schedule).items()
    }


def layer_parts(counts: LayerCounts, c: ClockCoefficients) -> LayerClock:
    """One layer on the array.

    Engines that overlap share their time T = (sum of e^p)^(1/p) as e dT/de = T (e / T)^p.

    That adds up to T (Euler, for a homogeneous function), and says how much of T an engine would take with
    it if it were faster.
    """
    engines = engine_cycles(counts, c)
    overlapped, alone = first_and_last(counts, engines)
    share = _shares(overlapped, c.overlap)
    issued, fences = issue_cycles(counts, c), counts.visits * c.visit
    parts = Parts(share.array, share.load + share.store + alone, share.core + issued, 0.0, fences)
    busy = Parts(engines.array, engines.load + engines.store, engines.core + issued, 0.0, fences)
    return LayerClock(parts, busy)


def _shares(engines: EngineCycles, overlap: float) -> EngineCycles:
    longest = max(engines)
    if longest == 0:
        return engines
    powers = [(engine / longest) ** overlap for engine in engines]
    together = longest * sum(powers) ** (1 / overlap)
    return EngineCycles(*(together * power / sum(powers) for power in powers))


def _host(work: HostCounts, c: ClockCoefficients, core: Core) -> LayerClock:
    fences = work.visits * c.visit
    busy = work.cycles(c, core) - fences
    parts = (
        Parts(0.0, busy, 0.0, 0.0, fences) if work.operator == "add" else Parts(0.0, 0.0, 0.0, busy, fences)
    )
    return LayerClock(parts, parts)
