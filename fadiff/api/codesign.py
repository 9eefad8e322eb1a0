"""`codesign`: the hardware and the schedules of some models together, within an area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fadiff.codesign_output import check_folder, row_of, write_folder
from fadiff.console import Console
from fadiff.design_space import DesignSpace, base_target, named_search, read_space, without_weights
from fadiff.errors import InputError
from fadiff.pipeline import ModelOptions, convert_with, realiser

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Graph
    from fadiff.optimizer.codesign.designs import Designs
    from fadiff.search import SearchOptions

Method = Literal["gradient", "local", "sweep", "random", "bayesian"]


@dataclass(frozen=True)
class Codesign:
    """Designs as records: sizes, area, geometric means over the models, and each model's own numbers."""

    best: dict[str, Any]
    sizes: dict[str, int]
    """What the best design changes."""
    pareto: list[dict[str, Any]] = field(repr=False)
    """No other design is better in area and EDP."""
    tried: int


def codesign(
    models: Sequence[str | Path],
    space: str | Path,
    area: float,
    *,
    seconds: float = 60.0,
    method: Method = "gradient",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    console: Console | None = None,
) -> Codesign:
    """Find the Gemmini of at most `area` mm^2 that runs all models best.

    Args:
        models: ONNX files; they count alike.
        space: YAML file with a base target and the values that sizes may have (`fadiff.design_space`).
        area: Most square millimetres.
        seconds: How long to search.
        method: How designs to try are chosen.
        seed: Seed of what the method draws.
        dims: Sizes of symbolic dimensions.
        out: Folder for the best design and all that were tried.
        force: Write over files in it.
        cache: File that keeps solved layers from one search to others.
        console: Where progress goes.

    Raises:
        InputError: the space or a model cannot be used, or no design is that small.
    """
    from fadiff.optimizer.codesign.score import Scorer, pareto
    from fadiff.optimizer.codesign.search import search
    from fadiff.optimizer.layer.solved import SolvedLayers

    console, space = console or Console(verbosity=-1), Path(space)
    described = read_space(space)
    options = named_search(described.search, space)
    designs = _designs(described, space, area)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder, force=force)
    graphs = _graphs(
        console, [Path(model) for model in models], designs, ModelOptions(dims=dims or {}), options
    )
    stage = f"searching {len(designs.feasible):,} designs of at most {area:g} mm2"
    with console.stage(stage), SolvedLayers(None if cache is None else Path(cache)) as solved:
        scorer = Scorer(graphs, designs, options, seconds, solved=solved, say=console.update)
        search(scorer, method, seed)
    if folder is not None:
        write_folder(folder, scorer)
        console.note(f"wrote {folder}")
    return Codesign(
        row_of(scorer, scorer.best),
        scorer.space.changes(scorer.best.sizes),
        [row_of(scorer, scored) for scored in pareto(scorer.found)],
        len(scorer.found),
    )


def _designs(described: DesignSpace, path: Path, limit: float) -> Designs:
    """Checked values of the sizes.

    Raises:
        InputError: a field that is no size, a value that is no size, or an area below every design's.
    """
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
    console: Console, models: Sequence[Path], designs: Designs, reading: ModelOptions, search: SearchOptions
) -> dict[str, dict[int, Graph]]:
    """What is searched, by name and array size."""
    graphs: dict[str, dict[int, Graph]] = {}
    for model in models:
        if model.stem in graphs:
            raise InputError(f"{model}: two models are called {model.stem}: rename one")
        with console.stage(f"converting {model.name}"):
            conversion = convert_with(model, reading, console, element=designs.base.element_type)
        realise = realiser(conversion, model, reading, Console(verbosity=-1))
        with console.stage("realising host operators"):
            graphs[model.stem] = {
                side: without_weights(realise(target, search).graph)
                for side, target in designs.by_side().items()
            }
    return graphs
