"""What would make a program faster: single changes to the model, its conversion or the hardware.

Each is priced by the clock with everything else as it is.

The mappings stay: with other sizes of memories or array another schedule would be found, which `fadiff sweep`
searches for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import HostLayer
from fadiff.costmodel.latency.clock import ClockCoefficients, LayerCounts, clock_of, layer_cycles
from fadiff.costmodel.schedule.clock import program_counts
from fadiff.costmodel.schedule.schedule import Schedule

LEAST = 0.005
"""Share of the program's cycles below which a change is not worth a line."""
ACTIVATIONS = ("lookup", "formula")
MOVES = ("copy", "gather", "fill", "select")
POOLS = ("max_pool", "average_pool", "global_average_pool")
ENGINES = ("request", "pixel_copy", "byte", "miss", "store_row", "added_byte")
"""Coefficients of what moves data."""
ISSUE = ("command", "loop", "visit")
"""Coefficients of what the core issues."""


@dataclass(frozen=True)
class Change:
    """One change alone; changes do not add up where they are about the same layers."""

    what: str
    layers: tuple[str, ...]
    """Layers that it is about; none: all."""
    cycles_won: float
    costs: str
    """What it costs, in words."""


def changes(schedule: Schedule, float_costs: str = "") -> tuple[Change, ...]:
    """The changes that pay, those that win most first.

    Args:
        schedule: Of profile hw.
        float_costs: What the outputs lose without the layers that are kept in float, where that is known.
    """
    found = [
        change
        for change in (*_without_layers(schedule, float_costs), *_faster_engines(schedule))
        if change.cycles_won >= LEAST * _total(schedule)
    ]
    return tuple(sorted(found, key=lambda change: -change.cycles_won))


def _total(schedule: Schedule) -> float:
    return sum(_cycles(schedule).values())


def _cycles(schedule: Schedule, c: ClockCoefficients | None = None, core: float = 1.0) -> dict[str, float]:
    """Cycles of each layer with other coefficients; host operators take `core` times as long."""
    c, found = c or clock_of(schedule.target), {}
    for name, counts in program_counts(schedule).items():
        if isinstance(counts, LayerCounts):
            found[name] = float(layer_cycles(counts, c))
        else:
            fences = counts.visits * c.visit
            busy = counts.cycles(c, schedule.target.core) - fences
            found[name] = busy * (1.0 if counts.operator == "add" else core) + fences
    return found


def _without_layers(schedule: Schedule, float_costs: str) -> Iterator[Change]:
    cycles = _cycles(schedule)
    host = {layer.name: layer for layer in schedule.graph.layers if isinstance(layer, HostLayer)}

    def those(ops: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name, layer in host.items() if layer.op in ops)

    def gone(what: str, names: tuple[str, ...], costs: str, keep: Callable[[str], float]) -> Iterator[Change]:
        if names:
            won = sum(max(0.0, cycles[name] - keep(name)) for name in names)
            yield Change(what.format(_count(names)), names, won, costs)

    def nothing(name: str) -> float:
        return 0.0

    def one_pass(name: str) -> float:
        """Its operands and result through Gemmini's DMA, as an addition moves them."""
        layer, c = host[name], clock_of(schedule.target)
        moved = sum(schedule.graph.tensors[tensor].nbytes for tensor in (*layer.inputs, *layer.outputs))
        return moved * c.added_byte + c.visit

    floats = tuple(
        name
        for name, layer in host.items()
        if layer.op.startswith(("float_", "to_")) or schedule.graph.is_kept_float(layer)
    )
    yield from gone(
        "{} as ReLU: Gemmini applies it as it stores",
        those(ACTIVATIONS),
        "the model is trained again; functions other than an activation stay",
        nothing,
    )
    yield from gone(
        "a norm unit in Gemmini for {}",
        () if schedule.target.has_normalizations else those(("lookup",)),
        "hardware (has_normalizations), accuracy; of GELU, SiLU and hard-swish; priced as one pass by DMA",
        one_pass,
    )
    yield from gone("no {} kept in float", floats, float_costs or "accuracy: see --keep-float", nothing)
    yield from gone(
        "an export without {} that only move data",
        those(MOVES),
        "the model is written otherwise (layout, joins)",
        nothing,
    )
    yield from gone(
        "strided convolutions instead of {} by the core", those(POOLS), "the model is trained again", nothing
    )


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} layer{'s' if len(names) != 1 else ''}"


def _faster_engines(schedule: Schedule) -> Iterator[Change]:
    before, own = _total(schedule), clock_of(schedule.target)
    quick = replace(own, **{name: getattr(own, name) / 2 for name in ENGINES})
    won = before - sum(_cycles(schedule, quick).values())
    yield Change("loads and stores of twice the speed", (), won, "hardware: a wider bus and quicker memory")
    issue = replace(own, **{name: getattr(own, name) / 2 for name in ISSUE})
    won = before - sum(_cycles(schedule, issue, core=0.5).values())
    yield Change("a core of twice the speed", (), won, "hardware: another core, or a higher clock for it")
