"""Hostile input: seeded changes to good models, schedules, Timeloop files, targets, headers, .npz and others.

Whatever is wrong with a file, a command ends by itself within a minute and 4 GB, with a line that names
it: no traceback, no crash, nothing written but what it was told to, no control character on the terminal.

Exit code 1 if a command does otherwise; the case is printed (`--kind KIND --first SEED --cases 1` repeats
it, `--keep FOLDER` keeps the files of such cases).
Last line: `key=value`, how many were tried, and how many did what.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import onnx

from benchmarks import conformance
from benchmarks.command import command
from benchmarks.hostile.cases import KINDS, Make, model_case
from benchmarks.hostile.folders import folder_cases, profile
from benchmarks.hostile.seeds import models
from benchmarks.hostile.watch import Run, Watched
from fadiff import compile
from fadiff.cli import main as fadiff

FAULTS = ("traceback", "hang", "crash", "memory", "outside_write", "unescaped")
_SECONDS = 60.0


def all_kinds(folder: Path) -> dict[str, Make]:
    """Every kind of case; an output folder with all results is made first."""
    model = models()["residual"]
    onnx.save(model, folder / "seed.onnx")
    made = compile(folder / "seed.onnx", folder / "seed", method="layerwise", verify=True)
    log = profile(made.document)
    (folder / "console.log").write_text(log, encoding="utf-8")
    if fadiff(["measure", str(made.out), "--log", str(folder / "console.log"), "-q"]):
        raise RuntimeError("the measurement to begin with is refused")
    return {**KINDS, **folder_cases(made.out, model, log)}


def every_operator() -> Make:
    """Models of one operator: onnx's own test suite."""
    return model_case([case.model for case in conformance.cases() if case.model is not None])


def attack(
    kinds: dict[str, Make], wanted: Collection[str], first: int, folder: Path
) -> Iterator[tuple[str, int, Path, Run]]:
    """Cases of the wanted kinds in turn, one seed after the other, without end; each has its own folder.

    A case depends on its kind and seed, not on what else is wanted.
    """
    place, scratch = folder / "case", folder / "tmp"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    with Watched((place, scratch), _SECONDS) as watched:
        seed = first
        while True:
            for number, (kind, make) in enumerate(kinds.items()):
                if kind not in wanted:
                    continue
                place.mkdir()
                arguments = make(np.random.default_rng([seed, number]), place)
                yield kind, seed, place, watched.run(arguments)
                shutil.rmtree(place)
            seed += 1


def main(arguments: list[str]) -> int:
    """Attack for a while."""
    parser = command("hostile", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    kinds_text = "this one only (default: all in turn but operator, changed cases of onnx's own test suite)"
    parser.add_argument("--kind", help=kinds_text)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--cases", type=int, help="most cases in all")
    parser.add_argument("--keep", type=Path, help="folder for the files of cases that did otherwise")
    options = parser.parse_args(arguments)
    tried: Counter[str] = Counter()
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="fadiff-hostile-") as folder:
        kinds = all_kinds(Path(folder))
        if options.kind == "operator":
            kinds["operator"] = every_operator()
        if options.kind not in (None, *kinds):
            parser.error(f"--kind {options.kind}: choose from {', '.join((*kinds, 'operator'))}")
        wanted = [options.kind] if options.kind else list(kinds)
        for kind, seed, place, run in attack(kinds, wanted, options.first, Path(folder)):
            tried["cases"] += 1
            tried["refused"] += run.code == 2
            if run.fault:
                tried[run.fault] += 1
                print(f"{run.fault.upper()} {kind} seed {seed}: {run.detail[:300]}", flush=True)
                if options.keep:
                    shutil.copytree(place, options.keep / f"{kind}-{seed}", dirs_exist_ok=True, symlinks=True)
            if time.monotonic() > until or tried["cases"] == options.cases:
                break
    counts = " ".join(f"{name if name.endswith('memory') else name + 's'}={tried[name]}" for name in FAULTS)
    print(f"tried={tried['cases']} refused={tried['refused']} {counts}".replace("crashs", "crashes"))
    return int(any(tried[name] for name in FAULTS))
