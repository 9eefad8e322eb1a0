"""`codesign`: the hardware and the schedules of some models together, within an area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fadiff.codesign_output import check_folder, row_of, write_folder
from fadiff.console import Console
from fadiff.costmodel.nests.machine import Machine
from fadiff.design_space import DesignSpace, base_hardware, named_search, read_space, without_weights
from fadiff.errors import InputError
from fadiff.pipeline import ModelOptions, convert_with, realiser

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.target.target import Target
    from fadiff.design_space import Search
    from fadiff.optimizer.codesign.designs import Designs, Gemminis
    from fadiff.optimizer.codesign.score import Scorer
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
    method: Method | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Codesign:
    """Find the hardware of at most `area` mm^2 that runs all models best.

    Args:
        models: ONNX files; they count alike.
        space: YAML file with a base, a Gemmini or a machine of `fadiff map`, and the values that sizes may
            have (`fadiff.design_space`).
        area: Most square millimetres.
        seconds: How long to search.
        method: How designs to try are chosen; None: of Gemminis `local`, of other machines `gradient`.
        seed: Seed of what the method draws.
        dims: Sizes of symbolic dimensions.
        out: Folder for the best design and all that were tried.
        force: Write over files in it.
        console: Where progress goes.

    Raises:
        InputError: the space or a model cannot be used, or no design is that small.
    """
    from fadiff.optimizer.codesign.score import pareto
    from fadiff.optimizer.codesign.search import SEARCHES, obstacle_to_method, search

    console, space, files = console or Console(verbosity=-1), Path(space), [Path(model) for model in models]
    described = read_space(space)
    base = base_hardware(described, space)
    designs = _designs(described, base, space, area)
    able = [name for name in SEARCHES if not obstacle_to_method(designs, name)]
    method = method or able[0]
    if reason := obstacle_to_method(designs, method):
        raise InputError(f"--{reason}")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder, force=force)
    if twice := [file for at, file in enumerate(files) if file.stem in {f.stem for f in files[:at]}]:
        raise InputError(f"{twice[0]}: two models are called {twice[0].stem}: rename one")
    options, reading = named_search(described.search, space, base), ModelOptions(dims=dims or {})
    scorer = _scorer(console, files, designs, options, reading, seconds)
    with console.stage(f"searching {len(designs.feasible):,} designs of at most {area:g} mm2"):
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


def _designs(described: DesignSpace, base: Target | Machine, path: Path, limit: float) -> Designs[Any]:
    """Checked values of the sizes.

    Raises:
        InputError: a field that is no size, a value that is no size, or an area below every design's.
    """
    from fadiff.costmodel.nests.sizes import sizes_of
    from fadiff.optimizer.codesign.designs import NAMES, Gemminis, Machines

    known = list(sizes_of(base)) if isinstance(base, Machine) else list(NAMES)
    values: dict[str, tuple[int, ...]] = {}
    for name, listed in described.vary.items():
        if name not in known:
            raise InputError(f"{path}: vary.{name}: codesign chooses only {', '.join(known)}")
        for value in listed:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{path}: vary.{name}: {value!r} is no positive whole number")
        values[name] = tuple(sorted({int(value) for value in listed}))
    designs: Designs[Any] = (
        Machines(base, values, described.area, limit)
        if isinstance(base, Machine)
        else Gemminis(base, values, described.area, limit)
    )
    if not designs.feasible:
        least = designs.least_area()
        known_least = (
            f"the smallest has {least:.3f} mm2" if least is not None else "no combination is a Gemmini"
        )
        raise InputError(f"--area {limit:g}: no design of {path} is that small: {known_least}")
    return designs


def _scorer(
    console: Console,
    models: Sequence[Path],
    designs: Designs[Any],
    options: Search,
    reading: ModelOptions,
    seconds: float,
) -> Scorer[Any]:
    """All models converted; its time begins now."""
    from fadiff.optimizer.codesign.designs import Gemminis, Machines
    from fadiff.optimizer.codesign.score import GemminiScorer, MachineScorer
    from fadiff.optimizer.mapping_methods import MapOptions

    if isinstance(designs, Machines) and isinstance(options, MapOptions):
        graphs = {}
        for model in models:
            with console.stage(f"converting {model.name}"):
                conversion = convert_with(model, reading, console, calibrate=False)
            graphs[model.stem] = without_weights(conversion.graph)
        return MachineScorer(graphs, designs, options, seconds, say=console.update)
    assert isinstance(designs, Gemminis) and not isinstance(options, MapOptions)
    forms = {model.stem: _forms(console, model, designs, reading, options) for model in models}
    return GemminiScorer(forms, designs, options, seconds, say=console.update)


def _forms(
    console: Console, model: Path, designs: Gemminis, reading: ModelOptions, search: SearchOptions
) -> dict[int, Graph]:
    """What is searched, by array size."""
    with console.stage(f"converting {model.name}"):
        conversion = convert_with(model, reading, console, element=designs.base.element_type)
    realise = realiser(conversion, model, reading, Console(verbosity=-1))
    with console.stage("realising host operators"):
        return {
            side: without_weights(realise(target, search).graph) for side, target in designs.by_side().items()
        }
