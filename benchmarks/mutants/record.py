"""python -m benchmarks.mutants.record FOLDER TEST-FILE ...: runs tests, and writes what each of them runs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from benchmarks.mutants.reach import digest_of

PACKAGES = ("converter", "costmodel", "optimizer", "emitters", "emulator", "fadiff")


def _packed(lines: Iterable[int]) -> str:
    return f"{sum(1 << line for line in set(lines)):x}"


class _Recorder:
    """A plugin of pytest: every test and every fixture is a context of coverage."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self._context = ""

    def _switch(self, context: str) -> str:
        before, self._context = self._context, context
        self.measured.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        fixtures = getattr(item, "_fixtureinfo", None)
        asked = fixtures.name2fixturedefs.values() if fixtures else ()
        names = [f"fixture {id(fixture)}" for several in asked for fixture in several]
        self.tests[item.nodeid] = {"contexts": [item.nodeid, *names], "seconds": 0.0}
        self._switch(item.nodeid)
        result = yield
        self._switch("")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self._switch(f"fixture {id(fixturedef)}")
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid]["seconds"] += report.duration
        if report.failed:  # what fails anyway sees nothing
            self.failed.add(report.nodeid)


def record(root: Path, folder: Path, files: Sequence[str]) -> int:
    """Run test files, and write what each of their tests runs."""
    measured = coverage.Coverage(
        data_file=None, source=[str(root / package) for package in PACKAGES], config_file=False
    )
    recorder = _Recorder(measured)
    measured.start()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[recorder])
    measured.stop()
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    for name in recorder.failed:
        del recorder.tests[name]
        print(f"left out, as it fails without any mutant: {name}", file=sys.stderr)
    data, sources = measured.get_data(), {}
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    (folder / "sources").mkdir(exist_ok=True)
    for measured_file in data.measured_files():
        path, text = str(Path(measured_file).resolve().relative_to(root)), Path(measured_file).read_text()
        sources[path] = digest_of(text)
        (folder / "sources" / sources[path]).write_text(text)
        for line, contexts in data.contexts_by_lineno(measured_file).items():
            for context in contexts:
                lines[context][path].append(line)
    tests = []
    for name, test in recorder.tests.items():
        union: dict[str, set[int]] = defaultdict(set)
        for context in test["contexts"]:
            for path, own in lines[context].items():
                union[path] |= set(own)
        tests.append(
            {
                "id": name,
                "seconds": round(test["seconds"], 3),
                "lines": {path: _packed(own) for path, own in union.items()},
            }
        )
    (folder / "recorded.json").write_text(json.dumps({"sources": sources, "tests": tests}))
    return 0


if __name__ == "__main__":
    sys.exit(record(Path.cwd(), Path(sys.argv[1]), sys.argv[2:]))
