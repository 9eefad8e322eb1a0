"""Small wrong changes of a room's source, one at a time: does a test see each?

A mutant has one comparison, sum, product, condition or small number changed; which, a seed decides.  It lives
in a copy of the checkout, and the given tests run there until one fails.  Prints one line per mutant, and the
share that was killed; exits 1 below --least.

python -m benchmarks mutants converter/quantise --tests tests/converter
python -m benchmarks mutants costmodel/nests costmodel/count --tests tests/costmodel --count 16
python -m benchmarks mutants converter/lower/images.py --tests tests/converter/test_operators.py --seed 3
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import command
from fadiff.errors import InputError

_ROOT = Path(__file__).parent.parent
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "benchmark-results", "site")
_SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_MOST = 16
"""Larger numbers are limits that no small test reaches."""


@dataclass(frozen=True)
class Mutant:
    """A changed source file."""

    path: Path
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(source)
    for place, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr) or not _change(copy.deepcopy(node)):
            continue
        changed = copy.deepcopy(tree)
        twin = next(other for i, other in enumerate(ast.walk(changed)) if i == place)
        _change(twin)
        yield Mutant(path, node.lineno, ast.unparse(node), ast.unparse(twin), ast.unparse(changed))


def _change(node: ast.AST) -> bool:
    """Change a node in place, if it is one of those that can be."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        node.ops[0] = _SWAPPED[type(node.ops[0])]()
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _SWAPPED:
        node.op = _SWAPPED[type(node.op)]()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= _MOST:
        node.value += 1
    else:
        return False
    return True


def _files(rooms: Sequence[Path]) -> list[Path]:
    found = [file for room in rooms for file in (sorted(room.rglob("*.py")) if room.is_dir() else [room])]
    if not found or not all(file.is_file() for file in found):
        raise InputError(f"no source in {', '.join(map(str, rooms))}")
    return [file.resolve().relative_to(_ROOT) for file in found]


def _fails(checkout: Path, tests: Sequence[str], timeout: float) -> bool:
    """Whether a test fails, or does not end, in a checkout."""
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            run,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main(arguments: list[str]) -> int:
    """Try mutants; 1 where too few are killed."""
    parser = command("mutants", __doc__)
    parser.add_argument("rooms", nargs="+", type=Path, help="folders or files of the checkout")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest runs, quickest first")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.85, help="share that must be killed (default: 0.85)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds of the tests of one mutant")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    found = [mutant for file in _files(options.rooms) for mutant in mutants(file, (_ROOT / file).read_text())]
    chosen = draw.sample(found, min(options.count, len(found)))
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(_ROOT, checkout, symlinks=True, ignore=_LEFT_OUT)
        if _fails(checkout, options.tests, options.timeout):
            raise InputError("the tests fail without any mutant")
        for mutant in chosen:
            (checkout / mutant.path).write_text(mutant.source)
            is_killed = _fails(checkout, options.tests, options.timeout)
            shutil.copyfile(_ROOT / mutant.path, checkout / mutant.path)
            killed += is_killed
            print(f"{'killed  ' if is_killed else 'SURVIVED'} {mutant}", flush=True)
    print(f"{killed} of {len(chosen)} killed, {len(found)} mutants are possible")
    return 0 if killed >= options.least * len(chosen) else 1
