"""Test vectors shared among processes: firmware can hang or crash, and a process holds one machine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fadiff.costmodel.target.target import Target
from fadiff.emulator.compare import Job, VectorResult
from fadiff.emulator.errors import EmulatorError

WORKERS = 2
ALONE = 10e6
"""Predicted cycles of all vectors that one process is done with before another would have started."""

Progress = Callable[[str], None]
States = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Worker:
    """A process with its share of the vectors; stderr goes to a file, progress too."""

    process: subprocess.Popen[bytes]
    job: Job
    errors: Path

    def done(self) -> int:
        """Vectors finished so far."""
        return self.job.progress.stat().st_size if self.job.progress.exists() else 0

    def results(self) -> list[VectorResult]:
        """What it found, once it has ended.

        Raises:
            EmulatorError: the worker refused the firmware.
        """
        code = self.process.returncode
        if code < 0:
            return [_failed(f"the firmware crashed ({signal.Signals(-code).name})")]
        if code:
            lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise EmulatorError(lines[-1] if lines else "the firmware did not run")
        results: list[VectorResult] = pickle.loads(self.job.result.read_bytes())
        return results


def _start(
    folder: Path, target: Target, built: Path, scratch: Path, number: int, vectors: list[int], states: States
) -> _Worker:
    job = Job(
        firmware=(folder / "firmware").resolve(),
        built=built,
        data=(folder / "verify").resolve(),
        target=target,
        vectors=vectors,
        result=scratch / f"result{number}.pickle",
        progress=scratch / f"progress{number}",
        states=states,
    )
    request = scratch / f"job{number}.json"
    request.write_text(job.model_dump_json(), encoding="utf-8")
    environment = dict(os.environ)
    root = str(Path(__file__).absolute().parents[2])  # of `fadiff`, of which this folder may be a link
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    errors = scratch / f"errors{number}"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fadiff.emulator.worker", str(request)],
            env=environment,
            stdin=subprocess.PIPE,  # closed when we end, however we do: then the worker ends, too
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    return _Worker(process, job, errors)


def run_vectors(
    folder: Path,
    target: Target,
    built: Path,
    scratch: Path,
    count: int,
    time_limit: float,
    say: Progress,
    cycles: float,
    states: States = (),
) -> list[VectorResult]:
    """Run test vectors 0..count-1, of `cycles` each, of a compile output on its built firmware; with states
    (ONNX names of outputs and inputs) one after the other.

    Firmware that breaks a rule, crashes or does not finish gives a result with `error` set.

    Raises:
        EmulatorError: the firmware or its verification data cannot be used.
    """
    deadline = time.monotonic() + time_limit
    workers: list[_Worker] = []
    try:
        number_of_workers = 1 if states or count * cycles < ALONE else min(WORKERS, count)
        for number in range(number_of_workers):
            vectors = list(range(number, count, number_of_workers))
            workers.append(_start(folder, target, built, scratch, number, vectors, states))
        said = 0
        while any(worker.process.poll() is None for worker in workers):
            if time.monotonic() > deadline:
                return [_failed(f"the firmware did not finish in {time_limit:g} seconds")]
            time.sleep(0.02)
            done = sum(worker.done() for worker in workers)
            if done != said:
                say(f"{done} of {count} test vectors")
                said = done
        results = [result for worker in workers for result in worker.results()]
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    return sorted(results, key=lambda result: result.vector)


def _failed(message: str) -> VectorResult:
    return VectorResult(0, (), {}, {}, None, message)
