"""Tests with the oldest and the newest NumPy, PyTorch and libraries of ONNX that pyproject.toml allows.

Each set of releases gets a virtual environment of its own in a temporary folder; whatever it does not have
comes from the environment that runs this.  PIP_EXTRA_INDEX_URL may name the index of PyTorch's CPU builds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.command import command

ROOT = Path(__file__).parent.parent
VARIED = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch")
TESTS = (
    *(
        f"tests/converter/test_{name}.py"
        for name in (
            *("cut", "decompose", "imported", "large_files", "load", "norms"),
            *("operators", "opsets", "states", "validate"),
        )
    ),
    "tests/fadiff/test_python.py",
    "tests/optimizer/test_auto.py",
)
"""What touches these libraries most, in a few minutes."""


def requirements(pyproject: Path = ROOT / "pyproject.toml") -> dict[str, dict[str, str]]:
    """Requirements of the varied packages by set of releases: `oldest` pinned to the floors, `newest` not."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    given = {re.split(r"[<>=!~ ]", line)[0]: line for line in listed}
    newest = {name: given[name] for name in VARIED}
    oldest = {name: re.sub(r">=([^,]*).*", r"==\1", line) for name, line in newest.items()}
    return {"oldest": oldest, "newest": newest}


def environment(folder: Path, wanted: Mapping[str, str]) -> Path:
    """A virtual environment with the wanted packages before those of this one; its interpreter.

    Raises:
        subprocess.CalledProcessError: pip cannot install them together.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quiet = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*quiet, *wanted.values()], check=True)
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (purelib / "the_rest.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return python


def tried(name: str, wanted: Mapping[str, str], arguments: Sequence[str]) -> bool:
    """Whether the tests pass with a set of releases."""
    with tempfile.TemporaryDirectory(prefix=f"fadiff-{name}-") as folder:
        python = environment(Path(folder), wanted)
        shown = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in %r), sep=', ')"
        subprocess.run([str(python), "-c", shown % (VARIED,)], check=True)
        run = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *(arguments or TESTS)]
        done = subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    return done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Try the sets of releases; 1 where tests fail with one of them."""
    parser = command("versions", __doc__)
    parser.add_argument("--only", choices=("oldest", "newest"), help="one set of releases")
    parser.add_argument(
        "tests", nargs="*", help="arguments of pytest, after -- (default: a fast part of the tests)"
    )
    options = parser.parse_args(arguments)
    sets = {name: wanted for name, wanted in requirements().items() if options.only in (None, name)}
    results = {name: tried(name, wanted, options.tests) for name, wanted in sets.items()}
    for name, passed in results.items():
        print(f"{name}: {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1
