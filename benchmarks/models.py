"""Every sample network from export to verified C, on every preset target.

Exports each network at test size with both torch exporters, compiles it with a short search, runs the
C on the functional model, and prints one line per network, exporter and target: layers, multiply-
accumulates (whole kernels) against torch's own count, layers that agree with the reference (bit for bit;
float32 within 1e-5), bytes moved against predicted, top-1 against ONNX Runtime's quantised model, SQNR
against the float model, EDP, seconds by stage, time of the C compiler and size of the C.  The last line
says how many passed, the largest float32 error of a layer relative to its largest value, and the longest
emission and C compilation.  Exits 1 when any line fails.

python -m benchmarks models
python -m benchmarks models --targets gemmini-fp32 --exporters torchscript --vectors 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import check_known, command, listed
from benchmarks.exports import EXPORTERS, Exporter, exported, independent_macs
from fadiff.console import Console
from fadiff.converter import Conversion, Graph, convert
from fadiff.costmodel.target.target import Target, load_target, preset_names
from fadiff.emulator import VerifyReport, verify
from fadiff.emulator.build import build_firmware
from fadiff.folder import OutputFolder
from fadiff.pipeline import (
    ModelOptions,
    TimeloopOptions,
    read_model,
    write_folder,
)
from fadiff.samples.catalog import SAMPLES
from fadiff.search import SearchOptions, decide
from fadiff.solved import Solved, describe_search, front_end_record
from fadiff.vectors import TestVectors, make_vectors

HEADER = (
    f"{'network':<16} {'exporter':<11} {'target':<15} {'layers':>6} {'array':>5} {'MMAC':>8} {'MACs':>5} "
    f"{'agree':>8} {'bytes':>6} {'DRAM MB':>8} {'top-1':>6} {'SQNR':>5} {'EDP':>9} "
    f"{'read':>5} {'search':>6} {'emit':>5} {'verify':>6} {'cc':>5} {'C KB':>6}"
)


@dataclass
class Seconds:
    """Wall-clock time by stage."""

    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        yield
        self.stages[stage] = time.perf_counter() - start


@dataclass(frozen=True)
class Network:
    """An exported and converted sample."""

    name: str
    exporter: Exporter
    conversion: Conversion
    inputs: Path
    macs: int
    """Of our layers with whole kernels, before drop-padding-taps."""
    torch_macs: int


@dataclass(frozen=True)
class Line:
    """What became of one network on one target."""

    network: Network
    target: str
    graph: Graph
    report: VerifyReport
    edp: float
    seconds: dict[str, float]
    source_bytes: int
    """C and headers, without weights."""

    @property
    def macs_equal(self) -> bool:
        """Whether our layers do the work that torch counted."""
        return self.network.macs == self.network.torch_macs

    @property
    def passed(self) -> bool:
        """Right numbers, predicted bytes, the meaning of the model and the work torch counted."""
        return self.report.passed and self.macs_equal

    @property
    def relative_error(self) -> float:
        """Largest of a float32 layer, relative to its largest value; 0 for int8, which has to be exact."""
        errors = [layer.max_relative_error or 0.0 for layer in self.report.compared]
        return max(errors, default=0.0) if self.report.tolerance else 0.0

    def __str__(self) -> str:
        compared = [layer.agrees for layer in self.report.compared]
        agree = f"{sum(map(bool, compared))}/{len(compared)}"
        moved = self.report.measured.dram_bytes if self.report.measured else 0
        top1 = _or_dash(self.report.top1_agreement, lambda share: f"{100 * share:.0f} %")
        sqnr = _or_dash(self.report.sqnr_db, lambda decibels: f"{decibels:.1f}")
        spent = " ".join(
            f"{self.seconds[stage]:{width}.1f}"
            for stage, width in (("read", 5), ("search", 6), ("emit", 5), ("verify", 6), ("cc", 5))
        )
        return (
            f"{self.network.name:<16} {self.network.exporter:<11} {self.target:<15} "
            f"{len(self.graph.layers):>6} {len(self.graph.tensor_core_layers):>5} "
            f"{self.network.macs / 1e6:>8.1f} {'equal' if self.macs_equal else 'DIFF':>5} "
            f"{agree:>8} "
            f"{'equal' if self.report.traffic_exact else 'DIFF':>6} {moved / 1e6:>8.2f} "
            f"{top1:>6} {sqnr:>5} {self.edp:>9.3e} {spent} {self.source_bytes / 1024:>6.0f}"
            + ("" if self.passed else f"  FAILED: {_why(self)}")
        )


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _why(line: Line) -> str:
    report = line.report
    if report.error:
        return report.error
    if report.first_divergence:
        return f"first divergence {report.first_divergence}"
    if not report.traffic_exact:
        return "bytes of " + ", ".join(layer.name for layer in report.layers if not layer.traffic_exact)
    if not report.meaning_kept:
        return f"{report.runtime_sqnr_db:.1f} dB against ONNX Runtime's quantised model"
    return f"{line.network.macs} multiply-accumulates, torch {line.network.torch_macs}"


def read(name: str, exporter: Exporter, target: Target, exports: Path) -> Network:
    """Export (unless that is done) and convert a sample."""
    path = exported(name, exporter, exports)
    conversion = read_model(path, target, ModelOptions(), Console(verbosity=-1))
    whole = convert(path, calibrate=False, without=["drop-padding-taps"])
    macs = sum(layer.macs for layer in whole.graph.tensor_core_layers)
    inputs = path.with_suffix(".inputs.npz")
    return Network(name, exporter, conversion, inputs, macs, independent_macs(name))


def run(network: Network, target: Target, count: int, search: SearchOptions, seconds: Seconds) -> Line:
    """Compile and verify a converted network on `count` of its vectors."""
    quiet = Console(verbosity=-1)
    with seconds.of("search"):
        conversion, found = decide(network.conversion, target, search, "gemmini-auto", quiet)
    vectors = first(make_vectors(conversion, network.inputs, seed=0), count)
    with tempfile.TemporaryDirectory(prefix="fadiff-models-") as scratch:
        folder = OutputFolder(Path(scratch) / network.name)
        folder.path.mkdir()
        with seconds.of("emit"):
            document = describe_search(found, front_end_record(vectors, quiet))
            write_folder(folder, Solved(found.schedule, document, vectors), quiet, TimeloopOptions())
        with seconds.of("verify"):
            report = verify(folder.path)
        with seconds.of("cc"):
            build_firmware(folder.firmware, target, Path(scratch))
        source = sum(path.stat().st_size for path in folder.firmware.glob("*.[ch]"))
    edp = document.totals.edp_uj_cycles
    return Line(network, target.name, conversion.graph, report, edp, dict(seconds.stages), source)


def first(vectors: TestVectors, count: int) -> TestVectors:
    """Only the first vectors."""
    return TestVectors(
        vectors.conversion,
        {name: array[:count] for name, array in vectors.onnx_inputs.items()},
        {name: array[:count] for name, array in vectors.stored_inputs.items()},
    )


def main(arguments: list[str]) -> int:
    """Print the table; 1 when a line failed."""
    parser = command("models", __doc__)
    parser.add_argument(
        "--models", type=listed, default=",".join(SAMPLES), help="comma-separated (default: all samples)"
    )
    parser.add_argument("--targets", type=listed, default=",".join(preset_names()))
    parser.add_argument("--exporters", type=listed, default=",".join(EXPORTERS))
    parser.add_argument("--method", default="auto")
    parser.add_argument("--time-budget", type=float, default=5.0, help="seconds of search per line")
    parser.add_argument("--vectors", type=int, default=2, help="test vectors per line (at most 16)")
    parser.add_argument("--exports", type=Path, help="folder that keeps the exported models")
    options = parser.parse_args(arguments)
    check_known(options.models, SAMPLES, "network")
    check_known(options.exporters, EXPORTERS, "exporter")
    targets = [load_target(name) for name in options.targets]
    search = SearchOptions(method=options.method, time_budget=options.time_budget)
    print(HEADER, flush=True)
    start, done = time.perf_counter(), list[Line | None]()
    with tempfile.TemporaryDirectory(prefix="fadiff-exports-") as scratch:
        for name in options.models:
            for exporter in options.exporters:
                done += _lines(name, exporter, targets, options, search, Path(scratch))
    lines = [line for line in done if line is not None]
    passed = sum(line.passed for line in lines)
    print(
        f"models={len(done)} passed={passed} failed={len(done) - passed} "
        f"largest_relative_error={max((line.relative_error for line in lines), default=0.0):.1e} "
        f"longest_emit={max((line.seconds['emit'] for line in lines), default=0.0):.1f} "
        f"longest_cc={max((line.seconds['cc'] for line in lines), default=0.0):.1f} "
        f"seconds={time.perf_counter() - start:.0f}"
    )
    return 1 if passed < len(done) else 0


def _lines(
    name: str,
    exporter: Exporter,
    targets: list[Target],
    options: argparse.Namespace,
    search: SearchOptions,
    scratch: Path,
) -> Iterator[Line | None]:
    """Print the lines of one exported network.  A crash is a failed line: None."""
    networks: dict[str, Network] = {}
    seconds = Seconds()
    for target in targets:
        try:
            if target.element_type not in networks:
                with seconds.of("read"):
                    networks[target.element_type] = read(name, exporter, target, options.exports or scratch)
            line = run(networks[target.element_type], target, options.vectors, search, seconds)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            print(
                f"{name:<16} {exporter:<11} {target.name:<15} FAILED: {type(error).__name__}: {error}",
                flush=True,
            )
            yield None
        else:
            print(line, flush=True)
            yield line
