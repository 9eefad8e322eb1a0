"""Our schedules against gemmini.h's automatically tiled calls: what a user would write by hand.

Both programs run on the functional model.  MODEL is an ONNX file or the name of a sample network, which
is then exported at test size, or with images of --image-size pixels.  Per model and target: DRAM bytes,
executed instructions, estimated cycles and EDP (energy of the measured DRAM and tile-buffer bytes and of
the multiply-accumulates times the estimated cycles), ours / gemmini.h's; geometric means last.  Exits 1
when an output differs from the integer reference or ours moves more bytes than the library's calls.

python -m benchmarks gemmini_auto
python -m benchmarks gemmini_auto --image-size 224 --targets gemmini-default
python -m benchmarks gemmini_auto resnet18 mobilenetv1 model.onnx --targets gemmini-default
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.command import command, listed
from benchmarks.exports import exported
from fadiff.console import Console
from fadiff.converter import Conversion, Graph
from fadiff.converter.check.reference import run_reference
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import build_firmware
from fadiff.emulator.run import Firmware, RunResult
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.pipeline import ModelOptions, read_model
from fadiff.samples.catalog import SAMPLES
from fadiff.search import SearchOptions, decide
from fadiff.vectors import Arrays, make_vectors, stored_inputs

TARGETS = "gemmini-default,gemmini-large,gemmini-small"
COLUMNS = ("DRAM bytes", "instructions", "cycles", "EDP")


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
    def figures(self) -> tuple[float, ...]:
        """Those of COLUMNS; EDP in uJ x estimated cycles."""
        return self.dram_bytes, self.instructions, self.cycles, self.energy_uj * self.cycles


def executed(schedule: Schedule, inputs: Arrays, *, library_calls: bool = False) -> RunResult:
    """Emit, build, run; `inputs` as the device stores them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = emit(
            schedule,
            model_name=schedule.graph.name,
            out_dir=Path(scratch) / "firmware",
            library_calls=library_calls,
        )
        built = build_firmware(folder, schedule.target, Path(scratch), "-O0")  # (it runs once)
        return Firmware(folder, built, schedule.target).run(inputs)


def run(schedule: Schedule, inputs: Arrays, *, library_calls: bool) -> Measured:
    """Execute and compare; `inputs` as the device stores them."""
    graph, target = schedule.graph, schedule.target
    expected = run_reference(graph, inputs)
    result = executed(schedule, inputs, library_calls=library_calls)
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


def compare(
    conversion: Conversion, inputs: Arrays, target: Target, search: SearchOptions
) -> tuple[Measured, Measured | None]:
    """(ours, gemmini.h's or None where the library ends the program because nothing fits).

    `inputs` are the model's, one vector each.
    """
    _, found = decide(conversion, target, search, "gemmini-auto", Console(verbosity=-1))
    # The library tiles its calls itself: these tiles only have to be legal.
    automatic = automatic_schedule(conversion.graph, target, row_packing=search.row_packing)
    ours = run(found.schedule, one_vector(found.schedule.graph, inputs), library_calls=False)
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # the library calls exit()
        # What fails in this line is no exit() of the library's.
        stored = apart.submit(one_vector, automatic.graph, inputs).result()
        try:
            return ours, apart.submit(run, automatic, stored, library_calls=True).result()
        except BrokenProcessPool:
            return ours, None


def one_vector(graph: Graph, inputs: Arrays) -> Arrays:
    """The first of the model's `inputs`, as the device stores it."""
    return {name: array[0] for name, array in stored_inputs(graph, inputs).items()}


def main(arguments: list[str]) -> int:
    """Print the table; 1 when a program is wrong or ours moves more bytes."""
    parser = command("gemmini_auto", __doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: every sample network")
    parser.add_argument("--targets", type=listed, default=TARGETS, help="comma-separated presets or files")
    parser.add_argument("--method", default="auto", help="how our schedule is searched")
    parser.add_argument("--time-budget", type=float, default=60.0, help="seconds of search per line")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="of the sample networks on images")
    parser.add_argument("--exports", type=Path, help="folder that keeps the exported sample networks")
    options = parser.parse_args(arguments)
    targets = [load_target(name) for name in options.targets]
    search = SearchOptions(method=options.method, time_budget=options.time_budget)
    print(f"{'model':<18} {'target':<15}" + "".join(f"{c:>32}" for c in COLUMNS) + "  exact", flush=True)
    start, lines, wrong = time.perf_counter(), [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models or image_samples(options.image_size):
            path = model_file(model, options.exports or Path(scratch), options.image_size)
            conversion, inputs = read_with_inputs(path, targets[0])
            for target in targets:
                ours, auto = compare(conversion, {n: a[:1] for n, a in inputs.items()}, target, search)
                if auto is None:
                    print(f"{path.stem:<18} {target.name:<15} gemmini.h finds no tile that fits", flush=True)
                    wrong += not ours.exact
                    continue
                _print_line(conversion.graph, target, ours, auto)
                lines.append([a / b for a, b in zip(ours.figures, auto.figures, strict=True)])
                wrong += not (ours.exact and auto.exact)
    if not lines:
        print(f"lines=0 wrong={wrong}")
        return 1
    largest, means = np.max(lines, axis=0), np.exp(np.mean(np.log(lines), axis=0))
    more = sum(line[0] > 1 for line in lines)
    names = [name.lower().replace("dram ", "") for name in COLUMNS]
    print(
        f"lines={len(lines)} wrong={wrong} more_bytes={more} "
        + " ".join(f"{name}={mean:.3f}" for name, mean in zip(names, means, strict=True))
        + "".join(f" largest_{name}={most:.3f}" for name, most in zip(names, largest, strict=True))
        + f" seconds={time.perf_counter() - start:.0f}"
    )
    return 1 if wrong or more else 0


def image_samples(image_size: int | None) -> list[str]:
    """All, or those whose images may have any size."""
    return [name for name in SAMPLES if image_size is None or "image_size" in SAMPLES[name].defaults]


def model_file(model: str, exports: Path, image_size: int | None) -> Path:
    """`model`, or the sample network of that name, exported to `exports`."""
    return exported(model, "torchscript", exports, image_size) if model in SAMPLES else Path(model)


def read_with_inputs(path: Path, target: Target) -> tuple[Conversion, Arrays]:
    """A model and vectors for it: those of the file beside it, or random ones."""
    conversion = read_model(path, target, ModelOptions(), Console(verbosity=-1))
    beside = path.with_suffix(".inputs.npz")
    vectors = make_vectors(conversion, beside if beside.is_file() else None, seed=0)
    return conversion, vectors.onnx_inputs


def _print_line(graph: Graph, target: Target, ours: Measured, auto: Measured) -> None:
    cells = "".join(
        f"{f'{a:.4g} / {b:.4g} = {a / b:.3f}':>32}" for a, b in zip(ours.figures, auto.figures, strict=True)
    )
    print(f"{graph.name.split('.')[0]:<18} {target.name:<15}{cells}  {ours.exact}/{auto.exact}", flush=True)
