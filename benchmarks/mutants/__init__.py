"""Small wrong changes of a room's source, one at a time: does a test see each?

A mutant has one comparison, sum, product, condition or small number changed; which, a seed decides: every
place in the room is as likely as any other.  It lives in a copy of the checkout.  There run, until one fails,
those of the given tests that run the changed statement (coverage says which), the quickest first, up to
--most seconds of them: all run a hot statement, and what so many do not see is unlikely to be seen later.
Prints a line per mutant, and for every room how many were killed, survived, or are equivalent: those that a
reader found to change nothing that can be seen, with why, in `equivalent.yaml`.  They run like all others.
The share is of those that are not equivalent; exits 1 where one is below --least.

Verdicts are kept in --log: what is there already is not run again, so a run that was stopped goes on.  With
--again those that survived run again, after tests were added.

python -m benchmarks mutants converter/quantise converter/lower --count 32
python -m benchmarks mutants converter/lower/images.py --tests tests/converter/test_operators.py --seed 3
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from benchmarks.command import command
from benchmarks.mutants.changes import Mutant, mutant, places
from benchmarks.mutants.reach import Reach
from fadiff.errors import InputError

_ROOT = Path(__file__).parent.parent.parent
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "benchmark-results", "site")
_KEPT = Path("build/mutants")
_TESTS = [Path("tests")]
_SLOWER, _STARTING = 4, 60
"""A mutant may take so many times the seconds that its tests took, and so many for the start: of CPU."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    room: str
    seed: int
    place: str
    before: str
    after: str
    verdict: str
    """killed, timeout, survived, or unreached: no test runs its statement."""
    by: str
    """The test that failed."""
    tests: int
    """How many there were."""
    seconds: float


def chosen(room: Path, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Mutants of a room that a seed draws, and how many there are to draw from.

    Raises:
        InputError: no source is there.
    """
    files = sorted(room.rglob("*.py")) if room.is_dir() else [room]
    if not files or not all(file.is_file() for file in files):
        raise InputError(f"no source in {room}")
    all_of_them = [(file, place) for file in files for place in places(file.read_text())]
    drawn = random.Random(f"{seed} {room}").sample(all_of_them, min(count, len(all_of_them)))
    return [mutant(file, file.read_text(), place) for file, place in drawn], len(all_of_them)


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Why mutants change nothing that can be seen, by file, function and change."""
    rows = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text()) or []
    return {(row["file"], row["function"], row["before"], row["after"]): row["why"] for row in rows}


def _tried(checkout: Path, mutant: Mutant, reach: Reach, most: float) -> tuple[str, str, int]:
    """Verdict, the test that failed, and how many tests there were."""
    tests = reach.tests(mutant, most)
    if not tests:
        return "unreached", "", 0
    (checkout / "tests.txt").write_text("\n".join(test.test for test in tests))
    source = (checkout / mutant.path).read_text()
    (checkout / mutant.path).write_text(mutant.source)
    run = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", "@tests.txt"]
    limit = int(_STARTING + _SLOWER * sum(test.seconds for test in tests))
    done = subprocess.run(
        ["bash", "-c", f'ulimit -t {limit}; exec "$@"', "bash", *run],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    (checkout / mutant.path).write_text(source)
    # Python tells sources apart by second and size: the next mutant may have both.
    Path(importlib.util.cache_from_source(str(checkout / mutant.path))).unlink(missing_ok=True)
    if done.returncode == -signal.SIGXCPU:
        return "timeout", "", len(tests)
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        raise SystemExit(f"pytest stopped at {mutant}:\n{done.stdout}{done.stderr}")
    return ("killed", failed[1], len(tests)) if failed else ("survived", "", len(tests))


def main(arguments: list[str]) -> int:
    """Try mutants; 1 where too few of a room are killed."""
    parser = command("mutants", __doc__)
    parser.add_argument("rooms", nargs="+", type=Path, help="folders or files of the checkout")
    parser.add_argument(
        "--tests", nargs="+", type=Path, default=_TESTS, help="files or folders (default: all)"
    )
    parser.add_argument("--count", type=int, default=32, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.85, help="share that must be killed (default: 0.85)")
    parser.add_argument(
        "--log", type=Path, help=f"verdicts, a JSON object a line (default: {_KEPT}/log.jsonl)"
    )
    parser.add_argument(
        "--most", type=float, default=120, help="seconds of tests that run for a mutant (default: 120)"
    )
    parser.add_argument("--again", action="store_true", help="run those again that survived")
    options = parser.parse_args(arguments)
    kept = _ROOT / _KEPT
    kept.mkdir(parents=True, exist_ok=True)
    log = options.log.resolve() if options.log else kept / "log.jsonl"
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    verdicts = {(row["seed"], row["place"], row["before"], row["after"]): Verdict(**row) for row in known}
    is_enough = True
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"  # (what is edited meanwhile stays out of it)
        shutil.copytree(_ROOT, checkout, symlinks=True, ignore=_LEFT_OUT)
        os.chdir(checkout)
        drawn = {room: chosen(room, options.count, options.seed) for room in options.rooms}
        given = [(sorted(some.rglob("test_*.py")) if some.is_dir() else [some]) for some in options.tests]
        reach = Reach(checkout, kept, [file for some in given for file in some])
        for room, (mutants, possible) in drawn.items():
            found = Counter[str]()
            for one in mutants:
                name = f"{one.path}:{one.line}", one.before, one.after
                verdict = verdicts.get((options.seed, *name))
                if verdict is None or (options.again and not verdict.by and verdict.verdict != "timeout"):
                    begun = time.monotonic()
                    what, by, count = _tried(checkout, one, reach, options.most)
                    seconds = round(time.monotonic() - begun, 1)
                    verdict = Verdict(str(room), options.seed, *name, what, by, count, seconds)
                    with log.open("a") as file:
                        file.write(json.dumps(asdict(verdict)) + "\n")
                found[_counted(one, verdict)] += 1
            killed, alive = found["killed"], found["survived"]
            share = killed / max(1, killed + alive)
            is_enough &= share >= options.least
            print(
                f"{room}, seed {options.seed}: {killed} killed, {alive} survived, "
                f"{found['equivalent']} equivalent ({share:.0%}; {possible} mutants are possible)"
            )
    return 0 if is_enough else 1


def _counted(mutant: Mutant, verdict: Verdict) -> str:
    """How a mutant counts; says so."""
    why = equivalents().get((str(mutant.path), mutant.function, mutant.before, mutant.after))
    if verdict.verdict in ("killed", "timeout"):
        note = "  (but equivalent.yaml has it)" if why else ""
        print(f"{verdict.verdict:<10} {mutant}  by {verdict.by or 'its time'}{note}", flush=True)
        return "killed"
    print(f"{'equivalent' if why else verdict.verdict.upper():<10} {mutant}  {why or ''}", flush=True)
    return "equivalent" if why else "survived"
