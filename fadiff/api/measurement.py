"""`measure`: cycles on the user's hardware beside the predicted ones."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fadiff.console import Console
from fadiff.errors import InputError

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.measurement import Measurement, Unit
    from fadiff.folder import OutputFolder

LAST_LINES = 5
"""Of a simulator that failed, shown as it printed them."""


class _Ended(NamedTuple):
    """What a program printed; `problem` is how it ended and what it said last, "" where all was well."""

    text: str
    problem: str = ""


def measure(
    folder: str | Path,
    *,
    run: str | None = None,
    log: str | Path | None = None,
    elf: str | Path | None = None,
    gemmini_root: str | Path | None = None,
    timeout: float = 3600.0,
    unit: Unit = "cycles",
    console: Console | None = None,
) -> Measurement:
    """Run a folder's firmware on hardware, and keep its cycles in measured.json and the report.

    Args:
        folder: What `compile` made; of several entries the folder of one.
        run: Command that runs the program `{elf}` and prints its console.
        log: A console log instead, kept before.
        elf: The program, built before with -DFADIFF_PROFILE; by default `make profile` builds it.
        gemmini_root: Holds include/gemmini.h and rocc-software/, for `make profile`.
        timeout: Seconds that the command may take.
        unit: What the machine's cycle counter counts.
        console: Where progress goes.

    Raises:
        InputError: neither or both of `run` and `log`, no program, or one that cannot be built or started.
        MeasurementError: a console without the program's table; says how the command ended.
    """
    from fadiff.costmodel.schedule.measurement import MeasurementError, read_profile
    from fadiff.folder import OutputFolder

    if (run is None) == (log is None):
        raise InputError("give either a command that runs {elf} (--run) or a console log (--log)")
    console = console or Console(verbosity=-1)
    output = OutputFolder(Path(folder))
    document, memory = output.document, output.memory_map()
    if run is not None:
        program = Path(elf) if elf else _built(console, output, gemmini_root)
        ended, source = _console_of(console, run, program, timeout), run
    else:
        ended, source = _Ended(Path(str(log)).read_text(encoding="utf-8", errors="replace")), str(log)
    try:
        measurement = read_profile(
            ended.text,
            source,
            sha256=document.model.sha256,
            predicted={layer.name: layer.cost.clock_cycles or 0.0 for layer in document.layers},
            total=document.totals.clock_cycles or 0.0,
            unit=unit,
            program="" if memory is None else memory.model,
        )
    except MeasurementError as error:
        raise MeasurementError(f"{error}{ended.problem and f'; {ended.problem}'}") from error
    if ended.problem:
        console.warn(f"the table is complete, but {ended.problem}")
    output.measurement.write_text(measurement.model_dump_json(indent=1) + "\n", encoding="utf-8")
    output.refresh_report()
    return measurement


def _built(console: Console, output: OutputFolder, gemmini_root: str | Path | None) -> Path:
    """The program with its profile, made by the firmware's own Makefile; one that was there is kept."""
    if gemmini_root is None:
        raise InputError(
            "--run needs a program: give --elf FILE, or --gemmini-root (the folder that holds "
            "include/gemmini.h) to build it"
        )
    memory = output.memory_map()
    if memory is None:
        raise InputError(f"{output.firmware}: no firmware in it: give the --out folder of fadiff compile")
    name = memory.model.removesuffix(f"_{output.entry}") if output.entry else memory.model
    program = output.firmware / f"{name}_profile.elf"
    before = program.read_bytes() if program.is_file() else None
    console.note(f"building {program.name}")
    made = subprocess.run(
        ["make", "-C", str(output.firmware), "profile", f"GEMMINI_ROOT={Path(gemmini_root).resolve()}"],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise InputError(f"{output.firmware}: make profile failed: {_last(made.stderr or made.stdout, 1)}")
    if before is not None and program.read_bytes() != before:
        kept = program.with_suffix(".elf.before")
        kept.write_bytes(before)
        console.warn(
            f"{program} was built again, with other sources or flags than it had: the one before is {kept} "
            "(--elf FILE runs a program as it is; RISCV_FLAGS of the environment are used)"
        )
    return program


def _console_of(console: Console, command: str, elf: Path, timeout: float) -> _Ended:
    """What the command prints; the table, not the exit status, says whether it finished."""
    if "{elf}" not in command:
        raise InputError(f"--run {command!r} has no {{elf}} where the program's path belongs")
    if not elf.is_file():
        raise InputError(f"{elf}: no such program")
    words = [word.replace("{elf}", str(elf.resolve())) for word in shlex.split(command)]
    console.note(f"running {shlex.join(words)}")
    try:
        ran = subprocess.run(words, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise InputError(f"{words[0]}: no such program") from error
    except subprocess.TimeoutExpired as error:
        said = _last(_text(error.output, error.stderr))
        raise InputError(
            f"{words[0]}: not finished after {timeout:g} s: give a longer --timeout"
            + (f"; it said last: {said}" if said else "")
        ) from error
    text = _text(ran.stdout, ran.stderr)
    if not ran.returncode:
        return _Ended(text)
    how = f"exit status {ran.returncode}" if ran.returncode > 0 else f"signal {-ran.returncode}"
    said = _last(_text(ran.stderr, b"") or text)
    return _Ended(text, f"{words[0]} ended with {how}" + (f" and said: {said}" if said else ""))


def _text(out: bytes | None, err: bytes | None) -> str:
    return b"\n".join(filter(None, (out, err))).decode("utf-8", errors="replace")


def _last(text: str, lines: int = LAST_LINES) -> str:
    """The last lines that say something, in one."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])
