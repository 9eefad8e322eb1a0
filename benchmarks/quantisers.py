"""Our int8 beside ONNX Runtime's static one (per tensor, per channel), over three draws of calibration data.

FOLDER has files NAME.onnx (float models), NAME.calibration.npz, whose thirds are the draws, and
NAME.inputs.npz, which measures: arrays by input, samples along the first axis.  What is measured is the worst
part of the worst output, in dB.  A network is behind where its mean is more than half a dB below the better
of ONNX Runtime's.

python -m benchmarks quantisers FOLDER --only go1,yunet
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.command import check_known, command, listed
from fadiff.contenders import Outputs, float_outputs, our_outputs, runtime_outputs
from fadiff.converter import Conversion, convert
from fadiff.converter.check.noise import noise_of, parts_of

DRAWS = 3
BEHIND_DB = 0.5
CONTENDERS = ("ours", "per tensor", "per channel")


def main(arguments: list[str]) -> int:
    """Print the table; 1 if some network is behind."""
    parser = command("quantisers", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=listed, default=[], help="these networks")
    options = parser.parse_args(arguments)
    known = sorted(path.name.removesuffix(".inputs.npz") for path in options.folder.glob("*.inputs.npz"))
    check_known(options.only, known, "network")
    behind = []
    print(
        "| network | samples | ours (each draw) | ONNX Runtime per tensor | per channel | agree | distinct |"
    )
    print("|---|---:|---|---:|---:|---|---|")
    for name in options.only or known:
        started = time.process_time()
        found = [measured(options.folder, name, draw) for draw in range(DRAWS)]
        decibels = np.array([[run[label][0] for label in CONTENDERS] for run in found])
        ours, *others = decibels.mean(0)
        if ours < max(others) - BEHIND_DB:
            behind.append(name)
        each = ", ".join(f"{value:.1f}" for value in decibels[:, 0])
        agree, distinct = (
            " / ".join(f"{np.mean([run[label][i] for run in found]):.{digits}f}" for label in CONTENDERS)
            for i, digits in ((1, 1), (2, 0))
        )
        print(
            f"| {name} | {_count(options.folder, name)} | {ours:.1f} ({each}) | {others[0]:.1f} "
            f"| {others[1]:.1f} | {agree} % | {distinct} | {time.process_time() - started:.0f} s",
            flush=True,
        )
    print(f"behind: {', '.join(behind) or 'none'}")
    return int(bool(behind))


def _count(folder: Path, name: str) -> str:
    calibration, tests = (
        len(_arrays(folder / f"{name}.{kind}.npz")[0]) for kind in ("calibration", "inputs")
    )
    return f"{calibration // DRAWS}, {tests}"


def _arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def measured(folder: Path, name: str, draw: int) -> Mapping[str, tuple[float, float, float]]:
    """Of each contender: dB of the worst part, answers that are the float model's in percent, distinct values
    of an element of the first output."""
    with np.load(folder / f"{name}.calibration.npz") as arrays:
        size = len(next(iter(arrays.values()))) // DRAWS
        pool = {key: arrays[key][draw * size : (draw + 1) * size] for key in arrays.files}
    samples = [{key: array[i] for key, array in pool.items()} for i in range(size)]
    with np.load(folder / f"{name}.inputs.npz") as arrays:
        inputs = {key: arrays[key] for key in arrays.files}
    conversion = convert(folder / f"{name}.onnx", calibration=samples)
    floats = float_outputs(conversion, inputs, _silent)
    runs: Mapping[str, Callable[[], Outputs]] = {
        "ours": lambda: our_outputs(conversion, inputs, floats, _silent),
        "per tensor": lambda: runtime_outputs(conversion, inputs, False, _silent),
        "per channel": lambda: runtime_outputs(conversion, inputs, True, _silent),
    }
    return {label: _figures(conversion, floats, run()) for label, run in runs.items()}


def _silent(_: str) -> None:
    """No progress wanted."""


def _figures(conversion: Conversion, floats: Outputs, found: Outputs) -> tuple[float, float, float]:
    program = conversion.program
    decibels = []
    for output, expected in floats.items():
        places = parts_of(program, output)
        for seen in (*places.joined.values(), places.passed if places.passed is None else ~places.passed):
            noise = noise_of(expected, found[output].reshape(expected.shape), seen).sqnr_db
            decibels.append(float("nan") if noise is None else noise)
    expected = next(iter(floats.values()))
    first = found[next(iter(floats))].reshape(expected.shape)
    agree = 100 * float(np.mean(expected.argmax(-1) == first.argmax(-1)))
    columns = first.reshape(len(first), -1)
    distinct = float(np.median([len(np.unique(column)) for column in columns.T[:1024]]))
    return float(np.nanmin(decibels)), agree, distinct
