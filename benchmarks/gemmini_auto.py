"""Our schedules against gemmini.h's automatically tiled calls: what a user would write by hand.

Both programs run on the functional model.  MODEL is an ONNX file or the name of a sample network, which
is then exported at test size.  Per model and target: DRAM bytes, executed instructions, estimated cycles
and EDP (energy of the measured DRAM and tile-buffer bytes and of the multiply-accumulates times the
estimated cycles), ours / gemmini.h's.  Exits 1 when an output differs from the integer reference or ours
moves more bytes than the library's calls.

python -m benchmarks gemmini_auto resnet18 mobilenetv1 model.onnx --targets gemmini-default
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.test_size import exported
from converter import Conversion, Graph
from converter.reference import integer_reference, reference_session
from costmodel.schedule import Schedule
from costmodel.target import Target, load_target
from emitters.gemmini import emit
from emulator.build import build_firmware
from emulator.run import Firmware
from fadiff.console import Console
from fadiff.pipeline import ModelOptions, SearchOptions, find_schedule_and_siblings, limit_traffic, read_model
from optimizer.baselines.gemmini_auto import automatic_schedule
from samples.catalog import SAMPLES

TARGETS = ("gemmini-default", "gemmini-large", "gemmini-small")


@dataclass(frozen=True)
class Measured:
    """One network run once on the functional model."""

    dram_bytes: int
    instructions: int
    cycles: float
    energy_uj: float
    """Of DRAM, tile buffer and multiply-accumulates, which both programs are measured by."""
    exact: bool
    """Every graph output equal to the integer reference in ONNX Runtime."""

    @property
    def edp(self) -> float:
        """uJ x estimated cycles."""
        return self.energy_uj * self.cycles


def run(schedule: Schedule, *, library_calls: bool) -> Measured:
    """Emit, build, run, compare."""
    graph, target = schedule.graph, schedule.target
    inputs = _inputs(graph)
    session = reference_session(integer_reference(graph))
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        folder = emit(
            schedule, model_name=graph.name, out_dir=Path(scratch) / "firmware", library_calls=library_calls
        )
        built = build_firmware(folder, target, Path(scratch))
        result = Firmware(folder, built, target).run(inputs)
    counts, energy = result.counts, target.energy
    picojoules = (
        counts.dram_bytes * energy.dram_byte
        + counts.tile_buffer_bytes * target.tile_buffer_byte_pj
        + counts.macs * energy.mac
    )
    return Measured(
        counts.dram_bytes,
        sum(counts.instructions.values()),
        counts.cycles,
        picojoules * 1e-6,
        all(np.array_equal(result.tensors[name], expected[name]) for name in graph.outputs),
    )


def _inputs(graph: Graph) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    return {
        name: numbers.integers(-128, 128, graph.tensors[name].shape).astype(graph.tensors[name].dtype)
        for name in graph.inputs
    }


def compare(
    conversion: Conversion, target: Target, search: SearchOptions
) -> tuple[Measured, Measured | None]:
    """(ours, gemmini.h's or None where the library ends the program because nothing fits)."""
    quiet = Console(verbosity=-1)
    merged, found = find_schedule_and_siblings(conversion, target, search, quiet)
    _, found = limit_traffic(merged, found, "gemmini-auto", search, quiet)
    # The library tiles its calls itself: these tiles only have to be legal.
    automatic = automatic_schedule(conversion.graph, target, row_packing=search.row_packing)
    ours = run(found.schedule, library_calls=False)
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # the library calls exit()
        try:
            return ours, apart.submit(run, automatic, library_calls=True).result()
        except BrokenProcessPool:
            return ours, None


def main(arguments: list[str]) -> int:
    """Print the table; 1 when a program is wrong or ours moves more bytes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gemmini_auto",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: every sample network")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated presets or files")
    parser.add_argument("--method", default="gradient", help="how our schedule is searched")
    parser.add_argument("--time-budget", type=float, default=60.0, help="seconds of search per line")
    parser.add_argument("--exports", type=Path, help="folder that keeps the exported sample networks")
    options = parser.parse_args(arguments)
    targets = [load_target(name) for name in options.targets.split(",")]
    search = SearchOptions(method=options.method, time_budget=options.time_budget)
    columns = ("DRAM bytes", "instructions", "cycles", "EDP")
    print(f"{'model':<18} {'target':<15}" + "".join(f"{c:>32}" for c in columns) + "  exact", flush=True)
    start, ratios, wrong = time.perf_counter(), [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models or SAMPLES:
            path = _file(model, options.exports or Path(scratch))
            conversion = read_model(path, targets[0], ModelOptions(), Console(verbosity=-1))
            for target in targets:
                ours, auto = compare(conversion, target, search)
                if auto is None:
                    print(f"{path.stem:<18} {target.name:<15} gemmini.h finds no tile that fits", flush=True)
                    wrong += not ours.exact
                    continue
                _print_line(conversion.graph, target, ours, auto)
                ratios.append(ours.dram_bytes / auto.dram_bytes)
                wrong += not (ours.exact and auto.exact)
    if not ratios:
        print(f"lines=0 wrong={wrong}")
        return 1
    more = sum(ratio > 1 for ratio in ratios)
    mean = float(np.exp(np.mean(np.log(ratios))))
    print(
        f"lines={len(ratios)} wrong={wrong} more_bytes={more} largest_ratio={max(ratios):.3f} "
        f"geometric_mean={mean:.3f} seconds={time.perf_counter() - start:.0f}"
    )
    return 1 if wrong or more else 0


def _file(model: str, exports: Path) -> Path:
    return exported(model, "torchscript", exports) if model in SAMPLES else Path(model)


def _print_line(graph: Graph, target: Target, ours: Measured, auto: Measured) -> None:
    pairs = (
        (ours.dram_bytes, auto.dram_bytes),
        (ours.instructions, auto.instructions),
        (ours.cycles, auto.cycles),
        (ours.edp, auto.edp),
    )
    cells = "".join(f"{f'{a:.4g} / {b:.4g} = {a / b:.3f}':>32}" for a, b in pairs)
    print(f"{graph.name.split('.')[0]:<18} {target.name:<15}{cells}  {ours.exact}/{auto.exact}", flush=True)
