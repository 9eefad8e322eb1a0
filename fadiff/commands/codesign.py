"""`fadiff codesign`: the hardware and the schedules of some models together, within an area."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import PATH, console_options
from fadiff.commands.reading import bound_dims, dim_option
from fadiff.console import Console

if TYPE_CHECKING:
    from fadiff.api.codesign import Codesign, Method

METHODS = ("gradient", "local", "sweep", "random", "bayesian")


@click.command()
@click.argument("models", metavar="MODEL.onnx...", nargs=-1, required=True, type=PATH)
@click.option(
    "--space",
    "path",
    metavar="SPACE.yaml",
    required=True,
    type=PATH,
    help="Base target and the values that sizes may have; as for sweep.",
)
@click.option(
    "--area",
    "limit",
    metavar="MM2",
    required=True,
    type=click.FloatRange(min=0, min_open=True),
    help="At most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60,
    show_default=True,
    help="How long to search.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How designs to try are chosen.  [default: local; gradient for machines of fadiff map]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what the method draws.")
@dim_option
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the best design (target, header, Scala) and all that were tried (CSV, plot).",
)
@click.option("--force", is_flag=True, help="Write over files in DIR.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def codesign(
    console: Console,
    models: tuple[Path, ...],
    path: Path,
    limit: float,
    seconds: float,
    method: Method,
    seed: int,
    dims: tuple[tuple[str, int], ...],
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Find the hardware of at most MM2 that runs all models best: a Gemmini, or a machine of `fadiff map`.

    Descent has array, memories, tile buffer and bandwidth as variables beside tiles, loop orders and fusion
    of all models; what it proposes is searched exactly. Models count alike: geometric means are minimised.
    Sizes of a machine: entries and bandwidths of memories, meshX and meshY of fan-outs; energies of a memory
    grow with the square root of its entries.

    \b
    A design space (also tile_buffer_bytes and bandwidth.dram_bytes):
      base: gemmini-default
      vary:
        side: [8, 16, 32]
        scratchpad_bytes: [65536, 131072, 262144]
        accumulator_bytes: [16384, 32768, 65536]
    \b
    Of a machine:
      base: eyeriss-like
      vary:
        buffer.entries: [32768, 65536, 131072]
        columns.meshX: [7, 14, 28]
    \b
    Example:
      fadiff codesign resnet18.onnx bert.onnx --space space.yaml --area 2 -o best
    """
    from fadiff.api.codesign import codesign as designed

    found = designed(
        models,
        path,
        limit,
        seconds=seconds,
        method=method,
        seed=seed,
        dims=bound_dims(dims),
        out=out,
        force=force,
        console=console,
    )
    if as_json:
        shown = {"best": found.best, "pareto": found.pareto, "tried": found.tried}
        console.result(json.dumps(shown, indent=2))
    else:
        _print(console, found)


def _print(console: Console, found: Codesign) -> None:
    shown = [name for name in found.pareto[0] if ":" not in name]
    texts = (
        [f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in shown] for row in found.pareto
    )
    console.table(shown, texts)
    text = ", ".join(f"{name} {value:,}" for name, value in found.sizes.items())
    edp = found.best["edp_uj_cycles"]
    console.result(f"best of {found.tried} designs: {text}: EDP {edp:.5g} uJ x cycles")
