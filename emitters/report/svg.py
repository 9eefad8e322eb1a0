"""A very small SVG printer: escaped elements and the two axis scales our charts need."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """`<tag ...>content</tag>`; content that is no Markup is escaped.

    Attribute names: a trailing underscore is dropped (class_), inner ones become hyphens; None is left out.
    """
    text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(escape(part) for part in content)
    return Markup(f"<{tag}{text}>{inner}</{tag}>")


def canvas(width: float, height: float, label: str, parts: Iterable[Markup]) -> Markup:
    """The `<svg>` itself: scales down on narrow screens, never up; `label` is read to blind users."""
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        role="img",
        aria_label=label,
    )


def title(text: str) -> Markup:
    """A tooltip for the element it is put into."""
    return element("title", text)


def _number(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] of the data to [start, end] of the picture, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of a value; values outside are put on the edge."""
        low, high, value = (self._axis(v) for v in (self.low, self.high, value))
        share = 0.0 if high == low else (value - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _axis(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self) -> list[float]:
        """Round values inside the range: about five."""
        if self.high <= self.low:
            return [self.low]
        if self.log:
            return self._log_ticks()
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        lowest, highest = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for multiples in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
            every = [m * 10.0**p for p in range(lowest, highest + 1) for m in multiples]
            ticks = [t for t in every if self.low * 0.9999 <= t <= self.high * 1.0001]
            if len(ticks) >= 3:
                break
        return ticks[:: math.ceil(len(ticks) / 7)] if ticks else [self.low, self.high]
