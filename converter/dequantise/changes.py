"""What importing a quantised file changed of its integers, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

_COARSE_STEPS = 8.0
"""Three bits of a channel's weights are lost."""


@dataclass
class Changes:
    """What could not stay as the file has it."""

    per_channel: list[tuple[str, float, float]] = field(default_factory=list)
    """Weights with many scales: name, SQNR in dB with one, its step in steps of the finest channel."""
    asymmetric: list[str] = field(default_factory=list)
    """Activations with zero points."""
    coarsest: float = 1.0
    """Largest new step of an 8-bit activation in steps of the file."""
    wide: list[str] = field(default_factory=list)
    """Activations of 16 bits."""

    def notes(self) -> list[str]:
        """One sentence for each kind."""
        notes = []
        if self.asymmetric:
            notes.append(
                f"{len(self.asymmetric)} activations had zero points (first: {self.asymmetric[0]}): "
                "kept where products and tables alone touch them, elsewhere "
                "requantised symmetrically over the same range; not bit-exact with the file: off by at most "
                f"half a step, and a step is up to {self.coarsest:.2f} of the file's"
            )
        if self.wide:
            notes.append(
                f"{len(self.wide)} activations had 16 bits (first: {self.wide[0]}): 8 of them are kept, over "
                "the same range; not bit-exact with the file"
            )
        if self.per_channel:
            name, worst, steps = max(self.per_channel, key=lambda entry: entry[2])
            advice = (
                "; give calibration data with the file, or convert the float model with it: "
                "then channels are scaled alike"
            )
            notes.append(
                f"{len(self.per_channel)} weights had per-channel scales or zero points: requantised "
                f"per tensor (worst: {name}, off by at most {steps / 2:.1f} steps of its finest channel, "
                f"SQNR {worst:.1f} dB); not bit-exact with the file{advice if steps > _COARSE_STEPS else ''}"
            )
        return notes
