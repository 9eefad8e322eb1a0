"""Test vectors shared among processes: firmware can hang or crash, and a process holds one machine."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fadiff.costmodel.target.target import Target
from fadiff.emulator.build import library
from fadiff.emulator.compare import Call, Job, Program, VectorResult
from fadiff.emulator.errors import EmulatorError

WORKERS = 2
ALONE = 10e6
"""Predicted cycles of all vectors that one process is done with before another would have started."""

Progress = Callable[[str], None]


class _Worker:
    """A process of `worker.py`."""

    def __init__(self) -> None:
        root = str(Path(__file__).absolute().parents[2])  # of `fadiff`, of which this folder may be a link
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fadiff.emulator.worker"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,  # closed when we end, however we do: then the worker ends, too
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )

    @property
    def lives(self) -> bool:
        """It can be given a job."""
        return self._process.poll() is None

    def begin(self, job: Job) -> None:
        """Give it a job; it must have none."""
        assert self._process.stdin is not None
        self._process.stdin.write(job.model_dump_json().encode() + b"\n")
        self._process.stdin.flush()

    def ended(self, seconds: float) -> int | None:
        """The exit code of its job, None if it has not ended after some seconds.

        Raises:
            EmulatorError: the process itself has ended.
        """
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], seconds)[0]:
            return None
        if answer := answers.readline():
            return int(answer)
        raise EmulatorError(_last_line(self.stop()))

    def stop(self) -> bytes:
        """End it and what it runs; returns what it had to say."""
        if self.lives:
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.communicate()[1]


_idle: list[_Worker] = []
"""Workers without a job: the next verification need not wait until Python has imported everything."""
os.register_at_fork(after_in_child=_idle.clear)


def prepare() -> None:
    """Have a worker: it can import what it needs while we do something else."""
    _idle.append(_worker())


@atexit.register
def _stop_all() -> None:
    while _idle:
        _idle.pop().stop()


def _worker() -> _Worker:
    while _idle:
        if (worker := _idle.pop()).lives:
            return worker
        worker.stop()
    return _Worker()


def _results(code: int, job: Job) -> list[VectorResult]:
    """What a worker found.

    Raises:
        EmulatorError: it refused the firmware.
    """
    if code < 0:
        return [_failed(f"the firmware crashed ({signal.Signals(-code).name})")]
    if code:
        raise EmulatorError(_last_line(job.errors.read_bytes()))
    results: list[VectorResult] = pickle.loads(job.result.read_bytes())
    return results


def _last_line(said: bytes) -> str:
    lines = said.decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "the firmware did not run"


def run_calls(
    firmware: Path,
    target: Target,
    built: Path,
    scratch: Path,
    programs: Sequence[Program],
    calls: Sequence[Call],
    time_limit: float,
    say: Progress,
    cycles: float,
) -> list[VectorResult]:
    """Run test vectors, of `cycles` all together, on built firmware; with states or several programs in turn.

    Firmware that breaks a rule, crashes or does not finish gives a result with `error` set.

    Raises:
        EmulatorError: the firmware or its verification data cannot be used.
    """
    deadline = time.monotonic() + time_limit
    count, chained = len(calls), len(programs) > 1 or any(program.states for program in programs)
    number_of_workers = 1 if chained or cycles < ALONE else min(WORKERS, count)
    jobs = [
        Job(
            firmware=firmware.resolve(),
            built=built.resolve(),
            model=library(),
            target=target,
            programs=list(programs),
            calls=list(calls[number::number_of_workers]),
            result=(scratch / f"result{number}.pickle").resolve(),
            progress=(scratch / f"progress{number}").resolve(),
            errors=(scratch / f"errors{number}").resolve(),
        )
        for number in range(number_of_workers)
    ]
    running = {job.result: (_worker(), job) for job in jobs}
    results: list[VectorResult] = []
    said = 0
    try:
        for worker, job in running.values():
            worker.begin(job)
        while running:
            for name, (worker, job) in list(running.items()):
                if (code := worker.ended(0.02)) is not None:
                    del running[name]
                    _idle.append(worker)
                    results += _results(code, job)
            if time.monotonic() > deadline and running:
                return [_failed(f"the firmware did not finish in {time_limit:g} seconds")]
            done = sum(job.done() for job in jobs)
            if done != said:
                say(f"{done} of {count} test vectors")
                said = done
    finally:
        for worker, _ in running.values():
            worker.stop()
    return sorted(results, key=lambda result: (result.program, result.vector))


def calls_of(counts: Sequence[int]) -> list[Call]:
    """Of programs with so many vectors each: run after run, each of one vector of the first and of as many of
    every other as it has more; one program alone goes on."""
    runs = counts[0] if len(counts) > 1 else 1
    return [
        Call(program, vector, not program and vector == run * (count // runs))
        for run in range(runs)
        for program, count in enumerate(counts)
        for vector in range(run * (count // runs), (run + 1) * (count // runs))
    ]


def _failed(message: str) -> VectorResult:
    return VectorResult(0, 0, (), {}, {}, None, message)
