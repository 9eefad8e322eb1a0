"""What the layers that are kept in float32 cost and gain, out of schedule.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fadiff.costmodel.schedule.conversion_record import FloatRecord
from fadiff.costmodel.schedule.document import ScheduleDocument

CONVERSIONS = ("planes", "to_float", "to_int8")
WIDE = "float_sums"
"""Kind of the layer that ends a product of 16-bit activations on the array."""
_SHOWN = 6


@dataclass(frozen=True)
class MixedPrecision:
    """Layers in float32; `cycles` of the clock model, conversions included, and their share of the program
    (None without a program)."""

    record: FloatRecord
    wide: tuple[str, ...]
    """Those of its layers whose products are the array's, with 16-bit activations."""
    cycles: float | None
    share: float | None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            **self.record.model_dump(mode="json"),
            "wide": list(self.wide),
            "clock_cycles": self.cycles,
            "share": self.share,
        }

    def line(self) -> str:
        """For people."""
        count = len(self.record.layers)
        names = ", ".join(self.record.layers[:_SHOWN]) + (", ..." if count > _SHOWN else "")
        core = count - len(self.wide)
        places = [
            f"{len(self.wide)} on the array in 16 bits" if self.wide else "",
            f"{core} layer{'s' if core != 1 else ''} on the core" if core else "",
        ]
        parts = [f"{', '.join(filter(None, places))} ({names})"]
        if self.record.states:
            parts.append(f"state {', '.join(self.record.states)} from run to run")
        if self.cycles is not None and self.share is not None:
            parts.append(
                f"{self.cycles:,.0f} cycles, {100 * self.share:.0f} % of all (modelled, not measured)"
            )
        if self.record.before_db is not None and self.record.after_db is not None:
            gain = f"{self.record.before_db:.1f} -> {self.record.after_db:.1f} dB on held-out samples"
            parts.append(gain)
        return "; ".join(parts)


def mixed_precision(document: ScheduleDocument) -> MixedPrecision | None:
    """None where no layer was kept in float."""
    record = document.conversion.kept_float
    if record is None:
        return None
    floats = [x for x in document.layers if x.name in record.layers or x.op in CONVERSIONS]
    wide = tuple(x.name for x in document.layers if x.name in record.layers and x.op == WIDE)
    cycles = [layer.cost.clock_cycles for layer in floats]
    total = document.totals.clock_cycles
    if total is None or any(c is None for c in cycles):
        return MixedPrecision(record, wide, None, None)
    spent = sum(c for c in cycles if c is not None)
    return MixedPrecision(record, wide, spent, spent / total if total else None)
