"""Plots, those of the report: how the search went, and what limits each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

from markupsafe import Markup

from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.emitters.report.svg import Scale, axis_below, axis_beside, canvas, element, line, text, title
from fadiff.emitters.report.text import edp, percent, power, si, tick

WIDTH, HEIGHT = 640, 300
NAMES = 100
"""Width of the column of method names beside the plot."""
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 16, 44

Point = tuple[float, float]
"""Seconds and the best EDP known then."""

CURVE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#555555")
CURVE_STYLE = "text{font:12px system-ui,sans-serif;fill:#222}path{fill:none;stroke-width:2}.grid{stroke:#ddd}"


def search_curve(document: ScheduleDocument) -> Markup | None:
    """Best EDP found so far against seconds, with the lower bound; None without a history."""
    history = document.search.history if document.search else ()
    if len(history) < 2:
        return None
    bound = document.totals.lower_bound_edp_uj_cycles
    values = [point.edp_uj_cycles for point in history] + ([bound] if bound else [])
    x = Scale(0.0, max(history[-1].seconds, 1e-3), LEFT, WIDTH - RIGHT)
    y = Scale(min(values) * 0.94, max(values) * 1.06, HEIGHT - BOTTOM, TOP, log=True)
    parts = _axes(x, y, "seconds", "EDP (µJ × cycles)", power)
    if bound:
        parts.append(line("bound", LEFT, y(bound), WIDTH - RIGHT, y(bound)))
        note = f"lower bound {edp(bound)}"
        parts.append(text(note, WIDTH - RIGHT, y(bound) + 15, "note", text_anchor="end"))
    curve = [(point.seconds, point.edp_uj_cycles) for point in history]
    parts.append(element("path", d=_staircase(curve, x, y), class_="curve"))
    last = history[-1]
    tip = title(f"{edp(last.edp_uj_cycles)} after {last.seconds:.1f} s")
    parts.append(element("circle", tip, cx=x(last.seconds), cy=y(last.edp_uj_cycles), r=4, class_="mark"))
    return canvas(WIDTH, HEIGHT, "Best energy-delay product against search time", parts)


def method_curves(curves: Mapping[str, Sequence[Point]]) -> Markup:
    """Search curves of several methods in one standalone SVG file, on a logarithmic time axis.

    A dot is where a method ended; names are in the order of what they reached.
    """
    points = [point for curve in curves.values() for point in curve]
    seconds, values = [max(s, 1e-3) for s, _ in points], [value for _, value in points]
    x = Scale(min(seconds), max(*seconds, 1.001e-3) * 1.15, LEFT, WIDTH - RIGHT, log=True)
    y = Scale(min(values) * 0.9, max(values) * 1.1, HEIGHT - BOTTOM, TOP, log=True)
    parts = [element("style", CURVE_STYLE), element("rect", width=WIDTH + NAMES, height=HEIGHT, fill="#fff")]
    parts += _axes(x, y, "seconds", "EDP (µJ × cycles)", power)
    colours = dict(zip(curves, cycle(CURVE_COLOURS), strict=False))
    for index, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: item[1][-1][1])):
        colour, (end, reached) = colours[name], curve[-1]
        held = [*curve, (x.high, reached)]
        parts.append(element("path", title(name), d=_staircase(held, x, y), stroke=colour))
        parts.append(element("circle", title(name), cx=x(end), cy=y(reached), r=4, fill=colour))
        parts.append(text(name, WIDTH - RIGHT + 10, TOP + 14 + 15 * index, style=f"fill:{colour}"))
    return canvas(WIDTH + NAMES, HEIGHT, "Best energy-delay product of each method against time", parts)


def front_plot(designs: Sequence[tuple[float, float, str]], limit: float | None = None) -> Markup:
    """EDP against area in one standalone SVG file: (mm2, EDP, name) of every design, and the front."""
    areas, values = [d[0] for d in designs] or [1.0], [d[1] for d in designs] or [1.0]
    front, best = set(), float("inf")
    for _, value, name in sorted(designs):
        if value < best:
            front.add(name)
            best = value
    x = Scale(min(areas) * 0.9, max(*areas, limit or 0.0) * 1.05, LEFT, WIDTH - RIGHT)
    y = Scale(min(values) * 0.9, max(values) * 1.1, HEIGHT - BOTTOM, TOP, log=True)
    parts = [element("style", CURVE_STYLE), element("rect", width=WIDTH, height=HEIGHT, fill="#fff")]
    parts += _axes(x, y, "mm²", "EDP (µJ × cycles)", power)
    if limit is not None:
        parts.append(element("path", d=f"M{x(limit):.1f} {TOP}V{HEIGHT - BOTTOM}", stroke="#999"))
    curve = [(area, value) for area, value, name in sorted(designs) if name in front]
    if curve:
        parts.append(element("path", d=_staircase(curve, x, y), stroke=CURVE_COLOURS[0]))
    for area, value, name in sorted(designs, key=lambda design: design[2] in front):
        fill = CURVE_COLOURS[0] if name in front else "#bbb"
        tip = title(f"{name}: {area:.3g} mm², {edp(value)}")
        parts.append(element("circle", tip, cx=x(area), cy=y(value), r=4, fill=fill))
    return canvas(WIDTH, HEIGHT, "Energy-delay product of every design against its area", parts)


def _staircase(curve: Sequence[Point], x: Scale, y: Scale) -> str:
    """The best known value holds until a better one is found."""
    (seconds, value), *rest = curve
    steps = [f"M{x(seconds):.1f} {y(value):.1f}"]
    steps += [f"H{x(seconds):.1f}V{y(value):.1f}" for seconds, value in rest]
    return "".join(steps)


class Dot(NamedTuple):
    """A layer on the roofline: its number, what its tooltip says, and the CSS class of its colour."""

    number: int
    name: str
    macs: float
    nbytes: float
    cycles: float
    limit: str
    kind: str


def roofline(document: ScheduleDocument) -> Markup | None:
    """Multiply-accumulates per cycle against per DRAM byte, one dot per array layer."""
    target = document.target
    dots = [
        Dot(
            number,
            layer.name,
            layer.macs,
            layer.dram_bytes,
            layer.cost.latency_cycles,
            f", limited by {layer.cost.bound}",
            bound_class(layer.cost.bound),
        )
        for number, layer in enumerate(document.layers)
    ]
    return roofs(dots, float(target.side**2), target.bandwidth.dram_bytes)


def roofs(layers: Sequence[Dot], peak: float, bandwidth: float) -> Markup | None:
    """The same under a roof of so many multiply-accumulates and bytes per cycle; None without a dot."""
    dots = [dot for dot in layers if dot.macs and dot.nbytes and dot.cycles]
    if not dots:
        return None
    intensity = [dot.macs / dot.nbytes for dot in dots]
    rate = [dot.macs / dot.cycles for dot in dots]
    ridge = peak / bandwidth
    x = Scale(min(*intensity, ridge) / 2, max(*intensity, ridge) * 2, LEFT, WIDTH - RIGHT, log=True)
    y = Scale(min(*rate, peak) / 2, peak * 1.6, HEIGHT - BOTTOM, TOP, log=True)
    parts = _axes(x, y, "multiply-accumulates per DRAM byte", "multiply-accumulates per cycle", tick)
    floor = max(x.low, y.low / bandwidth)
    roof = f"M{x(floor):.1f} {y(floor * bandwidth):.1f}L{x(ridge):.1f} {y(peak):.1f}H{WIDTH - RIGHT}"
    parts.append(element("path", d=roof, class_="roof"))
    parts.append(text(f"array: {peak:.0f}", WIDTH - RIGHT, y(peak) - 6, "note", text_anchor="end"))
    labels = Labels([(WIDTH - RIGHT - 80, y(peak) - 20, WIDTH - RIGHT, y(peak) - 3)])
    for dot, across, up in zip(dots, intensity, rate, strict=True):
        share = percent(up / peak)
        tip = f"{dot.name}: {si(dot.macs)}MAC, {up:.1f} per cycle ({share} of the array){dot.limit}"
        kind = f"dot {dot.kind}"
        parts.append(element("circle", title(tip), cx=x(across), cy=y(up), r=5, class_=kind))
        labels.keep_clear(x(across), y(up))
    for dot, across, up in sorted(zip(dots, intensity, rate, strict=True), key=lambda each: -each[0].cycles):
        parts += labels.beside(str(dot.number), x(across), y(up))
    return canvas(WIDTH, HEIGHT, "Roofline: what limits each layer", parts)


@dataclass
class Labels:
    """Texts beside dots, each where it covers neither a dot nor another text, or not at all."""

    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def keep_clear(self, x: float, y: float) -> None:
        """No text over this dot."""
        self.taken.append((x - 4, y - 4, x + 4, y + 4))

    def beside(self, words: str, x: float, y: float) -> list[Markup]:
        """The words right, left, above or below the dot at x, y."""
        wide = 7.0 * len(words)
        for dx, dy in ((7.0, 4.0), (-7.0 - wide, 4.0), (-wide / 2, -8.0), (-wide / 2, 17.0)):
            box = (x + dx, y + dy - 9, x + dx + wide, y + dy)
            if not any(a < box[2] and box[0] < c and b < box[3] and box[1] < d for a, b, c, d in self.taken):
                self.taken.append(box)
                return [text(words, x + dx, y + dy, "dotlabel")]
        return []


def bound_class(bound: str) -> str:
    """CSS class of a latency bound."""
    return {"compute": "mac", "L1": "l1", "L2": "l2", "L3": "l3", "tile-buffer": "tb"}.get(bound, "host")


def _axes(x: Scale, y: Scale, x_label: str, y_label: str, y_text: Callable[[float], str]) -> list[Markup]:
    below = axis_below(x, HEIGHT - BOTTOM, ((v, tick(v)) for v in x.ticks()), x_label, top=TOP)
    return below + axis_beside(y, LEFT, WIDTH - RIGHT, ((v, y_text(v)) for v in y.ticks()), y_label)
