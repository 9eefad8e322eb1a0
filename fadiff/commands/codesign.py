"""`fadiff codesign`: the hardware and the schedules of some models together, within an area."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fadiff.commands.options import PATH, cache_option, choice, console_options, named_search_options
from fadiff.commands.reading import bound_dims, dim_option
from fadiff.console import Console
from fadiff.errors import InputError

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Graph
    from fadiff.design_space import DesignSpace
    from fadiff.optimizer.codesign.designs import Designs
    from fadiff.optimizer.codesign.score import Scored, Scorer

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
@choice("--method", METHODS, "How designs to try are chosen.")
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
@cache_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
def codesign(
    console: Console,
    models: tuple[Path, ...],
    path: Path,
    limit: float,
    seconds: float,
    method: str,
    seed: int,
    dims: tuple[tuple[str, int], ...],
    out: Path | None,
    force: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Find the Gemmini of at most MM2 that runs all models best.

    Descent has array, memories, tile buffer and bandwidth as variables beside tiles, loop orders and fusion
    of all models; what it proposes is searched exactly. Models count alike: geometric means are minimised.

    \b
    A design space (also tile_buffer_bytes and bandwidth.dram_bytes):
      base: gemmini-default
      vary:
        side: [8, 16, 32]
        scratchpad_bytes: [65536, 131072, 262144]
        accumulator_bytes: [16384, 32768, 65536]
    \b
    Example:
      fadiff codesign resnet18.onnx bert.onnx --space space.yaml --area 2 -o best
    """
    from fadiff.codesign_output import check_folder, row_of, write_folder
    from fadiff.design_space import read_space
    from fadiff.optimizer.codesign.score import Scorer, pareto
    from fadiff.optimizer.codesign.search import search
    from fadiff.optimizer.layer.solved import SolvedLayers

    described = read_space(path)
    options = named_search_options(described.search, path)
    designs = _designs(described, path, limit)
    if out is not None:
        check_folder(out, force=force)
    graphs = _graphs(console, models, designs, bound_dims(dims))
    stage = f"searching {len(designs.feasible):,} designs of at most {limit:g} mm2"
    with console.stage(stage), SolvedLayers(cache) as solved:
        scorer = Scorer(graphs, designs, options, seconds, solved=solved, say=console.update)
        search(scorer, method, seed)  # type: ignore[arg-type]
    front = pareto(scorer.found)
    if out is not None:
        write_folder(out, scorer)
        console.note(f"wrote {out}")
    if as_json:
        best = row_of(scorer, scorer.best)
        rows = [row_of(scorer, scored) for scored in front]
        console.result(json.dumps({"best": best, "pareto": rows, "tried": len(scorer.found)}, indent=2))
        return
    _print(console, scorer, front)


def _designs(described: DesignSpace, path: Path, limit: float) -> Designs:
    """Checked values of the sizes.

    Raises:
        InputError: a field that is no size, a value that is no size, or an area below every design's.
    """
    from fadiff.design_space import base_target
    from fadiff.optimizer.codesign.designs import NAMES, Designs

    values: dict[str, tuple[int, ...]] = {}
    for name, listed in described.vary.items():
        if name not in NAMES:
            raise InputError(f"{path}: vary.{name}: codesign chooses only {', '.join(NAMES)}")
        for value in listed:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{path}: vary.{name}: {value!r} is no positive whole number")
        values[name] = tuple(sorted({int(value) for value in listed}))
    designs = Designs(base_target(described, path), values, described.area, limit)
    if not designs.feasible:
        least = designs.least_area()
        known = f"the smallest has {least:.3f} mm2" if least is not None else "no combination is a Gemmini"
        raise InputError(f"--area {limit:g}: no design of {path} is that small: {known}")
    return designs


def _graphs(
    console: Console, models: tuple[Path, ...], designs: Designs, dims: dict[str, int]
) -> dict[str, Graph]:
    from fadiff.converter import convert
    from fadiff.design_space import without_weights

    graphs: dict[str, Graph] = {}
    for model in models:
        if model.stem in graphs:
            raise InputError(f"{model}: two models are called {model.stem}: rename one")
        with console.stage(f"converting {model.name}"):
            converted = convert(model, element=designs.base.element_type, dims=dims, progress=console.update)
            graphs[model.stem] = without_weights(converted.graph)
    return graphs


def _print(console: Console, scorer: Scorer, front: list[Scored]) -> None:
    from fadiff.codesign_output import row_of

    rows: list[dict[str, Any]] = [row_of(scorer, scored) for scored in front]
    shown = [name for name in rows[0] if ":" not in name]
    texts = ([f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in shown] for row in rows)
    console.table(shown, texts)
    best = scorer.space.changes(scorer.best.sizes)
    text = ", ".join(f"{name} {value:,}" for name, value in best.items())
    console.result(f"best of {len(scorer.found)} designs: {text}: EDP {scorer.best.mean.edp:.5g} uJ x cycles")
