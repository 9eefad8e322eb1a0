"""What the layer table says of a layer: bars of time and energy, and in words dimensions, tiles, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.schedule.clock_parts import LayerClock
from fadiff.costmodel.schedule.document import LayerRecord
from fadiff.emitters.report.text import count, picojoules
from fadiff.emitters.report.timeline import KINDS

ENERGY_PARTS = (
    ("mac", "mac", "products"),
    ("register", "l0", "array registers"),
    ("accumulator", "l1", "accumulator"),
    ("scratchpad", "l2", "scratchpad"),
    ("tile-buffer", "tb", "tile buffer"),
    ("dram", "l3", "DRAM"),
)
"""Energy parts in the order they are stacked, with what they are."""


@dataclass(frozen=True)
class Slice:
    """One part of a stacked bar."""

    kind: str
    width: float
    label: str


def transfers(layer: LayerRecord) -> str:
    """Bytes of every operand, in words."""
    traffic = layer.cost.traffic
    return "; ".join(
        f"{role} {count(nbytes)} {way} {memory}"
        for memory, moves in (("DRAM", traffic.dram), ("the tile buffer", traffic.tile_buffer))
        for role, move in moves.items()
        for nbytes, way in ((move.read, "from"), (move.write, "to"))
        if nbytes
    )


def times(clock: LayerClock) -> tuple[Slice, ...]:
    """A layer's cycles by kind."""
    return tuple(
        Slice(kind, 100 * cycles / clock.cycles, f"{label}: {count(cycles)}")
        for field, kind, label in KINDS
        if (cycles := getattr(clock.parts, field))
    )


def clock_limit(clock: LayerClock) -> tuple[str, str]:
    """CSS class and name of what takes most of a layer's cycles."""
    cycles, kind, label = max((getattr(clock.parts, field), kind, label) for field, kind, label in KINDS)
    return (kind, label.partition(":")[0]) if cycles else ("", "")


def energies(layer: LayerRecord) -> tuple[Slice, ...]:
    """A layer's energy by memory."""
    breakdown = layer.cost.energy_breakdown
    known = {key for key, _, _ in ENERGY_PARTS}
    parts = [(kind, label, breakdown.get(key, 0.0)) for key, kind, label in ENERGY_PARTS]
    parts.append(("host", "other", sum(v for k, v in breakdown.items() if k not in known)))
    total = sum(value for _, _, value in parts) or 1.0
    return tuple(
        Slice(kind, 100 * value / total, f"{label}: {picojoules(value)}")
        for kind, label, value in parts
        if value
    )


def dims_text(layer: LayerRecord) -> str:
    """'K64 C64 P56 Q56 R3 S3', with stride and groups where they are not one."""
    if layer.dims is None:
        return ""
    parts = [f"G{layer.groups}"] if layer.groups > 1 else []
    parts += [f"{d}{n}" for d, n in layer.dims.items() if n > 1]
    if layer.stride != (1, 1):
        height, width = layer.stride
        parts.append(f"stride {height}x{width}" if height != width else f"stride {height}")
    return " ".join(parts) or "1"


def extents_text(extents: Mapping[Dim, int]) -> str:
    """A tile: 'K64 C64 P14', dimensions of one left out."""
    return " ".join(f"{d}{n}" for d, n in extents.items() if n > 1) or "1"
