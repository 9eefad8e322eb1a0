"""The pages that a newcomer follows run as they stand: `sh` and `python` blocks, in order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fadiff.folder import OutputFolder

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("quickstart", "from-a-quantised-file", "from-pytorch", "your-gemmini-params")
"""In the order of reading: later pages use files of earlier ones."""


def steps(page: str) -> list[tuple[str, str]]:
    """(language, text) of the blocks that are executed."""
    text = (DOCS / f"{page}.md").read_text()
    return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As after `make setup` and activating the environment; programs see this checkout."""
    programs = tmp_path_factory.mktemp("bin")
    for name, arguments in (("python", ""), ("fadiff", " -m fadiff")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        program.chmod(0o755)
    paths = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    return {**os.environ, **paths}


def test_what_the_pages_say_runs(environment: dict[str, str], tmp_path: Path) -> None:
    said = dict.fromkeys(PAGES, "")
    for page in PAGES:
        for language, text in steps(page):
            program = ["python", "-"] if language == "python" else ["sh", "-e"]
            ended = subprocess.run(
                program,
                input=text,
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == 0, f"docs/{page}.md:\n{text}\n{ended.stdout}{ended.stderr}"
            said[page] += ended.stdout
    right = dict(re.findall(r"^  (float|fadiff int8) +(\S+) %", said["quickstart"], re.MULTILINE))
    promised = dict(
        re.findall(r"^  (float|fadiff int8) +(\S+) %", (DOCS / "quickstart.md").read_text(), re.M)
    )
    assert right.keys() == promised.keys() == {"float", "fadiff int8"}
    assert all(abs(float(right[name]) - float(promised[name])) < 1.0 for name in right)
    assert float(right["fadiff int8"]) >= float(right["float"]) - 0.5 > 95
    assert "all outputs agree" in said["quickstart"]
    for folder in ("digits", "digits-qdq", "net"):
        assert OutputFolder(tmp_path / "build" / folder).document.totals.clock_cycles
    assert said["quickstart"].count("bit-exact") == 1 and "cycles" in said["quickstart"]
