"""Runs commands of fadiff in a process of its own, and tells what each of them did.

A process hangs, crashes or eats memory; the one that watches ends it and starts another.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from fadiff.cli import main
from fadiff.converter.names import printable
from fadiff.errors import INTERNAL

Fault = Literal["", "traceback", "hang", "crash", "memory", "outside_write", "unescaped"]
_WRITES = {"os.mkdir": 0, "os.remove": 0, "os.rename": 1, "os.rmdir": 0, "os.symlink": 1, "os.link": 1}
"""Events that change the file system, by the argument that says where."""
_NO_FOLDER = -1
_MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Run:
    """How one command ended; `detail` is its last words."""

    fault: Fault
    code: int = 0
    detail: str = ""


class Watched:
    """A child process for one command after the other, to be used in a `with` block.

    Writes are allowed in `allowed` only.
    """

    def __init__(self, allowed: Sequence[Path], seconds: float) -> None:
        self.allowed = [str(path.resolve()) for path in allowed]
        self.seconds = seconds
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.allowed), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def run(self, arguments: Sequence[str]) -> Run:
        """Run one command of fadiff."""
        self._ours.send(list(arguments))
        try:
            if self._ours.poll(self.seconds):
                ended: Run = self._ours.recv()
                if ended.fault == "memory":
                    self._restart()
                return ended
            run = Run("hang", detail=f"over {self.seconds:g} s")
        except EOFError:
            self._process.join()
            run = Run("crash", detail=f"exit {self._process.exitcode}")
        self._restart()
        return run

    def _restart(self) -> None:
        self._process.kill()
        self._process.join()
        self._start()


def _serve(connection: Connection, allowed: Sequence[str]) -> None:
    """The child: a run for every command, until nobody asks any more."""
    outside: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        path = None
        if event == "open" and isinstance(arguments[2], int):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                path = arguments[0]
        elif event in _WRITES and arguments[-1] == _NO_FOLDER:  # (else: below a folder that was opened)
            path = arguments[_WRITES[event]]
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not place.startswith(("/dev/", "/proc/", *allowed)):
                outside.append(place)

    sys.addaudithook(audit)
    sys.dont_write_bytecode = True
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        outside.clear()
        connection.send(_run(arguments, outside))


def _run(arguments: Sequence[str], outside: list[str]) -> Run:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(arguments)
    except BaseException as error:
        return Run("traceback", INTERNAL, f"{type(error).__name__}: {error}")
    text = said.getvalue()
    lines = text.strip().splitlines()
    last = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
    if code == INTERNAL or "Traceback (most recent call last)" in text:
        return Run("traceback", code, last)
    if outside:
        return Run("outside_write", code, outside[0])
    if printable(text, keep="\n") != text:
        return Run("unescaped", code, printable(text[-300:]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Run("memory" if peak > _MOST_BYTES else "", code, last if code else "")
