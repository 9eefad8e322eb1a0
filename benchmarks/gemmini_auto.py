"""Emitted schedules against gemmini.h's automatically tiled calls, both run on the functional model.

python -m benchmarks gemmini_auto build/resnet18.onnx build/mobilenetv1.onnx --target gemmini-default
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from converter.graph import Graph
from costmodel.schedule import Schedule
from costmodel.target import Target, load_target
from emitters.gemmini import emit
from emulator.build import build_firmware
from emulator.run import Firmware
from optimizer import optimize


@dataclass(frozen=True)
class Measured:
    """One network run once on the functional model."""

    dram_bytes: int
    instructions: int
    cycles: float
    dram_energy_uj: float
    exact: bool
    """Every tensor equal to the integer reference in ONNX Runtime."""

    @property
    def edp(self) -> float:
        """DRAM energy times estimated cycles, uJ x cycles: what the two programs differ in."""
        return self.dram_energy_uj * self.cycles


def run(schedule: Schedule, *, library_calls: bool) -> Measured:
    """Emit, build, run, compare."""
    from converter.reference import integer_reference, reference_session

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
    counts = result.counts
    moved = counts.dram_read + counts.dram_written
    executed = sum(counts.instructions.values())
    return Measured(
        moved,
        executed,
        counts.cycles,
        moved * target.energy.dram_byte * 1e-6,
        all(np.array_equal(result.tensors[name], expected[name]) for name in graph.outputs),
    )


def _inputs(graph: Graph) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    return {
        name: numbers.integers(-128, 128, graph.tensors[name].shape).astype(graph.tensors[name].dtype)
        for name in graph.inputs
    }


def compare(graph: Graph, target: Target, method: str, seconds: float) -> tuple[Measured, Measured]:
    """(ours, gemmini.h's)."""
    ours = optimize(graph, target, method=method, time_budget=seconds).schedule  # type: ignore[arg-type]
    # The library tiles its calls itself: any legal schedule will do to emit them.
    auto = optimize(graph, target, method="layerwise").schedule
    return run(ours, library_calls=False), run(auto, library_calls=True)


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", "target_name", default="gemmini-default", show_default=True)
@click.option("--method", default="gradient", show_default=True, help="How our schedule is searched.")
@click.option("--time-budget", "seconds", default=60.0, show_default=True)
def command(models: tuple[Path, ...], target_name: str, method: str, seconds: float) -> None:
    """One line per model."""
    from converter.pipeline import convert

    target = load_target(target_name)
    columns = ("DRAM bytes", "instructions", "cycles", "DRAM EDP")
    click.echo(f"{'model':<16}" + "".join(f"{c + ' ours / auto':>38}" for c in columns) + "  exact")
    for path in models:
        samples = path.with_suffix(".calibration.npz")
        graph = convert(path, calibration=samples if samples.exists() else None).graph
        ours, auto = compare(graph, target, method, seconds)
        pairs = (
            (ours.dram_bytes, auto.dram_bytes),
            (ours.instructions, auto.instructions),
            (ours.cycles, auto.cycles),
            (ours.edp, auto.edp),
        )
        cells = "".join(f"{f'{a:.4g} / {b:.4g} = {a / b:.3f}':>38}" for a, b in pairs)
        click.echo(f"{graph.name:<16}{cells}  {ours.exact}/{auto.exact}")


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code."""
    try:
        command.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    return 0
