"""The package as `pip install` leaves it: built from a copy of the checkout, in an environment that has what
the package declares and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".*", "build", "__pycache__", "*.egg-info", "benchmark-results")


def copied(folder: Path) -> Path:
    """A copy of the checkout."""
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    return shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=ignored)


def editable(folder: Path) -> str:
    """What `pip install -e` would put on the path for a copy of the checkout: the text of its .pth file."""
    build = f"from setuptools import build_meta as b; b.build_editable({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copied(folder), check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as files:
        (path,) = (name for name in files.namelist() if name.endswith(".pth"))
        return files.read(path).decode().strip()


def built(folder: Path) -> Path:
    """The wheel, built from the sdist that is built from a copy of the checkout (as by `python -m build`)."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copied(folder))]
    subprocess.run(command, check=True, capture_output=True)
    assert list(folder.glob("*.tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel."""

    folder: Path

    @property
    def programs(self) -> Path:
        """Where `python` and `fadiff` are."""
        return self.folder / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """As after activating it: nothing of the checkout is on any path."""
        left = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**left, "PATH": f"{self.programs}:{os.environ['PATH']}", "PYTHON": "python"}

    def run(self, text: str, cwd: Path, language: str = "sh") -> str:
        """What a block of `sh` or `python` prints; it has to end well."""
        program = ["sh", "-e"] if language == "sh" else [str(self.programs / "python"), "-"]
        ended = subprocess.run(
            program, input=text, env=self.environment, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def follow(self, page: Path, cwd: Path) -> str:
        """What the `sh` and `python` blocks of a page print, one after the other."""
        found = re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        return "".join(self.run(text, cwd, language) for language, text in found)


def installed(folder: Path, wheel: Path, extras: str = "", others: tuple[str, ...] = ()) -> Installed:
    """The wheel in an environment of its own.

    The packages that it declares, and `others`, are links to those of this environment: nothing is loaded.
    """
    venv.create(folder, symlinks=True)
    here = Installed(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(here.programs / "python"), "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-warn-conflicts", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, str(wheel)], check=True, env=here.environment)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (own,) = Distribution.discover(name="fadiff", path=[str(packages)])
    wanted = [*(own.requires or ()), *others]
    for entry in sorted(_files(wanted, frozenset(filter(None, extras.split(","))))):
        link = packages / entry.name
        if not link.exists():
            link.symlink_to(entry)
    return here


def _files(requirements: list[str], extras: frozenset[str]) -> Iterator[Path]:
    """Folders and modules in site-packages of what is required, and of what that requires in turn."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(text, extras) for text in requirements]
    while waiting:
        text, asked = waiting.pop()
        wanted = Requirement(text)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in asked | {""}):
            continue
        name = canonicalize_name(wanted.name)
        key = (name, frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        if name == "fadiff":  # an extra that has others
            waiting += [(text, key[1]) for text in requirements]
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of another system or another Python, most often
            continue
        waiting += [(text, key[1]) for text in found.requires or ()]
        home = Path(str(found.locate_file("")))
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        yield from (home / top for top in tops if (home / top).exists())
