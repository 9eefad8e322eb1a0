"""Cycles of emitted programs on real Gemmini RTL, beside what the models predict.

Without --run, predictions are compared with the cycles in --measured (benchmarks/rtl_measured.csv: warm runs,
numbers only).  With --run, the programs that it lacks are measured: COMMAND gets a firmware folder, builds it
with -DFADIFF_PROFILE (`make profile`), runs it and prints its console.  Every program is measured as it is
emitted, with its host operators on the core if others do their work, with --instructions with the core
issuing every move and product, and with --library by the automatically tiled calls of gemmini.h.  A
program that is scheduled otherwise than when it was measured counts as missing, and is compared as `earlier`.
Rows name the SoC that was simulated and the form of the program; held-out programs are those that no model
may be fitted to.  Whole networks are programs, too, if they are named; their cycles are kept apart
(benchmarks/whole_networks).

python -m benchmarks rtl
python -m benchmarks rtl --soc dualcore-small --targets gemmini-default --run './simulate {firmware}'
python -m benchmarks rtl resnet18 --measured benchmarks/whole_networks/rtl_measured.csv
"""

from __future__ import annotations

import csv
import hashlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from scipy.stats import spearmanr

from benchmarks.command import check_known, command, listed
from benchmarks.gemmini_auto import executed, one_vector, read_with_inputs
from benchmarks.rtl_networks import NETWORKS, SECONDS, network_file
from benchmarks.rtl_programs import MORE, PROGRAMS, is_held_out, kind_of
from benchmarks.rtl_schedules import (
    SCHEDULES,
    Decisions,
    decision_of,
    read_decisions,
    recalled,
    write_decisions,
)
from benchmarks.rtl_steps import model
from fadiff.console import Console
from fadiff.converter import Conversion
from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.measurement import MeasurementError, read_profile
from fadiff.costmodel.schedule.reduced import as_instructions
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.schedule.serialize import to_document
from fadiff.costmodel.target.target import Target, load_target, target_yaml
from fadiff.emitters.gemmini import emit
from fadiff.errors import InputError
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.pipeline import ModelOptions, realiser
from fadiff.search import SearchOptions, decide
from fadiff.vectors import Arrays

MEASURED = Path(__file__).parent / "rtl_measured.csv"
TARGETS = "gemmini-default,gemmini-large"
FITTED_SOC, OTHER_SOC = "sources-2025", "dualcore-small"
"""Gemmini's sources of 2025, elaborated for both targets, whose cycles the clock was fitted to, and a public
generated SoC of 16 x 16 (docs/gemmini-h.md)."""
TIMED = {FITTED_SOC: PROGRAMS, OTHER_SOC: (*PROGRAMS, *MORE)}
"""Programs timed on each SoC."""
LIBRARY = "gemmini.h"
"""Stands for the decision where gemmini.h's automatically tiled calls decide."""
DEFAULT = "default"
"""Form of the program that `compile` makes."""
EARLIER = "earlier"
"""Form of one that it made before."""


@dataclass(frozen=True)
class Row:
    """One program on one Gemmini."""

    target: str
    program: str
    decision: str
    """Digest of the schedule, since other decisions make another program; or LIBRARY."""
    cold: int
    warm: int
    soc: str = FITTED_SOC
    """One of TIMED."""
    form: str = DEFAULT
    """What it was measured as: a name of Prepared.names, or EARLIER."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What one program is measured once for."""
        return self.soc, self.target, self.program, self.decision


COLUMNS = ("soc", "target", "kind", "use", "program", "form", "decision", "cold", "warm")
"""Of the table; `kind` and `use` (fitted, held-out or whole network) follow from the program."""


@dataclass(frozen=True)
class Prepared:
    """A program, scheduled and ready to be emitted."""

    text: str
    target: Target
    schedules: dict[str, Schedule]
    """By decision."""
    names: dict[str, str]
    """By decision: DEFAULT first; where they differ, `core`, with every host operator on the core, and
    `instructions`, with the core issuing everything; LIBRARY."""
    graph: Graph
    """As converted: every host operator on the core."""
    inputs: Arrays
    """Those of the model, one vector."""


def read_rows(path: Path) -> list[Row]:
    """The measured programs; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if any(set(line) != set(COLUMNS) for line in lines):
        raise InputError(f"{path}: needs the columns {', '.join(COLUMNS)}")
    return [
        Row(
            line["target"],
            line["program"],
            line["decision"],
            int(line["cold"]),
            int(line["warm"]),
            line["soc"],
            line["form"],
        )
        for line in lines
    ]


def use_of(program: str) -> str:
    """What a row of it is for."""
    if program in NETWORKS:
        return "network"
    return "held-out" if is_held_out(program) else "fitted"


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """The whole table, sorted, so that measuring again changes few lines."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=_place):
            writer.writerow({**asdict(row), "kind": kind_of(row.program), "use": use_of(row.program)})


def _place(row: Row) -> tuple[int, str, int, str]:
    place = (*PROGRAMS, *MORE, *NETWORKS).index(row.program)
    return list(TIMED).index(row.soc), row.target, place, row.decision


def converted(text: str, target: Target, scratch: Path) -> tuple[Conversion, Arrays]:
    """A program as ONNX file, read back; with inputs."""
    if text in NETWORKS:
        return read_with_inputs(network_file(text, scratch), target)
    path = scratch / "program.onnx"
    onnx.save(model(text), path)
    return read_with_inputs(path, target)


def prepare(
    text: str, target: Target, scratch: Path, *, instructions: bool = False, library: bool = False
) -> Prepared:
    """Export, convert and schedule one program; deterministically, but for networks."""
    conversion, inputs = converted(text, target, scratch)
    search = SearchOptions(time_budget=SECONDS) if text in NETWORKS else SearchOptions(method="exact")
    quiet = Console(verbosity=-1)

    def scheduled(graph: Graph) -> Schedule:
        return decide(replace(conversion, graph=graph), target, search, None, quiet)[1].schedule

    file = next(scratch.glob("*.onnx"))
    realised = realiser(conversion, file, ModelOptions(), quiet)(target, search).graph
    schedules = {DEFAULT: scheduled(realised)}
    if realised != conversion.graph:
        schedules["core"] = scheduled(conversion.graph)
    if instructions:
        schedules["instructions"] = as_instructions(schedules[DEFAULT])
    names = dict[str, str]()
    for name, schedule in schedules.items():
        names.setdefault(digest(schedule), name)
    found = {decision: schedules[name] for decision, name in names.items()}
    if library:
        names[LIBRARY] = LIBRARY
        found[LIBRARY] = automatic_schedule(conversion.graph, target, row_packing=True)
    vector = {name: array[:1] for name, array in inputs.items()}
    return Prepared(text, target, found, names, conversion.graph, vector)


def digest(schedule: Schedule) -> str:
    """Of everything that is decided, and of nothing that is predicted."""
    document = to_document(schedule, evaluate(schedule), generator="")
    decided = [
        layer.model_dump_json(include={"name", "op", "dims", "mapping"}, exclude={"mapping": {"by_core"}})
        + (layer.issue or "")
        for layer in document.layers
    ]
    text = "\n".join([*decided, document.fusion.model_dump_json(exclude_defaults=True)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measure(prepared: Prepared, decision: str, run: str, scratch: Path, soc: str) -> Row:
    """Emit one of the schedules, have it run, and read the profile.

    Raises:
        MeasurementError: no profile, or an output byte is not the integer reference's.
    """
    schedule = prepared.schedules[decision]
    folder = scratch / "measured"
    graph = schedule.graph
    inputs = one_vector(graph, prepared.inputs)
    expected = run_reference(graph, inputs)
    firmware = emit(
        schedule,
        model_name="program",
        out_dir=folder / "firmware",
        test_vectors={**inputs, **{name: expected[name] for name in graph.outputs}},
        library_calls=decision == LIBRARY,
    )
    (folder / "target.yaml").write_text(target_yaml(prepared.target), encoding="utf-8")
    words = [word.replace("{firmware}", str(firmware)) for word in shlex.split(run)]
    ran = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if "differs from byte" in ran.stdout + ran.stderr:
        raise MeasurementError(f"{run}: an output is not that of the integer reference")
    cost = evaluate(schedule)
    found = read_profile(
        ran.stdout + ran.stderr,
        run,
        sha256=None,
        predicted={layer.name: float(layer.latency_cycles) for layer in cost.layers},
        total=float(cost.latency_cycles),
        unit="cycles",
    )
    place = (prepared.target.name, prepared.text, decision)
    return Row(*place, found.cold, found.warm, soc, prepared.names[decision])


def _measured(
    prepared: Prepared, rows: Mapping[tuple[str, str, str, str], Row], kept: Decisions, soc: str
) -> Iterator[tuple[str, str, Schedule]]:
    """What was measured of a program: (name, decision, schedule), `earlier` where we decide otherwise now."""
    for *place, decision in rows:
        if place != [soc, prepared.target.name, prepared.text] or decision == LIBRARY:
            continue
        if decision in prepared.schedules:
            yield prepared.names[decision], decision, prepared.schedules[decision]
        elif decision in kept:
            yield EARLIER, decision, recalled(kept[decision], prepared.graph, prepared.target)


def _named(
    rows: Mapping[tuple[str, str, str, str], Row], place: tuple[str, str, str], names: Mapping[str, str]
) -> dict[tuple[str, str, str, str], Row]:
    """The rows, those of a place with the forms that their decisions have now."""
    return {
        key: replace(row, form=row.decision if row.decision == LIBRARY else names.get(row.decision, EARLIER))
        if key[:3] == place
        else row
        for key, row in rows.items()
    }


def summary(predicted: Sequence[float], functional: Sequence[float], warm: Sequence[float]) -> str:
    """Errors of both models against RTL, as key=value pairs."""
    if not warm:
        return "programs=0"
    measured = np.asarray(warm, dtype=float)
    error = np.abs(np.asarray(predicted) / measured - 1)
    ran = np.abs(np.asarray(functional) / measured - 1)
    rank = spearmanr(predicted, warm)[0] if len(warm) > 2 else float("nan")
    return (
        f"programs={len(warm)} median_error={np.median(error):.4f} p90_error={np.quantile(error, 0.9):.4f} "
        f"spearman={rank:.4f} functional_median_error={np.median(ran):.4f} "
        f"functional_p90_error={np.quantile(ran, 0.9):.4f}"
    )


def main(arguments: list[str]) -> int:
    """Measure what is missing (with --run), then compare."""
    parser = command("rtl", __doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="default: those of the SoC")
    parser.add_argument("--soc", choices=list(TIMED), default=next(iter(TIMED)), help="default: %(default)s")
    parser.add_argument("--targets", type=listed, default=TARGETS, help="comma-separated presets")
    parser.add_argument("--measured", type=Path, default=MEASURED, help=f"default: {MEASURED.name}")
    parser.add_argument("--run", metavar="COMMAND", help="measures; {firmware} is the folder to run")
    parser.add_argument("--instructions", action="store_true", help="also without hardware loops")
    parser.add_argument("--library", action="store_true", help="also by gemmini.h's tiled calls")
    options = parser.parse_args(arguments)
    soc, programs = options.soc, options.programs or TIMED[options.soc]
    check_known(programs, (*PROGRAMS, *MORE, *NETWORKS), "program")
    rows = {row.key: row for row in read_rows(options.measured)}
    schedules = options.measured.with_name(SCHEDULES.name)
    kept = read_decisions(schedules)
    predicted, functional, warm, ratios, gains = [], [], [], [], []
    missing = 0
    for target in map(load_target, options.targets):
        for text in programs:
            with tempfile.TemporaryDirectory() as scratch:
                prepared = prepare(
                    text,
                    target,
                    Path(scratch),
                    instructions=options.instructions,
                    library=options.library,
                )
                place = (soc, target.name, text)
                rows = _named(rows, place, prepared.names)
                for decision in prepared.schedules:
                    if options.run and (*place, decision) not in rows:
                        try:
                            row = measure(prepared, decision, options.run, Path(scratch), soc)
                        except MeasurementError as error:
                            print(f"not measured: {target.name} {text}: {error}", file=sys.stderr)
                            continue
                        rows[row.key] = row
                        write_rows(options.measured, rows.values())
                        if decision != LIBRARY:
                            kept[decision] = decision_of(prepared.schedules[decision])
                            write_decisions(kept, schedules)
                by_name = {name: rows.get((*place, decision)) for decision, name in prepared.names.items()}
                library, core = rows.get((*place, LIBRARY)), by_name.get("core")
                missing += by_name[DEFAULT] is None
                for name, decision, schedule in _measured(prepared, rows, kept, soc):
                    found = rows[(*place, decision)]
                    ran = executed(schedule, one_vector(schedule.graph, prepared.inputs))
                    predicted.append(sum(program_cycles(schedule).values()))
                    functional.append(ran.counts.cycles)
                    warm.append(float(found.warm))
                    ratio = ""
                    if name in (DEFAULT, EARLIER) and library is not None:
                        ratios.append(found.warm / library.warm)
                        ratio = f"ours/gemmini.h {ratios[-1]:5.2f}"
                    if name == DEFAULT and core is not None:
                        gains.append(found.warm / core.warm)
                        ratio += f" ours/core {gains[-1]:5.2f}"
                    print(
                        f"{target.name:<16} {use_of(text):<8} {kind_of(text):<18} {text:<42} {name:<12} "
                        f"rtl {found.warm:>9,} "
                        f"predicted {predicted[-1] / found.warm:5.2f} "
                        f"functional {functional[-1] / found.warm:5.2f} {ratio}",
                        flush=True,
                    )
    against = ""
    for other, shares in (("auto", ratios), ("core", gains)):
        if shares:
            mean = np.exp(np.mean(np.log(shares)))
            against += f" worst_vs_{other}={max(shares):.3f} geomean_vs_{other}={mean:.3f}"
    print(f"{summary(predicted, functional, warm)}{against} missing={missing}")
    return 0
