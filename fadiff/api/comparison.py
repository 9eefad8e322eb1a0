"""`compare`: search methods side by side, same evaluator, same budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, get_args

from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.keywords import ComparedKeywords
from fadiff.model_file import model_file
from fadiff.pipeline import as_target, options_of, read_model, realiser, with_keywords

if TYPE_CHECKING:
    from pathlib import Path

    from fadiff.costmodel.target.target import Target
    from fadiff.model_file import Model
    from fadiff.optimizer import SearchResult
    from fadiff.optimizer.cut.settings import MethodName


@dataclass(frozen=True)
class Comparison:
    """What each method found."""

    model: str
    results: Mapping[str, SearchResult] = field(repr=False)
    left_out: Mapping[str, str]
    """Methods that found nothing, and why."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record per method, best first."""
        from fadiff.costmodel.latency.clock import error_against_rtl

        best = min(result.cost.edp_uj_cycles for result in self.results.values())
        return [
            {
                "method": name,
                "edp_uj_cycles": result.cost.edp_uj_cycles,
                "ratio_to_best": result.cost.edp_uj_cycles / best if best else 1.0,  # dosa: the core is free
                "energy_uj": result.cost.energy_pj * 1e-6,
                "latency_cycles": result.cost.latency_cycles,
                "latency_error": error_against_rtl(result.settings.latency, result.schedule.target),
                "fused_groups": sum(len(group.layers) > 1 for group in result.schedule.groups),
                "seconds": result.seconds,
            }
            for name, result in sorted(self.results.items(), key=lambda item: item[1].cost.edp_uj_cycles)
        ]

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Seconds and the best EDP known then, by method; the last point is where it ended."""
        return {
            name: [
                *((point.seconds, point.best_edp) for point in result.history),
                (result.seconds, result.cost.edp_uj_cycles),  # all that methods without steps have
            ]
            for name, result in self.results.items()
        }


def compare(
    model: Model,
    methods: Iterable[MethodName] | None = None,
    *,
    target: str | Path | Target = "gemmini-default",
    example_inputs: Any = None,
    console: Console | None = None,
    **plain: Unpack[ComparedKeywords],
) -> Comparison:
    """Run several search methods (by default all) on a model, under the same rules and time budget.

    Raises:
        InputError: an unknown method, or none that finds a schedule.
        ModelError: the model cannot be used.
    """
    from fadiff.costmodel.group.fusion import ScheduleError
    from fadiff.optimizer.cut.settings import MethodName
    from fadiff.search import find_schedule

    console = console or Console(verbosity=-1)
    known = get_args(MethodName)
    wanted = set(methods or known)
    if unknown := wanted.difference(known):
        raise InputError(f"no method {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    reading, common = options_of(None, None, plain)
    given = [with_keywords(common, {"method": name}) for name in known if name in wanted]
    left_out: dict[str, str] = {options.method: options.obstacle for options in given if options.obstacle}
    if len(left_out) == len(given):
        raise InputError(given[0].obstacle)
    hardware = as_target(target)
    with model_file(model, example_inputs) as file:
        realise = realiser(read_model(file, hardware, reading, console), file, reading, console)
    found: dict[str, SearchResult] = {}
    for options in given:
        if options.method in left_out:
            continue
        try:
            graph = realise(hardware, options).graph
            found[options.method] = find_schedule(graph, hardware, options, console)
        except (InputError, ScheduleError) as error:  # an extra is missing, or its tiles do not fit
            left_out[options.method] = str(error)
    if not found:
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in left_out.items()))
    return Comparison(file.stem, found, left_out)
