"""`fadiff map`: Timeloop mappings of a network for a machine that need not be a Gemmini."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import (
    FILE,
    OBJECTIVES,
    PATH,
    choice,
    console_options,
    model_argument,
    switch_off,
)
from fadiff.commands.reading import bound_dims, cut_options, dim_option
from fadiff.console import Columns, Console, numbers

if TYPE_CHECKING:
    from fadiff.optimizer.cut.partition import Objective
    from fadiff.optimizer.mapping_methods import MethodName
    from fadiff.optimizer.nests.layer import Found
    from fadiff.optimizer.nests.network import MappedNetwork


def _parse_sizes(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    parsed = []
    for value in values:
        name, _, size = value.partition("=")
        if not name or not size.isdecimal():
            raise click.BadParameter(f"{value!r} is not LEVEL.SIZE=N, like buffer.entries=65536")
        parsed.append((name, int(size)))
    return tuple(parsed)


@click.command("map")
@model_argument
@click.option(
    "--arch",
    required=True,
    metavar="ARCH.yaml|NAME",
    help="Timeloop architecture (v0.2 to v0.4), or a shipped one.",
)
@click.option(
    "--constraints",
    multiple=True,
    type=FILE,
    metavar="FILE.yaml",
    help="Further Timeloop constraints; repeatable.",
)
@click.option("--ert", type=FILE, metavar="FILE.yaml", help="Energy reference table, pJ an access.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="LEVEL.SIZE=N",
    callback=_parse_sizes,
    help="Another size of the machine: buffer.entries=65536, rows.meshY=8; repeatable.",
)
@click.option("-o", "--out", metavar="DIR", type=PATH, help="Folder to make.  [default: nothing is written]")
@choice("--objective", OBJECTIVES, "What every layer is searched for.")
@choice(
    "--method",
    ["auto", "exact", "local", "gradient", "genetic", "bayesian", "random"],
    "How layers are searched: auto (local, then branch and bound), exact (branch and bound), local, gradient "
    "(the paper's method), or a baseline.",
    metavar="METHOD",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Of the whole search.  [default: until restarts find nothing better]",
)
@switch_off("--no-fusion", "fusion", "Keep every layer on its own, with nothing on chip between layers.")
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@dim_option
@cut_options
@console_options
def map_command(
    console: Console,
    model: Path,
    arch: str,
    constraints: tuple[Path, ...],
    ert: Path | None,
    sizes: tuple[tuple[str, int], ...],
    out: Path | None,
    objective: Objective,
    method: MethodName,
    time_budget: float | None,
    fusion: bool,
    seed: int,
    as_json: bool,
    dims: tuple[tuple[str, int], ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> None:
    """Map every product of MODEL.onnx onto a machine that Timeloop describes.

    Writes what timeloop-model runs unchanged: arch.yaml with its energies, a problem and a mapping of every
    layer, index.yaml, run_timeloop.sh; layers.csv and report.html.  Counts are Timeloop's, for perfect
    factors.  Layers hand tensors over in a memory on chip that all multipliers share, where that wins.

    \b
    Examples:
      fadiff map resnet18.onnx --arch eyeriss-like --out build/eyeriss
      fadiff map resnet18.onnx --arch arch.yaml --ert ERT.yaml --constraints mine.yaml --out build/mine
      fadiff map resnet18.onnx --arch eyeriss-like --size buffer.entries=65536
      fadiff map bert.onnx --arch tpu-like --dim sequence=128 --objective energy --json
    """
    from fadiff.api.mapping import map_model

    found = map_model(
        model,
        arch,
        out,
        constraints=constraints,
        ert=ert,
        sizes=dict(sizes),
        objective=objective,
        method=method,
        time_budget=time_budget,
        fusion=fusion,
        seed=seed,
        dims=bound_dims(dims),
        inputs=inputs,
        outputs=outputs,
        console=console,
    )
    machine = found.machine
    if as_json:
        console.result(json.dumps(_summary(found), indent=2))
        return
    rows = (
        (
            mapped.layer.name,
            str(mapped.run.workload.dims),
            str(mapped.run.times),
            f"{mapped.cycles:,}",
            f"{mapped.energy * 1e-6:,.2f}",
            f"{mapped.edp:.4g}",
            _gap(mapped.found),
        )
        for mapped in found.best.layers
    )
    columns: Columns = ("layer", "dims", *numbers("runs", "cycles", "uJ", "EDP uJ x cycles", "x bound"))
    console.table(columns, rows)
    for layers, tile in found.best.groups.items():
        console.result(
            f"fused: {', '.join(layers)}, tiles of {tile.P} rows: {found.saved(layers):,.0f} bytes saved"
        )
    best, unfused = found.best, found.unfused
    console.result(
        f"{len(best.layers)} layers on {machine.name}, one after the other: {best.cycles:,} cycles, "
        f"{best.energy * 1e-6:,.1f} uJ, EDP {best.edp:.4g} uJ x cycles"
        + (f"; with nothing fused {unfused.edp:.4g}" if best.groups else "")
    )
    if found.others:
        console.note(f"no loop nests, not counted: {', '.join(found.others)}")
    if out is not None:
        console.result(str(out))


def _gap(found: Found) -> str:
    """How far above the bound."""
    if found.proven:
        return "proven"
    return f"{found.objective / found.bound:.2f}" if found.bound else "-"


def _summary(found: MappedNetwork) -> dict[str, object]:
    layers = [
        {
            "name": mapped.layer.name,
            "dims": mapped.run.workload.dims.as_dict(),
            "runs": mapped.run.times,
            "cycles": mapped.cycles,
            "energy_pj": mapped.energy,
            "edp_uj_cycles": mapped.edp,
            "bound": mapped.found.bound,
            "proven": mapped.found.proven,
            "bytes": mapped.traffic(found.machine),
        }
        for mapped in found.best.layers
    ]
    totals = [
        {"cycles": each.cycles, "energy_pj": each.energy, "edp_uj_cycles": each.edp}
        for each in (found.best, found.unfused)
    ]
    return {
        "machine": found.machine.name,
        "layers": layers,
        "fused": [{"layers": list(x), "bytes_saved": found.saved(x)} for x in found.best.groups],
        "not_mapped": list(found.others),
        "totals": {**totals[0], "bound": found.bound},
        "unfused": {**totals[1], "bound": found.unfused_bound},
    }
