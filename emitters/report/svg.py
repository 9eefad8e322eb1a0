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


def text(words: str, x: float, y: float, kind: str | None = None, **attributes: object) -> Markup:
    """Words that begin at x (or as `text_anchor` says), on the base line y."""
    return element("text", words, x=x, y=y, **attributes, class_=kind)


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def box(kind: str, tip: str, x: float, y: float, width: float, height: float, **more: object) -> Markup:
    """A rectangle with a tooltip, its corner and sizes to a tenth of a pixel."""
    sizes = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", title(tip), **{k: round(v, 1) for k, v in sizes.items()}, class_=kind, **more)


Tick = tuple[float, str]
"""A value of a scale and what is written there."""


def axis_below(
    x: Scale, bottom: float, ticks: Iterable[Tick], label: str, *, top: float | None
) -> list[Markup]:
    """The axis of `x` along `bottom`, with a grid up to `top` if there is one."""
    parts = []
    for value, words in ticks:
        at = round(x(value), 1)
        if top is not None:
            parts.append(line("grid", at, top, at, bottom))
        parts.append(text(words, at, bottom + 16, text_anchor="middle"))
    return [*parts, text(label, (x.start + x.end) / 2, bottom + 34, "axis", text_anchor="middle")]


def axis_beside(y: Scale, left: float, right: float, ticks: Iterable[Tick], label: str = "") -> list[Markup]:
    """The axis of `y` left of a grid from `left` to `right`."""
    parts = []
    for value, words in ticks:
        parts += [
            line("grid", left, y(value), right, y(value)),
            text(words, left - 6, y(value) + 4, text_anchor="end"),
        ]
    if label:
        middle = (y.start + y.end) / 2
        turned = f"rotate(-90 12 {middle:.6g})"
        parts.append(text(label, 12, middle, "axis", text_anchor="middle", transform=turned))
    return parts


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
