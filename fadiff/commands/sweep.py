"""`fadiff sweep`: which hardware for these models."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fadiff.commands.options import METHODS, bound_dims, console_options, dim_option, search_options
from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.output import check_new

if TYPE_CHECKING:
    from costmodel.schedule.schedule import LatencyModel
    from fadiff.design_space import Outcome
    from fadiff.search import SearchOptions


@click.command()
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.argument("models", metavar="MODEL.onnx...", nargs=-1, required=True, type=click.Path(path_type=Path))
@dim_option
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Local processes.")
@click.option(
    "--cluster", metavar="ADDRESS", help="Run on this Dask scheduler instead (needs fadiff[cluster])."
)
@click.option(
    "-o",
    "--out",
    metavar="FILE.csv",
    type=click.Path(path_type=Path, dir_okay=False),
    help="All results as CSV.",
)
@click.option("--force", is_flag=True, help="Replace the CSV file.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def sweep(
    console: Console,
    space: Path,
    models: tuple[Path, ...],
    dims: tuple[tuple[str, int], ...],
    jobs: int,
    cluster: str | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Search MODEL.onnx on every design of SPACE.yaml and list EDP, energy and latency.

    \b
    A design space:
      base: gemmini-default
      vary:
        side: [8, 16, 32]
        scratchpad_bytes: [131072, 262144]
      search: {time_budget: 5}
    \b
    Example:
      fadiff sweep space.yaml resnet18.onnx vgg16.onnx --jobs 4 -o sweep.csv
    """
    from converter import convert
    from fadiff.design_space import designs, explore, read_space, without_weights

    described = read_space(space)
    search = _search_options(described.search, space)
    points = list(designs(described, space))
    if out is not None:
        check_new(out, force=force)
    elements = [design.target.element_type if design.target else "int8" for design in points]
    work = []
    for model in models:
        graphs = {}
        for element in dict.fromkeys(elements):
            with console.stage(f"converting {model.name} ({element})"):
                conversion = convert(model, element=element, dims=bound_dims(dims), progress=console.update)
                graphs[element] = without_weights(conversion.graph)
        work += [(graphs[element], design, search) for element, design in zip(elements, points, strict=True)]
    results: dict[int, Outcome] = {}
    with (
        console.stage(f"searching {len(points)} designs x {len(models)} models"),
        _workers(jobs, cluster) as submit,
    ):
        for index, outcome in submit(explore, work):
            results[index] = outcome
            console.update(f"{len(results)} of {len(work)}: {outcome.model} {outcome.design.changes}")
    rows = [_row(results[index], search.latency) for index in range(len(work))]
    if out is not None:
        _write_csv(out, rows)
        console.note(f"wrote {out}")
    if as_json:
        console.result(json.dumps(rows, indent=2))
    else:
        _print(console, rows)
        console.result(f"latency by the {search.latency} model: {rows[0]['latency_error']}")


def _search_options(options: dict[str, Any], path: Path) -> SearchOptions:
    """The options of the command line by their names in Python, without those settled after a search."""
    from fadiff.search import SearchOptions

    method = click.Option(["--method"], type=click.Choice(METHODS))
    command = click.command()(search_options(lambda: None))
    known = {option.name: option for option in (method, *command.params) if option.name}
    values: dict[str, Any] = {}
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            raise InputError(f"{path}: search.{name}: unknown option; choose from {', '.join(known)}")
        if isinstance(option.default, bool):
            if not isinstance(value, bool):
                raise InputError(f"{path}: search.{name}: {value!r} is not true or false")
            values[name] = value
            continue
        try:
            values[name] = option.process_value(click.Context(command), str(value))
        except click.BadParameter as error:
            raise InputError(f"{path}: search.{name}: {error.message}") from error
    return SearchOptions(**values)


Submit = Callable[[Callable[..., Any], list[tuple[Any, ...]]], Iterator[tuple[int, Any]]]


@contextmanager
def _workers(jobs: int, cluster: str | None) -> Iterator[Submit]:
    """A function that runs calls somewhere and yields (index, result) as they come."""
    if cluster is not None:
        try:
            from distributed import Client
            from distributed import as_completed as completed_on_cluster
        except ImportError as error:
            raise InputError("--cluster needs Dask: pip install 'fadiff[cluster]'") from error
        try:
            client = Client(cluster, timeout="20s")
        except (OSError, ValueError) as error:
            raise InputError(f"--cluster {cluster}: no Dask scheduler answers: {error}") from error
        with client:
            yield lambda function, calls: _as_they_come(
                [client.submit(function, *call, pure=False) for call in calls], completed_on_cluster
            )
    elif jobs == 1:
        yield lambda function, calls: ((i, function(*call)) for i, call in enumerate(calls))
    else:
        import multiprocessing

        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield lambda function, calls: _as_they_come(
                [pool.submit(function, *call) for call in calls], as_completed
            )


def _as_they_come(futures: list[Future[Any]], completed: Callable[..., Any]) -> Iterator[tuple[int, Any]]:
    index = {future: i for i, future in enumerate(futures)}
    for future in completed(futures):
        yield index[future], future.result()


def _row(outcome: Outcome, latency: LatencyModel) -> dict[str, Any]:
    from costmodel.latency.clock import error_against_rtl

    return {
        "model": outcome.model,
        **outcome.design.changes,
        "edp_uj_cycles": outcome.edp_uj_cycles,
        "energy_uj": None if outcome.energy_pj is None else outcome.energy_pj * 1e-6,
        "latency_cycles": outcome.latency_cycles,
        "latency_error": error_against_rtl(latency),
        "problem": outcome.problem,
    }


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    shown = [key for key in rows[0] if key != "latency_error"]
    table = Table(*shown, box=None)
    for row in sorted(rows, key=lambda r: (r["model"], r["edp_uj_cycles"] or float("inf"))):
        table.add_row(
            *(
                f"{value:.6g}" if isinstance(value, float) else str(value if value is not None else "")
                for value in (row[key] for key in shown)
            )
        )
    console.table(table)
