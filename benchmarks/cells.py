"""One cell of Table 1: every search method on one model and target, kept as JSON while it runs.

A cell is independent of all others, so cells run in any order, in several processes or on several
days; `table1` reads whatever cells there are.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.bounds import fusion_bound
from benchmarks.networks import network
from fadiff.commands.options import METHODS
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.schedule import FusionModel, Profile
from fadiff.costmodel.target.target import Target, load_target
from fadiff.errors import InputError
from fadiff.optimizer import SearchResult, optimize
from fadiff.optimizer.cut.settings import MethodName
from fadiff.optimizer.layer.candidates import Tiling

BUDGETED: tuple[MethodName, ...] = ("dosa", "genetic", "bayesian", "random")
SEEDED: tuple[MethodName, ...] = ("gradient", *BUDGETED)
OURS: MethodName = "auto"
"""What the ratios of a cell compare with everything else."""
VARIANTS = ("paper", "unpacked")
VARIED: tuple[MethodName, ...] = ("auto", "gradient", "exact", "layerwise")
Figures = dict[str, float]


class Search(NamedTuple):
    """One row of a cell: a method, maybe under the paper's fusion model or without row packing."""

    method: MethodName
    variant: str = ""

    @property
    def name(self) -> str:
        """As shown: method, or method_variant."""
        return f"{self.method}_{self.variant}" if self.variant else self.method


class Run(NamedTuple):
    """One search: EDP in uJ x cycles, seconds in all and to within 1 % of the end, proven lower bound."""

    edp: float
    seconds: float
    seconds_to_1pc: float
    lower_bound: float


@dataclass(frozen=True)
class Settings:
    """What all cells of one table share; runs are comparable only if it is equal."""

    profile: Profile = "dosa"
    tiling: Tiling = "ragged"
    row_packing: bool = True
    budget: float = 20.0
    seeds: int = 3


@dataclass
class Cell:
    """Runs by row name (one per seed), and why a row is missing."""

    model: str
    target: str
    settings: Settings
    fusion_bound: float = float("nan")
    runs: dict[str, list[Run]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    peak_mb: float = 0.0

    def path(self, folder: Path) -> Path:
        """FOLDER/MODEL-TARGET.json."""
        return folder / f"{self.model}-{self.target}.json"

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Cell:
        """Read what `save` wrote.

        Raises:
            InputError: the file is not a cell.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["settings"] = Settings(**data["settings"])
            data["runs"] = {name: [Run(*run) for run in runs] for name, runs in data["runs"].items()}
            return cls(**data)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(f"{path}: not a cell of table1: {error}") from None

    def figures(self) -> Figures:
        """Medians over seeds, and the ratios the table is about; nan where a row is missing."""

        def edp(name: str) -> float:
            runs = self.runs.get(name, [])
            return statistics.median(run.edp for run in runs) if runs else float("nan")

        ours = self.runs.get(OURS, [])
        found: Figures = {f"ratio_{m}": edp(OURS) / edp(m) for m in METHODS if m != OURS}
        found["ratio_bound"] = edp(OURS) / self.fusion_bound
        found["seconds"] = statistics.median(r.seconds for r in ours) if ours else float("nan")
        found["seconds_to_1pc"] = statistics.median(r.seconds_to_1pc for r in ours) if ours else float("nan")
        found["mapping"], found["fusion"] = edp("layerwise") / edp("dosa"), edp("exact") / edp("layerwise")
        found["fusion_paper"] = edp("exact_paper") / edp("layerwise")
        if "exact_unpacked" in self.runs:
            unpacked = edp(f"{OURS}_unpacked")
            found["ratio_layerwise_unpacked"] = unpacked / edp("layerwise_unpacked")
            found["ratio_dosa_unpacked"] = unpacked / edp("dosa")
            found["ratio_bound_unpacked"] = unpacked / self.fusion_bound
        found["peak_mb"] = self.peak_mb
        return found


def searches(
    methods: Sequence[MethodName], variants: Sequence[str], graph: Graph, target: Target
) -> list[Search]:
    """The rows of a cell; without row packing only where there is something to pack."""
    rows = [Search(method) for method in methods]
    packs = any(
        layer.dims.S > 1 and target.side >= 2 * layer.dims.C and layer.op == "conv"
        for layer in graph.tensor_core_layers
    )
    for variant in variants:
        if variant == "paper":
            rows += [Search(m, variant) for m in methods if m in ("auto", "gradient", "exact")]
        elif packs:
            rows += [Search(m, variant) for m in methods if m in VARIED]
    return rows


def run_cell(
    model: str,
    target_name: str,
    settings: Settings,
    methods: Sequence[MethodName],
    variants: Sequence[str],
    folder: Path,
) -> Cell:
    """Search with every method, saving after each; a method that fails leaves an error, not a hole.

    Rows that FOLDER has of an earlier run with equal settings are kept unless searched again.

    Raises:
        InputError: no such model, or FOLDER has a file that is not a cell.
        TargetError: no such target.
    """
    cell = Cell(model, target_name, settings)
    graph, target = network(model), load_target(target_name)
    cell.fusion_bound = fusion_bound(graph, target, settings.profile)
    if not settings.row_packing:
        variants = [v for v in variants if v != "unpacked"]
    rows = searches(methods, variants, graph, target)
    known = cell.path(folder)
    if known.exists() and (before := Cell.load(known)).settings == settings:
        again = {row.name for row in rows}
        cell.runs = {name: runs for name, runs in before.runs.items() if name not in again}
    for row in rows:
        seeds = settings.seeds if row.method in SEEDED and not row.variant else 1
        for seed in range(seeds):
            try:
                run = _search(graph, target, settings, row, seed)
            except (ScheduleError, ValueError, ImportError, MemoryError) as error:
                cell.errors[row.name] = str(error)
                break
            cell.runs.setdefault(row.name, []).append(run)
            cell.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            cell.save(folder)
    cell.save(folder)
    return cell


def _search(graph: Graph, target: Target, settings: Settings, row: Search, seed: int) -> Run:
    model: FusionModel = "paper" if row.variant == "paper" else "sound"
    found = optimize(
        graph,
        target,
        profile=settings.profile,
        method=row.method,
        fusion_model=model,
        tiling=settings.tiling,
        row_packing=settings.row_packing and row.variant != "unpacked",
        seed=seed,
        time_budget=settings.budget if row.method in BUDGETED else None,
    )
    return Run(found.cost.edp_uj_cycles, found.seconds, seconds_to(trace_of(found), 1.01), found.lower_bound)


Trace = list[tuple[float, float]]


def trace_of(result: SearchResult) -> Trace:
    """(seconds, best EDP so far), ending with the returned schedule."""
    points = [(point.seconds, point.best_edp) for point in result.history]
    return [*points, (result.seconds, result.cost.edp_uj_cycles)]


def seconds_to(trace: Trace, factor: float) -> float:
    """When the trace is first within `factor` of its end."""
    return next(seconds for seconds, edp in trace if edp <= factor * trace[-1][1])


def show(cell: Cell) -> str:
    """A block per cell; the last line is `key=value`."""
    lines = [f"{cell.model} on {cell.target}: EDP in uJ x cycles, median of seeds (least - most)"]
    for name, runs in cell.runs.items():
        edp = sorted(run.edp for run in runs)
        spread = f"({edp[0]:.4g} - {edp[-1]:.4g})" if len(edp) > 1 else ""
        seconds = statistics.median(run.seconds for run in runs)
        lines.append(f"  {name:<20}{statistics.median(edp):12.4g} {seconds:8.1f} s  {spread}".rstrip())
    lines += [f"  {name:<20} failed: {error}" for name, error in cell.errors.items()]
    lines.append(key_values(cell))
    return "\n".join(lines)


def key_values(cell: Cell) -> str:
    """model=... target=... and every figure."""
    figures = " ".join(f"{name}={value:.4f}" for name, value in cell.figures().items())
    return f"model={cell.model} target={cell.target} {figures}"


def table_rows(cells: Sequence[Cell]) -> list[Mapping[str, object]]:
    """One row per cell for the CSV: medians, spread over seeds, figures, errors."""
    rows: list[Mapping[str, object]] = []
    for cell in cells:
        row: dict[str, object] = {"model": cell.model, "target": cell.target, **asdict(cell.settings)}
        for name, runs in cell.runs.items():
            edp = [run.edp for run in runs]
            row[name] = statistics.median(edp)
            row[f"{name}_least"], row[f"{name}_most"] = min(edp), max(edp)
            row[f"{name}_seconds"] = statistics.median(run.seconds for run in runs)
        row |= cell.figures()
        row["errors"] = "; ".join(f"{name}: {error}" for name, error in cell.errors.items())
        rows.append(row)
    return rows
