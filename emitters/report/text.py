"""Numbers as people read them."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def si(value: float, unit: str = "") -> str:
    """12_345_678 -> '12.3 M'; small numbers stay as they are."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    """At least three digits."""
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, 3 - whole)}f}" if value != int(value) or whole < 3 else f"{value:.0f}"


def short(name: str, limit: int) -> str:
    """A long name without its middle."""
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit // 2) :]}"


def tick(value: float) -> str:
    """Axis labels: 2000 -> '2 k', 0.5 -> '0.5'."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:g} {prefix}"
    return f"{value:g}"


def power(value: float) -> str:
    """Axis labels of EDP: 2e+10 -> '2e10'."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def count(value: float) -> str:
    """12345678 -> '12,345,678'."""
    return f"{value:,.0f}"


def edp(value: float) -> str:
    """Microjoules x cycles, as the literature prints them: 1.86e+10 -> '1.860e10'."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(share: float, digits: int = 1) -> str:
    """0.1234 -> '12.3 %'."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # + 0.0: never "-0.0"


def limit(bound: str) -> str:
    """What limits a layer's latency, by the name of the unit: 'L1' -> 'accumulator'."""
    names = {"compute": "array", "L1": "accumulator", "L2": "scratchpad", "L3": "DRAM", "host": "core"}
    return names.get(bound, bound.replace("-", " "))


def picojoules(value: float) -> str:
    """Energy with the unit that fits."""
    for factor, unit in ((1e12, "J"), (1e9, "mJ"), (1e6, "µJ"), (1e3, "nJ")):
        if value >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} pJ"
