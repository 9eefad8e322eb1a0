"""What becomes of every .onnx file of a folder: converted, refused by name, or our fault.

Compiles each file in a process of its own, with the command line of a user: `fadiff compile FILE`.  A
refusal that names a way out (--dim, --inputs, --outputs) is followed, up to four times: symbolic sizes that
look like a batch become 1, others --size.  Options that only a person can know are read from FILE.options
beside the file, one line.  Prints one row per file: outcome, signal to noise against the float model on
random inputs (or FILE.calibration.npz), seconds of processors, options that were needed or the reason.
Exits 1 where a file made an internal error, failed verification or took too long.

Small files come first.  --rows FILE keeps every row (JSON lines): a later run goes on where one was stopped,
and prints the table of all.

python -m benchmarks wild FOLDER
python -m benchmarks wild FOLDER --match whisper --verify
python -m benchmarks wild FOLDER --verify --rows rows.jsonl --stop-after 500      # again, until all are done
python -m benchmarks wild FOLDER --inspect                                        # only read them: quick
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Literal

from benchmarks.command import command
from fadiff import cli
from fadiff.errors import BAD_INPUT, CHECK_FAILED, OK

Outcome = Literal["converted", "refused", "not equal", "internal error", "too long"]
_OURS: tuple[Outcome, ...] = ("not equal", "internal error", "too long")
_MOST_BYTES = 200 * 2**20
_REMEDIES = re.compile(r"--(dim) (\S+?)=1\b|--(outputs|inputs) ('[^']+'|[^\s;|']+)")
_BATCH = re.compile(r"batch|^n$|^unk__|\.0$", re.IGNORECASE)  # tf2onnx calls what it does not know unk__7
_TRIES = 4
_WAITING = 12
"""Seconds on the clock for every second of processors, at most."""


@dataclass(frozen=True)
class Row:
    """What became of one file; `text` has the options that it needed, or why it is refused.

    `seconds` are those of processors, over all tries; `tried` are the options at the end, followed or not.
    """

    file: str
    outcome: Outcome
    sqnr_db: float | None
    seconds: float
    text: str
    tried: str = ""

    def line(self) -> str:
        """One row of a Markdown table."""
        sqnr = "" if self.sqnr_db is None else f"{self.sqnr_db:.1f}"
        text = self.text.replace("|", "/")
        return f"| {self.file} | {self.outcome} | {sqnr} | {self.seconds:.0f} | {text} |"


@dataclass(frozen=True)
class Judge:
    """How files are compiled."""

    size: int
    time_budget: float
    timeout: float
    verify: bool
    inspect: bool

    def row(self, path: Path, name: str) -> Row:
        """Compile one file, following the remedies that refusals name."""
        beside = path.with_name(f"{path.name}.options")
        options = shlex.split(beside.read_text()) if beside.is_file() else []
        start = _processor_seconds()
        for _ in range(_TRIES):
            outcome, sqnr_db, text = self._compiled(path, options)
            more = [o for o in self._remedies(text) if o not in options] if outcome == "refused" else []
            if not more:
                break
            options += more
        said = text if outcome != "converted" else shlex.join(options)
        return Row(name, outcome, sqnr_db, _processor_seconds() - start, said, shlex.join(options))

    def _remedies(self, message: str) -> list[str]:
        """Options that a refusal asks for, as single words."""
        found = []
        for dim, name, cut, tensors in _REMEDIES.findall(message):
            if dim:
                found.append(f"--dim={name}={1 if _BATCH.search(name) else self.size}")
            else:
                found.append(f"--{cut}={shlex.split(tensors)[0]}")
        return found

    def _compiled(self, path: Path, options: list[str]) -> tuple[Outcome, float | None, str]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            if self.inspect:
                words = ["inspect", str(path), *options]
            else:
                words = ["compile", str(path), "--out", str(out), "--quiet", "--method", "exact", *options]
                words += ["--time-budget", str(self.time_budget), *(["--verify"] if self.verify else [])]
            code, output = run(words, Path(folder), self.timeout)
            if code is None:
                return "too long", None, f"over {self.timeout:.0f} s of processors"
            said = " ".join(output.split()).replace(f"{path}: ", "")
            if code == BAD_INPUT:
                return "refused", None, said.rpartition("error: ")[2]
            if code == CHECK_FAILED:
                return "not equal", _worst_sqnr(out), said[-400:]
            if code != OK:
                return "internal error", None, said[-400:] or f"exit code {code}"
            return "converted", None if self.inspect else _worst_sqnr(out), ""


def _processor_seconds() -> float:
    """Of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(words: list[str], folder: Path, timeout: float) -> tuple[int | None, str]:
    """Exit code of `fadiff WORDS` (None: it took longer) and what it wrote to stderr, in its own process.

    The process is a fork: to import everything again would take longer than most files.  Its time is that of
    processors, so that a busy machine makes no hang; what waits for something that never comes ends, too.
    """
    errors = folder / "stderr"
    child = multiprocessing.get_context("fork").Process(target=_fadiff, args=(words, errors, timeout))
    child.start()
    child.join(_WAITING * timeout)
    if child.is_alive():
        child.kill()
        child.join()
        return None, ""
    if child.exitcode == -signal.SIGXCPU:
        return None, ""
    return child.exitcode, errors.read_text(encoding="utf-8", errors="replace")


def _fadiff(words: list[str], errors: Path, timeout: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(timeout), resource.RLIM_INFINITY))
    with errors.open("w", encoding="utf-8") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(cli.main(words))


def _worst_sqnr(folder: Path) -> float | None:
    """Of the outputs, in decibels."""
    accuracy = json.loads((folder / "schedule.json").read_text())["conversion"]["accuracy"]
    found = [output["sqnr_db"] for output in (accuracy or {}).get("outputs", ())]
    return min((value for value in found if value is not None), default=None)


def _files(folder: Path, match: str) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.onnx"), key=lambda path: (path.stat().st_size, path)):
        if match in str(path) and path.stat().st_size <= _MOST_BYTES:
            yield path


def main(arguments: list[str]) -> int:
    """Print the table; 1 when something is our fault."""
    parser = command("wild", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only files with this in their path")
    parser.add_argument(
        "--size", type=int, default=64, help="of symbolic dimensions but the batch (default: 64)"
    )
    parser.add_argument("--time-budget", type=float, default=10, help="seconds of search (default: 10)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of processors (default: 300)")
    parser.add_argument("--verify", action="store_true", help="run the emitted C, too")
    parser.add_argument("--inspect", action="store_true", help="only read the files: no search, no C")
    parser.add_argument("--rows", type=Path, help="keep rows here, and leave out files that have one")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds; then print and stop")
    options = parser.parse_args(arguments)
    judge = Judge(options.size, options.time_budget, options.timeout, options.verify, options.inspect)
    until = time.monotonic() + options.stop_after
    rows = _kept(options.rows)
    for path in _files(options.folder, options.match):
        name = str(path.relative_to(options.folder))
        if name not in rows and time.monotonic() < until:
            rows[name] = judge.row(path, name)
            print(rows[name].line(), file=sys.stderr, flush=True)
            if options.rows:
                with options.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(rows[name])) + "\n")
    print("| file | outcome | SQNR, dB | CPU s | options, or why not |\n|---|---|---:|---:|---|")
    print("\n".join(row.line() for _, row in sorted(rows.items())))
    counts = Counter(row.outcome for row in rows.values())
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if any(counts[outcome] for outcome in _OURS) else 0


def _kept(path: Path | None) -> dict[str, Row]:
    """Rows of earlier runs by file; the last one counts."""
    if path is None or not path.is_file():
        return {}
    rows = (Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {row.file: row for row in rows}
