"""EDP of every search method on the networks of the paper's Table 1, under one evaluator.

Figures are in uJ x cycles, medians over seeds.  Per cell: every method with sound fusion; `_paper`:
gradient and exact search under the literature's fusion model (its schedules cannot be executed where
that model deletes refetches); `_unpacked`: without row packing, where a first layer has few channels.
Last line per model and target: ratios of the default search to every other method and to the proven
fusion bound, its seconds, `mapping` (exact layer-wise over DOSA) and `fusion` (exact over layer-wise).

Every cell is a file of its own in OUT/table1/, written after each search: run subsets with --models
and --targets as time allows, then `--show` prints and joins all of them.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path

from benchmarks.cells import VARIANTS, Cell, Settings, run_cell, show, table_rows
from benchmarks.command import add_out, add_profile, check_known, command, listed
from benchmarks.networks import TABLE1, network
from fadiff.commands.options import METHODS
from fadiff.costmodel.target.target import load_target
from fadiff.errors import InputError


def main(arguments: list[str]) -> int:
    """Run cells, print them and write the table as CSV; 1 if a cell or a method failed."""
    parser = command("table1", __doc__)
    parser.add_argument(
        "--models", type=listed, default=",".join(TABLE1), help="comma-separated (default: all)"
    )
    parser.add_argument("--targets", type=listed, default="gemmini-large,gemmini-small")
    parser.add_argument("--methods", type=listed, default=",".join(METHODS))
    parser.add_argument(
        "--variants", type=listed, default=",".join(VARIANTS), help="paper, unpacked, both, or '' for neither"
    )
    add_profile(parser)
    parser.add_argument("--tiling", choices=("ragged", "divisor"), default="ragged")
    parser.add_argument("--no-row-packing", action="store_true", help="one kernel tap at a time on the rows")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each budgeted baseline")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=1, help="cells at a time, each with its share of the cores"
    )
    parser.add_argument("--show", action="store_true", help="search nothing: print and join what OUT holds")
    add_out(parser)
    options = parser.parse_args(arguments)
    folder = options.out / "table1"
    settings = Settings(
        options.profile, options.tiling, not options.no_row_packing, options.budget, options.seeds
    )
    failed = 0
    if not options.show:
        check_known(options.methods, METHODS, "method")
        check_known(options.variants, VARIANTS, "variant")
        for name in options.models:
            network(name)
        for name in options.targets:
            load_target(name)
        names = [(model, target) for target in options.targets for model in options.models]
        failed = _run(names, settings, options.methods, options.variants, folder, options.jobs)
    _join(folder, options.out / "table1.csv", prints=options.show)
    return failed


def _run(
    names: list[tuple[str, str]],
    settings: Settings,
    methods: list[str],
    variants: list[str],
    folder: Path,
    jobs: int,
) -> int:
    """Run cells in processes of their own (their peak memory is theirs); 1 if one failed."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    failed = 0
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        cells: dict[Future[Cell], tuple[str, str]] = {
            pool.submit(run_cell, model, target, settings, methods, variants, folder): (model, target)  # type: ignore[arg-type]
            for model, target in names
        }
        for done in as_completed(cells):
            model, target = cells[done]
            try:
                cell = done.result()
            except (BrokenProcessPool, InputError, ValueError, MemoryError) as error:
                print(f"{model} on {target}: {error}", file=sys.stderr)
                failed = 1
                continue
            print(f"\n{show(cell)}", flush=True)
            print(f"{model} on {target} done after {time.monotonic() - started:.0f} s", file=sys.stderr)
            failed |= bool(cell.errors)
    return failed


def _join(folder: Path, table: Path, *, prints: bool) -> None:
    """Write all cells of a folder as one CSV; warn of settings that differ between them.

    Raises:
        InputError: there is none, or a file is not a cell.
    """
    cells = [Cell.load(path) for path in sorted(folder.glob("*.json"))]
    if not cells:
        raise InputError(f"{folder}: no cells of table1 in it")
    for name in (f.name for f in fields(Settings)):
        values = sorted({str(getattr(cell.settings, name)) for cell in cells})
        if len(values) > 1:
            print(f"warning: cells in {folder} differ in {name}: {', '.join(values)}", file=sys.stderr)
    rows = table_rows(cells)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    if prints:
        print("\n\n".join(show(cell) for cell in cells))
