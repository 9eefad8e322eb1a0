"""Which tests run which lines of the packages, by coverage; kept per test file until that file changes.

What a fixture runs counts for every test that asks for it.  Sources may have changed since: lines are found
again by their text.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutants.changes import Mutant

_BATCH = 16
"""Test files that are recorded together: a run that is stopped loses no more."""


@dataclass(frozen=True)
class Reached:
    """A test that runs a line."""

    test: str
    seconds: float


class Reach:
    """What the tests of some files run."""

    def __init__(self, root: Path, folder: Path, files: Sequence[Path]) -> None:
        self._root, self._folder = root, folder
        self._records = _recorded(root, folder, files)

    def tests(self, mutant: Mutant, most: float = math.inf) -> list[Reached]:
        """Tests that run the statement of a mutant, of at most so many seconds in all.

        First the quickest of each file, then file by file, those before that are quick and run little else.

        Statements of modules run when they are imported: what uses their values is not known, so
        all tests do.
        """
        path, found = str(mutant.path), []
        now = (self._root / path).read_text()
        for record in self._records:
            recorded = record["sources"].get(path)
            if recorded is None and mutant.function:
                continue
            lines = set() if recorded is None else self._lines(recorded, now, mutant.lines)
            tests, cost = [], 0.0
            for test in record["tests"]:
                own = _unpacked(test["lines"].get(path, ""))
                if not mutant.function or lines & own:
                    tests.append(Reached(test["id"], test["seconds"]))
                    every = sum(map(len, test["lines"].values()))  # (packed: by the length of files)
                    cost += test["seconds"] * every / (len(own) + 1)
            if tests:
                found.append((cost / len(tests), tests))
        found.sort(key=lambda pair: pair[0])
        quick = [min(tests, key=lambda test: test.seconds) for _, tests in found]
        ordered = list(dict.fromkeys([*quick, *(test for _, tests in found for test in tests)]))
        ends = itertools.accumulate(test.seconds for test in ordered)
        return [test for test, end in zip(ordered, ends, strict=True) if end <= most] or ordered[:1]

    def _lines(self, recorded: str, now: str, lines: range) -> set[int]:
        """Where lines stood when a test was recorded; all lines of the file if that cannot be said."""
        then = (self._folder / "sources" / recorded).read_text()
        where = _moved(then, now)
        found = {where[line] for line in lines if line in where}
        return found or set(range(1, then.count("\n") + 2))


@cache
def _moved(then: str, now: str) -> dict[int, int]:
    """Lines of now, where they stood then."""
    match = difflib.SequenceMatcher(None, then.split("\n"), now.split("\n"), autojunk=False)
    return {
        block.b + i + 1: block.a + i + 1 for block in match.get_matching_blocks() for i in range(block.size)
    }


def _recorded(root: Path, folder: Path, files: Sequence[Path]) -> list[Any]:
    """What is known of test files, recorded where they changed."""
    kept = {file: folder / f"{file.as_posix().replace('/', '+')}.json" for file in files}
    old = [file for file in files if not _is_current(kept[file], file)]
    for batch in (old[i : i + _BATCH] for i in range(0, len(old), _BATCH)):
        print(f"recording what {', '.join(map(str, batch))} run", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.mutants.record", str(folder), *map(str, batch)]
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"tests cannot be recorded:\n{done.stdout}")
        recorded = json.loads((folder / "recorded.json").read_text())
        for file in batch:
            tests = [test for test in recorded["tests"] if test["id"].split("::")[0] == file.as_posix()]
            known = {"digest": digest_of(file.read_text()), "sources": recorded["sources"], "tests": tests}
            kept[file].write_text(json.dumps(known))
    return [json.loads(kept[file].read_text()) for file in files]


def _is_current(kept: Path, file: Path) -> bool:
    return kept.is_file() and json.loads(kept.read_text())["digest"] == digest_of(file.read_text())


def digest_of(text: str) -> str:
    """Names a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _unpacked(text: str) -> frozenset[int]:
    bits = f"{int(text or '0', 16):b}"[::-1]
    return frozenset(line for line, bit in enumerate(bits) if bit == "1")
